"""The allocators by name: our own, and those that others add by the entry point group `pinprobe.allocators`.

To add one here, write a file beside this one and a line in `_OWN`.
"""

from __future__ import annotations

import difflib
import importlib
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points

from pinprobe.probes.allocators.allocator import Allocator
from pinprobe.probes.errors import AllocatorUnavailable, BadRequest

ENTRY_POINT_GROUP = "pinprobe.allocators"

_OWN = {
    "pageable": "pinprobe.probes.allocators.pageable:Pageable",
    "mlock": "pinprobe.probes.allocators.mlock:Mlock",
    "torch-host": "pinprobe.probes.allocators.torch_host:TorchHost",
}
#: What `auto` tries, the most telling first.
AUTO_ORDER = ("torch-host", "mlock", "pageable")


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
    if name != "auto":
        return Prepared(_load(name).prepare(largest_bytes))
    passed_over: list[tuple[str, AllocatorUnavailable]] = []
    for candidate in AUTO_ORDER[:-1]:
        try:
            return Prepared(_load(candidate).prepare(largest_bytes), tuple(passed_over))
        except AllocatorUnavailable as error:
            passed_over.append((candidate, error))
    return Prepared(_load(AUTO_ORDER[-1]).prepare(largest_bytes), tuple(passed_over))


def _theirs() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=ENTRY_POINT_GROUP) if entry.name not in _OWN}


def _load(name: str) -> type[Allocator]:
    if name in _OWN:
        module, _, attribute = _OWN[name].partition(":")
        own: type[Allocator] = getattr(importlib.import_module(module), attribute)
        return own
    theirs = _theirs()
    if name not in theirs:
        known = ["auto", *_OWN, *sorted(theirs)]
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"
        raise BadRequest(f"no allocator is called {name!r}; {hint}")
    try:
        loaded: type[Allocator] = theirs[name].load()
    except Exception as error:  # foreign code: whatever it raises, the answer is that this one is not to be had
        raise AllocatorUnavailable(f"the allocator {name} ({theirs[name].value}) can't be loaded: {error}") from error
    missing = [
        part for part in ("name", "counter", "prepare", "notes", "allocate", "empty_cache") if not hasattr(loaded, part)
    ]
    if missing:
        raise AllocatorUnavailable(f"the allocator {name} ({theirs[name].value}) has no {missing[0]}")
    return loaded
