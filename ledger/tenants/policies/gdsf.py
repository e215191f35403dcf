"""`gdsf`: GreedyDual with frequency: an entry is worth its tokens by the number of its reads, and ages by the price.

Cherkasova's GreedyDual-Size-Frequency, where all entries take the same bytes and the cost of a miss is the prefill of
an entry's tokens. The price is the worth of the last entry that went: what is read afterwards counts from there on, so
that old merit fades without a walk over the entries.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

from pinprobe.ledger.tenants.policies.lowest_first import LowestFirst
from pinprobe.ledger.tenants.policies.policy import KEPT, REFUSED, Decision, Key, Savepoint, checked_slots


@dataclass(slots=True)
class _Entry:
    tokens: int
    uses: int = 1


class Gdsf:
    """Keeps every newcomer; the entry of the least price + uses x tokens goes for it. Knows resident entries only."""

    name = "gdsf"

    def __init__(self, slots: int) -> None:
        self.slots = checked_slots(slots)
        self._price = 0.0
        self._entries: dict[Key, _Entry] = {}
        self._worth: LowestFirst[Key] = LowestFirst()

    @property
    def resident_count(self) -> int:
        """How many entries are resident."""
        return len(self._entries)

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def read(self, key: Key, now_seconds: float) -> None:
        """Count a use, and value it by the price of today."""
        entry = self._entries[key]
        entry.uses += 1
        self._worth.put(key, self._price + entry.uses * entry.tokens)

    def offer(self, savepoint: Savepoint, now_seconds: float, held: Container[Key] = ()) -> Decision:
        """Keep it, unless all others are held."""
        if savepoint.key in self._entries:
            return KEPT
        evicted = None
        if len(self._entries) >= self.slots:
            evicted = self.evict(now_seconds, held)
            if evicted is None:
                return REFUSED
        self._entries[savepoint.key] = _Entry(savepoint.tokens)
        self._worth.put(savepoint.key, self._price + savepoint.tokens)
        return KEPT if evicted is None else Decision(is_kept=True, evicted=evicted, forgotten=evicted)

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
        """Forget it."""
        self._entries.pop(key, None)
        self._worth.remove(key)
