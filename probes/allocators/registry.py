"""The allocators by name: our own, and those that others add by the entry point group `pinprobe.allocators`.

To add one here, write a file beside this one and a line in `_OWN`.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib
import sys
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points

from pinprobe.probes.allocators.allocator import Allocator
from pinprobe.probes.errors import AllocatorUnavailable, BadRequest, PinprobeError, in_one_line

ENTRY_POINT_GROUP = "pinprobe.allocators"

_OWN = {
    "pageable": "pinprobe.probes.allocators.pageable:Pageable",
    "mlock": "pinprobe.probes.allocators.mlock:Mlock",
    "torch-host": "pinprobe.probes.allocators.torch_host:TorchHost",
    "torch": "pinprobe.probes.allocators.torch_pinned:TorchPinned",
    "registered": "pinprobe.probes.allocators.registered:Registered",
    "registered-memfd": "pinprobe.probes.allocators.registered:RegisteredMemfd",
    "registered-hugetlb": "pinprobe.probes.allocators.registered:RegisteredHugetlb",
    "cupy": "pinprobe.probes.allocators.cupy_pinned:CupyPinned",
}
_PARTS = ("name", "counter", "prepare", "notes", "allocated_bytes", "allocate", "empty_cache")
#: What `auto` tries, the most telling first.
AUTO_ORDER = ("torch", "torch-host", "mlock", "pageable")


@dataclass(frozen=True)
class Prepared:
    """An allocator that is ready, and why those before it in `auto`'s order were not to be had."""

    allocator: Allocator
    passed_over: tuple[tuple[str, AllocatorUnavailable], ...] = ()


def allocator_names() -> list[str]:
    """Return every known name, without loading any."""
    return [*_OWN, *sorted(_theirs())]


def prepare_allocator(name: str, largest_bytes: int) -> Prepared:
    """Make the allocator called `name`, or the best that `auto` finds, ready for requests of up to `largest_bytes`.

    Raises `BadRequest` for an unknown name, with the nearest known one, and `AllocatorUnavailable` where it can't be
    had.
    """
    check_name(name)
    if name != "auto":
        return Prepared(_prepare(name, largest_bytes))
    passed_over: list[tuple[str, AllocatorUnavailable]] = []
    for candidate in AUTO_ORDER[:-1]:
        try:
            return Prepared(_prepare(candidate, largest_bytes), tuple(passed_over))
        except AllocatorUnavailable as error:
            passed_over.append((candidate, error))
    return Prepared(_prepare(AUTO_ORDER[-1], largest_bytes), tuple(passed_over))


def check_name(name: str) -> None:
    """Raise `BadRequest` where no allocator is called that, with the nearest name that is known."""
    known = ["auto", *allocator_names()]
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"
        raise BadRequest(f"no allocator is called {name!r}; {hint}")


def _prepare(name: str, largest_bytes: int) -> Allocator:
    try:
        # A foreign class may print; stdout is data.
        with contextlib.redirect_stdout(sys.stderr):
            return _load(name).prepare(largest_bytes)
    except PinprobeError:
        raise
    except (Exception, SystemExit) as error:
        if name in _OWN:
            raise
        # Foreign code: whatever it raises, the answer is that this one is not to be had.
        raise AllocatorUnavailable(f"the allocator {name} can't be made ready: {in_one_line(error)}") from error


def _theirs() -> dict[str, EntryPoint]:
    return {
        entry.name: entry
        for entry in entry_points(group=ENTRY_POINT_GROUP)
        if entry.name.isprintable() and entry.name not in _OWN
    }


def _load(name: str) -> type[Allocator]:
    if name in _OWN:
        module, _, attribute = _OWN[name].partition(":")
        own: type[Allocator] = getattr(importlib.import_module(module), attribute)
        return own
    entry = _theirs()[name]
    try:
        loaded: type[Allocator] = entry.load()
    except (Exception, SystemExit) as error:
        reason = f"the allocator {name} ({entry.value}) can't be loaded: {in_one_line(error)}"
        raise AllocatorUnavailable(reason) from error
    missing = [part for part in _PARTS if not hasattr(loaded, part)]
    if missing:
        raise AllocatorUnavailable(f"the allocator {name} ({entry.value}) has no {missing[0]}")
    return loaded
