"""Which way of pinning is recommended: never an unsafe one, and none that saves nothing."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pinprobe.ledger.plan.advice import Advice, Effect, Way, ranked

FUZZ = settings(derandomize=True, deadline=None, max_examples=100)
MIB = 2**20


def effect(before: int, cost: int, seconds: float | None = 1.0, copies: int = 1, known: str = "measured") -> Effect:
    return Effect("cache.ring", copies, min(before, cost), before, "measured", cost, known, seconds, "measured")


def way(name: str, *effects: Effect, **words: str) -> Way:
    return Way(name, "allocator", (), effects, **words)  # type: ignore[arg-type]  # words are the texts alone


def advice(*ways: Way, warning: str = "") -> Advice:
    own = way("torch", effect(4 * MIB, 4 * MIB), warning=warning)
    return Advice("c.yaml", "e", "1", own, ranked(ways))


def test_all_copies_count_and_the_least_known_cost_marks_the_whole() -> None:
    made = way("a", effect(4 * MIB, 3 * MIB, copies=2), effect(4 * MIB, MIB, known="predicted"))
    assert (made.saved_bytes, made.cost_bytes, made.seconds, made.known) == (5 * MIB, 7 * MIB, 2.0, "predicted")
    assert way("a", effect(4, 2, None), effect(4, 2)).seconds is None


def test_what_saves_most_comes_first_and_of_two_that_save_alike_the_quicker() -> None:
    found = advice(
        way("slow", effect(4 * MIB, 2 * MIB, 9.0)),
        way("quick", effect(4 * MIB, 2 * MIB, 1.0)),
        way("untimed", effect(4 * MIB, 2 * MIB, None)),
        way("best", effect(4 * MIB, MIB, 99.0)),
        way("worse", effect(4 * MIB, 8 * MIB)),
        way("not here", reason="not to be had here"),
        way("unsafe", effect(4 * MIB, 1), warning="handed a smaller block"),
    )
    assert [each.name for each in found.ways] == ["best", "quick", "slow", "untimed", "worse", "unsafe", "not here"]
    assert found.recommended is not None
    assert found.recommended.name == "best"


@pytest.mark.parametrize(
    "made",
    [
        way("unsafe", effect(4, 1), warning="handed a smaller block"),
        way("of no device", effect(4, 1), caveat="not registered"),
        way("unreached", effect(4, 1), reason="not reproduced here"),
        way("unknown", effect(4, 1, known="the ask")),
        way("the same", effect(4, 4)),
        way("dearer", effect(4, 5)),
        way("not here", reason="not to be had here"),
    ],
    ids=lambda made: made.name,
)
def test_what_is_unsafe_unknown_or_saves_nothing_is_never_recommended(made: Way) -> None:
    assert advice(made).recommended is None
    assert advice(made).exit_code == 0


def test_where_the_configs_own_way_is_unsafe_that_fails_and_a_safe_one_is_named_that_saves_nothing() -> None:
    found = advice(way("safe", effect(4, 4)), warning="handed a smaller block")
    assert found.exit_code == 1
    assert found.recommended is not None
    assert found.recommended.name == "safe"


_WAYS = st.builds(
    lambda name, before, cost, warning, reason, known: way(
        name, effect(before, cost, known=known), warning=warning, reason=reason
    ),
    st.text("abc", min_size=1, max_size=3),
    st.integers(1, 9),
    st.integers(1, 9),
    st.sampled_from(["", "unsafe"]),
    st.sampled_from(["", "no reason"]),
    st.sampled_from(["measured", "predicted", "the ask"]),
)


@FUZZ
@given(ways=st.lists(_WAYS, max_size=6), seed=st.integers(0, 99))
def test_the_order_depends_on_nothing_but_the_ways_and_no_usable_one_saves_more(ways: list[Way], seed: int) -> None:
    shuffled = list(ways)
    random.Random(seed).shuffle(shuffled)
    key = [(each.name, each.saved_bytes, each.warning, each.reason) for each in ranked(ways)]
    assert sorted(key) == sorted((each.name, each.saved_bytes, each.warning, each.reason) for each in shuffled)
    recommended = advice(*ways).recommended
    usable = [each for each in ways if not each.warning and not each.reason and each.effects[0].known != "the ask"]
    best = max((each.saved_bytes for each in usable), default=0)
    assert (recommended.saved_bytes if recommended else 0) == max(best, 0)
