"""Seconds of prefill against sums over single tokens, and what a savepoint is worth against the clock."""

from __future__ import annotations

import itertools
import math
import random
import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pinprobe.ledger.tenants.prefill_time import MOST_TOKENS, PrefillTime, savepoint_worth
from pinprobe.probes.errors import BadRequest

FUZZ = settings(derandomize=True, deadline=None, max_examples=200)

#: One savepoint of a hybrid 27B model, whatever it covers.
ROW_BYTES = 154_927_104
LINEAR = PrefillTime(0.00019)
DEEP = PrefillTime(0.00015, 1.2e-9)

TIMES = st.builds(
    PrefillTime,
    st.floats(1e-9, 1.0),
    st.just(0.0) | st.floats(1e-15, 1e-3),
)
LENGTHS = st.integers(0, 10**6)


# -- seconds


def test_one_savepoint_spares_what_was_measured_once() -> None:
    # About 1.2 s at 6,300 tokens, and some twenty times as much at 128k.
    assert LINEAR.seconds(0, 6_300) == pytest.approx(1.2, abs=0.01)
    assert LINEAR.seconds(0, 128 * 1024) / LINEAR.seconds(0, 6_300) == pytest.approx(20.8, abs=0.1)


def test_a_prompt_takes_what_its_tokens_take_one_by_one() -> None:
    one_by_one = [DEEP.seconds(at, at + 1) for at in range(500)]
    assert math.fsum(one_by_one) == pytest.approx(DEEP.seconds(0, 500), rel=1e-12)
    assert all(early < late for early, late in itertools.pairwise(one_by_one))
    assert DEEP.seconds(0, 500) == pytest.approx(0.00015 * 500 + 1.2e-9 * 500**2, rel=1e-12)
    assert DEEP.seconds(500, 500) == 0


@given(time=TIMES, one=LENGTHS, two=LENGTHS, three=LENGTHS)
@FUZZ
def test_two_parts_of_a_prompt_take_together_what_the_whole_takes(
    time: PrefillTime, one: int, two: int, three: int
) -> None:
    low, middle, high = sorted((one, two, three))
    whole = time.seconds(low, high)
    assert time.seconds(low, middle) + time.seconds(middle, high) == pytest.approx(whole, rel=1e-9)
    assert whole >= 0


@pytest.mark.parametrize("tokens", [(-1, 5), (5, 4), (0, MOST_TOKENS + 1)])
def test_what_is_no_part_of_a_prompt_is_refused(tokens: tuple[int, int]) -> None:
    with pytest.raises(BadRequest, match="is no part of a prompt"):
        LINEAR.seconds(*tokens)


@pytest.mark.parametrize(
    "coefficients",
    [(-1e-9, 1.0), (1.0, -1e-9), (math.nan, 0.0), (0.1, math.nan), (math.inf, 0.0), (0.1, math.inf), (1e6, 0.0)],
)
def test_a_time_below_zero_or_beyond_any_is_refused(coefficients: tuple[float, float]) -> None:
    with pytest.raises(BadRequest, match=r"a prefill time of .* is none"):
        PrefillTime(*coefficients)


def test_a_prefill_that_takes_no_time_is_refused() -> None:
    with pytest.raises(BadRequest, match="no savepoint worth keeping"):
        PrefillTime(0.0, 0.0)


# -- as text


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("0.00019", PrefillTime(0.00019)),
        ("1.9e-4", PrefillTime(0.00019)),
        (" 0.00019*n ", PrefillTime(0.00019)),
        ("0.00019n", PrefillTime(0.00019)),
        ("0.00019*n+1.2e-9*n^2", PrefillTime(0.00019, 1.2e-9)),
        ("0.00019 * n + 1.2E-09 * n^2", PrefillTime(0.00019, 1.2e-9)),
        ("0n+1e-9n^2", PrefillTime(0.0, 1e-9)),
    ],
)
def test_a_text_is_read(text: str, time: PrefillTime) -> None:
    assert PrefillTime.parse(text) == time
    assert PrefillTime.parse(text).source == "given"


@pytest.mark.parametrize(
    "text",
    ["", "n", "fast", "-1", "+1", "nan", "inf", ".5", "1.", "1,5", "0x1", "1e", "1_0", "0.1+0.2", "0.1*n+", "0.1*n^2",
     "0.1*m", "0.1*n+0.2*n", "0.1*n+-0.2*n^2", "0.1 s", "\u0663", "9" * 400, "1e9999", "1\x00"],
)  # fmt: skip
def test_what_is_no_prefill_time_is_refused_with_its_text(text: str) -> None:
    with pytest.raises(BadRequest, match=r"is no prefill time: write seconds a token as 0\.00019") as refused:
        PrefillTime.parse(text)
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 300


@pytest.mark.parametrize("text", ["0", "1e300", "0*n+0*n^2", "1e-999"])
def test_a_text_whose_numbers_are_no_time_is_refused(text: str) -> None:
    with pytest.raises(BadRequest):
        PrefillTime.parse(text)


@given(time=TIMES)
@example(time=PrefillTime(5e-324, 1.0))
@FUZZ
def test_what_is_written_is_read_back_to_the_same_time(time: PrefillTime) -> None:
    assert PrefillTime.parse(str(time)) == time


@given(text=st.text(max_size=30) | st.from_regex(r"[0-9.e+-]{1,12}(\*n(\+[0-9.e-]{1,9}\*n\^2)?)?", fullmatch=True))
@FUZZ
def test_any_text_is_a_time_or_a_bad_request(text: str) -> None:
    try:
        time = PrefillTime.parse(text)
    except BadRequest:
        return
    assert time.seconds(0, 1) > 0 or time.seconds_per_token < 1e-300


# -- fitted


@pytest.mark.parametrize("time", [LINEAR, DEEP, PrefillTime(0.0, 3e-8)])
def test_points_on_a_curve_give_that_curve(time: PrefillTime) -> None:
    fitted = PrefillTime.fit((tokens, time.seconds(0, tokens)) for tokens in (512, 2_048, 6_300, 32_768, 131_072))
    assert fitted.seconds_per_token == pytest.approx(time.seconds_per_token, rel=1e-6, abs=1e-12)
    assert fitted.seconds_per_token_squared == pytest.approx(time.seconds_per_token_squared, rel=1e-6, abs=1e-15)
    assert fitted.source == "fitted from 5 points"


def test_a_curve_that_bends_the_other_way_is_fitted_without_a_square() -> None:
    fitted = PrefillTime.fit([(1_000, 1.0), (2_000, 1.5), (4_000, 2.0)])
    assert fitted.seconds_per_token_squared == 0
    # The best line through zero: sum of xy over sum of xx.
    assert fitted.seconds_per_token == pytest.approx(
        (1_000 + 3_000 + 8_000) / (1_000**2 + 2_000**2 + 4_000**2), rel=1e-12
    )


def test_a_curve_that_bends_more_than_a_square_is_fitted_by_the_square_alone() -> None:
    fitted = PrefillTime.fit([(tokens, 1e-12 * tokens**3) for tokens in (1_000, 2_000, 4_000)])
    assert fitted.seconds_per_token == 0
    assert fitted.seconds_per_token_squared > 0


@given(seed=st.integers(0, 10**6), noise=st.floats(0.0, 0.5))
@FUZZ
def test_no_other_coefficients_above_zero_come_nearer_to_the_points(seed: int, noise: float) -> None:
    chance = random.Random(seed)
    lengths = [chance.randint(1, 200_000) for _ in range(6)]
    if len(set(lengths)) < 2:
        return
    points = [(tokens, DEEP.seconds(0, tokens) * chance.uniform(1 - noise, 1 + noise) + 1e-9) for tokens in lengths]
    fitted = PrefillTime.fit(points)

    def miss(linear: float, square: float) -> float:
        return math.fsum((linear * tokens + square * tokens**2 - seconds) ** 2 for tokens, seconds in points)

    best = miss(fitted.seconds_per_token, fitted.seconds_per_token_squared)
    for _ in range(50):
        linear = abs(fitted.seconds_per_token + chance.gauss(0, 1e-5))
        square = abs(fitted.seconds_per_token_squared + chance.gauss(0, 1e-10))
        assert miss(linear, square) >= best * (1 - 1e-6) - 1e-12


@pytest.mark.parametrize(
    ("points", "because"),
    [
        ([], "there is no prompt"),
        ([(6_300, 1.2)], "only prompts of 6300 tokens"),
        ([(6_300, 1.2), (6_300, 1.3)], "only prompts of 6300 tokens"),
        ([(0, 1.2), (6_300, 1.3)], "0 tokens in 1.2 s is no measured prefill"),
        ([(5, 0.0), (6_300, 1.3)], "5 tokens in 0.0 s is no measured prefill"),
        ([(5, -1.0), (6_300, 1.3)], "5 tokens in -1.0 s"),
        ([(5, math.nan), (6_300, 1.3)], "5 tokens in nan s"),
        ([(5, math.inf), (6_300, 1.3)], "5 tokens in inf s"),
        ([(2, 1e300), (3, 1e300)], "2 tokens in 1e+300 s"),
    ],
)
def test_points_that_fit_nothing_are_refused_by_name(points: list[tuple[int, float]], because: str) -> None:
    with pytest.raises(BadRequest, match=re.escape(because)):
        PrefillTime.fit(points)


def test_more_points_than_a_fit_takes_are_refused() -> None:
    with pytest.raises(BadRequest, match="100,001 points are more than a fit takes"):
        PrefillTime.fit([(1, 1.0)] * 100_001)


# -- what a savepoint is worth


def test_it_pays_from_the_length_whose_prefill_outlasts_reading_it_back() -> None:
    assert PrefillTime(0.001).pays_from(1_000_000, 1e6) == 1_001  # 1 s either way at 1,000 tokens
    # At 4.9 GB/s a row comes back in 31.6 ms, which are 167 tokens.
    assert LINEAR.pays_from(ROW_BYTES, 4.9e9) == 167


@given(time=TIMES, row_bytes=st.integers(1, 10**12), rate=st.floats(1e3, 1e12))
@FUZZ
def test_a_token_less_does_not_pay(time: PrefillTime, row_bytes: int, rate: float) -> None:
    try:
        tokens = time.pays_from(row_bytes, rate)
    except BadRequest:
        assert time.seconds(0, MOST_TOKENS) <= row_bytes / rate
        return
    assert time.seconds(0, tokens) > row_bytes / rate >= time.seconds(0, tokens - 1)


@pytest.mark.parametrize("rate", [0.0, -1.0, math.nan, math.inf])
def test_a_rate_that_reads_nothing_is_refused(rate: float) -> None:
    with pytest.raises(BadRequest, match="give a rate above 0"):
        LINEAR.pays_from(ROW_BYTES, rate)


def test_a_rate_at_which_it_never_pays_is_told_so() -> None:
    with pytest.raises(BadRequest, match="a savepoint never pays at this rate"):
        LINEAR.pays_from(ROW_BYTES, 1.0)


def test_the_table_has_flat_bytes_and_growing_seconds() -> None:
    lengths = (2_048, 6_300, 32_768, 131_072)
    table = savepoint_worth(ROW_BYTES, lengths, DEEP, 4.9e9)
    assert [row.tokens for row in table.rows] == list(lengths)
    assert {row.row_bytes for row in table.rows} == {ROW_BYTES}
    assert all(early.spared_seconds < late.spared_seconds for early, late in itertools.pairwise(table.rows))
    assert table.rows[1].spared_seconds == DEEP.seconds(0, 6_300)
    assert table.pays_from_tokens == DEEP.pays_from(ROW_BYTES, 4.9e9)
    assert table.prefill_time is DEEP


def test_without_a_rate_nobody_knows_from_where_it_pays() -> None:
    assert savepoint_worth(ROW_BYTES, [100], LINEAR).pays_from_tokens is None


@pytest.mark.parametrize(
    ("row_bytes", "lengths"), [(0, [100]), (-5, [100]), (1, [0]), (1, [5, -1]), (1, [MOST_TOKENS + 1])]
)
def test_a_row_or_a_length_of_nothing_is_refused(row_bytes: int, lengths: list[int]) -> None:
    with pytest.raises(BadRequest, match="is none; give"):
        savepoint_worth(row_bytes, lengths, LINEAR)
