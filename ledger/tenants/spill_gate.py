"""Which savepoints are worth a file: by the seconds that reading one back would spare, and how likely that is."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from pinprobe.ledger.tenants.prefill_time import PrefillTime


class SpillRefusal(str, Enum):
    """Why a savepoint that had to go left no file behind."""

    SLOT_REUSED = "slot_reused"  # it was worth one, and its place was needed before it was written
    DOMINATED = "dominated"  # a longer one of its conversation is resident
    OVER = "over"  # nothing is awaited of its conversation any more
    UNMEASURED = "unmeasured"  # nobody knows what prefill takes here, or what reading back does
    NOT_WORTH_IT = "not_worth_it"  # reading it back takes longer than the prefill it spares


@dataclass(frozen=True, slots=True)
class Spillable:
    """What is asked about: a savepoint of `tokens`, of which `beyond_tokens` are spared without it.

    `chance` is how likely it is to be read from here on.
    """

    tokens: int
    beyond_tokens: int
    chance: float
    is_dominated: bool
    is_awaited: bool


def spill_value(asked: Spillable, prefill_time: PrefillTime | None, read_seconds: float | None) -> float | SpillRefusal:
    """Return the seconds that a savepoint's file is expected to spare, above 0, or why it is to have none.

    `read_seconds` is what reading it back takes; None where that is unknown.
    """
    if asked.is_dominated:
        return SpillRefusal.DOMINATED
    if not asked.is_awaited:
        return SpillRefusal.OVER
    if prefill_time is None or read_seconds is None:
        return SpillRefusal.UNMEASURED
    spared_seconds = prefill_time.seconds(min(asked.beyond_tokens, asked.tokens), asked.tokens) - read_seconds
    value = asked.chance * spared_seconds
    return value if value > 0 else SpillRefusal.NOT_WORTH_IT


@dataclass(frozen=True, slots=True)
class SpillStats:
    """What became of the entries that had to go.

    * `spilled`: they had a file by then. `rejected`: they had none, one counter for each `SpillRefusal`.
    """

    spilled: int
    rejected: dict[str, int]

    @property
    def rejected_count(self) -> int:
        """All refusals together."""
        return sum(self.rejected.values())

    def words(self) -> str:
        """Say it, for a line of counters."""
        reasons = ", ".join(f"{name} {count}" for name, count in self.rejected.items())
        return f"spilled {self.spilled}, rejected {self.rejected_count} ({reasons})"


class SpillCounter:
    """Counts what `SpillStats` says."""

    def __init__(self) -> None:
        self._spilled = 0
        self._rejected = dict.fromkeys(SpillRefusal, 0)

    def count(self, refusal: SpillRefusal | None) -> None:
        """Count an entry that went: refused, or spilled where there is no refusal."""
        if refusal is None:
            self._spilled += 1
        else:
            self._rejected[refusal] += 1

    def stats(self) -> SpillStats:
        """Freeze it."""
        return SpillStats(self._spilled, {refusal.value: count for refusal, count in self._rejected.items()})
