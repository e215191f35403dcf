"""What a replay of one arm came to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from pinprobe.ledger.price import Price
from pinprobe.ledger.replay.arm import Arm
from pinprobe.ledger.replay.bands import BandCount
from pinprobe.ledger.tenants.demand import DemandStats
from pinprobe.ledger.tenants.spill_gate import SpillStats


@dataclass(frozen=True, slots=True)
class MeasuredMemory:
    """What a real replay's process took, in bytes: by the kernel's count, at its largest.

    `rss_bytes` is by how much the process grew over its state before the arm was opened. All of it was taken with rows
    of `scale` x the arm's own, where every other number of a result is of whole rows.
    """

    pinned_bytes: int
    pageable_bytes: int
    rss_bytes: int
    scale: Fraction = Fraction(1)


@dataclass(frozen=True)
class ArmResult:
    """One arm, one run. Tokens are *spared* that a request had not to prefill.

    * `hits`: requests by the tier that they read from. `prompt_tokens`, `spared_tokens`: over all requests, and with
      `later_` over those that continue an earlier prompt.
    * `staged`: hand-outs of the ring's slots, each a write of one row from the device.
    * `pinned`: the ring's memory, measured or predicted from the measured blocks of its allocator, or the ask.
    * `pageable_bytes`: the regions that were mapped at one time, at most; `mean_pageable_bytes` over the time.
    * `spared_seconds`: of prefill, by the model of its time; None without one.
    * `counts`: every counter of the pool; `demand` and `spill` where there is a pool, or an overflow.
    * `mismatched`: savepoints that came back with other bytes than were kept; only a real replay can tell.
    * `measured`: None where only metadata was replayed. `incidents`: what went wrong, in words.
    """

    arm: Arm
    seed: int
    requests: int
    hits: Mapping[str, int]
    prompt_tokens: int
    spared_tokens: int
    later_prompt_tokens: int
    later_spared_tokens: int
    staged: int
    pinned: Price
    pageable_bytes: int
    mean_pageable_bytes: float
    disk_bytes: int
    mean_entries: float
    peak_entries: int
    evicted: int
    spared_seconds: float | None
    counts: Mapping[str, int]
    demand: DemandStats | None
    spill: SpillStats | None
    bands: tuple[BandCount, ...] = ()
    measured: MeasuredMemory | None = None
    incidents: tuple[str, ...] = field(default=())
    mismatched: int = 0

    @property
    def token_hit_rate(self) -> float:
        """The share of all prompts' tokens that was spared."""
        return self.spared_tokens / self.prompt_tokens if self.prompt_tokens else 0.0

    @property
    def later_hit_rate(self) -> float:
        """The same of requests that continue an earlier prompt: what there was to spare at all."""
        return self.later_spared_tokens / self.later_prompt_tokens if self.later_prompt_tokens else 0.0

    @property
    def total_bytes(self) -> int:
        """Pinned and pageable memory together."""
        return self.pinned.bytes + self.pageable_bytes
