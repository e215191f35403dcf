"""A pool that follows its demand, on a recorded load and on generated ones: what it keeps, and of how many bytes."""

from __future__ import annotations

import pytest

from pinprobe.ledger.config.registry import load_config
from pinprobe.ledger.config.shipped import find_config
from pinprobe.ledger.replay.arm import Arm, arm_of
from pinprobe.ledger.replay.arm_replay import Setting, replay_arm
from pinprobe.ledger.replay.request import Request
from pinprobe.ledger.replay.scenario import make_scenario
from pinprobe.ledger.replay.trace import read_trace
from tests.ledger.replay.real_traces import real_trace

_MOST = 1024


def arm(policy: str, **changes: object) -> Arm:
    """The shipped arm that is sized by demand, with a bound that nothing comes near."""
    shipped = arm_of(load_config(find_config("savepoint-split-demand")))
    settings = {"bound_regions": _MOST, "min_regions": 1, "chunk_tokens": 1, "is_mapped_at_boot": False}
    return shipped.with_pool(policy=policy, **{**settings, **changes})


def hit_rate_and_entries(requests: list[Request], of: Arm) -> tuple[float, float]:
    result = replay_arm(requests, of, Setting())
    assert result.mean_pageable_bytes == result.mean_entries * of.pool.region_bytes  # type: ignore[union-attr]
    return result.token_hit_rate, result.mean_entries


@pytest.mark.parametrize("policy", ["chain", pytest.param("gittins", marks=pytest.mark.slow)])
def test_at_its_own_bound_it_keeps_97_of_100_of_what_a_pool_without_a_bound_would(policy: str) -> None:
    requests = read_trace(real_trace("agent_sessions"))
    everything, _ = hit_rate_and_entries(requests, arm("lru", is_sized_by_demand=False, bound_regions=len(requests)))
    assert everything == pytest.approx(0.9504, abs=0.0005)
    rate, entries = hit_rate_and_entries(requests, arm(policy))
    assert rate >= 0.97 * everything
    assert entries < 64
    frozen, few = hit_rate_and_entries(requests, arm(policy, fixed_horizon_seconds=25.5))
    assert frozen < 0.85 * everything < rate
    assert few < entries


@pytest.mark.parametrize("drive", ["linear", "branching", "agentic", "long-context"])
def test_so_it_does_on_generated_drives(drive: str) -> None:
    requests = make_scenario(drive, 2_000, seed=5)
    everything, all_entries = hit_rate_and_entries(
        requests, arm("lru", is_sized_by_demand=False, bound_regions=len(requests))
    )
    rate, entries = hit_rate_and_entries(requests, arm("gittins"))
    assert rate >= 0.9 * everything
    assert entries < all_entries / 2
