"""A whole replay as `text`, `markdown`, `csv` or `json`. Nothing here measures."""

from __future__ import annotations

import json
from collections.abc import Sequence

from pinprobe.cli.do_no_harm_table import do_no_harm_text
from pinprobe.cli.grid import Grid
from pinprobe.cli.narrow_names import with_narrow_names, wrapped
from pinprobe.cli.replay_table import (
    counter_grids,
    difference_grids,
    headline_grids,
    measured_grid,
    played_rows,
    spread_grid,
    standing_line,
)
from pinprobe.cli.retention_tables import band_grid, sweep_grids, sweep_rows, worth_grid, worth_line
from pinprobe.ledger.replay.replay_receipt import replay_receipt
from pinprobe.ledger.replay.replay_run import ReplayRun
from pinprobe.ledger.replay.replicates import PlayedArms, standing
from pinprobe.ledger.replay.sweep_slots import SlotSweep, Unfit
from pinprobe.probes.errors import printable
from pinprobe.probes.host_facts import HostFacts

_SHOWN_INCIDENTS = 10
_SHOWN_UNFIT = 6


def render_replay(run: ReplayRun, host: HostFacts, form: str, command: Sequence[str]) -> str:
    """Write a run in one of the four forms."""
    if form == "json":
        return json.dumps(replay_receipt(run, host, command), indent=2)
    if form == "csv":
        return _csv(run)
    is_narrow = form == "text"
    grids, lines = _parts(run, is_narrow=is_narrow)
    title = f"pinprobe {host.pinprobe}: {_title(run)}"
    told = [*lines, *run.modelled, *(f"Note: {note}." for note in run.notes)]
    if run.ended:
        told.append(f"Ended early: {run.ended}.")
    if form == "markdown":
        live = [do_no_harm_text(run.rows, form)] if run.rows is not None else []
        parts = [title, *live, *(grid.markdown() for grid in grids), "\n".join(f"* {line}" for line in told)]
    else:
        live = [do_no_harm_text(run.rows, form)] if run.rows is not None else []
        parts = [wrapped(title), *live, *(with_narrow_names(grid).text() for grid in grids)]
        parts.append("\n".join(wrapped(line) for line in told))
    return "\n\n".join(part for part in parts if part)


def _csv(run: ReplayRun) -> str:
    if run.rows is not None:
        return do_no_harm_text(run.rows, "csv")
    if run.sweep is not None:
        return sweep_rows(run.sweep, run.row_bytes).csv()
    assert run.played is not None
    return played_rows(run.played).csv()


def _parts(run: ReplayRun, *, is_narrow: bool) -> tuple[list[Grid], list[str]]:
    grids: list[Grid | None] = []
    lines: list[str] = []
    if run.played is not None:
        played = run.played
        grids += [*headline_grids(played), measured_grid(played), spread_grid(played)]
        grids += difference_grids(played.arms, is_narrow=is_narrow)
        grids += counter_grids(played.arms, is_narrow=is_narrow)
        grids += [band_grid(arm.middle) for arm in played.arms]
        if len(played.arms) > 1:
            lines.append(standing_line(standing(played.arms)))
        lines += _incidents(played)
    if run.sweep is not None:
        grids += sweep_grids(run.sweep, is_narrow=is_narrow)
        lines += _unfit(run.sweep)
    if run.worth is not None and run.setting is not None:
        grids.append(worth_grid(run.worth))
        lines.append(worth_line(run.worth, run.row_bytes, run.setting.read_back_bytes_per_second))
    return [grid for grid in grids if grid is not None], lines


def _unfit(sweep: SlotSweep) -> list[str]:
    """A line for each policy that could not be had everywhere; the first reason stands for all of its own."""
    by_policy: dict[str, list[Unfit]] = {}
    for unfit in sweep.unfit:
        by_policy.setdefault(unfit.policy, []).append(unfit)
    lines = []
    for policy, found in by_policy.items():
        slots = ", ".join(f"{each.slots:,}" for each in found[:_SHOWN_UNFIT])
        more = f" and {len(found) - _SHOWN_UNFIT} more" if len(found) > _SHOWN_UNFIT else ""
        lines.append(printable(f"{policy} at {slots}{more}: {found[0].reason}."))
    return lines


def _incidents(played: PlayedArms) -> list[str]:
    found = played.incidents
    lines = [printable(f"Incident: {incident}.") for incident in found[:_SHOWN_INCIDENTS]]
    if len(found) > _SHOWN_INCIDENTS:
        lines.append(f"and {len(found) - _SHOWN_INCIDENTS} more incidents; --json lists all.")
    return lines


def _title(run: ReplayRun) -> str:
    source, shape = run.source, run.source.shape
    what = source.trace if source.trace is not None else source.scenario
    parts = [f"replay of {printable(what)}"]
    if shape is not None:
        first, last = shape.prompt_tokens
        parts.append(
            f"{shape.sessions:,} sessions of {shape.turns:,} turns, prompts of {first:,} to {last:,} tokens,"
            f" {shape.think_seconds:g} s of thought, {shape.output_tokens:,} tokens out, seed {shape.seed}"
        )
    if source.request_count:
        continues = "continues" if source.later_count == 1 else "continue"
        parts.append(
            f"{source.request_count:,} requests, of which {source.later_count:,} {continues} an earlier prompt"
        )
    if run.setting is not None:
        parts.append(f"savepoints at {run.setting.placement}")
    return "; ".join(parts)
