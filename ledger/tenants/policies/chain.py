"""`chain`: GreedyDual on what an entry spares beyond its nearest resident ancestor, dominated entries at a discount.

In a conversation each savepoint contains the one before. Where both are resident the later one spares the earlier one's
tokens too, so that the earlier is *dominated*: it is read only where the conversation branches. How much less it is
read is observed, not assumed.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field

from pinprobe.ledger.tenants.policies.lowest_first import LowestFirst
from pinprobe.ledger.tenants.policies.policy import HALVED_EVERY, KEPT, REFUSED, Decision, Key, Savepoint, checked_slots


@dataclass(eq=False, slots=True)
class _Entry:
    """A resident entry, between its nearest resident ancestor and the entries whose nearest it is."""

    key: Key
    tokens: int
    price: float
    ancestor: _Entry | None
    followers: dict[_Entry, None] = field(default_factory=dict)  # a set that keeps its order

    @property
    def marginal_tokens(self) -> int:
        return self.tokens - (self.ancestor.tokens if self.ancestor else 0)


class Chain:
    """The entry of least price + marginal tokens goes, the newcomer among them: it may be refused.

    The marginal tokens are worked out anew when the ancestor goes, since the entry then covers for it. Knows resident
    entries only: a savepoint that comes back is not put between its ancestor and its own descendants.
    """

    name = "chain"

    def __init__(self, slots: int) -> None:
        self.slots = checked_slots(slots)
        self._price = 0.0
        self._entries: dict[Key, _Entry] = {}
        self._worth: LowestFirst[Key] = LowestFirst()
        # Reads, and entries that could have been read, added up over requests: of leading and of dominated entries.
        # One of each is taken for granted.
        self._reads = [1.0, 1.0]
        self._chances = [1.0, 1.0]
        self._dominated_count = 0
        self._offers = 0

    @property
    def resident_count(self) -> int:
        """How many entries are resident."""
        return len(self._entries)

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    @property
    def discount(self) -> float:
        """How often a dominated entry is read for each read of a leading one, as observed; at most 1."""
        leading, dominated = (reads / chances for reads, chances in zip(self._reads, self._chances, strict=True))
        return min(1.0, dominated / leading)

    def read(self, key: Key, now_seconds: float) -> None:
        """Value it by the price of today."""
        entry = self._entries[key]
        self._reads[bool(entry.followers)] += 1
        entry.price = self._price
        self._rank(entry)

    def offer(self, savepoint: Savepoint, now_seconds: float, held: Container[Key] = ()) -> Decision:
        """Put it beside the others, and let the least of all go where there are too many."""
        self._count_chances()
        if savepoint.key in self._entries:
            return KEPT
        newcomer = self._enter(savepoint)
        if len(self._entries) <= self.slots:
            return KEPT
        evicted = self.evict(now_seconds, held)
        if evicted is None:  # all are held, what the newcomer's key stood for before among them
            self.remove(newcomer.key)
        if evicted in (None, newcomer.key):
            return REFUSED
        return Decision(is_kept=True, evicted=evicted, forgotten=evicted)

    def evict(self, now_seconds: float, held: Container[Key] = ()) -> Key | None:
        """Let the entry of least worth go; its worth is the price from here on."""
        lowest = self._worth.lowest(held)
        if lowest is None:
            return None
        worth, key = lowest
        self._price = max(self._price, worth)  # what was held may have kept its place below the price
        self.remove(key)
        return key

    def next_to_go(self, now_seconds: float, held: Container[Key] = ()) -> Key | None:
        """Say which entry is of least worth."""
        lowest = self._worth.lowest(held)
        return None if lowest is None else lowest[1]

    def remove(self, key: Key) -> None:
        """Take it out; its followers stand on its ancestor from here on, and are valued anew, as the ancestor is."""
        entry = self._entries.pop(key, None)
        if entry is None:
            return
        self._worth.remove(key)
        self._dominated_count -= bool(entry.followers)
        for follower in entry.followers:
            follower.ancestor = entry.ancestor
            self._rank(follower)
        if entry.ancestor is not None:
            del entry.ancestor.followers[entry]
            entry.ancestor.followers.update(entry.followers)
            self._dominated_count -= not entry.ancestor.followers
            self._rank(entry.ancestor)

    def _enter(self, savepoint: Savepoint) -> _Entry:
        ancestor = None if savepoint.parent is None else self._entries[savepoint.parent]
        entry = self._entries[savepoint.key] = _Entry(savepoint.key, savepoint.tokens, self._price, ancestor)
        if ancestor is not None:
            self._dominated_count += not ancestor.followers
            ancestor.followers[entry] = None
            self._rank(ancestor)
        self._rank(entry)
        return entry

    def _rank(self, entry: _Entry) -> None:
        discount = self.discount if entry.followers else 1.0
        self._worth.put(entry.key, entry.price + entry.marginal_tokens * discount)

    def _count_chances(self) -> None:
        self._chances[False] += len(self._entries) - self._dominated_count
        self._chances[True] += self._dominated_count
        self._offers += 1
        if self._offers % HALVED_EVERY == 0:
            self._reads = [count / 2 for count in self._reads]
            self._chances = [count / 2 for count in self._chances]
