"""The other end of a `MeasuringChild`: what runs in the fresh process."""

from __future__ import annotations

import pickle
import resource
from typing import Any, cast

from pinprobe.probes.allocators.allocator import Allocation, Allocator
from pinprobe.probes.allocators.pageable import Pageable
from pinprobe.probes.cost import Cost
from pinprobe.probes.counters import read_mapped, read_statm
from pinprobe.probes.errors import AllocationFailed, CouldNotMeasure, printable
from pinprobe.probes.host_tree import THIS_HOST
from pinprobe.probes.measure import Measurer
from pinprobe.probes.reading import Unreadable

# The inaccessible pages around a block, of 64 KiB at the most, and the rounding of the ask to such pages.
_GUARDS_BYTES = 4 * 2**16
# What the interpreter itself may take for its readings, and does not count as taken by an allocator.
_INTERPRETER_BYTES = 2**20


class MeasuringServer:
    """The calls a parent may make, with one allocator and one held allocation."""

    def __init__(self) -> None:
        self._allocator: Allocator | None = None
        self._held: Allocation | None = None

    def start(self, pickled_allocator: bytes) -> tuple[str, ...]:
        """Make the allocator ready and return its notes. Pickled, so that one that breaks on arrival is told too."""
        allocator: Allocator = pickle.loads(pickled_allocator)
        self._allocator = allocator
        self._measurer = Measurer(THIS_HOST)
        notes: object = allocator.notes()
        self._resident_when_ready = read_statm(THIS_HOST)
        return tuple(map(printable, notes)) if isinstance(notes, (tuple, list)) else (printable(notes),)

    def measure(self, asked_bytes: int, limit_bytes: int | None, control: bool) -> Cost:
        """Allocate and measure, in the place of what was held."""
        self.release()
        allocator: Allocator | None = Pageable() if control else self._allocator
        if allocator is None:
            raise CouldNotMeasure("the measuring process was not started with an allocator")
        if limit_bytes is None:
            self._held, cost = self._measurer.measure(allocator, asked_bytes)
            return cost
        # Not refused by size here: what the allocator keeps may serve it, and takes nothing.
        bounded = cast(Allocator, _Bounded(allocator, max(0, limit_bytes - self._taken())))
        self._held, cost = self._measurer.measure(bounded, asked_bytes)
        if self._taken() > limit_bytes + _INTERPRETER_BYTES:
            # Memory that was mapped before can be made resident without a mapping that the kernel could refuse.
            self.release()
            raise CouldNotMeasure(f"{allocator.name} took {self._taken():,} B where {limit_bytes:,} B were allowed")
        return cost

    def _taken(self) -> int:
        """How much more is resident than when the allocator was ready: what is held, kept, leaked or freed late."""
        now, ready = read_statm(THIS_HOST), self._resident_when_ready
        if isinstance(now, Unreadable) or isinstance(ready, Unreadable):
            raise CouldNotMeasure(f"the limit can't be kept: {now if isinstance(now, Unreadable) else ready}")
        taken = now.bytes - ready.bytes
        return taken if taken > _INTERPRETER_BYTES else 0

    def release(self) -> None:
        """Give the held allocation back."""
        held, self._held = self._held, None
        if held is not None:
            held.release()

    def empty_cache(self) -> None:
        """Have the allocator give back what it keeps."""
        if self._allocator is not None:
            self._allocator.empty_cache()


class _Bounded:
    """An allocator that the kernel lets map no more than a limit in one request, and so can't misjudge it.

    The limit is in force during the request alone: what the readings around it take is another matter.
    """

    def __init__(self, allocator: Allocator, limit_bytes: int) -> None:
        self._allocator = allocator
        self._limit_bytes = limit_bytes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._allocator, name)

    def allocate(self, asked_bytes: int) -> Allocation:
        mapped = read_mapped(THIS_HOST)
        if isinstance(mapped, Unreadable):
            raise CouldNotMeasure(f"the limit can't be set: {mapped}")
        before = resource.getrlimit(resource.RLIMIT_AS)
        wanted = mapped.bytes + self._limit_bytes + _GUARDS_BYTES
        soft = wanted if before[0] == resource.RLIM_INFINITY else min(wanted, before[0])
        resource.setrlimit(resource.RLIMIT_AS, (soft, before[1]))
        try:
            return self._allocator.allocate(asked_bytes)
        except AllocationFailed as error:
            if error.no_address_space and soft != wanted:
                # Not our limit but the one this process was started with: that is no planned end of a walk.
                raise AllocationFailed(f"{error} under RLIMIT_AS (`ulimit -v` of this shell)") from None
            raise
        finally:
            resource.setrlimit(resource.RLIMIT_AS, before)
