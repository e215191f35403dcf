"""Replays requests through one arm, as metadata: nothing is copied, and no time passes but the trace's own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pinprobe.ledger.price import Price
from pinprobe.ledger.replay.arm import Arm
from pinprobe.ledger.replay.arm_result import ArmResult
from pinprobe.ledger.replay.bands import Band, BandCount, BandCounter
from pinprobe.ledger.replay.kept import PoolKept, RingAlone
from pinprobe.ledger.replay.placement import PrefixNode, PrefixNodes
from pinprobe.ledger.replay.request import Request
from pinprobe.ledger.replay.trace_clock import TraceClock
from pinprobe.ledger.tenants.overflow_file import file_bytes
from pinprobe.ledger.tenants.prefill_time import PrefillTime


@dataclass(frozen=True)
class Setting:
    """What a replay is told beside its requests and its arm.

    `prefill_time` turns what was spared into seconds; arms decide by the one of their own config, as engines do.
    `read_back_bytes_per_second` is what reading from the overflow's drive is taken to do; a model, as `prefill_time`
    is. `seed` says which replicate it is.
    """

    placement: str = "prompt-end"
    prefill_time: PrefillTime | None = None
    read_back_bytes_per_second: float | None = None
    bands: Sequence[Band] = ()
    seed: int = 0


class Tally:
    """Sums what requests read, whichever way they are replayed."""

    def __init__(self, setting: Setting) -> None:
        self.requests = self.staged = 0
        self.hits: Counter[str] = Counter()
        self.prompt_tokens = self.spared_tokens = self.later_prompt_tokens = self.later_spared_tokens = 0
        self._prefill_time = setting.prefill_time
        self._seconds = 0.0
        self._bands = BandCounter(setting.bands)

    def add(self, request: Request, tier: str | None, spared_tokens: int) -> None:
        """Count one request, and what it read from where."""
        self.requests += 1
        self.prompt_tokens += request.prompt_tokens
        self.spared_tokens += spared_tokens
        if request.parent is not None:
            self.later_prompt_tokens += request.prompt_tokens
            self.later_spared_tokens += spared_tokens
        if tier is not None:
            self.hits[tier] += 1
        seconds = self._prefill_time.seconds(0, spared_tokens) if self._prefill_time else 0.0
        self._seconds += seconds
        self._bands.add(request.prompt_tokens, spared_tokens, seconds)

    @property
    def seconds(self) -> float | None:
        """The seconds of prefill that were spared; None where no model of its time was given."""
        return self._seconds if self._prefill_time else None

    def bands(self) -> tuple[BandCount, ...]:
        """Return the counts of each band."""
        return self._bands.counts()


def replay_arm(requests: Iterable[Request], arm: Arm, setting: Setting, pinned: Price | None = None) -> ArmResult:
    """Replay requests in their order. `pinned` is the price of the ring, where that is known."""
    nodes = PrefixNodes(setting.placement, arm.chunk_tokens if arm.pool else 2048)
    tally = Tally(setting)
    ring = RingAlone(arm.ring_slots) if arm.pool is None else None
    pool = None if arm.pool is None else PoolKept(arm.pool, setting.read_back_bytes_per_second)
    ring_evicted = peak_files = 0
    clock = TraceClock()
    for request in requests:
        now = request.at_seconds
        clock.pass_to(now, pool.retention.resident_count if pool else len(ring or ()))
        readable = list(nodes.readable(request))
        found = _read(readable, ring, pool, now)
        spared = found[1].tokens if found else 0
        tally.add(request, found[0] if found else None, spared)
        placed = nodes.place(request, spared)
        prefixes = readable
        for node in placed:
            tally.staged += 1
            if ring is not None:
                ring_evicted += ring.stage(node.key)
            elif pool is not None:
                pool.offer(node, [each for each in prefixes if each.tokens < node.tokens], request.conversation, now)
                peak_files = max(peak_files, pool.files)
            # The parent's line may go on beyond what is placed here: the longest first all the same.
            prefixes = sorted([node, *prefixes], key=lambda each: each.tokens, reverse=True)
    row_bytes = arm.ring_layout.row_bytes
    region_bytes = arm.pool.region_bytes if arm.pool else 0
    peak = pool.peak_entries if pool else 0
    return ArmResult(
        arm=arm,
        seed=setting.seed,
        requests=tally.requests,
        hits=dict(tally.hits),
        prompt_tokens=tally.prompt_tokens,
        spared_tokens=tally.spared_tokens,
        later_prompt_tokens=tally.later_prompt_tokens,
        later_spared_tokens=tally.later_spared_tokens,
        staged=tally.staged,
        pinned=pinned or Price(arm.ring_bytes, "the ask"),
        pageable_bytes=region_bytes * _mapped(arm, peak),
        mean_pageable_bytes=region_bytes * clock.mean(0) if arm.pool else 0.0,
        disk_bytes=peak_files * file_bytes(row_bytes),
        mean_entries=clock.mean(0),
        peak_entries=peak if pool else min(arm.ring_slots, tally.staged),
        evicted=pool.retention.evictions if pool else ring_evicted,
        spared_seconds=tally.seconds,
        counts=dict(pool.counts) if pool else {},
        demand=pool.demand(clock()) if pool else None,
        spill=pool.spill.stats() if pool and arm.pool and arm.pool.overflow_bytes is not None else None,
        bands=tally.bands() if setting.bands else (),
    )


def _mapped(arm: Arm, peak_entries: int) -> int:
    assert arm.pool is not None or not peak_entries
    if arm.pool is None:
        return 0
    # What is mapped at boot and stays is held whether it is used or not; demand gives it back.
    is_held = arm.pool.is_mapped_at_boot and not arm.pool.is_sized_by_demand
    return arm.pool.bound_regions if is_held else peak_entries


def _read(
    readable: Sequence[PrefixNode], ring: RingAlone | None, pool: PoolKept | None, now_seconds: float
) -> tuple[str, PrefixNode] | None:
    if pool is not None:
        pool.settle(now_seconds)
        return pool.read(readable, now_seconds)
    return next((("ring", node) for node in readable if ring is not None and node.key in ring), None)
