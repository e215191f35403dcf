"""Sweeps as tables: one allocator, or several side by side."""

from __future__ import annotations

from collections.abc import Sequence

from pinprobe.cli.figures import amount, ratio, raw
from pinprobe.cli.grid import WIDTH, Grid
from pinprobe.probes.cliffs import Cliff, find_cliffs
from pinprobe.probes.reading import Reading, Unreadable
from pinprobe.probes.sweep import Point, PointState, Sweep
from pinprobe.probes.units import Unit, unit_for

#: A table up to this long is shown whole; a longer one shows the points beside each cliff.
WHOLE_TABLE = 20
_MANY_CLIFFS = 16
_MARKS = {"*": "* predicted", "!": "! smaller than its ask"}


def sweep_grids(sweeps: Sequence[Sweep], every_point: bool) -> list[Grid]:
    """The cost table for a person: of one allocator, or of several side by side where that fits a terminal.

    Side by side, a star marks a predicted block, and `!` one smaller than its ask.
    """
    shown = _shown_slots(sweeps, every_point)
    unit = _unit(sweeps)
    if len(sweeps) > 1:
        for with_ratio in (True, False):
            grid = _side_by_side(sweeps, shown, unit, with_ratio)
            if grid.width <= WIDTH:
                return [grid]
    return [_alone(sweep, shown, unit, titled=len(sweeps) > 1) for sweep in sweeps]


def _alone(sweep: Sweep, shown: set[int], unit: Unit, titled: bool) -> Grid:
    header = ["slots", f"asked {unit.name}", f"resident {unit.name}", "ratio", f"block {unit.name}", "more fit"]
    rows = []
    for point in sweep.points:
        if point.slots in shown:
            asked = [str(point.slots), unit.of(point.asked_bytes)]
            figures = [amount(point.resident, unit), ratio(point.ratio), amount(point.block, unit), _more_fit(point)]
            rows.append([*asked, *figures, how_known(point)])
    return Grid([*header, "<how known"], rows, title=sweep.allocator if titled else "")


def _side_by_side(sweeps: Sequence[Sweep], shown: set[int], unit: Unit, with_ratio: bool) -> Grid:
    header = ["slots", f"asked {unit.name}"]
    for sweep in sweeps:
        header += [f"{sweep.allocator} {unit.name}", *(["ratio"] if with_ratio else [])]
    rows = []
    for points in zip(*(sweep.points for sweep in sweeps), strict=True):
        if points[0].slots in shown:
            row = [str(points[0].slots), unit.of(points[0].asked_bytes)]
            for point in points:
                mark = "*" if point.state is PointState.PREDICTED else "!" if point.state is PointState.BROKEN else ""
                row += [amount(point.block, unit) + mark, *([ratio(point.ratio)] if with_ratio else [])]
            rows.append(row)
    legend = "; ".join(text for mark, text in _MARKS.items() if any(mark in cell for row in rows for cell in row))
    return Grid(header, rows, legend=legend)


def sweep_rows(sweeps: Sequence[Sweep]) -> Grid:
    """Every point of every allocator for a machine, in bytes."""
    header = ["allocator", "slots", "asked_bytes", "resident_bytes", "ratio", "block_bytes", "state"]
    header += ["served_from_slots", "fitting_slots", "evidence"]
    rows = []
    for sweep in sweeps:
        for point in sweep.points:
            served = "" if point.served_from_slots is None else str(point.served_from_slots)
            fitting = "" if isinstance(point.fitting_slots, Unreadable) else str(point.fitting_slots)
            figures = [raw(point.resident), ratio(point.ratio, unknown=""), raw(point.block), point.state.value]
            evidence = point.reason or (point.cost.evidence() if point.cost else "")
            rows.append(
                [sweep.allocator, str(point.slots), str(point.asked_bytes), *figures, served, fitting, evidence]
            )
    return Grid(header, rows)


def how_known(point: Point) -> str:
    """Say in a few words where a row's figures come from."""
    if point.state is PointState.MEASURED:
        return "measured" if point.served_from_slots is None else "kept block"
    return "TOO SMALL" if point.state is PointState.BROKEN else str(point.state.value)


def _more_fit(point: Point) -> str:
    if point.state is PointState.BROKEN or isinstance(point.fitting_slots, Unreadable):
        return "?"
    return str(point.fitting_slots - point.slots)


def _shown_slots(sweeps: Sequence[Sweep], every_point: bool) -> set[int]:
    listed = [point.slots for point in sweeps[0].points]
    if every_point or len(listed) <= WHOLE_TABLE:
        return set(listed)
    shown = {listed[0], listed[-1]}
    for sweep in sweeps:
        cliffs = find_cliffs(sweep.points)
        if len(cliffs) <= _MANY_CLIFFS:
            shown |= {slots for cliff in cliffs for slots in _beside(cliff)}
            shown |= {point.slots for point in sweep.broken_promises}
        else:
            measured = [point.slots for point in sweep.points if point.state is PointState.MEASURED]
            shown |= set(measured if len(measured) <= WHOLE_TABLE else measured[:: len(measured) // WHOLE_TABLE + 1])
    return shown


def _beside(cliff: Cliff) -> tuple[int, int]:
    return cliff.previous_slots, cliff.slots


def _unit(sweeps: Sequence[Sweep]) -> Unit:
    sizes = [point.asked_bytes for sweep in sweeps for point in sweep.points]
    sizes += [point.block.bytes for sweep in sweeps for point in sweep.points if isinstance(point.block, Reading)]
    return unit_for(max(sizes))
