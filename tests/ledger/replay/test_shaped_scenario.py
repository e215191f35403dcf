"""The drives of a given shape, and the server that they queue at, worked out again from the requests alone."""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from collections import Counter, defaultdict
from statistics import median
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pinprobe.ledger.replay.bands import BandCounter, parse_bands
from pinprobe.ledger.replay.request import Request
from pinprobe.ledger.replay.scenario import SCENARIOS
from pinprobe.ledger.replay.shape import Service, Shape, parse_prompt_tokens
from pinprobe.ledger.replay.shaped_scenario import SHAPES, make_shaped_scenario, shape_for
from pinprobe.ledger.tenants.prefill_time import PrefillTime
from pinprobe.probes.errors import BadRequest
from tests.ledger.replay.made_traces import assert_is_a_trace

FUZZ = settings(derandomize=True, deadline=None, max_examples=150)


def turns_of(requests: list[Request]) -> dict[str, list[Request]]:
    turns: dict[str, list[Request]] = defaultdict(list)
    for request in requests:
        turns[request.conversation].append(request)
    return turns


def answered_seconds(requests: list[Request], shape: Shape) -> list[float]:
    """When each answer ends, were everything kept."""
    tokens = {request.savepoint: request.savepoint_tokens for request in requests}
    ends = []
    for request in requests:
        spared = tokens[request.parent] if request.parent is not None else 0
        prefill = shape.service.prefill_time.seconds(spared, request.prompt_tokens)
        ends.append(request.at_seconds + prefill + shape.output_tokens / shape.service.output_tokens_per_second)
    return ends


# -- shapes


def test_every_drive_has_a_shape_of_its_own() -> None:
    assert list(SHAPES) == list(SCENARIOS)
    for name, own in SHAPES.items():
        assert shape_for(name) == own


def test_what_is_given_takes_the_place_of_the_drives_own_and_nothing_else_does() -> None:
    given: dict[str, Any] = {
        "sessions": 3,
        "turns": 2,
        "think_seconds": 0.0,
        "prompt_tokens": (10, 20),
        "output_tokens": 0,
        "seed": 7,
        "block_tokens": 4,
        "service": Service(batch=1),
    }
    assert set(given) == {field.name for field in dataclasses.fields(Shape)}
    for key, value in given.items():
        shape = shape_for("agentic", **{key: value})
        assert getattr(shape, key) == value
        assert dataclasses.replace(shape, **{key: getattr(SHAPES["agentic"], key)}) == SHAPES["agentic"]


@pytest.mark.parametrize(
    ("wrong", "because"),
    [
        ({"sessions": 0}, "a drive of 0 sessions is none"),
        ({"sessions": -1}, "a drive of -1 sessions is none"),
        ({"turns": 0}, "a drive of 0 turns is none"),
        ({"sessions": 10**6, "turns": 10**6}, "are over 1,000,000 requests"),
        ({"think_seconds": -0.1}, "nobody thinks for -0.1 s"),
        ({"think_seconds": math.nan}, "nobody thinks for nan s"),
        ({"think_seconds": math.inf}, "nobody thinks for inf s"),
        ({"output_tokens": -1}, "an answer of -1 tokens is none"),
        ({"block_tokens": 0}, "a block of 0 tokens is none"),
        ({"prompt_tokens": (0, 5)}, "prompts of 0 to 5 tokens are none"),
        ({"prompt_tokens": (9, 5)}, "prompts of 9 to 5 tokens are none"),
        ({"prompt_tokens": (9, 10**10)}, "prompts of 9 to 10000000000 tokens are none"),
    ],
)
def test_a_shape_that_is_none_is_refused(wrong: dict[str, Any], because: str) -> None:
    with pytest.raises(BadRequest, match=re.escape(because)):
        Shape(**wrong)
    with pytest.raises(BadRequest, match=re.escape(because)):
        shape_for("linear", **wrong)


@pytest.mark.parametrize(
    "wrong",
    [{"batch": 0}, {"batch": 10**6}, *({"output_tokens_per_second": rate} for rate in (0.0, -1.0, math.nan, math.inf))],
)
def test_a_server_that_serves_nothing_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadRequest):
        Service(**wrong)


@pytest.mark.parametrize(("text", "tokens"), [("5355:6343", (5355, 6343)), ("7", (7, 7)), (" 1 : 2 ", (1, 2))])
def test_prompt_tokens_are_read(text: str, tokens: tuple[int, int]) -> None:
    assert parse_prompt_tokens(text) == tokens


@pytest.mark.parametrize("text", ["", ":", "1:", ":2", "1:2:3", "1-2", "1.5:2", "-1:2", "8k", "\u0661", "9" * 5000])
def test_what_are_no_prompt_tokens_is_refused_with_its_text(text: str) -> None:
    with pytest.raises(BadRequest, match="write first:last, such as 5355:6343") as refused:
        parse_prompt_tokens(text)
    assert len(str(refused.value)) < 150


def test_an_unknown_drive_is_refused_with_the_nearest_name() -> None:
    for ask in (shape_for, lambda name: make_shaped_scenario(name, Shape())):
        with pytest.raises(BadRequest, match=r"did you mean linear\?"):
            ask("liner")


# -- the linear drive, whose figures are known


def test_the_linear_drive_is_22_sessions_of_4_turns_that_grow_evenly_and_repeat_the_whole_talk() -> None:
    shape = shape_for("linear")
    requests = make_shaped_scenario("linear", shape)
    assert len(requests) == 88
    assert_is_a_trace(requests, 1)
    turns = turns_of(requests)
    assert len(turns) == 22
    for line in turns.values():
        assert [request.prompt_tokens for request in line] == [5_355, 5_684, 6_013, 6_343]
        assert [request.savepoint_tokens for request in line] == [5_355, 5_684, 6_013, 6_343]
        assert [request.parent for request in line] == [None, *(request.savepoint for request in line[:-1])]
        assert {request.output_tokens for request in line} == {300}


def test_its_reuse_gaps_are_the_think_time_and_a_turn_in_the_queue() -> None:
    # That engine saw its savepoints read up to 25.5 s after their last use.
    requests = make_shaped_scenario("linear", shape_for("linear"))
    gaps = [
        later.at_seconds - early.at_seconds
        for line in turns_of(requests).values()
        for early, later in itertools.pairwise(line)
    ]
    assert 18 < median(gaps) < 20
    assert 20 < max(gaps) < 26


def test_a_single_turn_is_as_long_as_the_first_number_says() -> None:
    requests = make_shaped_scenario("linear", shape_for("linear", turns=1, sessions=3))
    assert [request.prompt_tokens for request in requests] == [5_355] * 3


def test_prompts_that_can_not_grow_are_refused() -> None:
    assert make_shaped_scenario("linear", shape_for("linear", turns=4, prompt_tokens=(5, 8)))
    with pytest.raises(BadRequest, match="prompts can't grow over 4 turns from 5 to 7 tokens"):
        make_shaped_scenario("linear", shape_for("linear", turns=4, prompt_tokens=(5, 7)))


# -- the server


@pytest.mark.parametrize("batch", [1, 2, 8, 1_000])
@pytest.mark.parametrize("think_seconds", [0.0, 12.0])
def test_turns_wait_for_a_place_and_for_the_prefills_before_them_and_for_nothing_else(
    batch: int, think_seconds: float
) -> None:
    service = Service(batch=batch, prefill_time=PrefillTime(0.0002, 1e-8))
    shape = shape_for("linear", think_seconds=think_seconds, service=service)
    requests = make_shaped_scenario("linear", shape)
    ends = answered_seconds(requests, shape)
    end_of = {request.savepoint: end for request, end in zip(requests, ends, strict=True)}
    answer_seconds = shape.output_tokens / service.output_tokens_per_second
    for number, request in enumerate(requests):
        # It came when the turn before it was answered and thought about.
        came = 0.0 if request.parent is None else end_of[request.parent] + think_seconds
        assert request.at_seconds >= came - 1e-9
        served = [end for end in ends[:number] if end > request.at_seconds + 1e-9]
        assert len(served) < batch
        prefilled = [end - answer_seconds for end in ends[:number]]
        assert all(end <= request.at_seconds + 1e-9 for end in prefilled)
        # And it began at the very moment at which the last of these was no longer in its way.
        assert min(abs(request.at_seconds - moment) for moment in (came, *ends[:number], *prefilled)) < 1e-9


def test_a_larger_batch_is_sooner_done() -> None:
    spans = []
    for batch in (1, 4, 22):
        requests = make_shaped_scenario("linear", shape_for("linear", service=Service(batch=batch)))
        spans.append(requests[-1].at_seconds)
    assert spans[0] > spans[1] > spans[2]
    # With one place 88 answers of 6 s come one after the other; the last has only begun.
    assert spans[0] > 87 * 6


# -- the other drives


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("block_tokens", [1, 512])
def test_each_drive_is_a_trace_and_the_same_one_each_time(name: str, block_tokens: int) -> None:
    shape = shape_for(name, block_tokens=block_tokens)
    requests = make_shaped_scenario(name, shape)
    assert_is_a_trace(requests, block_tokens)
    assert make_shaped_scenario(name, shape) == requests


@pytest.mark.parametrize("name", ["branching", "one-shot-flood", "agentic", "long-context"])
def test_another_seed_makes_another_drive_where_chance_has_a_part(name: str) -> None:
    assert make_shaped_scenario(name, shape_for(name, seed=1)) != make_shaped_scenario(name, shape_for(name, seed=2))


def test_branching_has_one_beginning_and_prompts_that_several_continue() -> None:
    shape = shape_for("branching")
    requests = make_shaped_scenario("branching", shape)
    assert len(requests) == 1 + shape.sessions * shape.turns
    assert [request.savepoint for request in requests if request.parent is None] == [0]
    children = Counter(request.parent for request in requests[1:])
    assert children[0] == shape.sessions
    assert sum(count > 1 for count in children.values()) > 5
    lengths = {request.prompt_tokens for request in requests[1:]}
    assert min(lengths) == 6_000
    assert max(lengths) <= 14_000


def test_nine_of_ten_prompts_of_a_flood_never_come_again() -> None:
    shape = shape_for("one-shot-flood")
    requests = make_shaped_scenario("one-shot-flood", shape)
    assert len(requests) == 10 * shape.sessions * shape.turns
    lengths = Counter(map(len, turns_of(requests).values()))
    assert lengths == {1: 9 * shape.sessions * shape.turns, shape.turns: shape.sessions}


def test_agents_are_compacted_once_and_have_subagents_beside_them() -> None:
    shape = shape_for("agentic")
    requests = make_shaped_scenario("agentic", shape)
    turns = turns_of(requests)
    agents = {name: line for name, line in turns.items() if "subagent" not in name}
    assert len(agents) == shape.sessions
    for line in agents.values():
        assert len(line) == shape.turns
        assert [request.parent for request in line].count(None) == 2
        assert (min(request.prompt_tokens for request in line), max(request.prompt_tokens for request in line)) == (
            20_000,
            160_000,
        )
    assert len(turns) > shape.sessions + 5
    for name, line in turns.items():
        if "subagent" in name:
            # It begins where its agent's line began, which is what subagents share with it.
            assert line[0].parent in {
                request.savepoint for request in agents[name.partition(",")[0]] if request.parent is None
            }


def test_a_long_context_mix_has_requests_in_every_band_and_none_beyond() -> None:
    requests = make_shaped_scenario("long-context", shape_for("long-context"))
    counter = BandCounter(parse_bands("0:4k,4k:8k,8k:16k,16k:32k,32k:64k,64k:128k"))
    for request in requests:
        counter.add(request.prompt_tokens, 0)
    *bands, beyond = counter.counts()
    assert beyond.requests == 0
    assert all(band.requests >= 12 for band in bands)
    assert max(request.prompt_tokens for request in requests) == 128_000
    assert min(request.prompt_tokens for request in requests) == 2_048


def test_short_turns_stay_below_one_prefill_chunk() -> None:
    requests = make_shaped_scenario("short-turns", shape_for("short-turns"))
    assert len(requests) == 88
    assert all(request.savepoint_tokens < 2_048 for request in requests)


def test_a_drive_that_grows_beyond_what_is_ever_taken_in_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    # Its sessions and turns alone are few; what begins beside them makes it many.
    monkeypatch.setattr("pinprobe.ledger.replay.served_sessions.MOST_REQUESTS", 100)
    shape = shape_for("one-shot-flood", sessions=2, turns=5)
    assert len(make_shaped_scenario("one-shot-flood", shape)) == 100
    with pytest.raises(BadRequest, match="the drive is more than 100 requests; give fewer sessions or turns"):
        make_shaped_scenario("one-shot-flood", shape_for("one-shot-flood", sessions=2, turns=6))


def test_a_turn_that_fills_no_further_block_has_its_parents_savepoint() -> None:
    shape = shape_for("linear", sessions=1, turns=5, prompt_tokens=(300, 1_100), block_tokens=512)
    line = make_shaped_scenario("linear", shape)
    assert [request.prompt_tokens for request in line] == [300, 500, 700, 900, 1_100]
    assert [request.savepoint_tokens for request in line] == [0, 0, 512, 512, 1_024]
    assert [(request.savepoint, request.parent) for request in line] == [
        (0, None),
        (1, None),
        (2, None),
        (2, 2),
        (4, 2),
    ]


@given(
    name=st.sampled_from(sorted(SHAPES)),
    sessions=st.integers(1, 6),
    turns=st.integers(1, 9),
    think_seconds=st.floats(0, 100),
    prompt_tokens=st.tuples(st.integers(1, 5_000), st.integers(0, 5_000)).map(lambda pair: (pair[0], sum(pair))),
    output_tokens=st.integers(0, 500),
    seed=st.integers(),
    block_tokens=st.integers(1, 600),
    batch=st.integers(1, 9),
)
@example("branching", 6, 9, 0.0, (1, 9), 0, 0, 1, 1)
@example("agentic", 6, 9, 0.0, (1, 9), 0, 0, 1, 1)
@FUZZ
def test_any_shape_makes_a_trace_or_is_refused_because_prompts_can_not_grow(
    name: str,
    sessions: int,
    turns: int,
    think_seconds: float,
    prompt_tokens: tuple[int, int],
    output_tokens: int,
    seed: int,
    block_tokens: int,
    batch: int,
) -> None:
    shape = Shape(sessions, turns, think_seconds, prompt_tokens, output_tokens, seed, block_tokens, Service(batch))
    try:
        requests = make_shaped_scenario(name, shape)
    except BadRequest as refused:
        because = str(refused)
        requests = []
    else:
        because = ""
        assert len(requests) >= sessions * turns
    assert_is_a_trace(requests, block_tokens)
    assert not because or (because.startswith("prompts can't grow") and prompt_tokens[1] - prompt_tokens[0] < turns)
