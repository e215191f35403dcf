"""Tries what an allocator takes, in fresh processes and under settings of torch's that are given to these alone."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from pinprobe.ledger.interrupted import raise_if_interrupted
from pinprobe.ledger.price import Price, PriceList
from pinprobe.probes.allocators.allocator import Allocator
from pinprobe.probes.allowance import Allowance, allow, allow_beside
from pinprobe.probes.cost import Cost
from pinprobe.probes.errors import CouldNotMeasure
from pinprobe.probes.headroom import read_headroom
from pinprobe.probes.host_tree import THIS_HOST
from pinprobe.probes.measuring_child import MeasuringChild
from pinprobe.probes.reading import Reading
from pinprobe.probes.sweep import Point, PointState, Sweep
from pinprobe.probes.walk import walk

# Sizes whose blocks differ by every rule that is known of, and take little. The last two are of one power of two, so
# that a block of the one would be handed to the other by an allocator that does not look at sizes.
_TRIED_BYTES, _TRIED_COUNTS = 3_000_000, (1, 2, 3, 5)
# What lies between a block and what it is predicted to be: the same request, a page more or less.
_SLACK_BYTES = 2**20


@dataclass
class Tried:
    """What was found of one allocator under some settings.

    `broken` says which block was smaller than its request, and `failed` why nothing was measured; both are empty where
    all went well. `keeps` says whether a block that was freed serves the next request; None where that was not seen.
    """

    allocator: str
    notes: tuple[str, ...] = ()
    broken: str = ""
    failed: str = ""
    keeps: bool | None = None
    costs: dict[int, Cost] = field(default_factory=dict)
    prices: PriceList = field(default_factory=PriceList)

    def price(self, asked_bytes: int) -> Price:
        """Price a request by what was measured."""
        return self.prices.price(self.allocator, asked_bytes)

    def seconds(self, asked_bytes: int) -> tuple[float | None, str]:
        """Return what pinning a request takes and how that is known; in proportion to the largest that was measured."""
        if asked_bytes in self.costs:
            return self.costs[asked_bytes].seconds, "measured"
        known = [(cost.block.bytes, cost.seconds) for cost in self.costs.values() if isinstance(cost.block, Reading)]
        if not known:
            return None, ""
        block_bytes, seconds = max(known)
        return seconds * self.price(asked_bytes).bytes / block_bytes, "predicted"


class Trials:
    """Tries allocators within one bound. Whoever uses it lets no other measurement of this user run meanwhile."""

    def __init__(self, share: float, at_most_bytes: int | None) -> None:
        """Raises `CouldNotMeasure` where nobody can say how much may be taken."""
        self._share, self._at_most_bytes = share, at_most_bytes
        self.allowance = allow(read_headroom(THIS_HOST), share, at_most_bytes)

    def try_out(
        self, allocator: Allocator, sizes: Iterable[int], settings: Mapping[str, str], say: Callable[[str], object]
    ) -> Tried:
        """Measure small requests first, and then the sizes that may be taken. Raises nothing that a trial can meet."""
        tried = Tried(allocator.name)
        try:
            with _environment(settings):
                self._small(allocator, tried)
                if not tried.broken and not tried.failed:
                    self._large(allocator, sorted(set(sizes)), tried, say)
        except CouldNotMeasure as error:
            tried.failed = tried.failed or str(error)
        return tried

    def _small(self, allocator: Allocator, tried: Tried) -> None:
        sweep = walk(
            lambda: MeasuringChild(allocator),
            allocator.name,
            _TRIED_BYTES,
            _TRIED_COUNTS,
            self.allowance,
            THIS_HOST.page_size_bytes,
            allowance_now=self._now,
        )
        raise_if_interrupted(sweep.ended or "")
        tried.notes = sweep.notes
        tried.broken = next((point.reason for point in sweep.broken_promises), "")
        measured = [point for point in sweep.points if point.state is PointState.MEASURED]
        if sweep.control_fault or not (measured or tried.broken):
            tried.failed = sweep.control_fault or sweep.ended or "no request of it may be taken"
        tried.prices.add(sweep)
        for point in measured:
            if point.cost is not None and point.served_from_slots is None:
                tried.costs[point.asked_bytes] = point.cost

    def _large(self, allocator: Allocator, sizes: list[int], tried: Tried, say: Callable[[str], object]) -> None:
        with MeasuringChild(allocator) as child:
            tried.keeps = self._keeps(child)
            for asked in sizes:
                now = min(self.allowance, self._now(0), key=lambda allowed: allowed.bytes)
                if max(asked, tried.price(asked).bytes) + _SLACK_BYTES > now.bytes:
                    break  # the larger ones would take no less
                say(f"{allocator.name}: {asked:,} B")
                try:
                    cost = child.measure(asked, now.bytes)
                finally:
                    child.release()
                    child.empty_cache()
                self._remember(cost, allocator.name, now, tried)

    def _keeps(self, child: MeasuringChild) -> bool | None:
        first = child.measure(_TRIED_BYTES, self.allowance.bytes)
        child.release()
        again = child.measure(_TRIED_BYTES, self.allowance.bytes)
        child.release()
        child.empty_cache()
        if not (isinstance(again.resident, Reading) and first.fault is None):
            return None
        return again.resident.within(0) and again.address == first.address

    def _remember(self, cost: Cost, name: str, allowance: Allowance, tried: Tried) -> None:
        if cost.fault is not None or not isinstance(cost.block, Reading):
            return
        if cost.block.bytes < cost.asked_bytes:
            tried.broken = f"handed a block of {cost.block.bytes:,} B to a request for {cost.asked_bytes:,} B"
            return
        tried.costs[cost.asked_bytes] = cost
        point = Point(1, cost.asked_bytes, PointState.MEASURED, cost.block, cost.resident, None, cost)
        tried.prices.add(
            Sweep(
                allocator=name,
                notes=(),
                slot_bytes=cost.asked_bytes,
                page_size_bytes=THIS_HOST.page_size_bytes,
                allowance=allowance,
                control=None,
                control_fault=None,
                points=(point,),
                touched_bytes=cost.block.bytes,
                peak_bytes=cost.block.bytes,
                seconds=cost.seconds,
                fresh_children=False,
            )
        )

    def _now(self, held_bytes: int) -> Allowance:
        return allow_beside(read_headroom(THIS_HOST), held_bytes, self._share, self._at_most_bytes)


@contextlib.contextmanager
def _environment(settings: Mapping[str, str]) -> Iterator[None]:
    """Set variables for the processes that are started meanwhile; not for several threads."""
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
