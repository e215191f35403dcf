"""What each of the kernel's counters saw of a request: one row a counter, one column a request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pinprobe.cli.figures import amount
from pinprobe.cli.grid import Grid
from pinprobe.probes.cost import Cost
from pinprobe.probes.reading import Amount, Reading
from pinprobe.probes.sweep import Sweep
from pinprobe.probes.trial import Trial
from pinprobe.probes.units import unit_for

_COUNTERS = ("VmRSS", "RssAnon", "RssFile", "RssShmem", "VmLck", "VmPin", "HugetlbPages", "VmPTE", "statm")


def counters_of_trial(trial: Trial) -> Grid:
    """The counters over a trial's three requests."""
    named = {"control": trial.control, "pinned": trial.pinned, "pinned again": trial.again}
    return _grid({name: cost for name, cost in named.items() if cost is not None})


def counters_of_sweeps(sweeps: Sequence[Sweep]) -> Grid:
    """The counters over each allocator's largest request that took a block of its own, beside a control."""
    named: dict[str, Cost] = {}
    if sweeps and sweeps[0].control is not None:
        named["control"] = sweeps[0].control
    for sweep in sweeps:
        own = [point for point in sweep.points if point.cost is not None and point.served_from_slots is None]
        if own and own[-1].cost is not None:
            named[f"{sweep.allocator}, {own[-1].slots} slots"] = own[-1].cost
    return _grid(named)


def _grid(costs: Mapping[str, Cost]) -> Grid:
    rows: list[tuple[str, list[Amount]]] = [
        ("resident", [cost.resident for cost in costs.values()]),
        ("block", [cost.block for cost in costs.values()]),
        ("block, resident", [cost.block_resident for cost in costs.values()]),
        ("block, by allocator", [cost.block_by_allocator for cost in costs.values()]),
        ("overhead", [cost.overhead for cost in costs.values()]),
        *((name, [cost.counters[name] for cost in costs.values()]) for name in _COUNTERS),
    ]
    sizes = [value.bytes for _, values in rows for value in values if isinstance(value, Reading)]
    unit = unit_for(max(map(abs, sizes), default=0))
    return Grid(
        [f"<{unit.name}", *costs], [[name, *(amount(value, unit) for value in values)] for name, values in rows]
    )
