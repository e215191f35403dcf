"""A sweep: what each slot count costs on one allocator. The frozen result of a walk."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from pinprobe.probes.allowance import Allowance
from pinprobe.probes.cost import Cost
from pinprobe.probes.reading import Amount, Reading, Unreadable
from pinprobe.probes.rules import Inference, WholePages, infer_rule


class PointState(str, Enum):
    """How a point's block is known."""

    MEASURED = "measured"
    BROKEN = "broken promise"
    DISPUTED = "disputed"
    FAILED = "failed"
    PREDICTED = "predicted"
    NOT_MEASURED = "not measured"


@dataclass(frozen=True)
class Point:
    """One slot count.

    `block` and `resident` are the bytes of the block that serves it: read from the kernel where `state` is measured,
    from the inferred rule where it is predicted (there `resident` is `Unreadable`), else `Unreadable`. A
    failed point was tried: its allocator said no, or its process was killed, as `reason` says. Of a disputed one the
    sources disagree on what it took.
    `served_from_slots` is the smaller count whose kept block served this one for nothing. `cost` is this very request,
    also where it cost nothing.
    """

    slots: int
    asked_bytes: int
    state: PointState
    block: Amount
    resident: Amount
    served_from_slots: int | None = None
    cost: Cost | None = None
    reason: str = ""

    @property
    def ratio(self) -> float | Unreadable:
        """Resident over asked, of the block that serves it."""
        return self.resident.bytes / self.asked_bytes if isinstance(self.resident, Reading) else self.resident

    @property
    def fitting_slots(self) -> int | Unreadable:
        """How many slots of this size the block would hold in all."""
        if isinstance(self.block, Unreadable):
            return self.block
        return self.block.bytes * self.slots // self.asked_bytes


@dataclass(frozen=True)
class Sweep:
    """Every asked point, in rising order, with the control and what bounded the walk.

    `touched_bytes` is the sum of all blocks that were made resident, `peak_bytes` the most that
    can have been resident at one time (a block that its allocator may still have kept is counted). `ended` says why the
    walk stopped early, where it did.
    """

    allocator: str
    notes: tuple[str, ...]
    slot_bytes: int
    page_size_bytes: int
    allowance: Allowance
    control: Cost | None
    control_fault: str | None
    points: tuple[Point, ...]
    touched_bytes: int
    peak_bytes: int
    seconds: float
    fresh_children: bool
    ended: str | None = None

    @property
    def broken_promises(self) -> tuple[Point, ...]:
        """The points whose block was smaller than their ask."""
        return tuple(point for point in self.points if point.state is PointState.BROKEN)

    @property
    def inference(self) -> Inference:
        """What the measured points say of the allocator's rule."""
        return infer_from_points(self.points, self.page_size_bytes)

    @property
    def is_exact(self) -> bool:
        """Whether the measured points say that a block is what was asked, to the page, and leave no other rule open."""
        fitting = self.inference.fitting
        return len(fitting) == 1 and isinstance(fitting[0], WholePages) and self.slot_bytes >= self.page_size_bytes

    @property
    def shortfalls(self) -> list[str]:
        """What was not measured, a sentence for each reason."""
        by_reason: dict[str, list[int]] = {}
        for point in self.points:
            if point.state in (PointState.PREDICTED, PointState.NOT_MEASURED):
                by_reason.setdefault(point.reason, []).append(point.slots)
        return [f"Not measured: {_ranges(slots)} slots; {reason}." for reason, slots in by_reason.items()]

    @property
    def exit_code(self) -> int:
        """1 where a promise was broken; 3 where nothing was measured, or not all that could be, or sources disagree."""
        if self.broken_promises:
            return 1
        is_disputed = any(point.state is PointState.DISPUTED for point in self.points)
        is_measured = any(point.state is PointState.MEASURED for point in self.points)
        return 3 if self.ended or self.control_fault or is_disputed or not is_measured else 0


def infer_from_points(points: tuple[Point, ...] | list[Point], page_size_bytes: int) -> Inference:
    """Infer the rule from the points whose block the kernel was asked for."""
    pairs = [
        (point.asked_bytes, point.block.bytes)
        for point in points
        if point.state is PointState.MEASURED and isinstance(point.block, Reading)
    ]
    return infer_rule(pairs, page_size_bytes)


def _ranges(counts: list[int]) -> str:
    """Write rising counts as ranges.

    >>> _ranges([5, 6, 7, 9])
    '5..7, 9'
    """
    runs: list[tuple[int, int]] = []
    for count in counts:
        if runs and count == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], count)
        else:
            runs.append((count, count))
    return ", ".join(f"{first}" if first == last else f"{first}..{last}" for first, last in runs)
