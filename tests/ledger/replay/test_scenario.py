"""The endless drives: each is a trace, the same one for the same seed, and has what it is made for."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pinprobe.ledger.replay.request import Request
from pinprobe.ledger.replay.scenario import BLOCK_TOKENS, SCENARIOS, check_scenario_name, make_scenario
from pinprobe.ledger.replay.trace_lines import MOST_REQUESTS
from pinprobe.probes.errors import BadRequest
from tests.ledger.replay.made_traces import assert_is_a_trace


def children_of(requests: list[Request]) -> Counter[int]:
    """How many other prompts continue a savepoint."""
    return Counter(
        request.parent for request in requests if request.parent is not None and request.parent != request.savepoint
    )


@pytest.mark.parametrize("block_tokens", [1, BLOCK_TOKENS])
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_drive_is_a_trace_of_so_many_requests(name: str, block_tokens: int) -> None:
    for count in (1, 2, 1_500):
        requests = make_scenario(name, count, seed=1, block_tokens=block_tokens)
        assert len(requests) == count
        assert_is_a_trace(requests, block_tokens)


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_seed_makes_one_drive_and_another_seed_another(name: str) -> None:
    first = make_scenario(name, 300, seed=1)
    assert make_scenario(name, 300, seed=1) == first
    assert make_scenario(name, 200, seed=1) == first[:200]
    assert make_scenario(name, 300, seed=2) != first


def test_a_linear_drive_never_branches() -> None:
    assert set(children_of(make_scenario("linear", 1_500, seed=1)).values()) == {1}


def test_a_branching_drive_branches_repeats_and_begins_with_one_system_prompt() -> None:
    requests = make_scenario("branching", 1_500, seed=1)
    assert [request.parent for request in requests].count(None) == 1
    assert sum(count > 1 for count in children_of(requests).values()) > 20
    assert sum(request.parent == request.savepoint for request in requests) > 20


def test_most_prompts_of_a_flood_never_come_again() -> None:
    requests = make_scenario("one-shot-flood", 2_000, seed=1)
    turns = Counter(request.conversation for request in requests)
    once = sum(count == 1 and name.startswith("once") for name, count in turns.items())
    assert 0.85 < once / len(requests) < 0.95


def test_agents_grow_deep_are_compacted_and_have_subagents() -> None:
    requests = make_scenario("agentic", 4_000, seed=1)
    assert max(request.prompt_tokens for request in requests) > 150_000
    beginnings = Counter(request.conversation for request in requests if request.parent is None)
    assert max(beginnings.values()) > 1
    assert max(children_of(requests).values()) > 1


def test_long_contexts_come_between_short_ones() -> None:
    requests = make_scenario("long-context", 1_500, seed=1)
    assert sum(request.prompt_tokens > 64_000 for request in requests) > 100
    assert sum(request.prompt_tokens < 8_000 for request in requests) > 100


def test_short_turns_never_reach_one_prefill_chunk_and_still_continue_each_other() -> None:
    requests = make_scenario("short-turns", 3_000, seed=1)
    assert max(request.prompt_tokens for request in requests) < 2_048
    assert sum(request.parent is not None for request in requests) > 1_000


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("liner", "did you mean linear?"),
        ("one-shot", "did you mean one-shot-flood?"),
        ("zzz", "known are linear, branching"),
        ("", "known are"),
        ("a\nb", "'a?b'"),
        ("x" * 5000, "known are"),
    ],
)
def test_an_unknown_drive_is_refused_with_the_nearest_name(name: str, hint: str) -> None:
    for ask in (check_scenario_name, lambda name: make_scenario(name, 1, 0)):
        with pytest.raises(BadRequest) as refused:
            ask(name)
        assert hint in str(refused.value)
        assert str(refused.value).isprintable()
        assert len(str(refused.value)) < 300


@pytest.mark.parametrize(
    ("requests", "block_tokens"), [(0, 1), (-1, 1), (MOST_REQUESTS + 1, 1), (1, 0), (1, -5), (1, 2**21)]
)
def test_a_drive_of_no_requests_or_no_blocks_is_refused(requests: int, block_tokens: int) -> None:
    with pytest.raises(BadRequest, match="is none"):
        make_scenario("linear", requests, 0, block_tokens)


@given(name=st.sampled_from(sorted(SCENARIOS)), seed=st.integers(), block_tokens=st.integers(1, 3_000))
@settings(derandomize=True, deadline=None, max_examples=60)
def test_any_seed_and_any_block_make_a_trace(name: str, seed: int, block_tokens: int) -> None:
    assert_is_a_trace(make_scenario(name, 120, seed, block_tokens), block_tokens)
