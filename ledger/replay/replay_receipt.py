"""A replay as one JSON document: schema `pinprobe.replay`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

from pinprobe.ledger.receipts.receipt import Document, as_json
from pinprobe.ledger.replay.arm import Arm, differences
from pinprobe.ledger.replay.arm_replay import Setting
from pinprobe.ledger.replay.arm_result import ArmResult, MeasuredMemory
from pinprobe.ledger.replay.arms_compared import compare
from pinprobe.ledger.replay.replay import ReplayResult
from pinprobe.ledger.replay.replay_run import ReplayRun, Source
from pinprobe.ledger.replay.replicates import standing
from pinprobe.ledger.replay.shape import Shape
from pinprobe.ledger.replay.sweep_slots import SlotSweep
from pinprobe.ledger.tenants.prefill_time import SavepointWorth
from pinprobe.probes.host_facts import HostFacts

#: Raised by one when a key changes its meaning or goes; new keys do not raise it.
VERSION = 1

# The fields of `ArmResult` that go into a document as they are.
_PLAIN = (
    "seed", "requests", "hits", "prompt_tokens", "spared_tokens", "later_prompt_tokens", "later_spared_tokens",
    "staged", "pinned", "pageable_bytes", "mean_pageable_bytes", "disk_bytes", "mean_entries", "peak_entries",
    "evicted", "spared_seconds", "counts", "demand", "spill",
)  # fmt: skip


def replay_receipt(run: ReplayRun, host: HostFacts, command: Sequence[str]) -> Document:
    """Put a run into a document. Shares are of 1."""
    return {
        "schema": "pinprobe.replay",
        "version": VERSION,
        "measured_at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": list(command),
        "host": as_json(host),
        "source": _source(run.source),
        "setting": None if run.setting is None else _setting(run.setting),
        "row_bytes": run.row_bytes,
        "modelled": list(run.modelled),
        "notes": list(run.notes),
        "ended": run.ended,
        "arms": None if run.played is None else [_result(each) for arm in run.played.arms for each in arm.runs],
        "differences": None if run.played is None else _differences([arm.arm for arm in run.played.arms]),
        "standing": None if run.played is None else as_json(standing(run.played.arms)),
        "worth": None if run.worth is None else _worth(run.worth),
        "sweep": None if run.sweep is None else _sweep(run.sweep),
        "endpoint": None if run.rows is None else {"rows": as_json(run.rows), "comparison": as_json(compare(run.rows))},
    }  # fmt: skip


def _source(source: Source) -> Document:
    shape = source.shape
    return {
        "trace": source.trace,
        "scenario": source.scenario,
        "shape": None if shape is None else {**as_json(shape), "service": _service(shape)},
        "request_count": source.request_count,
        "later_count": source.later_count,
    }


def _service(shape: Shape) -> Document:
    service = shape.service
    return {
        "batch": service.batch,
        "prefill_time": str(service.prefill_time),
        "output_tokens_per_second": service.output_tokens_per_second,
    }


def _setting(setting: Setting) -> Document:
    return {
        "placement": setting.placement,
        "prefill_time": None if setting.prefill_time is None else str(setting.prefill_time),
        "read_back_bytes_per_second": setting.read_back_bytes_per_second,
        "bands": [band.name for band in setting.bands],
    }


def _result(result: ArmResult) -> Document:
    """One run of one arm: what was counted, and the shares that follow from that."""
    return {
        **_arm(result.arm),
        **{name: as_json(getattr(result, name)) for name in _PLAIN},
        "measured": None if result.measured is None else _measured(result.measured),
        "token_hit_rate": result.token_hit_rate,
        "later_hit_rate": result.later_hit_rate,
        "total_bytes": result.total_bytes,
        "bands": [{**as_json(band), "token_hit_rate": band.token_hit_rate} for band in result.bands],
        "incidents": list(result.incidents),
        "mismatched": result.mismatched,
    }


def _measured(taken: MeasuredMemory) -> Document:
    return {
        "pinned_bytes": taken.pinned_bytes,
        "pageable_bytes": taken.pageable_bytes,
        "rss_bytes": taken.rss_bytes,
        "scale": str(taken.scale),
    }


def _arm(arm: Arm) -> Document:
    pool = arm.pool
    return {
        "arm": arm.name,
        "allocator": arm.allocator,
        "ring_slots": arm.ring_slots,
        "ring_bytes": arm.ring_bytes,
        "pool": None if pool is None else {
            "policy": pool.policy,
            "bound_regions": pool.bound_regions,
            "min_regions": pool.min_regions,
            "region_bytes": pool.region_bytes,
            "chunk_tokens": pool.chunk_tokens,
            "is_sized_by_demand": pool.is_sized_by_demand,
            "overflow_bytes": pool.overflow_bytes,
        },
    }  # fmt: skip


def _differences(arms: list[Arm]) -> list[Document]:
    told: Mapping[str, Sequence[str]] = differences(arms)
    return [{"what": what, "values": list(values)} for what, values in told.items()]


def _worth(worth: SavepointWorth) -> Document:
    return {
        "lengths": [as_json(row) for row in worth.rows],
        "pays_from_tokens": worth.pays_from_tokens,
    }


def _sweep(sweep: SlotSweep) -> Document:
    def point(result: ReplayResult) -> dict[str, Any]:
        return {**as_json(result), "token_hit_rate": result.token_hit_rate}

    return {
        "policies": list(sweep.policies),
        "slots": list(sweep.slots),
        "points": [point(each) for each in sweep.points],
        "everything": point(sweep.everything),
        "unfit": as_json(sweep.unfit),
    }
