"""The other end of a real replay: what runs in the fresh process."""

from __future__ import annotations

import logging
from array import array
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path

from pinprobe.ledger.price import Price
from pinprobe.ledger.replay.arm import Arm
from pinprobe.ledger.replay.arm_replay import Setting, Tally
from pinprobe.ledger.replay.arm_result import ArmResult
from pinprobe.ledger.replay.placement import PrefixNode, PrefixNodes
from pinprobe.ledger.replay.prompt_words import PromptWords
from pinprobe.ledger.replay.real_arm import RealArm
from pinprobe.ledger.replay.request import Request
from pinprobe.ledger.replay.tiers import Prefix
from pinprobe.ledger.replay.trace_clock import TraceClock
from pinprobe.ledger.tenants.overflow_file import file_bytes
from pinprobe.ledger.tenants.pool_stats import PoolStats
from pinprobe.probes.errors import printable

#: So many savepoints that came back otherwise are named; the rest is counted.
MOST_NAMED = 20

_LOGGER = logging.getLogger("pinprobe")

# The counters of a pool that are told; those of `kept.py` come first.
_COUNTS = (
    "requests", "promoted", "declined", "already_here", "below_floor",
    "no_region", "refused", "lost_the_race", "failed", "warm", "cold",
)  # fmt: skip
_SHOULD_BE_NONE = {
    "no_region": "found no region to be copied into",
    "refused": "were refused their memory",
    "lost_the_race": "were handed out again before they were copied",
    "failed": "could not be copied",
}


class RealReplayServer:
    """The calls a parent may make, in this order: `open`, `replay` as often as there are requests, `result`."""

    def open(self, arm: Arm, setting: Setting, scale: Fraction, overflow_folder: Path | None) -> None:
        """Take the arm's memory. Raises what `RealArm` raises; then nothing is taken."""
        self._errors = _Errors()
        self._arm, self._setting = arm, setting
        self._clock = TraceClock()
        self._nodes = PrefixNodes(setting.placement, arm.chunk_tokens if arm.pool else 2048)
        self._prompts = PromptWords()
        self._tally = Tally(setting)
        self._staged = self._peak_entries = self._peak_files = self._mismatched = 0
        self._incidents: list[str] = []
        _LOGGER.addHandler(self._errors)
        try:
            self._real = RealArm(arm, scale, self._clock, overflow_folder=overflow_folder)
        except BaseException:
            _LOGGER.removeHandler(self._errors)
            raise

    def replay(self, requests: Sequence[Request]) -> None:
        """Replay requests, which go on where the last ones ended."""
        for request in requests:
            self._replay(request)

    def result(self) -> ArmResult:
        """Return what came of all requests, and give the memory back."""
        try:
            return self._result()
        finally:
            self._real.close()
            _LOGGER.removeHandler(self._errors)

    # -- one request

    def _replay(self, request: Request) -> None:
        tiers = self._real.tiers
        self._clock.pass_to(request.at_seconds, tiers.entry_count, tiers.held_regions)
        readable = list(self._nodes.readable(request))
        self._prompts.know(request)
        # A ring alone knows its savepoints by their numbers.
        words = self._prompts.words(request.savepoint) if self._arm.pool else array("q")
        tiers.settle()
        tier, spared = self._read(request, readable, words)
        self._tally.add(request, tier, spared)
        for node in self._nodes.place(request, spared):
            self._staged += 1
            number = self._prompts.number_of(node)
            self._real.stamp.write(number)
            ticket = self._real.stage()
            prefix = Prefix(number, node.tokens)
            tiers.keep(ticket, prefix, words[: node.tokens], request.conversation)
            self._peak_entries = max(self._peak_entries, tiers.entry_count)
        self._real.sample()
        if self._real.overflow is not None:
            self._peak_files = max(self._peak_files, len(self._real.overflow))

    def _read(self, request: Request, readable: Sequence[PrefixNode], words: array[int]) -> tuple[str | None, int]:
        """Read the longest savepoint of a prompt, check its bytes, and return its tier and the tokens it spared."""
        prefixes = [Prefix(self._prompts.number_of(node), node.tokens) for node in readable]
        self._real.stamp.erase()
        found = self._real.tiers.read(prefixes, words, request.conversation)
        if found is None:
            return None, 0
        wanted = next((prefix for prefix in prefixes if prefix.tokens == found.tokens), None)
        if wanted is None:
            self._mismatch(f"a savepoint of {found.tokens:,} tokens was read, which is of no prefix", request)
            return None, 0
        at = self._real.stamp.fault(wanted.number)
        if at is not None:
            self._mismatch(
                f"the savepoint of {found.tokens:,} tokens came back from the {found.tier} with other bytes,"
                f" from byte {at:,} on",
                request,
            )
        return found.tier, found.tokens

    def _mismatch(self, what: str, request: Request) -> None:
        self._mismatched += 1
        if self._mismatched <= MOST_NAMED:
            self._incidents.append(
                f"request {self._tally.requests + 1} at {request.at_seconds:g} s, savepoint {request.savepoint}: {what}"
            )

    # -- the result

    def _result(self) -> ArmResult:
        real, arm, tally, clock = self._real, self._arm, self._tally, self._clock
        stats = real.stats()
        measured = real.measured()
        region_bytes = arm.pool.region_bytes if arm.pool else 0
        is_whole = measured.scale == 1
        return ArmResult(
            arm=arm,
            seed=self._setting.seed,
            requests=tally.requests,
            hits=dict(tally.hits),
            prompt_tokens=tally.prompt_tokens,
            spared_tokens=tally.spared_tokens,
            later_prompt_tokens=tally.later_prompt_tokens,
            later_spared_tokens=tally.later_spared_tokens,
            staged=self._staged,
            pinned=Price(measured.pinned_bytes, "measured") if is_whole else Price(arm.ring_bytes, "the ask"),
            pageable_bytes=region_bytes * stats.peak_regions if stats else 0,
            mean_pageable_bytes=region_bytes * clock.mean(1),
            disk_bytes=self._peak_files * file_bytes(arm.ring_layout.row_bytes),
            mean_entries=clock.mean(0),
            peak_entries=self._peak_entries,
            evicted=stats.evicted if stats else real.slots.evicted if real.slots else 0,
            spared_seconds=tally.seconds,
            counts=_counts(stats) if stats else {},
            demand=stats.demand if stats else None,
            spill=stats.overflow.spill if stats and stats.overflow else None,
            bands=tally.bands() if self._setting.bands else (),
            measured=measured,
            incidents=self._all_incidents(stats),
            mismatched=self._mismatched,
        )

    def _all_incidents(self, stats: PoolStats | None) -> tuple[str, ...]:
        told = list(self._incidents)
        if self._mismatched > MOST_NAMED:
            told.append(f"{self._mismatched - MOST_NAMED:,} more savepoints came back otherwise")
        if not self._real.is_pinned:
            told.append("the ring lies in pageable memory: nothing was pinned")
        told += self._real.remarks
        if stats is not None:
            counts = _counts(stats)
            told += (f"{counts[name]:,} savepoints {what}" for name, what in _SHOULD_BE_NONE.items() if counts[name])
            lost = stats.overflow.files.lost if stats.overflow else {}
            told += (f"{count:,} files could not be read back: {reason}" for reason, count in lost.items() if count)
        return (*told, *self._errors.lines)


def _counts(stats: PoolStats) -> Mapping[str, int]:
    counts = {name: int(getattr(stats, name)) for name in _COUNTS}
    if stats.overflow is not None:
        counts |= {"recalled": stats.overflow.recalled, "written": stats.overflow.flushed}
    return counts


class _Errors(logging.Handler):
    """Collects what is logged as an error, each line once; warnings say what the result says as well."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self._lines: dict[str, None] = {}

    @property
    def lines(self) -> tuple[str, ...]:
        return tuple(self._lines)

    def emit(self, record: logging.LogRecord) -> None:
        if len(self._lines) < MOST_NAMED:
            self._lines[printable(record.getMessage())] = None
