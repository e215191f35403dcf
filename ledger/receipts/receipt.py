"""A measured run as one JSON document: versioned, with its host and with every reading behind every figure.

Amounts are `{"bytes": ..., "source": ..., "error_bytes": ...}`, or `{"unreadable": reason}` where there is no number: a
reader of the document can't mistake an unknown for a zero.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from enum import Enum
from typing import Any

from pinprobe.probes.cliffs import find_cliffs
from pinprobe.probes.cost import Cost
from pinprobe.probes.counters import Counters
from pinprobe.probes.host_facts import HostFacts
from pinprobe.probes.reading import Unreadable
from pinprobe.probes.rules import Inference
from pinprobe.probes.sweep import Point, Sweep
from pinprobe.probes.trial import Trial

#: Raised by one when a key changes its meaning or goes; new keys do not raise it.
VERSION = 1

Document = dict[str, Any]


def sweep_receipt(sweeps: Sequence[Sweep], host: HostFacts, command: Sequence[str]) -> Document:
    """Put the sweeps of one run into a document of schema `pinprobe.sweep`."""
    return {**_head("pinprobe.sweep", host, command), "sweeps": [_sweep(sweep) for sweep in sweeps]}


def trial_receipt(trial: Trial, host: HostFacts, command: Sequence[str]) -> Document:
    """Put one trial into a document of schema `pinprobe.probe`."""
    rows = {name: _cost(getattr(trial, name)) for name in ("control", "pinned", "again")}
    plain = _fields(trial, but=("control", "pinned", "again"))
    return {**_head("pinprobe.probe", host, command), **plain, **rows, "verdict": as_json(trial.verdict)}


def _head(schema: str, host: HostFacts, command: Sequence[str]) -> Document:
    measured_at = datetime.now(timezone.utc).isoformat(timespec="seconds")
    return {
        "schema": schema,
        "version": VERSION,
        "measured_at": measured_at,
        "command": list(command),
        "host": {**_fields(host, but=("headroom",)), "headroom": as_json(host.headroom)},
    }


def _sweep(sweep: Sweep) -> Document:
    return {
        **_fields(sweep, but=("points", "control")),
        "exit_code": sweep.exit_code,
        "control": _cost(sweep.control),
        "points": [_point(point) for point in sweep.points],
        "cliffs": as_json(find_cliffs(sweep.points)),
        "rule": _rule(sweep.inference),
    }


def _point(point: Point) -> Document:
    derived = {"ratio": as_json(point.ratio), "fitting_slots": as_json(point.fitting_slots)}
    return {**_fields(point, but=("cost",)), **derived, "cost": _cost(point.cost)}


def _cost(cost: Cost | None) -> Document | None:
    if cost is None:
        return None
    return {**_fields(cost), "ratio": as_json(cost.ratio), "evidence": cost.evidence()}


def _rule(inference: Inference) -> Document:
    return {
        "fitting": [rule.words for rule in inference.fitting],
        "nearest": inference.nearest.words if inference.nearest else None,
        "supporting_count": inference.supporting_count,
        "point_count": inference.point_count,
        "contradicting_asked_bytes": list(inference.contradictions),
    }


def _fields(value: Any, but: tuple[str, ...] = ()) -> Document:
    return {
        field.name: as_json(getattr(value, field.name)) for field in dataclasses.fields(value) if field.name not in but
    }


def as_json(value: Any) -> Any:
    """Turn a frozen value of the probes into what json.dumps takes, field by field."""
    if isinstance(value, Unreadable):
        return {"unreadable": value.reason}
    if isinstance(value, Counters):
        return as_json(value.by_name)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _fields(value)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): as_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_json(item) for item in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(f"no JSON form is known for {type(value).__name__}")
