"""The tiers of an arm without a pool: the ring's own slots, until they are handed out again."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pinprobe.ledger.replay.tiers import Found, Prefix
from pinprobe.ledger.tenants.savepoint_ring import SavepointRing, Ticket

if TYPE_CHECKING:
    import torch


class SlotsAlone:
    """Remembers the last ticket of each savepoint; whether it still holds is the ring's to say."""

    held_regions = 0

    def __init__(self, ring: SavepointRing, device: Mapping[str, torch.Tensor]) -> None:
        self.evicted = 0
        self._ring = ring
        self._device = device
        self._tickets: dict[int, Ticket] = {}
        self._in_slot: dict[int, int] = {}

    @property
    def entry_count(self) -> int:
        """How many slots hold a savepoint."""
        return len(self._in_slot)

    def settle(self) -> None:
        """Nothing: a ring is as large as it is."""

    def read(self, prefixes: Sequence[Prefix], words: array[int], conversation: str) -> Found | None:
        """Copy the longest one whose slot is still its own to the device."""
        for prefix in prefixes:
            ticket = self._tickets.get(prefix.number)
            if ticket is not None and self._ring.is_live(ticket):
                self._ring.restore(ticket, self._device)
                return Found("ring", prefix.tokens)
        return None

    def keep(self, ticket: Ticket, prefix: Prefix, words: array[int], conversation: str) -> None:
        """Remember where it is, and count the one that was in its slot, unless that was staged again since."""
        lost = self._in_slot.get(ticket.slot)
        self._in_slot[ticket.slot] = prefix.number
        self._tickets[prefix.number] = ticket
        if lost is not None and not self._ring.is_live(self._tickets[lost]):
            self.evicted += 1
            del self._tickets[lost]
