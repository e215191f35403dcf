"""Replayed arms as tables: what each spared and took, its counters, and in what they differ."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from pinprobe.cli.grid import Grid
from pinprobe.cli.narrow_names import side_by_side
from pinprobe.ledger.replay.arm import differences
from pinprobe.ledger.replay.arm_result import ArmResult
from pinprobe.ledger.replay.replicates import ArmRuns, PlayedArms, Standing
from pinprobe.probes.units import Unit, unit_for

_TIERS = ("ring", "pool", "disk")
# A pool's requests are savepoints, and beside them stand those of the trace.
_OFFERED = {"requests": "offered"}
_PREDICTED = "*: predicted from measured blocks of its allocator, and so is the total."
_UNKNOWN = "?: its allocator could not be tried here; the total counts what is asked."


def headline_grids(played: PlayedArms) -> list[Grid]:
    """What each arm spared for which bytes, and by what: two tables of one row an arm.

    Of several runs of an arm the one in the middle is shown.
    """
    runs = [arm.middle for arm in played.arms]
    return [_bytes_grid(runs), _reads_grid(runs)]


def _bytes_grid(runs: Sequence[ArmResult]) -> Grid:
    unit = _unit(runs)
    header = ["<arm", "cached %", "later %", "pinned", "booked", "pageable", "total"]
    rows = [
        [
            run.arm.name,
            percent(run.token_hit_rate),
            percent(run.later_hit_rate),
            unit.of(run.arm.ring_bytes),
            _booked(run, unit),
            unit.of(run.pageable_bytes),
            unit.of(run.total_bytes),
        ]
        for run in runs
    ]
    legend = [f"{unit.name}; pinned: as asked, booked: as taken for that; pageable: at most."]
    legend.append("later %: cached of prompts that continue an earlier one.")
    if not any(run.measured for run in runs):
        legend.append("Shares, hits, writes and pageable bytes are modelled and not measured.")
    else:
        legend.append("In whole savepoints, counted; what was really taken stands below.")
    legend += [
        text for mark, text in (("*", _PREDICTED), ("?", _UNKNOWN)) if any(row[4].endswith(mark) for row in rows)
    ]
    return Grid(header, rows, legend="\n".join(legend))


def _reads_grid(runs: Sequence[ArmResult]) -> Grid:
    unit = _unit(runs)
    has_seconds = any(run.spared_seconds is not None for run in runs)
    header = ["<arm", "mean", *_TIERS, "writes", "evicted", *(["spared s"] * has_seconds)]
    rows = []
    for run in runs:
        hits = [f"{run.hits.get(tier, 0):,}" for tier in _TIERS]
        figures = [unit.of(round(run.mean_pageable_bytes)), *hits, f"{writes(run):,}", f"{run.evicted:,}"]
        seconds = ["?" if run.spared_seconds is None else f"{run.spared_seconds:,.1f}"] if has_seconds else []
        rows.append([run.arm.name, *figures, *seconds])
    legend = f"mean: pageable on average, {unit.name}. {', '.join(_TIERS)}: requests that read from there."
    legend += "\nwrites: savepoints put into the tier that keeps them."
    return Grid(header, rows, legend=legend)


def measured_grid(played: PlayedArms) -> Grid | None:
    """What real replays took by the kernel's count; None where only metadata was replayed."""
    runs = [arm.middle for arm in played.arms]
    if not any(run.measured for run in runs):
        return None
    sizes = [max(run.measured.rss_bytes, run.measured.pinned_bytes) for run in runs if run.measured]
    unit = unit_for(max(sizes))
    rows = []
    for run in runs:
        taken = run.measured
        figures = [taken.pinned_bytes, taken.pageable_bytes, taken.rss_bytes] if taken else []
        rows.append([run.arm.name, *(map(unit.of, figures) if taken else ["?"] * 3)])
    scales = ", ".join(dict.fromkeys(str(run.measured.scale) for run in runs if run.measured))
    of_size = "whole savepoints" if scales == "1" else f"savepoints of {scales} of their bytes"
    legend = f"{unit.name}, each at its largest, with {of_size}."
    legend += "\nRSS growth: of the process, over what it was before the arm was opened."
    return Grid(["<arm", "pinned", "pageable", "RSS growth"], rows, "Measured by the kernel's count", legend)


def spread_grid(played: PlayedArms) -> Grid | None:
    """The figures over all runs of each arm; None where there is one run of each."""
    count = max(len(arm.runs) for arm in played.arms)
    if count < 2:
        return None
    unit = _unit([run for arm in played.arms for run in arm.runs])

    def size(value: float) -> str:
        return unit.of(round(value))

    figures: list[tuple[str, Callable[[ArmResult], float], Callable[[float], str]]] = [
        ("cached %", lambda run: run.token_hit_rate, percent),
        ("later %", lambda run: run.later_hit_rate, percent),
        (f"pageable {unit.name}", lambda run: run.pageable_bytes, size),
        (f"total {unit.name}", lambda run: run.total_bytes, size),
        ("writes", writes, lambda value: f"{value:,.0f}"),
    ]
    rows = []
    for arm in played.arms:
        for name, figure, told in figures:
            spread = arm.spread(figure)
            rows.append([arm.arm.name, name, told(spread.median), told(spread.low), told(spread.high)])
    legend = "Above stands of each arm the run in the middle by later %."
    return Grid(["<arm", "<figure", "median", "lowest", "highest"], rows, f"Over {count} runs", legend)


def standing_line(found: Standing) -> str:
    """Say which arm is best, or why none is named."""
    if found.best is None or found.distance is None:
        return f"No arm is named best: {found.reason}."
    return (
        f"{found.best} is best in every run: its later turns were spared {found.distance * 100:.1f} points more, at its"
        f" lowest, than those of {found.runner_up} at their highest."
    )


def difference_grids(arms: Sequence[ArmRuns], *, is_narrow: bool) -> list[Grid]:
    """What is not the same in all arms, a column an arm."""
    found = differences([arm.arm for arm in arms])
    return side_by_side("What differs", _names(arms), found, is_narrow=is_narrow) if found else []


def counter_grids(arms: Sequence[ArmRuns], *, is_narrow: bool) -> list[Grid]:
    """Every counter of the pools, a column an arm that has one."""
    pools = [arm for arm in arms if arm.arm.pool is not None]
    counted = [counters(arm.middle) for arm in pools]
    names = dict.fromkeys(name for each in counted for name in each)
    rows = {name: tuple(each.get(name, "-") for each in counted) for name in names}
    legend = "A ring alone counts nothing of these." if len(pools) < len(arms) else ""
    return side_by_side("What the pools counted", _names(pools), rows, legend, is_narrow=is_narrow) if rows else []


def counters(run: ArmResult) -> dict[str, str]:
    """Return every counter of one run's pool, written out."""
    told: dict[str, str] = {_OFFERED.get(name, name): f"{value:,}" for name, value in run.counts.items()}
    told |= {"evicted": f"{run.evicted:,}", "peak_entries": f"{run.peak_entries:,}"}
    told["mean_entries"] = f"{run.mean_entries:,.1f}"
    if run.demand is not None:
        horizon = run.demand.reuse_horizon_seconds
        told["demand_entries"] = f"{run.demand.demand_entries:,}"
        told["working_set"] = f"{run.demand.working_set:,}"
        told["reuse_horizon_seconds"] = "?" if horizon is None else f"{horizon:.1f}"
        told["evicted_unread_reachable"] = f"{run.demand.evicted_unread_reachable:,}"
    if run.spill is not None:
        told["spilled"] = f"{run.spill.spilled:,}"
        told |= {f"rejected: {reason}": f"{count:,}" for reason, count in run.spill.rejected.items()}
        told["disk_bytes"] = f"{run.disk_bytes:,}"
    return told


def played_rows(played: PlayedArms) -> Grid:
    """Every run of every arm for a machine: sizes in bytes, shares of 1."""
    counts = dict.fromkeys(name for arm in played.arms for run in arm.runs for name in run.counts)
    header = ["arm", "seed", "token_hit_rate", "later_hit_rate", "requests", "prompt_tokens", "spared_tokens"]
    header += [f"{tier}_hits" for tier in _TIERS]
    header += ["pinned_asked_bytes", "pinned_booked_bytes", "pinned_known", "pageable_bytes", "mean_pageable_bytes"]
    header += ["total_bytes", "disk_bytes", "staged", "writes", "evicted", "spared_seconds"]
    header += ["measured_pinned_bytes", "measured_pageable_bytes", "measured_rss_bytes"]
    header += [*(_OFFERED.get(name, name) for name in counts), "incidents"]
    rows = []
    for run in (run for arm in played.arms for run in arm.runs):
        taken = run.measured
        measured = [taken.pinned_bytes, taken.pageable_bytes, taken.rss_bytes] if taken else ["", "", ""]
        cells: list[object] = [run.arm.name, run.seed, run.token_hit_rate, run.later_hit_rate, run.requests]
        cells += [run.prompt_tokens, run.spared_tokens, *(run.hits.get(tier, 0) for tier in _TIERS)]
        cells += [run.arm.ring_bytes, run.pinned.bytes, run.pinned.known, run.pageable_bytes]
        cells += [round(run.mean_pageable_bytes), run.total_bytes, run.disk_bytes, run.staged, writes(run), run.evicted]
        cells += ["" if run.spared_seconds is None else run.spared_seconds, *measured]
        cells += [*(run.counts.get(name, "") for name in counts), "; ".join(run.incidents)]
        rows.append([str(cell) for cell in cells])
    return Grid(header, rows)


def percent(share: float) -> str:
    """Write a share of 1 in percent."""
    return f"{share * 100:.1f}"


def writes(run: ArmResult) -> int:
    """How many savepoints were put into the tier that keeps them: a pool where there is one, else the ring."""
    counted: Mapping[str, int] = run.counts
    return run.staged if run.arm.pool is None else counted.get("promoted", 0)


def _booked(run: ArmResult, unit: Unit) -> str:
    if run.pinned.known == "the ask":
        return "?"
    return f"{unit.of(run.pinned.bytes)}{'*' if run.pinned.known == 'predicted' else ''}"


def _names(arms: Sequence[ArmRuns]) -> list[str]:
    return [arm.arm.name for arm in arms]


def _unit(runs: Sequence[ArmResult]) -> Unit:
    return unit_for(max(run.total_bytes for run in runs))
