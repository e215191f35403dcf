"""An unknown stays an unknown, whatever is done with it."""

from __future__ import annotations

import operator
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pinprobe.probes.reading import Amount, Reading, Unreadable, first_readable

LOST = Unreadable("no such line")
FOUND = Reading(4096, "statm", error_bytes=64)
readings = st.builds(Reading, st.integers(0, 2**64), st.sampled_from(["statm", "status VmRSS"]), st.integers(0, 2**30))


@pytest.mark.parametrize("operation", [operator.add, operator.sub])
@pytest.mark.parametrize(("left", "right"), [(LOST, FOUND), (FOUND, LOST), (LOST, LOST), (LOST, 0), (0, LOST)])
def test_an_unreadable_side_makes_the_result_unreadable_with_its_reason(
    operation: Callable[[Any, Any], Any], left: Any, right: Any
) -> None:
    assert operation(left, right) == LOST


def test_of_two_unreadable_values_the_first_reason_is_kept() -> None:
    assert LOST - Unreadable("another") == LOST


def test_a_sum_over_many_with_one_unreadable_is_unreadable() -> None:
    total: Amount = Reading(0, "statm")
    amounts: list[Amount] = [FOUND, LOST, FOUND]
    for amount in amounts:
        total = total + amount
    assert total == LOST


@given(a=readings, b=readings)
@settings(derandomize=True, deadline=None)
def test_adding_and_taking_away_again_gives_the_bytes_back_and_a_wider_bar(a: Reading, b: Reading) -> None:
    back = a + b - b
    assert isinstance(back, Reading)
    assert back.bytes == a.bytes
    assert back.error_bytes == a.error_bytes + 2 * b.error_bytes


def test_a_difference_may_be_negative() -> None:
    assert Reading(0, "statm") - FOUND == Reading(-4096, "statm", 64)


def test_two_sources_are_both_named_and_one_source_is_named_once() -> None:
    both = FOUND + Reading(1, "status VmRSS")
    assert both == Reading(4097, "statm, status VmRSS", 64)
    twice = FOUND + FOUND
    assert twice == Reading(8192, "statm", 128)


@pytest.mark.parametrize("amount", [LOST, FOUND, Reading(0, "statm")])
def test_no_amount_has_a_truth_value(amount: Amount) -> None:
    with pytest.raises(TypeError):
        bool(amount)


@pytest.mark.parametrize("compare", [operator.lt, operator.le, operator.gt, operator.ge])
@pytest.mark.parametrize(("left", "right"), [(LOST, FOUND), (FOUND, LOST), (LOST, 0), (FOUND, 0), (FOUND, FOUND)])
def test_amounts_have_no_order(compare: Callable[[Any, Any], bool], left: Any, right: Any) -> None:
    with pytest.raises(TypeError):
        compare(left, right)


@pytest.mark.parametrize("other", [0, None, "no such line", Reading(0, "no such line"), Unreadable("another")])
def test_an_unreadable_value_equals_nothing_but_its_own_kind_and_reason(other: object) -> None:
    lost: object = Unreadable("no such line")
    assert lost != other
    assert lost == LOST


def test_the_reason_is_in_the_text() -> None:
    assert str(LOST) == "unreadable, because no such line"
    with pytest.raises(TypeError, match="no such line"):
        bool(LOST)


@pytest.mark.parametrize(("amount", "field"), [(LOST, "reason"), (FOUND, "bytes"), (FOUND, "error_bytes")])
def test_an_amount_is_never_changed(amount: Amount, field: str) -> None:
    with pytest.raises(AttributeError):
        setattr(amount, field, 0)


@pytest.mark.parametrize("amount", [LOST, FOUND])
def test_an_amount_crosses_a_pipe_between_processes_unchanged(amount: Amount) -> None:
    assert pickle.loads(pickle.dumps(amount)) == amount


@pytest.mark.parametrize(
    ("expected_bytes", "margin_bytes", "inside"),
    [(4096, 0, True), (4160, 0, True), (4161, 0, False), (4032, 0, True), (4031, 0, False), (4031, 1, True)],
)
def test_the_error_bar_includes_its_ends(expected_bytes: int, margin_bytes: int, inside: bool) -> None:
    assert FOUND.within(expected_bytes, margin_bytes) is inside


def test_the_first_readable_amount_is_taken() -> None:
    assert first_readable(LOST, FOUND, Reading(1, "later")) == FOUND
    # A reading of 0 bytes is a reading, and not passed over.
    assert first_readable(LOST, Reading(0, "statm"), FOUND) == Reading(0, "statm")


def test_where_nothing_is_readable_every_reason_is_given_once() -> None:
    assert first_readable(LOST, Unreadable("denied"), LOST) == Unreadable("no such line; denied")
