"""Retention in figures: policies at numbers of slots, bands of prompt lengths, and what a savepoint is worth."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pinprobe.cli.grid import WIDTH, Grid
from pinprobe.cli.narrow_names import broken
from pinprobe.cli.replay_table import percent
from pinprobe.ledger.replay.arm_result import ArmResult
from pinprobe.ledger.replay.replay import ReplayResult
from pinprobe.ledger.replay.sweep_slots import SlotSweep
from pinprobe.ledger.tenants.prefill_time import SavepointWorth
from pinprobe.probes.units import format_bytes, unit_for

_EVERYTHING = "everything kept"
_NAME_ROOM = 12
_SLOTS_SIDE_BY_SIDE, _POLICIES_SIDE_BY_SIDE = 6, 6


def sweep_grids(sweep: SlotSweep, *, is_narrow: bool) -> list[Grid]:
    """The share of tokens that each policy spared at each number of slots, and below what it wrote for that."""
    told: list[tuple[str, Callable[[ReplayResult], str]]] = [
        ("Token hit rate, % of all prompts' tokens, by slots", lambda point: percent(point.token_hit_rate)),
        ("Savepoints written", lambda point: f"{point.writes:,}"),
    ]
    grids = [grid for title, figure in told for grid in _policies_grids(sweep, title, figure, is_narrow)]
    has_gap = any(sweep.at(policy, slots) is None for policy in sweep.shown_policies for slots in sweep.slots)
    last = grids[-1]
    return [*grids[:-1], Grid(last.header, last.rows, last.title, "-: not replayed." if has_gap else "")]


def _policies_grids(sweep: SlotSweep, title: str, figure: Callable[[ReplayResult], str], is_narrow: bool) -> list[Grid]:
    """A column a policy where that takes no more tables than a row a policy does."""
    by_slots = _groups(sweep.shown_policies) if is_narrow else [list(sweep.shown_policies)]
    each = _SLOTS_SIDE_BY_SIDE if is_narrow else len(sweep.slots)
    by_policy = [sweep.slots[first : first + each] for first in range(0, len(sweep.slots), each)]
    if len(by_slots) > len(by_policy) or (not is_narrow and len(by_slots[0]) > _POLICIES_SIDE_BY_SIDE):
        return [_rows_of_policies(sweep, title, figure, slots) for slots in by_policy]
    return [_rows_of_slots(sweep, title, figure, names, is_narrow) for names in by_slots]


def _rows_of_slots(
    sweep: SlotSweep, title: str, figure: Callable[[ReplayResult], str], names: Sequence[str], is_narrow: bool
) -> Grid:
    header = ["slots", *names, _EVERYTHING]
    if is_narrow:
        header = ["slots", *(broken(name, _NAME_ROOM) for name in names), broken(_EVERYTHING, _NAME_ROOM)]
    bound = figure(sweep.everything)
    rows = []
    for slots in sweep.slots:
        points = [sweep.at(policy, slots) for policy in names]
        rows.append([f"{slots:,}", *("-" if point is None else figure(point) for point in points), bound])
    return Grid(header, rows, title)


def _rows_of_policies(
    sweep: SlotSweep, title: str, figure: Callable[[ReplayResult], str], slots: Sequence[int]
) -> Grid:
    rows = []
    for policy in sweep.shown_policies:
        points = [sweep.at(policy, count) for count in slots]
        rows.append([policy, *("-" if point is None else figure(point) for point in points)])
    rows.append([_EVERYTHING, *[figure(sweep.everything)] * len(slots)])
    return Grid(["<slots", *(f"{count:,}" for count in slots)], rows, title)


def _groups(policies: Sequence[str]) -> list[list[str]]:
    """Put as many policies beside each other as a terminal has room for."""
    groups: list[list[str]] = [[]]
    room = left = WIDTH - _NAME_ROOM - 3 * 8
    for policy in policies:
        width = 3 + max(map(len, broken(policy, _NAME_ROOM).split("\n")))
        if groups[-1] and width > left:
            groups.append([])
            left = room
        groups[-1].append(policy)
        left -= width
    return groups


def sweep_rows(sweep: SlotSweep, row_bytes: int) -> Grid:
    """Every point for a machine, and at the end what keeping everything comes to, which has no number of slots."""
    header = ["policy", "slots", "bytes", "token_hit_rate", "requests", "hits", "prompt_tokens", "spared_tokens"]
    header += ["offered", "writes", "refused", "resident", "evictions"]
    rows = []
    for point in (*sweep.points, sweep.everything):
        is_bound = point is sweep.everything
        place = [_EVERYTHING, "", ""] if is_bound else [point.policy, point.slots, point.slots * row_bytes]
        counts = [getattr(point, name) for name in header[4:]]
        rows.append([str(cell) for cell in (*place, point.token_hit_rate, *counts)])
    return Grid(header, rows)


def band_grid(run: ArmResult) -> Grid | None:
    """What was spared of prompts of each length; None where no bands were asked for."""
    if not run.bands:
        return None
    has_seconds = run.spared_seconds is not None
    header = ["<prompt tokens", "requests", "tokens", "cached %", *(["spared s"] * has_seconds)]
    rows = [
        [
            band.name,
            f"{band.requests:,}",
            f"{band.prompt_tokens:,}",
            percent(band.token_hit_rate) if band.prompt_tokens else "-",
            *([f"{band.seconds:,.1f}"] * has_seconds),
        ]
        for band in run.bands
    ]
    return Grid(header, rows, f"By the length of prompts: {run.arm.name}")


def worth_grid(worth: SavepointWorth) -> Grid:
    """What a savepoint costs, whatever it covers, beside the prefill that it spares."""
    unit = unit_for(worth.rows[0].row_bytes)
    rows = [[f"{row.tokens:,}", unit.of(row.row_bytes), f"{row.spared_seconds:,.3f}"] for row in worth.rows]
    given = worth.prefill_time
    legend = f"Modelled: the first n tokens of a prompt take {given.formula} s ({given.source})."
    return Grid(["prompt tokens", f"a savepoint, {unit.name}", "spared s"], rows, "What a savepoint is worth", legend)


def worth_line(worth: SavepointWorth, row_bytes: int, bytes_per_second: float | None) -> str:
    """Say from which length on keeping a savepoint pays."""
    if bytes_per_second is None:
        return "From which length a savepoint on disk pays hangs on how fast it is read back: --read-back 2GiB."
    rate = f"{format_bytes(round(bytes_per_second))} a second, which is taken and not measured"
    if worth.pays_from_tokens is None:
        return f"At {rate}, no prompt's prefill takes longer than reading its savepoint back: it never pays."
    seconds = row_bytes / bytes_per_second
    return (
        f"A savepoint on disk pays from {worth.pays_from_tokens:,} tokens on: reading it back takes {seconds:.3f} s at"
        f" {rate}."
    )
