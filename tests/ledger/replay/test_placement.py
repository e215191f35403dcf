"""Where savepoints are placed, and that nodes are shared exactly as far as a trace proves it."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pinprobe.ledger.replay.any_trace import read_any_trace
from pinprobe.ledger.replay.placement import Key, PrefixNode, PrefixNodes, check_placement, placements
from pinprobe.ledger.replay.replay import replay
from pinprobe.ledger.replay.request import Request
from pinprobe.ledger.replay.scenario import SCENARIOS, make_scenario
from pinprobe.ledger.tenants.policies.policies import make_policy
from pinprobe.ledger.tenants.policies.policy import Savepoint
from pinprobe.probes.errors import BadRequest
from tests.ledger.replay.real_traces import real_trace

FUZZ = settings(derandomize=True, deadline=None, max_examples=200)
KINDS = ["prompt-end", "every-chunk", "ladder", "ladder:0", "ladder:2"]


def request(savepoint: int, parent: int | None, tokens: int, prompt_tokens: int | None = None) -> Request:
    return Request(0.0, savepoint, parent, tokens, tokens if prompt_tokens is None else prompt_tokens, 0, "")


def keys(nodes: list[PrefixNode]) -> list[Key]:
    return [node.key for node in nodes]


# -- the places of one prompt


@pytest.mark.parametrize(
    ("placement", "covered", "prompt", "places"),
    [
        ("prompt-end", 0, 6_343, [6_343]),
        ("prompt-end", 6_342, 6_343, [6_343]),
        ("prompt-end", 6_343, 6_343, []),
        ("prompt-end", 0, 0, []),
        ("every-chunk", 0, 6_343, [2_048, 4_096, 6_144, 6_343]),
        ("every-chunk", 2_048, 6_343, [4_096, 6_144, 6_343]),
        ("every-chunk", 2_047, 6_144, [2_048, 4_096, 6_144]),
        ("every-chunk", 0, 2_047, [2_047]),
        ("ladder", 0, 20_000, [2_048, 4_096, 8_192, 16_384]),
        ("ladder", 4_096, 16_384, [8_192, 16_384]),
        ("ladder", 16_384, 32_767, []),
        ("ladder", 0, 2_047, []),
        ("ladder:0", 0, 6_343, [2_048, 4_096, 6_144]),
        ("ladder:1", 4_096, 13_000, [8_192, 12_288]),
        ("ladder:20", 0, 1_000_000, []),
    ],
)
def test_a_prompt_has_savepoints_at(placement: str, covered: int, prompt: int, places: list[int]) -> None:
    assert placements(covered, prompt, placement, 2_048) == places


@pytest.mark.parametrize(("interval", "uncovered"), [(2_048, 129_024), (256, 130_816)])
def test_the_last_step_of_a_ladder_leaves_about_half_of_a_deep_prompt_uncovered(interval: int, uncovered: int) -> None:
    # The deepest one that has not reached the next rung, 262,144.
    prompt_tokens = 262_144 - interval
    rungs = placements(0, prompt_tokens, "ladder", interval)
    assert prompt_tokens - rungs[-1] == uncovered
    assert 0.49 < uncovered / prompt_tokens < 0.5
    # The same by one wide step, and what each finer step costs and mends: 1, 3, 7, 15 writes.
    widest = (131_072 // interval).bit_length() - 1
    steps = [placements(0, prompt_tokens, f"ladder:{widest - finer}", interval) for finer in range(4)]
    assert [len(places) for places in steps] == [1, 3, 7, 15]
    assert [prompt_tokens - places[-1] for places in steps] == [(131_072 >> finer) - interval for finer in range(4)]


@given(
    covered=st.integers(0, 3_000), added=st.integers(0, 3_000), chunk=st.integers(1, 300), kind=st.sampled_from(KINDS)
)
@FUZZ
def test_places_are_those_that_a_look_at_every_token_finds(covered: int, added: int, chunk: int, kind: str) -> None:
    prompt_tokens = covered + added
    rungs = {chunk * 2**doublings for doublings in range(13)}

    def is_place(tokens: int) -> bool:
        if kind == "ladder":
            return tokens in rungs
        if kind.startswith("ladder:"):
            return tokens % (chunk << int(kind[-1])) == 0
        return tokens == prompt_tokens or (kind == "every-chunk" and tokens % chunk == 0)

    expected = [tokens for tokens in range(covered + 1, prompt_tokens + 1) if is_place(tokens)]
    assert placements(covered, prompt_tokens, kind, chunk) == expected


@pytest.mark.parametrize(
    "text", ["", "end", "ladder:", "ladder:K", "ladder:21", "ladder:-1", "ladder:1.5", "Ladder", "ladder:\u0661"]
)
def test_a_placement_that_is_none_is_refused_with_all_there_are(text: str) -> None:
    for refuse in (check_placement, PrefixNodes, lambda text: placements(0, 1, text)):
        with pytest.raises(BadRequest, match="write prompt-end, every-chunk, ladder, or ladder:K"):
            refuse(text)


@pytest.mark.parametrize("kind", ["every-chunk", "ladder:0", "ladder:20"])
def test_a_prompt_of_more_places_than_fit_into_memory_is_refused_before_one_is_made(kind: str) -> None:
    nodes, tokens = PrefixNodes(kind), 10**15 - 1
    for refuse in (lambda: placements(0, tokens, kind), lambda: nodes.place(request(1, None, tokens), 0)):
        with pytest.raises(BadRequest, match="at most 10,000 are replayed; give --placement prompt-end or ladder"):
            refuse()
    assert len(nodes) == 0
    for enough in ("prompt-end", "ladder"):
        assert len(PrefixNodes(enough).place(request(1, None, tokens), 0)) < 50


def test_a_chunk_of_nothing_and_more_covered_than_there_is_are_refused() -> None:
    for make in (lambda: PrefixNodes("ladder", 0), lambda: placements(0, 5, "ladder", -1)):
        with pytest.raises(BadRequest, match="is none; give 1 or more"):
            make()
    for covered in (-1, 6):
        with pytest.raises(BadRequest, match="can't be covered of a prompt of 5"):
            placements(covered, 5, "prompt-end")
    nodes = PrefixNodes()
    with pytest.raises(BadRequest, match="can't be covered of a prompt of 5"):
        nodes.place(request(0, None, 5), 6)
    assert len(nodes) == 0


# -- nodes


def test_a_prompt_end_is_the_savepoint_of_the_trace_itself() -> None:
    nodes = PrefixNodes("prompt-end")
    assert list(nodes.readable(request(0, None, 6_000))) == []
    assert nodes.place(request(0, None, 6_000), 0) == [PrefixNode(0, None, 6_000)]
    second = request(1, 0, 9_000)
    assert list(nodes.readable(second)) == [PrefixNode(0, None, 6_000)]
    assert nodes.place(second, 6_000) == [PrefixNode(1, 0, 9_000)]
    again = request(1, 1, 9_000)
    assert list(nodes.readable(again)) == [PrefixNode(1, 0, 9_000), PrefixNode(0, None, 6_000)]
    assert nodes.place(again, 9_000) == []
    assert nodes.place(again, 6_000) == [PrefixNode(1, 0, 9_000)]
    assert (nodes.placed_count, len(nodes)) == (3, 2)


def test_nodes_between_are_the_parents_own_up_to_its_savepoint_and_ones_own_beyond() -> None:
    nodes = PrefixNodes("every-chunk", 1_000)
    assert keys(nodes.place(request(0, None, 2_500), 0)) == [(0, 1_000), (0, 2_000), 0]
    # Two that continue the same prompt: what they share ends with its 2,500 tokens.
    assert nodes.place(request(1, 0, 4_500), 2_500) == [
        PrefixNode((1, 3_000), 0, 3_000),
        PrefixNode((1, 4_000), (1, 3_000), 4_000),
        PrefixNode(1, (1, 4_000), 4_500),
    ]
    assert keys(nodes.place(request(2, 0, 3_500), 2_500)) == [(2, 3_000), 2]
    third = request(3, 2, 4_000)
    assert keys(list(nodes.readable(third))) == [2, (2, 3_000), 0, (0, 2_000), (0, 1_000)]
    # It found the first chunk only, and so offers the same places again. Where an earlier prompt ended it does not
    # know any more: no savepoint is placed there, but what lies beyond still comes after it.
    assert nodes.place(third, 1_000) == [
        PrefixNode((0, 2_000), (0, 1_000), 2_000),
        PrefixNode((2, 3_000), 0, 3_000),
        PrefixNode(3, 2, 4_000),
    ]


def test_a_prompt_that_ends_on_a_boundary_has_one_node_there() -> None:
    nodes = PrefixNodes("every-chunk", 1_000)
    assert keys(nodes.place(request(0, None, 2_000), 0)) == [(0, 1_000), 0]
    assert keys(nodes.place(request(1, 0, 3_000), 0)) == [(0, 1_000), 0, 1]
    ladder = PrefixNodes("ladder", 1_000)
    assert keys(ladder.place(request(0, None, 2_000), 0)) == [(0, 1_000), 0]
    assert keys(ladder.place(request(1, 0, 9_000), 1_000)) == [0, (1, 4_000), (1, 8_000)]


def test_a_savepoint_of_nothing_offers_nothing_and_may_be_continued() -> None:
    nodes = PrefixNodes("every-chunk", 1_000)
    assert nodes.place(request(0, None, 0, 90), 0) == []
    second = request(1, 0, 1_500)
    assert list(nodes.readable(second)) == []
    assert nodes.place(second, 0) == [PrefixNode((1, 1_000), None, 1_000), PrefixNode(1, (1, 1_000), 1_500)]


def test_a_savepoint_that_covers_no_more_than_its_parent_is_still_one_of_the_trace() -> None:
    nodes = PrefixNodes("prompt-end")
    nodes.place(request(0, None, 5_000, 5_010), 0)
    assert nodes.place(request(1, 0, 5_000, 5_020), 0) == [PrefixNode(1, 0, 5_000)]
    assert keys(list(nodes.readable(request(2, 1, 6_000)))) == [1, 0]


def test_no_node_lies_beyond_the_savepoint_in_the_prompt() -> None:
    nodes = PrefixNodes("every-chunk", 1_000)
    assert keys(nodes.place(request(0, None, 1_500, 9_999), 0)) == [(0, 1_000), 0]


def test_a_parent_that_was_never_seen_is_refused() -> None:
    nodes = PrefixNodes()
    for parent in (7, 1):
        for use in (nodes.readable, lambda asked: nodes.place(asked, 0)):
            with pytest.raises(BadRequest, match=f"the parent {parent} is the savepoint of no earlier request"):
                use(request(1, parent, 500))
    assert len(nodes) == 0


# -- against prompts of real tokens


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(4))
def test_two_nodes_are_the_same_only_where_their_tokens_are(kind: str, seed: int) -> None:
    chance = random.Random(seed)
    prompts: list[tuple[int, ...]] = []
    numbers: dict[tuple[int, ...], int] = {}
    nodes = PrefixNodes(kind, 4)
    covers: dict[Key, tuple[int, ...]] = {}
    placed: dict[Key, PrefixNode] = {}
    for _ in range(150):
        begun = chance.choice(prompts)[: chance.randrange(40)] if prompts and chance.random() < 0.8 else ()
        prompt = begun + tuple(chance.randrange(3) for _ in range(chance.randrange(1, 25)))
        parent = max((known for known in numbers if prompt[: len(known)] == known), key=len, default=None)
        asked = request(
            numbers.setdefault(prompt, len(numbers)), None if parent is None else numbers[parent], len(prompt)
        )
        prompts.append(prompt)
        readable = list(nodes.readable(asked))
        for node in readable:
            assert covers.setdefault(node.key, prompt[: node.tokens]) == prompt[: node.tokens]
        spared = chance.choice([0, *(node.tokens for node in readable)])
        for node in nodes.place(asked, spared):
            # One key stands for one prefix, and its place on the line never changes.
            assert covers.setdefault(node.key, prompt[: node.tokens]) == prompt[: node.tokens]
            assert placed.setdefault(node.key, node) == node
            if node.parent is not None:
                assert covers[node.parent] == prompt[: len(covers[node.parent])]
                assert len(covers[node.parent]) < node.tokens
        # Asked once more, everything that it placed is there to be read.
        again = [node.tokens for node in nodes.readable(request(asked.savepoint, asked.savepoint, len(prompt)))]
        assert set(placements(0, len(prompt), kind, 4)) <= set(again)
        assert all(early >= late for early, late in itertools.pairwise(again))


# -- in a replay


def spared_by_nodes(requests: list[Request], slots: int, kind: str) -> tuple[int, int]:
    """Tokens spared and rows written by a replay over nodes, with the least recently used going first."""
    nodes, policy, resident = PrefixNodes(kind), make_policy("lru", slots), set[Key]()
    spared_tokens = writes = 0
    for asked in requests:
        found = next((node for node in nodes.readable(asked) if node.key in resident), None)
        spared = found.tokens if found else 0
        spared_tokens += spared
        if found:
            policy.read(found.key, asked.at_seconds)
        for node in nodes.place(asked, spared):
            decision = policy.offer(Savepoint(node.key, None, node.tokens), asked.at_seconds)
            writes += node.key not in resident
            resident.add(node.key)
            if decision.evicted is not None:
                resident.remove(decision.evicted)
    return spared_tokens, writes


@pytest.mark.parametrize("name", SCENARIOS)
def test_prompt_ends_give_the_figures_of_the_replay_without_nodes(name: str) -> None:
    requests = make_scenario(name, 1_500, seed=3)
    plain = replay(requests, make_policy("lru", 40))
    assert spared_by_nodes(requests, 40, "prompt-end") == (plain.spared_tokens, plain.writes)


def test_prompt_ends_of_a_recorded_trace_give_its_known_figures() -> None:
    # Its columns for 32 slots, the least recently used going first, are known from elsewhere.
    requests = read_any_trace(real_trace("agent_sessions"))
    spared_tokens, _ = spared_by_nodes(requests, 32, "prompt-end")
    assert spared_tokens / sum(asked.prompt_tokens for asked in requests) == pytest.approx(0.824, abs=0.001)


def test_with_room_for_all_more_places_spare_no_less_than_prompt_ends_and_write_more() -> None:
    requests = make_scenario("branching", 1_000, seed=5)
    most = 10**6
    at_ends, end_writes = spared_by_nodes(requests, most, "prompt-end")
    everywhere, chunk_writes = spared_by_nodes(requests, most, "every-chunk")
    on_rungs, rung_writes = spared_by_nodes(requests, most, "ladder")
    assert everywhere == at_ends > on_rungs
    assert chunk_writes > end_writes > rung_writes
