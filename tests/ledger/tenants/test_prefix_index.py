"""The index of prefixes against a plain dictionary of token lists, which is slow and obviously right."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pinprobe.ledger.tenants.prefix_index import PrefixIndex, as_words

Tokens = tuple[int, ...]
#: A token list stands for itself, or the number of its putting where values are replaced.
Value = Tokens | int

#: Few tokens and short lists, so that many share a prefix, end in one block, or are equal.
TOKENS = st.lists(st.integers(0, 2), max_size=14).map(tuple)


class Model:
    """What the index is to be: token lists with their values, searched one by one."""

    def __init__(self) -> None:
        self.stored: dict[Tokens, Value] = {}

    def prefixes(self, tokens: Tokens, below: int | None = None) -> list[Value]:
        found = [known for known in self.stored if known == tokens[: len(known)]]
        short = [known for known in found if below is None or len(known) < below]
        return [self.stored[known] for known in sorted(short, key=len, reverse=True)]


def index_of(block_tokens: int, *stored: Tokens) -> PrefixIndex[Value]:
    index: PrefixIndex[Value] = PrefixIndex(block_tokens)
    for tokens in stored:
        index.put(index.key(tokens), tokens)
    return index


def assert_same(index: PrefixIndex[Value], model: Model, tokens: Tokens, below: int | None = None) -> None:
    expected = model.prefixes(tokens, below)
    assert list(index.prefixes(tokens, below)) == expected
    assert index.longest(tokens, below) == (expected[0] if expected else None)
    assert index.get(index.key(tokens)) == model.stored.get(tokens)
    assert len(index) == len(model.stored)


# -- against the model


@given(
    block=st.integers(1, 6), stored=st.lists(TOKENS, max_size=12), asked=TOKENS, below=st.none() | st.integers(0, 16)
)
@settings(max_examples=200)
def test_it_finds_exactly_the_prefixes_that_are_stored(
    block: int, stored: list[Tokens], asked: Tokens, below: int | None
) -> None:
    index, model = index_of(block, *stored), Model()
    model.stored.update((tokens, tokens) for tokens in stored)
    assert_same(index, model, asked, below)
    for tokens in stored:
        assert_same(index, model, tokens)
        assert_same(index, model, (*tokens, *asked), below)


class IndexMachine(RuleBasedStateMachine):
    """Values put, replaced and removed in any order."""

    @initialize(block=st.integers(1, 5))
    def begin(self, block: int) -> None:
        self.index: PrefixIndex[Value] = PrefixIndex(block)
        self.model = Model()
        self.seen: set[Tokens] = {()}
        self.number = 0

    @rule(tokens=TOKENS)
    def put(self, tokens: Tokens) -> None:
        self.number += 1
        self.index.put(self.index.key(tokens), self.number)
        self.model.stored[tokens] = self.number
        self.seen.add(tokens)

    @rule(data=st.data(), more=TOKENS)
    def put_a_longer_one(self, data: st.DataObject, more: Tokens) -> None:
        self.put(data.draw(st.sampled_from(sorted(self.seen))) + more)

    @precondition(lambda self: bool(self.model.stored))
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        tokens = data.draw(st.sampled_from(sorted(self.model.stored)))
        self.index.remove(self.index.key(tokens))
        del self.model.stored[tokens]

    @rule(tokens=TOKENS, below=st.none() | st.integers(-1, 16))
    def look(self, tokens: Tokens, below: int | None) -> None:
        assert_same(self.index, self.model, tokens, below)

    @invariant()
    def everything_that_was_seen_is_found_or_gone(self) -> None:
        for tokens in self.seen:
            assert_same(self.index, self.model, tokens)

    def teardown(self) -> None:
        for tokens in self.model.stored:
            self.index.remove(self.index.key(tokens))
        assert len(self.index) == 0
        assert not [found for tokens in self.seen for found in self.index.prefixes(tokens)]
        assert not self.index._ends, "something is kept of what was removed"


TestIndexMachine = IndexMachine.TestCase
# Without shrinking, which takes minutes here: the test above finds the smallest case of most faults.
TestIndexMachine.settings = settings(
    max_examples=60, stateful_step_count=25, deadline=None, phases=[Phase.explicit, Phase.generate]
)


# -- where a prefix ends


@pytest.mark.parametrize("length", range(13))
def test_a_prefix_is_found_wherever_it_ends_in_a_block(length: int) -> None:
    prompt = tuple(range(100, 112))
    index = index_of(4, prompt[:length])
    for asked in range(13):
        found = index.longest(prompt[:asked])
        assert (found is not None) == (asked >= length)


def test_prefixes_in_at_and_across_blocks_are_told_longest_first() -> None:
    prompt = tuple(range(20))
    index = index_of(4, (), prompt[:3], prompt[:4], prompt[:5], prompt[:7], prompt[:8], prompt[:16])
    assert list(index.prefixes(prompt)) == [prompt[:length] for length in (16, 8, 7, 5, 4, 3, 0)]
    assert list(index.prefixes(prompt, below=7)) == [prompt[:length] for length in (5, 4, 3, 0)]
    assert index.longest(prompt, below=3) == ()
    assert index.longest(prompt, below=0) is None


def test_two_prefixes_of_one_length_that_differ_in_their_last_block_are_both_found_and_both_removed() -> None:
    # Two conversations that share a system prompt and whose first turns are equally long.
    first, second = (*range(10), 1, 2), (*range(10), 1, 3)
    index = index_of(8, first, second)
    assert index.longest((*first, 9)) == first
    assert index.longest((*second, 9)) == second
    index.remove(index.key(first))
    assert index.longest((*first, 9)) is None
    assert index.longest((*second, 9)) == second
    index.remove(index.key(second))
    assert len(index) == 0


def test_a_later_value_of_one_prefix_takes_the_place_of_the_earlier() -> None:
    index = index_of(4, (1, 2, 3))
    index.put(index.key((1, 2, 3)), 7)
    assert (len(index), index.longest((1, 2, 3, 4))) == (1, 7)
    assert list(index.prefixes((1, 2, 3))) == [7]


def test_a_prefix_that_differs_in_its_first_token_alone_is_another() -> None:
    prompt = tuple(range(1, 13))
    index = index_of(4, prompt)
    assert index.longest((0, *prompt[1:], 99)) is None
    assert index.longest((*prompt[:11], 99)) is None


# -- keys


@given(block=st.integers(1, 6), first=TOKENS, second=TOKENS)
def test_keys_are_equal_where_the_tokens_are_and_only_there(block: int, first: Tokens, second: Tokens) -> None:
    index: PrefixIndex[Value] = PrefixIndex(block)
    assert (index.key(first) == index.key(second)) == (first == second)
    assert (index.key(first).digest == index.key(second).digest) == (first == second)
    assert index.key(first).tokens == len(first)
    assert len(index.key(first).digest) == 16


def test_a_token_is_a_number_of_64_bits_and_not_its_digits() -> None:
    index: PrefixIndex[Value] = PrefixIndex(4)
    ways: list[Sequence[int]] = [[1, 23], [12, 3], [123], [0, 1, 23], [1, 23, 0], [-1, 23], [2**62, 23], [257, 23]]
    assert len({index.key(tokens).digest for tokens in ways}) == len(ways)


def test_lists_tuples_ranges_and_arrays_of_the_same_tokens_are_the_same_prefix() -> None:
    index = index_of(4, tuple(range(9)))
    for tokens in (list(range(9)), range(9), array("q", range(9)), array("i", range(9))):
        assert index.longest(tokens) == tuple(range(9))


def test_words_that_are_64_bits_already_are_not_copied() -> None:
    words = array("q", range(9))
    assert as_words(words) is words
    assert as_words(range(9)) == words
