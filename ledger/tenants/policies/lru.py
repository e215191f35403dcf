"""`lru`: the least recently used entry goes. What every other policy has to beat."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container

from pinprobe.ledger.tenants.policies.policy import KEPT, REFUSED, Decision, Key, Savepoint, checked_slots


class Lru:
    """Keeps every newcomer; what was neither read nor offered for longest goes for it. Knows resident entries only."""

    name = "lru"

    def __init__(self, slots: int) -> None:
        self.slots = checked_slots(slots)
        self._entries: OrderedDict[Key, None] = OrderedDict()  # the least recently used first

    @property
    def resident_count(self) -> int:
        """How many entries are resident."""
        return len(self._entries)

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def read(self, key: Key, now_seconds: float) -> None:
        """Make it the most recently used one."""
        self._entries.move_to_end(key)

    def offer(self, savepoint: Savepoint, now_seconds: float, held: Container[Key] = ()) -> Decision:
        """Keep it, unless all others are held."""
        evicted = None
        if savepoint.key not in self._entries and len(self._entries) >= self.slots:
            evicted = self.evict(now_seconds, held)
            if evicted is None:
                return REFUSED
        self._entries[savepoint.key] = None
        self._entries.move_to_end(savepoint.key)
        return KEPT if evicted is None else Decision(is_kept=True, evicted=evicted, forgotten=evicted)

    def evict(self, now_seconds: float, held: Container[Key] = ()) -> Key | None:
        """Let the least recently used entry go that is not held."""
        key = self.next_to_go(now_seconds, held)
        if key is not None:
            del self._entries[key]
        return key

    def next_to_go(self, now_seconds: float, held: Container[Key] = ()) -> Key | None:
        """Say which entry is the least recently used that is not held."""
        return next((key for key in self._entries if key not in held), None)

    def remove(self, key: Key) -> None:
        """Forget it."""
        self._entries.pop(key, None)
