"""What a real replay asks of an arm's tiers, whichever they are: to read, and to keep what was staged."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from pinprobe.ledger.tenants.savepoint_ring import Ticket


@dataclass(frozen=True, slots=True)
class Prefix:
    """A prefix of a prompt that a savepoint may be kept of: the number of that savepoint, and the tokens it covers."""

    number: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Found:
    """A savepoint that was read: its tier, and how many tokens it covers by the tier's word."""

    tier: str
    tokens: int


class Tiers(Protocol):
    """Where savepoints are kept once they are staged."""

    @property
    def entry_count(self) -> int:
        """How many are kept."""

    @property
    def held_regions(self) -> int:
        """How many regions are mapped beside the ring."""

    def settle(self) -> None:
        """Bring them to the size that is wanted now."""

    def read(self, prefixes: Sequence[Prefix], words: array[int], conversation: str) -> Found | None:
        """Read the longest savepoint of a prompt back to the device. `prefixes` come with the longest first."""

    def keep(self, ticket: Ticket, prefix: Prefix, words: array[int], conversation: str) -> None:
        """Keep what was staged, or not; it is decided, and copied, when this returns."""
