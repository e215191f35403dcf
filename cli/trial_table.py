"""A trial as tables."""

from __future__ import annotations

from pinprobe.cli.figures import amount, ratio, raw
from pinprobe.cli.grid import Grid
from pinprobe.probes.cost import Cost
from pinprobe.probes.reading import Reading
from pinprobe.probes.trial import Trial
from pinprobe.probes.units import unit_for

_ROWS = (("control", "control"), ("pinned", "pinned"), ("pinned again", "again"))


def trial_grid(trial: Trial) -> Grid:
    """Three rows for a person, sizes in one unit."""
    costs = [known for known in (trial.control, trial.pinned, trial.again) if known is not None]
    sizes = [amount.bytes for known in costs for amount in (known.resident, known.block) if isinstance(amount, Reading)]
    unit = unit_for(max([trial.asked_bytes, *sizes]))
    header = [f"<{unit.name}", "asked", "resident", "ratio", "block", "<evidence"]
    rows = []
    for label, key in _ROWS:
        cost: Cost | None = getattr(trial, key)
        if cost is None:
            rows.append([label, unit.of(trial.asked_bytes), "-", "-", "-", "not measured"])
        else:
            figures = [amount(cost.resident, unit), ratio(cost.ratio), amount(cost.block, unit)]
            rows.append([label, unit.of(cost.asked_bytes), *figures, cost.evidence()])
    return Grid(header, rows)


def how_resident(trial: Trial) -> str:
    """Say in one sentence how each row's pages were made resident."""
    costs = [(label, getattr(trial, key)) for label, key in _ROWS]
    return "Made resident: " + "; ".join(f"{label} {cost.note}" for label, cost in costs if cost is not None) + "."


def trial_rows(trial: Trial) -> Grid:
    """The same for a machine, in bytes."""
    header = ["row", "asked_bytes", "resident_bytes", "error_bytes", "ratio", "block_bytes", "evidence"]
    rows = []
    for label, key in _ROWS:
        cost: Cost | None = getattr(trial, key)
        if cost is None:
            rows.append([label, str(trial.asked_bytes), "", "", "", "", "not measured"])
        else:
            error = str(cost.resident.error_bytes) if isinstance(cost.resident, Reading) else ""
            figures = [raw(cost.resident), error, ratio(cost.ratio, unknown=""), raw(cost.block)]
            rows.append([label, str(cost.asked_bytes), *figures, cost.evidence()])
    return Grid(header, rows)
