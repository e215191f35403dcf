"""The ledger's arithmetic: who reserved what, what is pending, what is kept, and the sums.

No kernel is asked here and no lock is held.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from pinprobe.ledger.admission import Request
from pinprobe.ledger.mapping_book import MappingBook, Share
from pinprobe.probes.backing import Backing
from pinprobe.probes.reading import Amount


@dataclass(frozen=True)
class Entry:
    """One reservation as it was booked.

    `unseen_bytes` is booked beside its shares of mappings: what was asked and shows no address, or what the process
    grew by where nothing showed one. `grown_bytes` of that are known to be in VmRSS, `taken_over_bytes` of those since
    an earlier owner.
    """

    owner: str
    asked_bytes: int
    allocator: str
    detail: str
    pageable: bool
    unseen_bytes: int
    grown_bytes: int
    growth: Amount
    evidence: str
    measured: bool
    taken_over_bytes: int = 0

    @property
    def group(self) -> Group:
        """What it is summed up by."""
        return Group(self.owner, self.pageable)


class Group(NamedTuple):
    """Entries that differ in size alone, to whoever looks from outside."""

    owner: str
    pageable: bool


@dataclass(frozen=True, slots=True)
class Sum:
    """How many entries a group has, what they asked in all, and what is booked for them."""

    entries: int
    asked_bytes: int
    booked_bytes: int


@dataclass(frozen=True)
class Pending:
    """A request that was admitted and whose memory is being taken.

    `cost_bytes` is its price, or 0 where `reuses` a block that its allocator keeps, which is in the book already.
    """

    request: Request
    reuses: bool

    @property
    def cost_bytes(self) -> int:
        """What it is expected to add to the book."""
        return 0 if self.reuses else self.request.price.bytes


class Records:
    """Everything that the ledger of one process holds. Not for several threads at once."""

    def __init__(self) -> None:
        self.mappings = MappingBook()
        self.entries: dict[int, Entry] = {}
        self.pending: dict[int, Pending] = {}
        #: Opaque memory that its owners gave back and the process did not shrink by.
        self.kept_unseen_bytes = 0
        self.peak_bytes = 0
        self._unseen_bytes = 0
        self._grown_bytes = 0
        # Without their shares of mappings, which change with what others hold of those.
        self._sums: dict[Group, Sum] = {}

    @property
    def booked_bytes(self) -> int:
        """What is reserved or retained: the sum of those rows."""
        return self.mappings.total_bytes + self._unseen_bytes + self.kept_unseen_bytes

    @property
    def retained_bytes(self) -> int:
        """What owners gave back and is resident still."""
        return self.mappings.idle_bytes + self.kept_unseen_bytes

    @property
    def explained_bytes(self) -> int:
        """How much of VmRSS is accounted for by what is booked."""
        return self.mappings.in_rss_bytes + self._grown_bytes + self.kept_unseen_bytes

    def pending_bytes(self, from_pool: bool | None = None) -> int:
        """What pending requests are expected to take: all, or those from the huge page pool, or the others."""
        return sum(
            pending.cost_bytes
            for pending in self.pending.values()
            if from_pool is None or pending.request.from_pool == from_pool
        )

    def can_reuse(self, request: Request, is_there: Callable[[Backing], bool]) -> bool:
        """Say whether an allocator keeps a block that would serve a request, and that no other request waits for.

        What nobody named an allocator for may be anything, also memory that somebody else still uses.
        With a price, it has to be of just that size: allocators keep a list for each size. Without one, a block up to
        twice as large as the ask is taken to fit. Blocks are asked about, `is_there`, until enough of them are; one
        that is not may be dropped.
        """
        if not request.allocator:
            return False
        smallest = request.price.bytes
        largest = smallest if request.price.known != "the ask" else max(2 * smallest, 2 * 2**20)
        waiting = sum(p.reuses and p.request.allocator == request.allocator for p in self.pending.values())
        kept = filter(is_there, self.mappings.kept_blocks(request.allocator, smallest, largest))
        return any(earlier == waiting for earlier, _ in enumerate(kept))

    def add(self, number: int, entry: Entry, parts: Iterable[tuple[Backing, int]]) -> tuple[Backing, ...]:
        """Turn a pending request into an entry; return the mappings that were not in the book before."""
        self.pending.pop(number, None)
        new = self.mappings.hold(number, parts, entry.allocator, entry.group)
        self.entries[number] = entry
        self._count(entry, +1)
        self._unseen_bytes += entry.unseen_bytes
        self._grown_bytes += entry.grown_bytes
        self.kept_unseen_bytes -= entry.taken_over_bytes
        self.peak_bytes = max(self.peak_bytes, self.booked_bytes)
        return new

    def remove(self, number: int, kept_bytes: int = 0) -> tuple[Backing, ...]:
        """Strike an entry; return the mappings that are idle now.

        `kept_bytes` of what showed no address are still there.
        """
        entry = self.entries.pop(number)
        self._count(entry, -1)
        self._unseen_bytes -= entry.unseen_bytes
        self._grown_bytes -= entry.grown_bytes
        self.kept_unseen_bytes += kept_bytes
        return self.mappings.let_go(number)

    def booked_for(self, number: int) -> int:
        """Return what is booked for one entry, 0 where there is none."""
        entry = self.entries.get(number)
        return 0 if entry is None else self.mappings.share_bytes(number) + entry.unseen_bytes

    def sums(self) -> dict[Group, Sum]:
        """Return what is booked by group. Costs as much as there are groups."""
        return {
            group: Sum(own.entries, own.asked_bytes, own.booked_bytes + self.mappings.group_bytes(group))
            for group, own in self._sums.items()
        }

    def _count(self, entry: Entry, sign: int) -> None:
        own = self._sums.get(entry.group, Sum(0, 0, 0))
        own = Sum(
            own.entries + sign,
            own.asked_bytes + sign * entry.asked_bytes,
            own.booked_bytes + sign * entry.unseen_bytes,
        )
        self._sums[entry.group] = own
        if not own.entries:
            del self._sums[entry.group]

    def shares(self) -> Mapping[int, list[Share]]:
        """Return every entry's shares of mappings."""
        return self.mappings.all_shares()
