"""A config's plans as `text`, `markdown`, `csv` or `json`. Nothing here prices anything."""

from __future__ import annotations

import json
from collections.abc import Sequence

from pinprobe.cli.grid import Grid
from pinprobe.cli.narrow_names import side_by_side, with_narrow_names, wrapped
from pinprobe.cli.plan_words import (
    fit_sentences,
    formula_lines,
    printed_sentences,
    smaller_sentences,
    verdict_sentence,
    with_settings,
)
from pinprobe.ledger.plan.known_maps import KnownMap
from pinprobe.ledger.plan.plan import Plan
from pinprobe.ledger.plan.plan_receipt import PlanRun, plan_receipt
from pinprobe.ledger.plan.plan_row import PlanRow
from pinprobe.probes.host_facts import HostFacts
from pinprobe.probes.reading import Unreadable
from pinprobe.probes.units import Unit, unit_for

_MARKS = {"measured": "", "predicted": "*", "the ask": "+"}
_LEGEND = {"*": "* predicted from measured points", "+": "+ what is asked; an allocator may take more"}
_CSV = ("<plan", "<owner", "<per", "copies", "<allocator", "asked_bytes", "cost_bytes", "<known", "<pageable",
        "transient_cost_bytes", "printed_bytes", "short_bytes", "host_bytes")  # fmt: skip


def render_plan(run: PlanRun, host: HostFacts, form: str, command: Sequence[str], config: str) -> str:
    """Write a run in one of the four forms; `config` is what the user calls the config."""
    if form == "json":
        return json.dumps(plan_receipt(run, host, command), indent=2)
    if form == "csv":
        return _rows(run).csv()
    is_text = form == "text"
    parts = [_sentence(f"pinprobe plan: {verdict_sentence(run.plan)}", is_text)]
    grids = [_grid(run.plan), *(_alternatives(run, is_text) if len(run.plans) > 1 else [])]
    parts += [with_narrow_names(grid).text() if is_text else grid.markdown() for grid in grids]
    sentences = [
        *printed_sentences(run.plan),
        *(smaller_sentences(run.smaller) if run.plan.fits is False else []),
        *fit_sentences(run.fit, config),
        *_check_sentences(run.plan, config),
        *(_map_sentence(known) for known in run.maps),
        *(f"Note: {remark}" for remark in run.remarks),
    ]
    formulas = formula_lines(run.plan)
    if formulas:
        parts.append("\n".join(_sentence(line, is_text) for line in ["Formulas, worked out:", *formulas]))
    if sentences:
        parts.append("\n".join(_sentence(line if is_text else f"* {line}", is_text) for line in sentences))
    return "\n\n".join(parts)


def _sentence(text: str, is_text: bool) -> str:
    return wrapped(text) if is_text else text


def _check_sentences(plan: Plan, config: str) -> list[str]:
    if not plan.failing_checks:
        return []
    command = f"pinprobe check {with_settings(config, plan.overrides)}"
    return [f"Of the config's checks these fail: {', '.join(plan.failing_checks)}; `{command}` says why."]


def _map_sentence(known: KnownMap) -> str:
    name = (
        known.allocator if known.asked_as == known.allocator else f"{known.asked_as}, which is {known.allocator} here,"
    )
    when = f", measured {known.measured_at}" if known.measured_at else ""
    return f"The map of {name} has {known.point_count} measured points: {known.origin}{when}."


def _grid(plan: Plan) -> Grid:
    unit = unit_for(max([plan.needed_bytes, *(row.host_bytes for row in plan.rows)], default=0))
    header = ["<tenant", "copies", f"asked {unit.name}", f"cost {unit.name}", "ratio", "<how known"]
    rows = [_cells(row, unit) for row in sorted(plan.rows, key=lambda row: row.pageable)]
    legend = [f"Counts are scaled by {plan.scale}."] if plan.scale != 1 else []
    if any(row.copies > 1 for row in plan.rows):
        legend.append("Asked and cost are of one copy.")
    if any(row.has_no_map for row in plan.rows):
        legend.append("Where the ask is all that is known, an allocator may take more.")
    return Grid(header, [*rows, *_sum_cells(plan, unit)], legend=wrapped(" ".join(legend)))


def _cells(row: PlanRow, unit: Unit) -> list[str]:
    known = "its bound" if row.is_bound else "pageable" if row.pageable else row.known
    ratio = f"{row.cost_bytes / row.asked_bytes:.3f}" if row.asked_bytes else ""
    return [row.owner, str(row.copies), unit.of(row.asked_bytes), unit.of(row.cost_bytes), ratio, known]


def _sum_cells(plan: Plan, unit: Unit) -> list[list[str]]:
    rank, host = plan.of_one_rank, plan.of_the_host
    has_ranks = plan.ranks > 1
    sums = [
        ("pinned, each rank", rank.asked_pinned_bytes, rank.pinned_bytes, has_ranks and rank.pinned_bytes),
        ("pinned, the host", host.asked_pinned_bytes, host.pinned_bytes, True),
        ("pageable, each rank", rank.asked_pageable_bytes, rank.pageable_bytes, has_ranks and rank.pageable_bytes),
        ("pageable, the host", host.asked_pageable_bytes, host.pageable_bytes, host.pageable_bytes),
        ("for a while beside", None, host.transient_bytes, host.transient_bytes),
        ("more by the engine's word", None, host.short_bytes, host.short_bytes),
        ("in huge pages at most", None, plan.pool_needed_bytes, plan.pool_needed_bytes),
        ("needed at most", None, plan.needed_bytes, True),
    ]
    return [
        [f"= {name}", "", "" if asked is None else unit.of(asked), unit.of(cost), "", ""]
        for name, asked, cost, is_shown in sums
        if is_shown
    ]


def _alternatives(run: PlanRun, is_text: bool) -> list[Grid]:
    plans = [plan for _, plan in run.plans]
    unit = unit_for(max([plan.needed_bytes for plan in plans] + [row.host_bytes for p in plans for row in p.rows]))
    words = {}
    for at, row in enumerate(plans[0].rows):
        words[row.owner] = [_marked(plan.rows[at], unit) for plan in plans]
    sums = [plan.of_the_host for plan in plans]
    words["= pinned"] = [unit.of(each.pinned_bytes) for each in sums]
    if any(each.pageable_bytes for each in sums):
        words["= pageable"] = [unit.of(each.pageable_bytes) for each in sums]
    words["= needed at most"] = [unit.of(plan.needed_bytes) for plan in plans]
    words["fits"] = [_yes_or_no(plan) for plan in plans]
    cells = [cell for row in words.values() for cell in row]
    legend = "; ".join(text for mark, text in _LEGEND.items() if any(cell.endswith(mark) for cell in cells))
    title = f"All copies on the host, {unit.name}"
    return side_by_side(title, [name for name, _ in run.plans], words, legend, is_narrow=is_text)


def _marked(row: PlanRow, unit: Unit) -> str:
    return unit.of(row.copies * row.cost_bytes) + ("" if row.pageable else _MARKS[row.known])


def _yes_or_no(plan: Plan) -> str:
    return "?" if isinstance(plan.fits, Unreadable) else "yes" if plan.fits else "NO"


def _rows(run: PlanRun) -> Grid:
    rows = [
        [
            name, row.owner, row.per, str(row.copies), row.allocator, str(row.asked_bytes), str(row.cost_bytes),
            row.known, str(row.pageable).lower(), str(row.transient_cost_bytes),
            "" if row.printed_bytes is None else str(row.printed_bytes), str(row.short_bytes), str(row.host_bytes),
        ]
        for name, plan in run.plans
        for row in plan.rows
    ]  # fmt: skip
    return Grid(_CSV, rows)
