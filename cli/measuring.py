"""What the measuring commands share: making an allocator ready with a word on what was missing, and progress."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable, Iterator

from pinprobe.cli.options import Output
from pinprobe.probes.allocators.allocator import Allocator
from pinprobe.probes.allocators.registry import prepare_allocator
from pinprobe.probes.errors import NoAccelerator, printable
from pinprobe.probes.host_facts import HostFacts
from pinprobe.probes.reading import Unreadable


def invocation() -> list[str]:
    """Return the command as it was typed, for the receipt."""
    return ["pinprobe", *map(printable, sys.argv[1:])]


def prepare(name: str, largest_bytes: int, output: Output) -> Allocator:
    """Make an allocator ready; where `auto` takes a lesser one, say in a line what is missing and what brings it.

    That a machine has no accelerator is no news to its user, and nothing would bring one.
    """
    with progress(f"making {name} ready", output):
        prepared = prepare_allocator(name, largest_bytes)
    reasons = [f"{other}: {error}" for other, error in prepared.passed_over if not isinstance(error, NoAccelerator)]
    if reasons:
        output.tell(
            f"pinprobe: measuring {prepared.allocator.name}, since these are not to be had: {' | '.join(reasons)}"
        )
    return prepared.allocator


def tell_blind_spots(host: HostFacts, output: Output) -> None:
    """Say which bounds of the headroom can't be read: what is allowed may then be more than there is.

    Where none can be read there is no headroom at all, and its own error says so.
    """
    if isinstance(host.headroom.available, Unreadable):
        return
    for source in host.headroom.sources:
        if isinstance(source.available, Unreadable):
            output.tell(f"pinprobe: {source.name}: {source.available}; --at-most bounds what is taken")


def tell_what_is_logged(output: Output) -> None:
    """Have what a ledger logs told like any remark."""

    class Told(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            output.tell(f"pinprobe: {record.getMessage()}")

    logger = logging.getLogger("pinprobe")
    logger.addHandler(Told())
    logger.propagate = False


@contextlib.contextmanager
def progress(what: str, output: Output) -> Iterator[Callable[[str], None]]:
    """Show what is being done, on a terminal and only there; yields a function that says what comes next."""
    if output.quiet or sys.stderr is None or not sys.stderr.isatty():
        yield lambda step: None
        return
    from rich.console import Console

    with Console(stderr=True).status(what) as status:
        yield lambda step: status.update(f"{what}: {step}")
