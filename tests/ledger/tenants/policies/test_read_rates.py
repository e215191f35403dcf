"""The rates that are learned, held against nodes whose true rates are known; and the index against all horizons."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinprobe.ledger.tenants.policies.read_rates import (
    BIN_COUNT,
    BIN_STARTS_SECONDS,
    SECONDS_OF_WORTH,
    Kind,
    ReadRates,
    age_bin,
    index,
)


@given(age_seconds=st.floats(0, 2**19))
def test_an_age_lies_in_the_bin_that_begins_before_it(age_seconds: float) -> None:
    number = age_bin(age_seconds)
    margin = 1e-9 * (1 + age_seconds)  # an age that is a bin's beginning may fall to either side
    assert BIN_STARTS_SECONDS[number] - margin <= age_seconds <= BIN_STARTS_SECONDS[number + 1] + margin


def test_an_age_beyond_all_bins_lies_in_the_last_one() -> None:
    assert age_bin(1e12) == BIN_COUNT - 1


@given(
    hazards=st.lists(st.floats(0, 0.999), min_size=BIN_COUNT, max_size=BIN_COUNT), from_bin=st.integers(0, BIN_COUNT)
)
def test_the_index_is_the_best_of_all_horizons(hazards: list[float], from_bin: int) -> None:
    best = 0.0
    for horizon in range(from_bin + 1, BIN_COUNT + 1):
        seconds, unread = 0.0, 1.0
        for number in range(from_bin, horizon):
            width = BIN_STARTS_SECONDS[number + 1] - BIN_STARTS_SECONDS[number]
            seconds += width * unread * (1 - hazards[number] / 2)  # what is read in a bin waited for half of it
            unread *= 1 - hazards[number]
        best = max(best, (1 - unread) / seconds)
    assert index(hazards, from_bin) == pytest.approx(best, rel=1e-9, abs=1e-15)


def test_a_read_that_is_due_counts_more_than_one_that_is_long_off() -> None:
    hazards = [0.0] * BIN_COUNT
    hazards[20] = 0.9
    indices = [index(hazards, number) for number in range(BIN_COUNT)]
    assert indices[:21] == sorted(indices[:21])
    assert indices[20] > 5 * indices[0] > 0
    assert indices[21] == 0  # it was not read when it was due


def learned(hazards: dict[str, float], nodes: int, seed: int = 1) -> ReadRates:
    """Have nodes of one kind live as their trait's hazard, the same in each bin, has them be read."""
    rates, lot = ReadRates(), random.Random(seed)
    for number in range(nodes):
        trait = sorted(hazards)[number % len(hazards)]
        group = rates.group("kind", [trait])
        for age in range(BIN_COUNT):
            was_read = lot.random() < hazards[trait]
            group.count(age, was_read=was_read)
            if was_read:
                break
        if number & (number - 1) == 0:
            rates.renew()
    rates.renew()
    return rates


def test_the_true_hazard_is_found() -> None:
    rates = learned({"all": 0.2}, 4_000)
    found = rates.group("kind", ["all"]).kind.hazards
    assert found[:10] == pytest.approx([0.2] * 10, rel=0.15)


def test_traits_part_the_often_read_from_the_seldom_read() -> None:
    rates = learned({"often": 0.3, "seldom": 0.03}, 4_000)
    often, seldom = (rates.group("kind", [trait]).worth(8) for trait in ("often", "seldom"))
    true_ratio = index([0.3] * BIN_COUNT, 8) / index([0.03] * BIN_COUNT, 8)
    # They share a course over age, in which the old are the seldom read ones: that draws the two together.
    assert true_ratio / 3 < often / seldom < true_ratio


def test_what_was_never_seen_is_taken_for_what_is_usual() -> None:
    rates = learned({"all": 0.2}, 4_000)
    assert rates.group("another kind", ["new"]).worth(8) == pytest.approx(
        index([0.2] * BIN_COUNT, 8) * SECONDS_OF_WORTH, rel=0.2
    )
    known, new = (rates.group("kind", [trait]).worth(8) for trait in ("all", "new"))
    assert new == pytest.approx(known, rel=0.45)


def test_what_was_counted_before_halving_weighs_half() -> None:
    rates = ReadRates()
    group = rates.group("kind", ["trait"])
    for _ in range(64):
        group.count(3, was_read=True)
    rates.halve()
    assert (group.kind.read[3], group.kind.lived_through[3], group.traits[0].read) == (32, 32, 32)


@given(reads=st.integers(0, 10**6), lives=st.integers(0, 10**6), steps=st.integers(-20, 20))
def test_no_count_makes_a_hazard_that_is_none(reads: int, lives: int, steps: int) -> None:
    kind = Kind()
    kind.read[5] = float(min(reads, lives))
    kind.lived_through[5] = float(lives)
    kind.renew(usual_hazard=0.05)
    assert all(0 < hazard < 1 for hazard in kind.hazards)
    worths = [kind.worth(steps, number) for number in range(BIN_COUNT)]
    assert all(worth >= 0 and math.isfinite(worth) for worth in worths)
