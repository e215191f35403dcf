"""What a request would cost, before it is made: from a measured map of its allocator, else what is asked.

No rounding rule of any allocator stands here: a price is a measured block, or follows from the rule that measured
blocks support, and says which.
"""

from __future__ import annotations

from dataclasses import dataclass

from pinprobe.probes.reading import Reading
from pinprobe.probes.sweep import Point, PointState, Sweep, infer_from_points
from pinprobe.probes.units import LARGEST_SIZE_BYTES


@dataclass(frozen=True, slots=True)
class Price:
    """`bytes` that a request would take, and how that is known: `measured`, `predicted`, or `the ask`."""

    bytes: int
    known: str


class PriceList:
    """The maps of some allocators, by name. Maps added later are believed first."""

    def __init__(self) -> None:
        self._points: dict[str, dict[int, Point]] = {}
        self._page_size_bytes: dict[str, int] = {}

    def add(self, sweep: Sweep, *other_names: str) -> None:
        """Learn the points of a sweep whose block was measured, for its allocator and under other names for it."""
        for name in {sweep.allocator, *other_names}:
            points = self._points.setdefault(name, {})
            points.update({point.asked_bytes: point for point in sweep.points if point.state is PointState.MEASURED})
            self._page_size_bytes[name] = sweep.page_size_bytes

    def knows(self, allocator: str) -> bool:
        """Whether there is a map of this allocator."""
        return bool(self._points.get(allocator))

    def price(self, allocator: str, asked_bytes: int) -> Price:
        """Price a request: never below what it asks."""
        points = self._points.get(allocator)
        if not points:
            return Price(asked_bytes, "the ask")
        block = _measured(list(points.values()), asked_bytes)
        if block is not None:
            return Price(max(block, asked_bytes), "measured")
        inference = infer_from_points(list(points.values()), self._page_size_bytes[allocator])
        block = inference.block_bytes(asked_bytes)
        if block is None:
            return Price(asked_bytes, "the ask")
        return Price(max(block, asked_bytes), "predicted")

    def largest_request(self, allocator: str, room_bytes: int, unit_bytes: int = 1) -> int:
        """Return the largest request, a multiple of `unit_bytes`, whose price is within `room_bytes`; 0 if none is."""
        low, high = 0, min(room_bytes, LARGEST_SIZE_BYTES) // unit_bytes
        while low < high:
            middle = (low + high + 1) // 2
            if self.price(allocator, middle * unit_bytes).bytes <= room_bytes:
                low = middle
            else:
                high = middle - 1
        return low * unit_bytes


def _measured(points: list[Point], asked_bytes: int) -> int | None:
    """Return the block of a measured point, or the one that the measured asks on both sides share."""
    below = max((point for point in points if point.asked_bytes <= asked_bytes), key=_asked, default=None)
    above = min((point for point in points if point.asked_bytes >= asked_bytes), key=_asked, default=None)
    if below is None or above is None or not isinstance(above.block, Reading):
        return None
    same = below is above or (isinstance(below.block, Reading) and below.block.bytes == above.block.bytes)
    return above.block.bytes if same else None


def _asked(point: Point) -> int:
    return point.asked_bytes
