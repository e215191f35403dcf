"""What the measuring commands share: making an allocator ready with a word on what was missing, and progress."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence

from pinprobe.cli.options import Output
from pinprobe.probes.allocators.allocator import Allocator
from pinprobe.probes.allocators.registry import prepare_allocator
from pinprobe.probes.sweep import Point


def invocation() -> list[str]:
    """Return the command as it was typed, for the receipt."""
    return ["pinprobe", *sys.argv[1:]]


def prepare(name: str, largest_bytes: int, output: Output) -> Allocator:
    """Make an allocator ready; where `auto` takes a lesser one, say what is missing and what brings it."""
    prepared = prepare_allocator(name, largest_bytes)
    for passed_over, error in prepared.passed_over:
        output.tell(f"pinprobe: {passed_over} is not to be had here: {error}")
    if prepared.passed_over:
        output.tell(f"pinprobe: measured {prepared.allocator.name} instead")
    return prepared.allocator


@contextlib.contextmanager
def progress(name: str, slots: Sequence[int], output: Output) -> Iterator[Callable[[Point], None]]:
    """Show how far a sweep is, on a terminal and only there."""
    if output.quiet or not sys.stderr.isatty():
        yield lambda point: None
        return
    from rich.console import Console

    console = Console(stderr=True)
    with console.status(f"{name}: control") as status:
        done = 0

        def watch(point: Point) -> None:
            nonlocal done
            done += 1
            status.update(f"{name}: {point.slots} slots {point.state.value} ({done} of {len(slots)} points)")

        yield watch
