"""Walks an allocator upward through slot counts, taking as little memory as the answer needs.

A cache makes most points free: a request that an idle block serves takes nothing. So the walk keeps the cache, and only
at a new block empties it, while that block is held; two blocks at most are ever resident, and a power-of-two staircase
of 1..64 touches about twice its largest block, where a fresh process for each point would touch every block anew.

An allocator without a cache, exact to the page, has a step at every slot. After a few such steps in a row only halves,
quarters and so on of the last point are measured; the others are predicted, and measured after all where a sample
contradicts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from pinprobe.probes.allowance import Allowance
from pinprobe.probes.control import control_fault
from pinprobe.probes.cost import Cost
from pinprobe.probes.errors import AllocationFailed, CouldNotMeasure, in_one_line
from pinprobe.probes.reading import Reading, Unreadable
from pinprobe.probes.rules import Inference, infer_rule
from pinprobe.probes.sweep import Point, PointState, Sweep, infer_from_points
from pinprobe.probes.trial import TrialBench
from pinprobe.probes.units import format_bytes

#: So many exact steps in a row, none served from a cache, and the walk samples.
EXACT_STREAK = 4


class Bench(TrialBench, Protocol):
    """What a walk is measured on: a `MeasuringChild`, or a double of it."""

    def empty_cache(self) -> None:
        """Have the allocator give back what it keeps."""


_NOTHING_INFERRED = infer_rule((), 1)

OpenBench = Callable[[], AbstractContextManager[Bench]]
#: Called before every request with its slot count and how many points are done; for progress.
Watch = Callable[[int, int], None]


class _BeyondAllowance(Exception):  # it ends a walk as planned and never leaves this module
    """A point, and so every larger one, would take more than is allowed."""


@dataclass(frozen=True, slots=True)
class _Kept:
    """The block that lies idle in the cache, or would if the allocator has one."""

    slots: int
    address: int
    block: Reading
    resident: Reading


@dataclass
class _Walk:
    """One walk under way. Everything that changes during it is here; what comes out is a frozen `Sweep`."""

    slot_bytes: int
    page_size_bytes: int
    allowance: Allowance
    allowance_now: Callable[[int], Allowance]
    watch: Watch
    points: dict[int, Point] = field(default_factory=dict)
    under_trial: int | None = None
    control: Cost | None = None
    control_fault: str | None = None
    notes: tuple[str, ...] = ()
    inference: Inference = _NOTHING_INFERRED
    kept: _Kept | None = None
    exact_streak: int = 0
    touched_bytes: int = 0
    peak_bytes: int = 0

    # -- the two ways to walk

    def cached(self, open_bench: OpenBench, slots: Sequence[int]) -> None:
        with open_bench() as bench:
            if not self._control_holds(bench):
                return
            queue = list(slots)
            while queue:
                count = queue.pop(0)
                self._measure(bench, count)
                if self.exact_streak >= EXACT_STREAK and queue and self._foreseen(queue[0]) is not None:
                    queue = self._sample(bench, queue)
                queue = queue or self._left_open(bench, slots)

    def fresh(self, open_bench: OpenBench, slots: Sequence[int]) -> None:
        for count in slots:
            with open_bench() as bench:
                if self.control is None and not self._control_holds(bench):
                    return
                self.kept = None
                self._measure(bench, count)

    # -- their steps

    def _control_holds(self, bench: Bench) -> bool:
        self.notes = bench.notes
        self.allowance.refuse_beyond(self.slot_bytes, "the control, one slot,")
        self.control = bench.measure(self.slot_bytes, self.allowance.bytes, control=True)
        bench.release()
        self.control_fault = control_fault(self.control, self.page_size_bytes)
        return self.control_fault is None

    def _sample(self, bench: Bench, rest: list[int]) -> list[int]:
        """Measure the last of `rest`, its half, its quarter and so on; return what must be walked after all."""
        beyond = [count for count in rest if count * self.slot_bytes > self.allowance.bytes]
        rest = rest[: len(rest) - len(beyond)]
        if not rest:
            return beyond
        wanted = {rest[-1]}
        while (half := min(wanted) // 2) >= rest[0]:
            wanted.add(min(rest, key=lambda count: (abs(count - half), count)))
            if min(wanted) > half:
                break
        for count in sorted(wanted):
            self._measure(bench, count)
            if self.exact_streak == 0:
                # The rule changed on the way here. What was passed over is smaller than what may be cached now, and an
                # allocator may serve a small request from a larger block: so the cache goes first.
                bench.empty_cache()
                self.kept = None
                return [other for other in rest if other not in self.points] + beyond
        return [other for other in rest if other not in self.points and self._foreseen(other) is None] + beyond

    def _left_open(self, bench: Bench, slots: Sequence[int]) -> list[int]:
        """Return what was passed over as foreseen, and is not any more by all that was measured since."""
        self.inference = infer_from_points(list(self.points.values()), self.page_size_bytes)
        fitting = (count for count in slots if count * self.slot_bytes <= self.allowance.bytes)
        left = [count for count in fitting if count not in self.points and self._foreseen(count) is None]
        if left:
            bench.empty_cache()  # or a larger block could serve them
            self.kept = None
        return left

    def _foreseen(self, slots: int) -> int | None:
        return self.inference.block_bytes(slots * self.slot_bytes)

    def _measure(self, bench: Bench, slots: int) -> None:
        self.under_trial = slots
        self.watch(slots, len(self.points))
        cost = self._allocate(bench, slots * self.slot_bytes)
        point = self._judge(slots, cost)
        self._remember(point)
        if point.served_from_slots is None and point.state is PointState.MEASURED:
            # A new block: the old one is idle in the cache, if anywhere, and goes now, while the new one is held.
            bench.empty_cache()
        bench.release()
        self.under_trial = None

    def _remember(self, point: Point) -> None:
        self.points[point.slots] = point
        foreseen = self.inference.block_bytes(point.asked_bytes)
        # A point that came as foreseen changes no rule; inferring anew at each would cost the square of their number.
        if foreseen is None or not isinstance(point.block, Reading) or point.block.bytes != foreseen:
            self.inference = infer_from_points(list(self.points.values()), self.page_size_bytes)

    def _allocate(self, bench: Bench, asked: int) -> Cost:
        """Measure a request; where the old block and a new one do not fit together, without the old one."""
        held = self.kept.block.bytes if self.kept else 0
        allowance = min(self.allowance, self.allowance_now(held), key=lambda allowed: allowed.bytes)
        expected = self.inference.block_bytes(asked)
        served = self.kept is not None and expected is not None and expected <= self.kept.block.bytes
        if asked > allowance.bytes or (expected is not None and not served and expected > allowance.bytes):
            raise _BeyondAllowance(_more_than_allowed(max(asked, expected or 0), allowance))
        try:
            # Tried with the old block still kept, though a new one might not fit beside it: the kernel refuses that at
            # no cost, and only so is a block seen that the cache hands out and should not.
            return bench.measure(asked, allowance.bytes)
        except AllocationFailed as error:
            refused = error
        if self.kept is not None:
            self._drop_kept(bench)
            try:
                return bench.measure(asked, allowance.bytes)
            except AllocationFailed as error:
                refused = error
        if refused.no_address_space:
            raise _BeyondAllowance(_more_than_allowed(asked, allowance)) from None
        raise refused

    def _drop_kept(self, bench: Bench) -> None:
        bench.empty_cache()
        self.kept = None

    def _judge(self, slots: int, cost: Cost) -> Point:
        asked = cost.asked_bytes
        if isinstance(cost.resident, Unreadable):
            raise CouldNotMeasure(f"what {slots} slots took is {cost.resident}")
        kept = self.kept
        served = classify(cost, kept.address if kept else None, kept.block if kept else None)
        whole_pages = -(-asked // self.page_size_bytes) * self.page_size_bytes
        is_exact_step = (
            served is Served.NEW_BLOCK and isinstance(cost.block, Reading) and cost.block.bytes == whole_pages
        )
        self.exact_streak = self.exact_streak + 1 if is_exact_step else 0
        if served is Served.KEPT_BLOCK and kept is not None:
            return Point(slots, asked, PointState.MEASURED, kept.block, kept.resident, kept.slots, cost)
        if served is Served.BROKEN_PROMISE and isinstance(cost.block, Reading):
            if kept is None or cost.address != kept.address:
                self._take(slots, cost, cost.resident)
            reason = f"handed a block of {cost.block.bytes:,} B to a request for {asked:,} B"
            return Point(slots, asked, PointState.BROKEN, cost.block, cost.block_resident, None, cost, reason)
        if cost.fault is not None:
            self.kept = None
            unknown = Unreadable(cost.fault)
            return Point(slots, asked, PointState.DISPUTED, unknown, unknown, None, cost, cost.fault)
        self._take(slots, cost, cost.resident)
        return Point(slots, asked, PointState.MEASURED, cost.block, cost.resident, None, cost)

    def _take(self, slots: int, cost: Cost, resident: Reading) -> None:
        """Account for a new block. Whether the one before it is still kept only its allocator knows."""
        grown = max(0, resident.bytes)
        self.touched_bytes += grown
        self.peak_bytes = max(self.peak_bytes, grown + (self.kept.resident.bytes if self.kept else 0))
        self.kept = _Kept(slots, cost.address, cost.block, resident) if isinstance(cost.block, Reading) else None


class Served(Enum):
    """Where a request's memory came from."""

    NEW_BLOCK = "a new block"
    KEPT_BLOCK = "the kept block"
    BROKEN_PROMISE = "a block smaller than the request"


def classify(cost: Cost, kept_address: int | None, kept_block: Reading | None) -> Served:
    """Tell a request that the kept block served from one that took a new block.

    The same address and no growth are not enough for a hit: a block smaller than the ask shows both, and would draw a
    perfect, false staircase. So the kernel's word on the block comes first; without it nothing is called a hit, and
    neither is a block that has changed its size.
    """
    if isinstance(cost.block, Unreadable):
        return Served.NEW_BLOCK
    if cost.block.bytes < cost.asked_bytes:
        return Served.BROKEN_PROMISE
    no_growth = isinstance(cost.resident, Reading) and cost.resident.within(0)
    is_same = cost.address == kept_address and cost.block == kept_block
    return Served.KEPT_BLOCK if no_growth and is_same else Served.NEW_BLOCK


def _more_than_allowed(wanted_bytes: int, allowance: Allowance) -> str:
    return (
        f"{format_bytes(wanted_bytes)} or more is beyond the {format_bytes(allowance.bytes)} that may be taken by now"
    )


def walk(
    open_bench: OpenBench,
    allocator: str,
    slot_bytes: int,
    slots: Iterable[int],
    allowance: Allowance,
    page_size_bytes: int,
    *,
    allowance_now: Callable[[int], Allowance] | None = None,
    fresh_children: bool = False,
    watch: Watch = lambda slots, done: None,
) -> Sweep:
    """Walk through `slots` (any order, repeats ignored) and return every point, measured or not.

    `allowance_now` is asked before every request, with the bytes that the walk itself holds at that moment: where
    others took memory meanwhile, less than `allowance` is left. `open_bench` opens a fresh process. An interrupt, a
    failing allocation or a killed process ends the walk with what was measured so far; nothing of that kind is raised.
    """
    counts = sorted(set(slots))
    under_way = _Walk(slot_bytes, page_size_bytes, allowance, allowance_now or (lambda held: allowance), watch)
    started = time.perf_counter()
    ended = beyond = None
    try:
        (under_way.fresh if fresh_children else under_way.cached)(open_bench, counts)
    except _BeyondAllowance as limit:
        beyond = str(limit)
    except KeyboardInterrupt as interrupt:
        ended = str(interrupt) or "interrupted"
        under_way.under_trial = None  # it did not fail: nobody knows what it would have taken
    except (CouldNotMeasure, OSError) as error:  # no more descriptors or processes end a walk too
        ended = str(error) if isinstance(error, CouldNotMeasure) else in_one_line(error)
    return Sweep(
        allocator=allocator,
        notes=under_way.notes,
        slot_bytes=slot_bytes,
        page_size_bytes=page_size_bytes,
        allowance=allowance,
        control=under_way.control,
        control_fault=under_way.control_fault,
        points=_completed(under_way, counts, ended, beyond),
        touched_bytes=under_way.touched_bytes,
        peak_bytes=under_way.peak_bytes,
        seconds=time.perf_counter() - started,
        fresh_children=fresh_children,
        ended=ended,
    )


def _completed(under_way: _Walk, counts: list[int], ended: str | None, beyond: str | None) -> tuple[Point, ...]:
    """Fill in the points that were not measured: predicted where the rule is clear, else plainly not measured."""
    inference = infer_from_points(list(under_way.points.values()), under_way.page_size_bytes)
    largest = max(under_way.points, default=0)
    points = []
    for count in counts:
        if count in under_way.points:
            points.append(under_way.points[count])
            continue
        asked = count * under_way.slot_bytes
        if ended and count == under_way.under_trial:
            points.append(Point(count, asked, PointState.FAILED, Unreadable(ended), Unreadable(ended), reason=ended))
            continue
        block = inference.block_bytes(asked)
        if under_way.control_fault:
            reason = "the control does not hold"
        elif count < largest:
            reason = "exact steps, like those measured around them"
        else:
            reason = beyond or "the sweep ended before"
        if block is None or under_way.control_fault:
            unknown = Unreadable(reason)
            points.append(Point(count, asked, PointState.NOT_MEASURED, unknown, unknown, reason=reason))
        else:
            predicted = Reading(block, f"predicted: {inference.fitting[0].words}")
            points.append(Point(count, asked, PointState.PREDICTED, predicted, Unreadable("predicted"), reason=reason))
    return tuple(points)
