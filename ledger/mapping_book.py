"""Every mapping once: who holds parts of which, and how its bytes are shared out.

A mapping counts whole as long as anybody holds a byte of it, since it stays resident whole; and while it is idle, since
its allocator keeps it. The holders' shares add up to it exactly, in proportion to the bytes they hold, so that ten
small tensors in one mapping of 2 MiB book 2 MiB and not twenty. Where they hold more than there is (two owners of one
tensor), each has what he holds.

Pages of a larger mapping (a small array in the heap) are shared by those who hold just these pages, and forgotten with
the last of them: whether malloc kept them is not to be seen, and if it did they are growth of the process that no row
explains.

Knows no kernel, no lock and no owner's name. A change costs the same however many hold parts of a mapping.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from pinprobe.probes.backing import Backing


@dataclass
class _Unit:
    backing: Backing
    allocator: str
    parts: dict[int, int] = field(default_factory=dict)
    parts_bytes: int = 0

    @property
    def booked_bytes(self) -> int:
        return max(self.backing.size_bytes, self.parts_bytes)

    def shares(self) -> dict[int, int]:
        """Split the whole among its holders: in proportion, and what division leaves over to the last."""
        whole = self.booked_bytes
        shares = {holder: whole * part // self.parts_bytes for holder, part in self.parts.items()}
        if shares:
            last = next(reversed(shares))
            shares[last] += whole - sum(shares.values())
        return shares


@dataclass(frozen=True, slots=True)
class Share:
    """A holder's part of a mapping: `bytes` of the `whole_bytes` that are booked for it."""

    backing: Backing
    bytes: int
    whole_bytes: int


class MappingBook:
    """The mappings behind all reservations, held and idle. Not for several threads at once."""

    def __init__(self) -> None:
        self._units: dict[Backing, _Unit] = {}
        self._held: dict[int, list[Backing]] = {}
        self._idle: dict[Backing, _Unit] = {}
        #: What is booked for all mappings, held and idle.
        self.total_bytes = 0
        #: What is booked for those that nobody holds.
        self.idle_bytes = 0
        #: The size of everything here that counts in VmRSS.
        self.in_rss_bytes = 0

    def hold(self, holder: int, parts: Iterable[tuple[Backing, int]], allocator: str) -> tuple[Backing, ...]:
        """Give a holder bytes of mappings; return those that were not in the book before."""
        new = []
        held = self._held.setdefault(holder, [])
        for backing, part_bytes in parts:
            unit = self._units.get(backing)
            if unit is None:
                unit = self._units[backing] = _Unit(backing, allocator)
                new.append(backing)
                self.total_bytes += unit.booked_bytes
                self.in_rss_bytes += backing.size_bytes if backing.in_rss else 0
            elif self._idle.pop(backing, None) is not None:
                self.idle_bytes -= unit.booked_bytes
            self.total_bytes -= unit.booked_bytes
            unit.allocator = allocator
            unit.parts[holder] = unit.parts.get(holder, 0) + part_bytes
            unit.parts_bytes += part_bytes
            self.total_bytes += unit.booked_bytes
            if backing not in held:
                held.append(backing)
        return tuple(new)

    def new_bytes(self, parts: Iterable[tuple[Backing, int]]) -> int:
        """Return the size of those mappings that are not in the book."""
        backings = {backing for backing, _ in parts}
        return sum(backing.size_bytes for backing in backings if backing not in self._units)

    def let_go(self, holder: int) -> tuple[Backing, ...]:
        """Take everything from a holder; return the mappings that nobody holds any more, which stay in the book."""
        idle = []
        for backing in self._held.pop(holder, []):
            unit = self._units[backing]
            self.total_bytes -= unit.booked_bytes
            unit.parts_bytes -= unit.parts.pop(holder)
            self.total_bytes += unit.booked_bytes
            if unit.parts:
                continue
            if backing.whole:
                self._idle[backing] = unit
                self.idle_bytes += unit.booked_bytes
                idle.append(backing)
            else:
                self._forget(backing)
        return tuple(idle)

    def drop(self, backing: Backing) -> None:
        """Strike a mapping that is gone, if nobody holds it."""
        unit = self._idle.pop(backing, None)
        if unit is not None:
            self.idle_bytes -= unit.booked_bytes
            self._forget(backing)

    def _forget(self, backing: Backing) -> None:
        self.total_bytes -= self._units.pop(backing).booked_bytes
        self.in_rss_bytes -= backing.size_bytes if backing.in_rss else 0

    @property
    def backings(self) -> tuple[Backing, ...]:
        """Everything in the book."""
        return tuple(self._units)

    @property
    def idle(self) -> tuple[tuple[Backing, str], ...]:
        """The mappings that nobody holds, each with the allocator that served it last."""
        return tuple((backing, unit.allocator) for backing, unit in self._idle.items())

    def kept_blocks(self, allocator: str, smallest_bytes: int, largest_bytes: int) -> int:
        """Count the idle mappings of a size between these two that an allocator keeps."""
        return sum(
            kept_by == allocator and smallest_bytes <= backing.size_bytes <= largest_bytes
            for backing, kept_by in self.idle
        )

    def share_bytes(self, holder: int) -> int:
        """Return what is booked for a holder, over all his mappings."""
        return sum(self._units[backing].shares()[holder] for backing in self._held.get(holder, []))

    def all_shares(self) -> dict[int, list[Share]]:
        """Return every holder's shares. Costs as much as there are."""
        found: dict[int, list[Share]] = {holder: [] for holder in self._held}
        for unit in self._units.values():
            for holder, share_bytes in unit.shares().items():
                found[holder].append(Share(unit.backing, share_bytes, unit.booked_bytes))
        return found
