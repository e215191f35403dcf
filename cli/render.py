"""Turns measured values into what a command prints. Nothing here measures."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Sequence

from pinprobe.cli.counter_table import counters_of_sweeps, counters_of_trial
from pinprobe.cli.figures import ratio
from pinprobe.cli.grid import WIDTH
from pinprobe.cli.staircase import draw_staircase
from pinprobe.cli.sweep_table import WHOLE_TABLE, sweep_grids, sweep_rows
from pinprobe.cli.trial_table import how_resident, trial_grid, trial_rows
from pinprobe.ledger.receipts.receipt import sweep_receipt, trial_receipt
from pinprobe.probes.cliffs import find_cliffs
from pinprobe.probes.host_facts import HostFacts
from pinprobe.probes.reading import Unreadable
from pinprobe.probes.sweep import PointState, Sweep
from pinprobe.probes.trial import Trial
from pinprobe.probes.units import format_bytes

#: So many broken promises are written out; the table below marks them all.
_BROKEN_SHOWN = 3


def render_trial(trial: Trial, host: HostFacts, form: str, command: Sequence[str], columns: str = "few") -> str:
    """Write a trial in one of the four forms."""
    if form == "json":
        return json.dumps(trial_receipt(trial, host, command), indent=2)
    if form == "csv":
        return trial_rows(trial).csv()
    if form == "markdown":
        grids = [trial_grid(trial), *([counters_of_trial(trial)] if columns == "all" else [])]
        return "\n\n".join([*(grid.markdown() for grid in grids), trial.verdict.sentence])
    titles = [_title(trial.allocator, host), *(_wrapped(note) for note in trial.notes)]
    closing = [_wrapped(how_resident(trial)), _wrapped(trial.verdict.sentence)]
    counters = [counters_of_trial(trial).text()] if columns == "all" else []
    return "\n\n".join(["\n".join(titles), trial_grid(trial).text(), *counters, "\n".join(closing)])


def render_sweeps(
    sweeps: Sequence[Sweep], host: HostFacts, form: str, command: Sequence[str], every_point: bool, columns: str = "few"
) -> str:
    """Write the sweeps of one run in one of the four forms."""
    if form == "json":
        return json.dumps(sweep_receipt(sweeps, host, command), indent=2)
    if form == "csv":
        return sweep_rows(sweeps).csv()
    findings = "\n\n".join(_findings(sweep) for sweep in sweeps)
    promises = "\n".join(line for sweep in sweeps for line in _broken_promises(sweep))
    whole = [sweep for sweep in sweeps if len(sweep.points) == len(sweeps[0].points)]
    grids = sweep_grids(whole, every_point) + ([counters_of_sweeps(sweeps)] if columns == "all" else [])
    if form == "markdown":
        tables = [grid.markdown() for grid in grids]
        return "\n\n".join(part for part in (promises, *tables, findings) if part)
    titles = [_title(" and ".join(sweep.allocator for sweep in sweeps), host)]
    titles.append(_wrapped(f"slot of {sweeps[0].slot_bytes:,} B; {_control(sweeps[0])}"))
    titles += [_wrapped(f"{sweep.allocator}: {note}") for sweep in sweeps for note in sweep.notes]
    if not every_point and len(sweeps[0].points) > WHOLE_TABLE:
        titles.append("The points beside each cliff; --every-point lists all.")
    drawings = [_drawing(sweep, titled=len(sweeps) > 1) for sweep in sweeps]
    tables = [grid.text() for grid in grids]
    return "\n\n".join(part for part in (promises, "\n".join(titles), *tables, *drawings, findings) if part)


def _title(allocators: str, host: HostFacts) -> str:
    torch = f"; torch {host.torch}" if not isinstance(host.torch, Unreadable) else ""
    kernel = f"Linux {host.kernel}" if not isinstance(host.kernel, Unreadable) else "kernel unreadable"
    return _wrapped(f"pinprobe {host.pinprobe}: {allocators}{torch}; {kernel}; {host.cpu_count} CPUs")


def _control(sweep: Sweep) -> str:
    if sweep.control is None:
        return "no control was measured"
    if sweep.control_fault:
        return f"probe invalid: {sweep.control_fault}"
    return f"control {ratio(sweep.control.ratio)} ({sweep.control.evidence()})"


def _broken_promises(sweep: Sweep) -> list[str]:
    broken = sweep.broken_promises
    lines = [f"{sweep.allocator} at {point.slots} slots: {point.reason}" for point in broken[:_BROKEN_SHOWN]]
    if len(broken) > _BROKEN_SHOWN:
        lines.append(f"and at {len(broken) - _BROKEN_SHOWN} more slot counts")
    head = "MEMORY IS NOT SAFE: this allocator hands out blocks smaller than their requests."
    return [head, *(_wrapped(line, "  ") for line in lines)] if lines else []


def _drawing(sweep: Sweep, titled: bool) -> str:
    encoding = (sys.stdout.encoding or "ascii").lower().replace("-", "")
    drawing = draw_staircase(sweep.points, ascii_only=encoding not in ("utf8", "utf16", "utf32"))
    return f"{sweep.allocator}\n{drawing}" if titled else drawing


def _findings(sweep: Sweep) -> str:
    """Say what the sweep found, sentence by sentence."""
    lines = [_cliff_line(sweep), _rule_line(sweep), _taken_line(sweep)]
    lines += sweep.shortfalls
    if sweep.ended:
        lines.append(f"Ended early: {sweep.ended}.")
    return "\n".join(_wrapped(line) for line in lines)


def _cliff_line(sweep: Sweep) -> str:
    if sweep.is_exact:
        return f"{sweep.allocator}: a step at every slot, so no cliff: one slot more costs one slot."
    cliffs = find_cliffs(sweep.points)
    if not cliffs and not sweep.inference.point_count:
        return f"{sweep.allocator}: no block was measured, so nothing is known of its cliffs."
    if not cliffs:
        return f"{sweep.allocator}: no cliff among these points."
    starred = "" if all(cliff.measured for cliff in cliffs) else "; * is predicted"
    places = ", ".join(cliff.place for cliff in cliffs)
    return f"{sweep.allocator} cliffs (first slot count of the next block{starred}): {places}"


def _rule_line(sweep: Sweep) -> str:
    inference = sweep.inference
    if len(inference.fitting) > 1:
        rivals = ", or ".join(rule.words for rule in inference.fitting)
        return f"No one rule: a block may be {rivals}; all {inference.point_count} measured points fit each."
    if inference.fitting:
        return (
            f"Rule inferred: a block is {inference.fitting[0].words}; all {inference.point_count} measured points"
            " support it, none contradicts."
        )
    if inference.nearest is None:
        what = "one block alone is" if inference.point_count else "no block at all is"
        return f"Rule: {what} too little to infer one from."
    asks = ", ".join(f"{asked:,} B" for asked in inference.contradictions[:3])
    return (
        f"No one rule: {inference.nearest.words} holds for {inference.supporting_count} of {inference.point_count}"
        f" measured points and is contradicted at {asks}{' and more' if len(inference.contradictions) > 3 else ''}."
    )


def _taken_line(sweep: Sweep) -> str:
    measured = sum(point.state in (PointState.MEASURED, PointState.BROKEN) for point in sweep.points)
    how = "a fresh process for each" if sweep.fresh_children else "one process, cache kept"
    touched, peak = format_bytes(sweep.touched_bytes), format_bytes(sweep.peak_bytes)
    return (
        f"{measured} of {len(sweep.points)} points measured in {sweep.seconds:.1f} s ({how}): {touched} touched in all,"
        f" at most {peak} at once; allowed {format_bytes(sweep.allowance.bytes)}, {sweep.allowance.origin}."
    )


def _wrapped(text: str, indent: str = "") -> str:
    return textwrap.fill(text, WIDTH, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)
