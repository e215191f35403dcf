"""Token ids for a trace: two prompts share exactly what the trace proves that they share."""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Mapping

import pytest

from pinprobe.ledger.replay.placement import PrefixNode, PrefixNodes
from pinprobe.ledger.replay.prompt_words import MOST_TOKENS, PromptWords
from pinprobe.ledger.replay.request import Request
from pinprobe.ledger.replay.scenario import make_scenario
from pinprobe.probes.errors import BadRequest


def shared_tokens(one: array[int], other: array[int]) -> int:
    differ = (at for at, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1])
    return next(differ, min(len(one), len(other)))


def line(requests: Mapping[int, Request], savepoint: int) -> list[int]:
    """A savepoint and all before it, the nearest first."""
    found = [savepoint]
    while (parent := requests[found[-1]].parent) not in (None, found[-1]):
        assert parent is not None
        found.append(parent)
    return found


@pytest.mark.parametrize("drive", ["branching", "agentic"])
def test_two_prompts_share_what_the_trace_proves_and_differ_from_there_on(drive: str) -> None:
    words = PromptWords()
    first: dict[int, Request] = {}
    for request in make_scenario(drive, 40, 3):
        words.know(request)
        first.setdefault(request.savepoint, request)
    for one, other in itertools.combinations(first, 2):
        common = [each for each in line(first, one) if each in line(first, other)]
        proven = first[common[0]].savepoint_tokens if common else 0
        assert shared_tokens(words.words(one), words.words(other)) == proven
    for savepoint, request in first.items():
        assert len(words.words(savepoint)) == request.savepoint_tokens


def test_a_prefix_has_one_number_and_no_other_has_it() -> None:
    words, nodes = PromptWords(), PrefixNodes("every-chunk", 1_024)
    numbers: dict[bytes, set[int]] = {}
    for request in make_scenario("branching", 30, 5):
        words.know(request)
        for node in [*nodes.readable(request), *nodes.place(request, 0)]:
            covered = words.words(request.savepoint)[: node.tokens].tobytes()
            numbers.setdefault(covered, set()).add(words.number_of(node))
    assert all(len(found) == 1 for found in numbers.values())
    assert len(set().union(*numbers.values())) == len(numbers)


def test_savepoints_of_the_very_same_tokens_are_one_prefix() -> None:
    words = PromptWords()
    for number, parent in ((7, None), (8, 7), (9, 8)):
        words.know(Request(0.0, number, parent, 512, 600, 10, "a"))
    assert words.words(7) == words.words(8) == words.words(9)
    assert len({words.number_of(PrefixNode(number, None, 512)) for number in (7, 8, 9)}) == 1


def test_an_empty_savepoint_covers_no_word() -> None:
    words = PromptWords()
    words.know(Request(0.0, 0, None, 0, 600, 10, "a"))
    assert words.words(0) == array("q")


def test_a_prompt_longer_than_any_is_refused() -> None:
    with pytest.raises(BadRequest, match="longer than a real replay writes out"):
        PromptWords().know(Request(0.0, 0, None, MOST_TOKENS + 1, MOST_TOKENS + 1, 10, "a"))
