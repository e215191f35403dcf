"""Arms replayed as metadata: the figures of a known drive, and what has to add up in any."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pinprobe.ledger.config.registry import load_config
from pinprobe.ledger.config.shipped import find_config
from pinprobe.ledger.price import Price
from pinprobe.ledger.replay.arm import Arm, arm_of
from pinprobe.ledger.replay.arm_replay import Setting, replay_arm
from pinprobe.ledger.replay.arm_result import ArmResult
from pinprobe.ledger.replay.bands import parse_bands
from pinprobe.ledger.replay.replay import replay
from pinprobe.ledger.replay.request import Request
from pinprobe.ledger.replay.shape import Shape
from pinprobe.ledger.replay.shaped_scenario import SHAPES, make_shaped_scenario
from pinprobe.ledger.tenants.policies.policies import make_policy
from pinprobe.ledger.tenants.prefill_time import PrefillTime
from tests.ledger.replay import made_runs
from tests.ledger.replay.made_runs import pool_of

OUTCOMES = ("promoted", "declined", "already_here", "below_floor")


def shipped(name: str) -> Arm:
    return arm_of(load_config(find_config(name), {}))


def linear() -> list[Request]:
    return make_shaped_scenario("linear", SHAPES["linear"])


def test_the_known_drive_needs_64_pinned_slots_or_a_pool_that_follows_demand() -> None:
    setting = Setting("every-chunk")
    names = ("savepoint-ring-32", "savepoint-ring-64", "savepoint-split", "savepoint-split-demand")
    small, large, split, demand = (replay_arm(linear(), shipped(name), setting) for name in names)
    assert [round(each.later_hit_rate * 100, 1) for each in (small, large, demand)] == [0.0, 94.5, 94.5]
    assert round(split.later_hit_rate * 100, 1) >= 93.3
    assert round(demand.pageable_bytes / 2**30, 3) == 3.174 < round(split.pageable_bytes / 2**30, 3) == 9.235
    assert {each.pinned for each in (split, demand)} == {Price(16 * 154_927_104, "the ask")}


@settings(derandomize=True, deadline=None, max_examples=40)
@given(
    st.sampled_from(sorted(SHAPES)),
    st.sampled_from(["prompt-end", "every-chunk", "ladder", "ladder:1"]),
    st.sampled_from(["lru", "gdsf", "chain", "gittins", None]),
    st.integers(1, 9),
    st.integers(0, 3),
)
def test_what_is_counted_adds_up(name: str, placement: str, policy: str | None, entries: int, seed: int) -> None:
    shape = replace(SHAPES[name], sessions=4, turns=4, seed=seed)
    requests = make_shaped_scenario(name, shape)
    arm = made_runs.arm_of(pool_of(entries, policy) if policy else None, slots=entries)
    result = replay_arm(requests, arm, Setting(placement, PrefillTime(0.001), bands=parse_bands("0:4k,4k:64k")))
    assert result.requests == len(requests) == sum(band.requests for band in result.bands)
    assert result.prompt_tokens == sum(request.prompt_tokens for request in requests)
    assert result.spared_tokens == result.later_spared_tokens == sum(band.spared_tokens for band in result.bands)
    assert sum(result.hits.values()) <= sum(request.parent is not None for request in requests)
    assert result.spared_seconds == pytest.approx(result.spared_tokens * 0.001)
    assert result.peak_entries <= entries
    assert 0 <= result.mean_entries <= result.peak_entries + 1e-9
    if policy:
        counts = {outcome: result.counts.get(outcome, 0) for outcome in OUTCOMES}
        assert result.counts.get("requests", 0) == result.staged == sum(counts.values())
        assert 0 <= counts["promoted"] - result.evicted <= entries
        assert result.pageable_bytes == result.peak_entries * arm.pool.region_bytes  # type: ignore[union-attr]
    else:
        assert (result.counts, result.pageable_bytes, result.demand) == ({}, 0, None)


@pytest.mark.parametrize("policy", ["lru", "gdsf", "chain", "gittins"])
@pytest.mark.parametrize("name", ["branching", "agentic"])
def test_a_pool_of_fixed_size_spares_what_its_policy_alone_does(name: str, policy: str) -> None:
    requests = make_shaped_scenario(name, replace(SHAPES[name], sessions=6, turns=10))
    arm = made_runs.arm_of(pool_of(5, policy, chunk_tokens=1))
    alone = replay(requests, make_policy(policy, 5))
    result = replay_arm(requests, arm, Setting())
    assert (result.spared_tokens, sum(result.hits.values())) == (alone.spared_tokens, alone.hits)
    assert (result.counts["promoted"], result.evicted) == (alone.writes, alone.evictions)


def test_a_ring_alone_is_the_queue_that_it_is() -> None:
    requests = made_runs.drive("branching", Shape(sessions=5, turns=6, prompt_tokens=(6_000, 9_000)))
    result = replay_arm(requests, made_runs.arm_of(slots=3), Setting())
    staged: list[int] = []
    seen: dict[int, Request] = {}
    spared = 0
    for request in requests:
        place = request.parent
        while place is not None and place not in staged[-3:]:
            place = seen[place].parent
        spared += seen[place].savepoint_tokens if place is not None else 0
        seen.setdefault(request.savepoint, request)
        if place != request.savepoint:
            staged.append(request.savepoint)
    assert (result.spared_tokens, result.staged) == (spared, len(staged))
    assert result.hits.keys() <= {"ring"}


def test_what_is_mapped_at_boot_and_stays_is_held_whether_it_is_used_or_not() -> None:
    few = made_runs.drive("linear", Shape(sessions=1, turns=2, prompt_tokens=(4_000, 5_000)))

    def held(**fields: object) -> int:
        arm = made_runs.arm_of(pool_of(9, **fields))  # type: ignore[arg-type]
        assert arm.pool is not None
        return replay_arm(few, arm, Setting()).pageable_bytes // arm.pool.region_bytes

    assert held() == 2
    assert held(is_mapped_at_boot=True) == 9
    assert held(is_mapped_at_boot=True, is_sized_by_demand=True) < 9


def test_the_mean_is_over_the_trace_s_time_and_not_over_its_requests() -> None:
    def at(seconds: float, number: int) -> Request:
        return Request(seconds, number, None, 4_000, 4_000, 1, str(number))

    # One entry for 9 s, and then two for 1 s.
    result = replay_arm([at(0, 1), at(9, 2), at(10, 3)], made_runs.arm_of(pool_of()), Setting())
    assert result.mean_entries == pytest.approx((1 * 9 + 2 * 1) / 10)


def test_no_request_at_all_is_an_empty_result() -> None:
    result: ArmResult = replay_arm([], made_runs.arm_of(pool_of()), Setting())
    assert (result.requests, result.token_hit_rate, result.later_hit_rate, result.mean_entries) == (0, 0.0, 0.0, 0.0)


def test_the_price_of_the_ring_counts_in_the_total() -> None:
    arm = made_runs.arm_of(pool_of())
    result = replay_arm(made_runs.drive(), arm, Setting(), Price(2**33, "measured"))
    assert result.total_bytes == 2**33 + result.pageable_bytes
