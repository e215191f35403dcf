"""Bands of prompt lengths: read, refused, and counted in."""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pinprobe.ledger.replay.bands import BEYOND, Band, BandCount, BandCounter, parse_bands
from pinprobe.probes.errors import BadRequest

FUZZ = settings(derandomize=True, deadline=None, max_examples=200)


def test_bands_are_read_in_the_units_in_which_contexts_are_spoken_of() -> None:
    assert parse_bands("0:8k,8k:32k,32k:128k") == (
        Band("0:8k", 0, 8_192),
        Band("8k:32k", 8_192, 32_768),
        Band("32k:128k", 32_768, 131_072),
    )
    assert parse_bands(" 5 : 6 ,1K:1M") == (Band("5 : 6", 5, 6), Band("1K:1M", 1_024, 1_048_576))


def test_a_band_holds_its_first_number_and_not_its_last() -> None:
    low, high = parse_bands("0:8k,8k:32k")
    assert [tokens in low for tokens in (0, 8_191, 8_192)] == [True, True, False]
    assert [tokens in high for tokens in (8_191, 8_192, 32_767, 32_768)] == [False, True, True, False]


@pytest.mark.parametrize(
    ("text", "because"),
    [
        ("", "'' is no band of prompt lengths"),
        ("8k", "'8k' is no band"),
        ("0:8k,", "'' is no band"),
        ("0-8k", "'0-8k' is no band"),
        ("0:8k:16k", "'0:8k:16k' is no band"),
        (":8k", "':8k' is no band"),
        ("8k:", "'8k:' is no band"),
        ("-1:8k", "'-1:8k' is no band"),
        ("0:8.5k", "'0:8.5k' is no band"),
        ("0:8kb", "'0:8kb' is no band"),
        ("0:8g", "'0:8g' is no band"),
        ("0:\u0668k", "is no band"),  # an Arabic 8, which int() would take
        ("0:" + "9" * 5000, "is no band"),
        ("8k:8k", "the band '8k:8k' holds no length at all"),
        ("8k:1k", "the band '8k:1k' holds no length at all"),
        ("0:8k,4k:16k", "the band '4k:16k' begins before '0:8k' ends"),
        ("8k:16k,0:8k", "the band '0:8k' begins before '8k:16k' ends"),
        ("0:8k,0:8k", "the band '0:8k' begins before '0:8k' ends"),
        (",".join(f"{at}:{at + 1}" for at in range(65)), "65 bands are more than a table shows"),
    ],
)
def test_what_is_no_row_of_bands_is_refused_by_the_band(text: str, because: str) -> None:
    with pytest.raises(BadRequest, match=re.escape(because)) as refused:
        parse_bands(text)
    assert len(str(refused.value)) < 200


@given(text=st.text(max_size=30) | st.from_regex(r"[0-9kKmM:, ]{0,20}", fullmatch=True))
@FUZZ
def test_any_text_is_bands_that_rise_or_a_bad_request(text: str) -> None:
    try:
        bands = parse_bands(text)
    except BadRequest as refused:
        message = str(refused)
    else:
        message = ""
        assert all(band.from_tokens < band.below_tokens for band in bands)
        assert all(early.below_tokens <= late.from_tokens for early, late in itertools.pairwise(bands))
        assert len({band.name for band in bands} | {BEYOND}) == len(bands) + 1
    assert message.isprintable()


def test_each_request_is_counted_once_and_the_rest_at_the_end() -> None:
    counter = BandCounter(parse_bands("0:8k,16k:32k"))
    for prompt_tokens, spared_tokens, seconds in (
        (100, 0, 0.0),
        (8_191, 8_000, 1.5),
        (8_192, 8_192, 1.6),
        (20_000, 5, 0.25),
    ):
        counter.add(prompt_tokens, spared_tokens, seconds)
    assert counter.counts() == (
        BandCount("0:8k", 2, 8_291, 8_000, 1.5),
        BandCount("16k:32k", 1, 20_000, 5, 0.25),
        BandCount("beyond", 1, 8_192, 8_192, 1.6),
    )


def test_bands_without_a_request_are_counted_as_such() -> None:
    counts = BandCounter(parse_bands("0:8k")).counts()
    assert counts == (BandCount("0:8k"), BandCount("beyond"))
    assert [count.token_hit_rate for count in counts] == [0.0, 0.0]


def test_the_hit_rate_of_a_band_is_by_tokens() -> None:
    counter = BandCounter(parse_bands("0:8k"))
    counter.add(1_000, 0)
    counter.add(3_000, 1_000)
    assert counter.counts()[0].token_hit_rate == 0.25


@given(lengths=st.lists(st.integers(0, 2**20), max_size=50))
@FUZZ
def test_the_bands_together_are_all_requests(lengths: list[int]) -> None:
    counter = BandCounter(parse_bands("0:8k,8k:32k,64k:128k"))
    for tokens in lengths:
        counter.add(tokens, tokens // 3, tokens / 1000)
    counts = counter.counts()
    assert sum(count.requests for count in counts) == len(lengths)
    assert sum(count.prompt_tokens for count in counts) == sum(lengths)
    assert sum(count.spared_tokens for count in counts) == sum(tokens // 3 for tokens in lengths)
    assert sum(count.seconds for count in counts) == pytest.approx(sum(lengths) / 1000)


def test_more_spared_than_there_was_fails_an_assertion() -> None:
    with pytest.raises(AssertionError):
        BandCounter(()).add(5, 6)
