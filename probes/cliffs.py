"""From points to cliffs: the first slot count whose block is larger than its predecessor's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pinprobe.probes.reading import Reading
from pinprobe.probes.sweep import Point, PointState


@dataclass(frozen=True, slots=True)
class Cliff:
    """A step of the block between two neighbouring points.

    Where `previous_slots` is not `slots - 1` the step lies somewhere between the two. `measured` is false where either
    side is predicted.
    """

    slots: int
    previous_slots: int
    block_before_bytes: int
    block_after_bytes: int
    measured: bool

    @property
    def place(self) -> str:
        """Where it is: a slot count, or the range it lies in; a star marks a predicted one.

        >>> Cliff(28, 27, 2**32, 2**33, measured=True).place, Cliff(64, 32, 2**33, 2**34, measured=False).place
        ('28', '33..64*')
        """
        place = f"{self.slots}" if self.previous_slots == self.slots - 1 else f"{self.previous_slots + 1}..{self.slots}"
        return place if self.measured else f"{place}*"


def find_cliffs(points: Sequence[Point]) -> tuple[Cliff, ...]:
    """Return the cliffs among points in rising order; points without a known block are passed over.

    A broken promise is no step of an honest staircase, so its block counts for nothing here.
    """
    cliffs = []
    previous: Point | None = None
    for point in points:
        if point.state is PointState.BROKEN or not isinstance(point.block, Reading):
            continue
        if previous is not None and isinstance(previous.block, Reading) and point.block.bytes > previous.block.bytes:
            measured = PointState.PREDICTED not in (point.state, previous.state)
            cliffs.append(Cliff(point.slots, previous.slots, previous.block.bytes, point.block.bytes, measured))
        previous = point
    return tuple(cliffs)
