"""Policies at numbers of slots: each point is its own replay, nothing betters keeping everything, and nothing hangs."""

from __future__ import annotations

import importlib.util
import time

import pytest

from pinprobe.ledger.replay import sweep_slots as module
from pinprobe.ledger.replay.replay import replay
from pinprobe.ledger.replay.sweep_slots import policies_for, sweep_slots
from pinprobe.ledger.tenants.policies.policies import make_policy, policy_names
from pinprobe.probes.errors import BadRequest
from tests.ledger.replay.made_runs import drive

REQUESTS = drive("agentic")
SLOTS = (1, 3, 9)


def need_library() -> None:
    if importlib.util.find_spec("libcachesim") is None:
        pytest.skip("libcachesim is not installed")


def test_each_point_is_a_replay_of_its_own() -> None:
    swept = sweep_slots(REQUESTS, ["lru", "gittins"], SLOTS)
    assert [(point.policy, point.slots) for point in swept.points] == [
        (p, s) for p in ("lru", "gittins") for s in SLOTS
    ]
    for point in swept.points:
        assert point == replay(REQUESTS, make_policy(point.policy, point.slots)) == swept.at(point.policy, point.slots)
    assert (swept.unfit, swept.ended, swept.shown_policies) == ((), None, ("lru", "gittins"))


def test_keeping_everything_is_the_upper_bound() -> None:
    swept = sweep_slots(REQUESTS, policy_names(), SLOTS)
    tokens = {request.savepoint: request.savepoint_tokens for request in REQUESTS}
    expected = sum(tokens[request.parent] for request in REQUESTS if request.parent is not None)
    assert swept.everything.spared_tokens == expected
    assert swept.everything.writes == len(tokens)
    assert max(point.spared_tokens for point in swept.points) <= expected


def test_no_request_at_all_is_an_empty_sweep() -> None:
    swept = sweep_slots([], ["lru"], [4])
    assert (swept.everything.requests, swept.points[0].token_hit_rate) == (0, 0.0)


def test_all_stands_for_every_known_one_and_each_is_meant_once() -> None:
    assert policies_for(["all"], 1) == tuple(policy_names())
    assert policies_for(["gdsf", "all", "gdsf"], 1) == ("gdsf", *(name for name in policy_names() if name != "gdsf"))


@pytest.mark.parametrize("word", ["lrru", "", "libcachesim:", "libcachesim:NoSuchPolicy"])
def test_a_policy_that_can_t_be_had_by_its_name_is_refused_at_once(word: str) -> None:
    with pytest.raises(BadRequest):
        policies_for([word], 4)


def test_an_interruption_leaves_the_points_that_were_done() -> None:
    def watch(policy: str, slots: int, done: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    swept = sweep_slots(REQUESTS, ["lru", "chain"], SLOTS, watch)
    assert [point.slots for point in swept.points] == [1, 3]
    assert (swept.ended, swept.shown_policies, swept.at("chain", 1)) == ("interrupted", ("lru",), None)


def test_an_interruption_before_anything_was_done_is_passed_on() -> None:
    def watch(policy: str, slots: int, done: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sweep_slots(REQUESTS, ["lru"], SLOTS, watch)


def test_a_general_policy_of_the_library_runs_in_a_process_of_its_own() -> None:
    need_library()
    ours, theirs = sweep_slots(REQUESTS, ["lru", "libcachesim:LRU"], [8]).points
    assert (theirs.policy, theirs.offered) == ("libcachesim:LRU", ours.offered)
    assert theirs.spared_tokens == ours.spared_tokens


def test_a_policy_that_is_unfit_at_a_number_of_slots_is_noted_and_left_out_there() -> None:
    need_library()
    swept = sweep_slots(REQUESTS, ["libcachesim:S3FIFO", "lru"], [2])
    assert [point.policy for point in swept.points] == ["lru"]
    assert [(each.policy, each.slots) for each in swept.unfit] == [("libcachesim:S3FIFO", 2)]
    assert "can't keep 2 savepoints" in swept.unfit[0].reason


def test_the_library_s_name_stands_for_its_general_policies() -> None:
    need_library()
    names = policies_for(["libcachesim"], 8)
    assert {"libcachesim:LRU", "libcachesim:Sieve", "libcachesim:S3FIFO"} <= set(names)
    assert not {"libcachesim:Belady", "libcachesim:CacheBase", "libcachesim:PluginCache"} & set(names)


def test_a_policy_that_never_returns_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    need_library()
    monkeypatch.setattr(module, "_LEAST_PATIENCE_SECONDS", 0.05)  # no process is even started in that time
    monkeypatch.setattr(module, "_PATIENCE_SECONDS_A_REQUEST", 0.0)
    begun = time.monotonic()
    swept = sweep_slots(REQUESTS, ["lru", "libcachesim:LRU"], [4])
    assert time.monotonic() - begun < 10
    assert [point.policy for point in swept.points] == ["lru"]
    assert "did not come to an end within" in swept.unfit[0].reason
