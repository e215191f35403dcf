"""A config's plans as one JSON document: schema `pinprobe.plan`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timezone

from pinprobe.ledger.admission import Bound
from pinprobe.ledger.plan.known_maps import KnownMap
from pinprobe.ledger.plan.plan import Plan, Smaller
from pinprobe.ledger.plan.plan_fit import Fit
from pinprobe.ledger.plan.plan_row import PlanRow, WorkedOut
from pinprobe.ledger.receipts.receipt import Document, as_json
from pinprobe.probes.host_facts import HostFacts
from pinprobe.probes.reading import Unreadable

#: Raised by one when a key changes its meaning or goes; new keys do not raise it.
VERSION = 1


@dataclass(frozen=True)
class PlanRun:
    """What one run of `pinprobe plan` found.

    `plans` have what each is called, the config as it stands first. `smaller` says of that one, where it does not fit,
    which tenants could be made smaller. `remarks` are sentences on what the prices stand on.
    """

    config: str
    plans: tuple[tuple[str, Plan], ...]
    smaller: tuple[Smaller, ...]
    fit: Fit | None
    maps: tuple[KnownMap, ...]
    remarks: tuple[str, ...]

    @property
    def plan(self) -> Plan:
        """The config as it stands."""
        return self.plans[0][1]

    @property
    def exit_code(self) -> int:
        """Whether the config as it stands fits; where a number was to be found, whether it was."""
        if self.fit is not None:
            return 1 if self.fit.value is None else 0
        return self.plan.exit_code


def plan_receipt(run: PlanRun, host: HostFacts, command: Sequence[str]) -> Document:
    """Put a run into a document."""
    return {
        "schema": "pinprobe.plan",
        "version": VERSION,
        "measured_at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": list(command),
        "host": as_json(host),
        "config": run.config,
        "plans": [{"name": name, **_plan(plan)} for name, plan in run.plans],
        "smaller": as_json(run.smaller),
        "fit": None if run.fit is None else _fit(run.fit),
        "maps": as_json(run.maps),
        "remarks": list(run.remarks),
        "exit_code": run.exit_code,
    }


def _plan(plan: Plan) -> Document:
    return {
        "engine": plan.engine,
        "ranks": plan.ranks,
        "allocator": plan.allocator,
        "overrides": as_json(plan.overrides),
        "scale": str(plan.scale),
        "rows": [_row(row) for row in plan.rows],
        "formulas": [_formula(formula) for formula in plan.formulas],
        "rank_sums": as_json(plan.of_one_rank),
        "host_sums": as_json(plan.of_the_host),
        "needed_bytes": plan.needed_bytes,
        "room": _room(plan.room),
        "pool_needed_bytes": plan.pool_needed_bytes,
        "pool_room": None if plan.pool_room is None else _room(plan.pool_room),
        "failing_checks": list(plan.failing_checks),
        "is_predicted": plan.is_predicted,
        "fits": as_json(plan.fits),
    }


def _row(row: PlanRow) -> Document:
    plain = {field.name: getattr(row, field.name) for field in fields(row) if field.name != "formulas"}
    return {**plain, "host_bytes": row.host_bytes, "formulas": [_formula(each) for each in row.formulas]}


def _formula(formula: WorkedOut) -> Document:
    value = formula.quantity.value
    return {
        "name": formula.name,
        "text": formula.text,
        "value": int(value) if value.denominator == 1 else float(value),
        "is_size": formula.quantity.is_size,
    }


def _room(room: Bound | Unreadable) -> Document:
    return {"room_bytes": as_json(room), "bound": ""} if isinstance(room, Unreadable) else _bound(room)


def _bound(room: Bound) -> Document:
    return {"room_bytes": room.room_bytes, "bound": room.words}


def _fit(fit: Fit) -> Document:
    beyond = fit.beyond
    return {
        "number": fit.name,
        "value": fit.value,
        "unit_bytes": fit.unit_bytes,
        "expression": fit.expression,
        "needed_bytes": None if fit.plan is None else fit.plan.needed_bytes,
        "beyond_needed_bytes": beyond.needed_bytes if isinstance(beyond, Plan) else None,
        "beyond_reason": beyond if isinstance(beyond, str) else "",
        "is_monotone": fit.is_monotone,
        "is_idle": fit.is_idle,
        "tried_count": fit.tried_count,
    }
