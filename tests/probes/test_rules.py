from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinprobe.probes.rules import infer_rule
from tests.probes.simulated import PAGE, Rule, exact, multiple_of, power_of_two, rounded_up_to

SLOT = 154_927_104
ASKS = [count * SLOT for count in range(1, 17)]


def points(rule: Rule, asks: list[int] | None = None) -> list[tuple[int, int]]:
    return [(asked, rule(asked)) for asked in (ASKS if asks is None else asks)]


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (exact, "what was asked, to the page"),
        (power_of_two, "the next power of two"),
        (multiple_of(64 * 2**20), "the next multiple of 64.000 MiB"),
    ],
)
def test_a_rule_that_gives_every_point_is_named_and_predicts(rule: Rule, words: str) -> None:
    inference = infer_rule(points(rule), PAGE)
    assert inference.fitting[0].words == words
    assert (inference.supporting_count, inference.contradictions) == (16, ())
    assert inference.block_bytes(64 * SLOT) == rule(64 * SLOT)


def test_rounding_that_ends_at_a_threshold_is_found_and_the_gap_stays_open() -> None:
    inference = infer_rule(points(rounded_up_to(6 * SLOT)), PAGE)
    assert "it changes somewhere from 0.866 GiB to 1.010 GiB" in inference.fitting[0].words
    assert inference.block_bytes(3 * SLOT) == power_of_two(3 * SLOT)
    assert inference.block_bytes(20 * SLOT) == exact(20 * SLOT)
    assert inference.block_bytes(6 * SLOT + 5000) is None


def test_one_block_is_too_little_to_infer_from() -> None:
    inference = infer_rule([(SLOT, 2**28)], PAGE)
    assert inference.fitting == ()
    assert inference.block_bytes(2 * SLOT) is None


def test_where_two_rules_fit_only_what_they_agree_on_is_predicted() -> None:
    # Blocks of 1, 2 and 4 steps are powers of two and multiples of the step; the third step tells them apart.
    both = [(2**20 - 1, 2**20), (2**21 - 1, 2**21), (2**22 - 1, 2**22)]
    inference = infer_rule(both, PAGE)
    assert len(inference.fitting) == 2
    assert inference.block_bytes(2**21 + 1) is None
    assert inference.block_bytes(2**22) == 2**22


def test_where_no_rule_fits_the_nearest_is_told_with_what_contradicts_it() -> None:
    odd = points(power_of_two)
    odd[4] = (odd[4][0], odd[4][1] + PAGE)
    inference = infer_rule(odd, PAGE)
    assert inference.fitting == ()
    assert inference.nearest is not None
    assert inference.nearest.words == "the next power of two"
    assert inference.contradictions == (5 * SLOT,)
    assert inference.block_bytes(20 * SLOT) is None


@given(st.lists(st.tuples(st.integers(1, 2**56), st.integers(1, 2**57)), max_size=30), st.integers(1, 2**56))
def test_whatever_was_measured_a_prediction_contradicts_no_point(measured: list[tuple[int, int]], ask: int) -> None:
    inference = infer_rule(measured, PAGE)
    for rule in inference.fitting:
        assert all(rule.block_bytes(asked) == block for asked, block in measured)
    predicted = inference.block_bytes(ask)
    assert predicted is None or predicted >= ask
