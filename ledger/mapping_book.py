"""Every mapping once: who holds parts of which, and how its bytes are shared out.

A mapping counts whole as long as anybody holds a byte of it, since it stays resident whole; and while it is idle, since
its allocator keeps it. The holders' shares add up to it exactly, in proportion to the bytes they hold, so that ten
small tensors in one mapping of 2 MiB book 2 MiB and not twenty. Where they hold more than there is (two owners of one
tensor), each has what he holds.

Pages of a larger mapping (a small array in the heap) are shared by those who hold just these pages, and forgotten with
the last of them: whether malloc kept them is not to be seen, and if it did they are growth of the process that no row
explains.

Holders come in groups, which have sums of their own. Knows no kernel, no lock and no owner's name. A change costs the
same however many hold parts of a mapping; what it costs grows with their groups.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from pinprobe.probes.backing import Backing

K = TypeVar("K")


@dataclass
class _Unit:
    backing: Backing
    allocator: str
    parts: dict[int, int] = field(default_factory=dict)
    parts_bytes: int = 0
    group_parts: dict[Hashable, int] = field(default_factory=dict)

    @property
    def booked_bytes(self) -> int:
        return max(self.backing.size_bytes, self.parts_bytes)

    def shares(self) -> dict[int, int]:
        """Split the whole among its holders: in proportion, and what division leaves over to the first."""
        return self._split(self.parts)

    def share(self, holder: int) -> int:
        """Return one holder's share, for less than all of them."""
        if holder == next(iter(self.parts)):
            return self.shares()[holder]
        return self.booked_bytes * self.parts[holder] // self.parts_bytes

    def group_shares(self) -> dict[Hashable, int]:
        """Split the whole among the groups of its holders, in the same way."""
        return self._split(self.group_parts)

    def _split(self, parts: Mapping[K, int]) -> dict[K, int]:
        whole = self.booked_bytes
        if len(parts) == 1:
            return dict.fromkeys(parts, whole)
        shares = {key: whole * part // self.parts_bytes for key, part in parts.items()}
        if shares:
            shares[next(iter(shares))] += whole - sum(shares.values())
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
        self._group_of: dict[int, Hashable] = {}
        self._group_bytes: dict[Hashable, int] = {}
        self._idle: dict[Backing, _Unit] = {}
        #: What is booked for all mappings, held and idle.
        self.total_bytes = 0
        #: What is booked for those that nobody holds.
        self.idle_bytes = 0
        #: The size of everything here that counts in VmRSS.
        self.in_rss_bytes = 0

    def hold(
        self, holder: int, parts: Iterable[tuple[Backing, int]], allocator: str, group: Hashable = None
    ) -> tuple[Backing, ...]:
        """Give a holder bytes of mappings; return those that were not in the book before.

        A holder is of the group that it was first given something in.
        """
        new = []
        held = self._held.setdefault(holder, [])
        group = self._group_of.setdefault(holder, group)
        for backing, part_bytes in parts:
            unit = self._units.get(backing)
            if unit is None:
                unit = self._units[backing] = _Unit(backing, allocator)
                new.append(backing)
                self.in_rss_bytes += backing.size_bytes if backing.in_rss else 0
            else:
                self._count(unit, -1)
                if self._idle.pop(backing, None) is not None:
                    self.idle_bytes -= unit.booked_bytes
            unit.allocator = allocator
            unit.parts[holder] = unit.parts.get(holder, 0) + part_bytes
            unit.group_parts[group] = unit.group_parts.get(group, 0) + part_bytes
            unit.parts_bytes += part_bytes
            self._count(unit, +1)
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
        group = self._group_of.pop(holder, None)
        for backing in self._held.pop(holder, []):
            unit = self._units[backing]
            self._count(unit, -1)
            part_bytes = unit.parts.pop(holder)
            unit.parts_bytes -= part_bytes
            unit.group_parts[group] -= part_bytes
            if not unit.group_parts[group]:
                del unit.group_parts[group]
            self._count(unit, +1)
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

    def _count(self, unit: _Unit, sign: int) -> None:
        """Add a mapping to the sums, or take it out of them before it changes."""
        self.total_bytes += sign * unit.booked_bytes
        for group, share_bytes in unit.group_shares().items():
            left = self._group_bytes.get(group, 0) + sign * share_bytes
            if left:
                self._group_bytes[group] = left
            else:
                self._group_bytes.pop(group, None)

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

    def kept_blocks(self, allocator: str, smallest_bytes: int, largest_bytes: int) -> Iterator[Backing]:
        """Yield the idle mappings of a size between these two that an allocator keeps; each may be dropped then."""
        for backing, unit in list(self._idle.items()):
            if unit.allocator == allocator and smallest_bytes <= backing.size_bytes <= largest_bytes:
                yield backing

    def share_bytes(self, holder: int) -> int:
        """Return what is booked for a holder, over all his mappings."""
        return sum(self._units[backing].share(holder) for backing in self._held.get(holder, []))

    def group_bytes(self, group: Hashable) -> int:
        """Return what is booked for the holders of a group: their shares, but for what divisions leave over."""
        return self._group_bytes.get(group, 0)

    def all_shares(self) -> dict[int, list[Share]]:
        """Return every holder's shares. Costs as much as there are."""
        found: dict[int, list[Share]] = {holder: [] for holder in self._held}
        for unit in self._units.values():
            for holder, share_bytes in unit.shares().items():
                found[holder].append(Share(unit.backing, share_bytes, unit.booked_bytes))
        return found
