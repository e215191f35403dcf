"""The staircase in characters: what is asked, what the block adds to it, and where the step is."""

from __future__ import annotations

from collections.abc import Sequence

from pinprobe.probes.reading import Reading
from pinprobe.probes.sweep import Point, PointState
from pinprobe.probes.units import unit_for

_HEIGHT = 14
_MOST_COLUMNS = 64

_UNICODE = {"asked": "█", "measured": "▒", "predicted": "·", "broken": "!", "corner": "└", "side": "│", "floor": "─"}
_ASCII = {"asked": "#", "measured": "+", "predicted": ".", "broken": "!", "corner": "+", "side": "|", "floor": "-"}


def draw_staircase(points: Sequence[Point], *, ascii_only: bool = False) -> str:
    """Draw one column for each point (or for every n-th, where there are many), with a legend.

    The full part is what was asked; above it stands what the block takes beyond, measured or predicted. A column whose
    block is unknown shows its ask alone.
    """
    marks = _ASCII if ascii_only else _UNICODE
    shown = _thinned(points)
    top = max(max(point.asked_bytes, _block(point)) for point in shown)
    unit = unit_for(top)
    width = max(1, _MOST_COLUMNS // (2 * len(shown))) if len(shown) < _MOST_COLUMNS // 2 else 1
    columns = [_column(point, top, marks) for point in shown]
    lines = []
    for row in range(_HEIGHT, 0, -1):
        label = f"{row * top / _HEIGHT / unit.factor_bytes:8.2f}" if row in (_HEIGHT, _HEIGHT // 2) else " " * 8
        body = "".join(column[row - 1] * width for column in columns).rstrip()
        lines.append(f"{label} {marks['side']}{body}")
    lines.append(" " * 8 + " " + marks["corner"] + marks["floor"] * (len(shown) * width))
    ends = f"{shown[0].slots}", f"{shown[-1].slots}"
    gap = max(1, len(shown) * width - len(ends[0]) - len(ends[1]))
    lines.append(f"{unit.name:>8}  {ends[0]}{' ' * gap}{ends[1]} slots")
    return "\n".join([*lines, "", _legend(shown, marks)])


def _thinned(points: Sequence[Point]) -> Sequence[Point]:
    step = -(-len(points) // _MOST_COLUMNS)
    return points[::-step][::-1]  # from the end, so that the last point is always there


def _block(point: Point) -> int:
    return point.block.bytes if isinstance(point.block, Reading) else 0


def _column(point: Point, top: int, marks: dict[str, str]) -> list[str]:
    """Return a column's characters from the floor up."""
    beyond = {PointState.MEASURED: "measured", PointState.PREDICTED: "predicted", PointState.BROKEN: "broken"}
    mark = marks[beyond[point.state]] if point.state in beyond else " "
    asked_rows = max(1, round(point.asked_bytes * _HEIGHT / top))
    block_rows = round(_block(point) * _HEIGHT / top)
    if round(abs(_block(point) - point.asked_bytes) * _HEIGHT / top) == 0 and _block(point):
        asked_rows = block_rows = max(1, block_rows)  # what is less than half a row apart is drawn as the same
    if point.state is PointState.BROKEN:
        # The block ends below the ask: what lies between is memory that was never given.
        return [marks["asked"] if row < block_rows else mark if row < asked_rows else " " for row in range(_HEIGHT)]
    return [marks["asked"] if row < asked_rows else mark if row < block_rows else " " for row in range(_HEIGHT)]


def _legend(points: Sequence[Point], marks: dict[str, str]) -> str:
    states = {point.state for point in points}
    words = {
        PointState.MEASURED: f"{marks['measured']} taken beyond it, measured",
        PointState.PREDICTED: f"{marks['predicted']} predicted",
        PointState.BROKEN: f"{marks['broken']} asked and not given",
    }
    return "   ".join([f"{marks['asked']} asked", *(text for state, text in words.items() if state in states)])
