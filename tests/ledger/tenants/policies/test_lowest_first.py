"""Items by their rank against a dictionary that is searched whole."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pinprobe.ledger.tenants.policies.lowest_first import LowestFirst

ITEMS, RANKS = st.integers(0, 6), st.integers(0, 5)
CALLS = st.lists(
    st.tuples(st.just("put"), ITEMS, RANKS)
    | st.tuples(st.just("remove"), ITEMS, RANKS)
    | st.tuples(st.just("pop"), ITEMS, RANKS),
    max_size=120,
)


@given(calls=CALLS, passing=st.sets(ITEMS, max_size=5))
def test_the_lowest_comes_first_and_of_equal_ones_the_one_that_was_ranked_first(
    calls: list[tuple[str, int, int]], passing: set[int]
) -> None:
    ranked: LowestFirst[int] = LowestFirst()
    model: dict[int, tuple[int, int]] = {}
    for turn, (call, item, rank) in enumerate(calls):
        if call == "put":
            ranked.put(item, rank)
            model[item] = (rank, turn)
        elif call == "remove":
            ranked.remove(item)
            model.pop(item, None)
        else:
            lowest = min(model, key=lambda item: model[item], default=None)
            expected = lowest if lowest is not None and model[lowest][0] <= rank else None
            assert ranked.pop_up_to(rank) == expected
            model.pop(item if expected is None else expected, None)
            ranked.remove(item if expected is None else expected)
        free = {item: place for item, place in model.items() if item not in passing}
        first = min(free, key=lambda item: free[item], default=None)
        assert ranked.lowest(passing) == (None if first is None else (free[first][0], first))
        assert len(ranked) == len(model)


def test_ranks_that_change_for_ever_take_no_more_memory() -> None:
    ranked: LowestFirst[str] = LowestFirst()
    for rank in range(5_000):
        ranked.put("kept", 5_000 - rank)
        ranked.put("other", rank)
    assert len(ranked._heap) <= 8 * 2 + 64
    assert ranked.lowest() == (1, "kept")
