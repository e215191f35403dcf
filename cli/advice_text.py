"""Advice as `text`, `markdown`, `csv` or `json`. Nothing here measures."""

from __future__ import annotations

import json
from collections.abc import Sequence

from pinprobe.cli.grid import Grid
from pinprobe.cli.narrow_names import with_narrow_names, wrapped
from pinprobe.ledger.plan.advice import Advice, Way
from pinprobe.ledger.plan.advice_receipt import advice_receipt
from pinprobe.probes.allowance import Allowance
from pinprobe.probes.host_facts import HostFacts
from pinprobe.probes.units import Unit, format_bytes, unit_for

_CSV = ("<way", "<kind", "<owner", "copies", "asked_bytes", "before_bytes", "cost_bytes", "saved_bytes", "<known",
        "seconds", "<seconds_known", "<warning", "<reason")  # fmt: skip


def render_advice(advice: Advice, allowance: Allowance, host: HostFacts, form: str, command: Sequence[str]) -> str:
    """Write advice in one of the four forms."""
    if form == "json":
        return json.dumps(advice_receipt(advice, allowance, host, command), indent=2)
    if form == "csv":
        return _rows(advice).csv()
    is_text = form == "text"
    grid = _grid(advice)
    remarks = [
        *_remarks(advice),
        "Seconds are what pinning one copy of each tenant takes."
        f" Requests of up to {format_bytes(allowance.bytes)} were taken ({allowance.origin}); a star marks what was"
        " predicted from smaller ones.",
    ]
    return "\n\n".join(
        [
            wrapped(_verdict(advice)) if is_text else _verdict(advice),
            with_narrow_names(grid).text() if is_text else grid.markdown(),
            "\n".join(map(wrapped, remarks) if is_text else (f"* {remark}" for remark in remarks)),
        ]
    )


def _verdict(advice: Advice) -> str:
    begin = f"pinprobe advise: {advice.engine}"
    way = advice.recommended
    if advice.as_it_is.warning:
        instead = "" if way is None else f"; {_how(way)} is safe and takes {format_bytes(way.cost_bytes)}{_star(way)}"
        return f"{begin}: memory is not safe as it is: {advice.as_it_is.warning}{instead}."
    as_it_is = f"takes {format_bytes(advice.as_it_is.cost_bytes)}{_star(advice.as_it_is)} from {advice.as_it_is.name}"
    if way is None:
        return f"{begin} {as_it_is}, and nothing that can be had here would take less."
    return f"{begin} {as_it_is}; {_how(way)} saves {format_bytes(way.saved_bytes)}{_star(way)}."


def _how(way: Way) -> str:
    return " and ".join(f"{name}={value}" for name, value in way.settings) or f"the allocator {way.name}"


def _grid(advice: Advice) -> Grid:
    unit = unit_for(max(abs(way.cost_bytes) for way in (advice.as_it_is, *advice.ways)))
    header = ["<way", f"takes {unit.name}", f"saves {unit.name}", "seconds", "<how known"]
    ways = [way for way in advice.ways if way.effects and not way.reason]
    return Grid(header, [_cells(advice.as_it_is, unit, is_own=True), *(_cells(way, unit) for way in ways)])


def _cells(way: Way, unit: Unit, is_own: bool = False) -> list[str]:
    if way.warning:
        return [way.name, unit.of(way.cost_bytes), "", "", "UNSAFE"]
    mark = "*" if any(effect.seconds_known == "predicted" for effect in way.effects) else ""
    seconds = "?" if way.seconds is None else f"{way.seconds:.2f}{mark}"
    saved = "" if is_own else unit.of(way.saved_bytes)
    return [f"{way.name}, as it is" if is_own else way.name, unit.of(way.cost_bytes), saved, seconds, way.known]


def _star(way: Way) -> str:
    return "" if way.known == "measured" else "*"


def _remarks(advice: Advice) -> list[str]:
    remarks = []
    for way in advice.ways:
        if way.warning:
            remarks.append(f"{way.name}: do not use it: {way.warning}.")
        elif way.reason:
            remarks.append(f"{way.name}: {way.reason}.")
        remarks += [f"{way.name}: {note}." for note in (*way.notes, way.caveat) if note and not way.reason]
    remarks += [f"As it is: {note}." for note in advice.as_it_is.notes]
    return remarks


def _rows(advice: Advice) -> Grid:
    rows = []
    for name, way in (("as it is", advice.as_it_is), *((way.name, way) for way in advice.ways)):
        for effect in way.effects:
            figures = [effect.copies, effect.asked_bytes, effect.before_bytes, effect.cost_bytes, effect.saved_bytes]
            seconds = "" if effect.seconds is None else f"{effect.seconds:.6f}"
            known = [effect.known, seconds, effect.seconds_known, way.warning, way.reason]
            rows.append([name, way.kind, effect.owner, *map(str, figures), *known])
        if not way.effects:
            rows.append([name, way.kind, "", *[""] * 5, "", "", "", way.warning, way.reason])
    return Grid(_CSV, rows)
