"""What a request is said to cost beforehand, against the rule that the mapped allocator really follows."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pinprobe.ledger.price import Price, PriceList
from pinprobe.probes.allowance import Allowance
from pinprobe.probes.reading import Amount, Reading, Unreadable
from pinprobe.probes.sweep import Point, PointState, Sweep
from pinprobe.probes.units import LARGEST_SIZE_BYTES
from pinprobe.probes.walk import walk
from tests.probes.simulated import PAGE, Rule, SimulatedBench, exact, multiple_of, power_of_two, rounded_up_to

FUZZ = settings(derandomize=True, deadline=None, max_examples=150)
SLOT = 154_927_104
MIB = 2**20


def mapped(rule: Rule, slots: Iterable[int] = range(1, 17), slot_bytes: int = SLOT, most_bytes: int = 2**40) -> Sweep:
    """A sweep as the walk makes it, over an allocator with this rule."""
    return walk(lambda: SimulatedBench(rule), "simulated", slot_bytes, slots, Allowance(most_bytes, "the test"), PAGE)


def priced(*sweeps: Sweep) -> PriceList:
    prices = PriceList()
    for sweep in sweeps:
        prices.add(sweep)
    return prices


def made_of(*points: tuple[int, Amount, PointState]) -> Sweep:
    """A sweep of these (asked, block, state)."""
    made = tuple(Point(index, asked, state, block, block) for index, (asked, block, state) in enumerate(points, 1))
    return Sweep("simulated", (), 1, PAGE, Allowance(0, ""), None, None, made, 0, 0, 0.0, False)


def measured(*pairs: tuple[int, int]) -> Sweep:
    return made_of(*((asked, Reading(block, "mapping"), PointState.MEASURED) for asked, block in pairs))


# One price.


def test_without_a_map_a_request_is_priced_at_what_it_asks() -> None:
    prices = PriceList()
    assert not prices.knows("simulated")
    assert prices.price("simulated", 12_345) == Price(12_345, "the ask")


def test_a_measured_ask_is_priced_at_its_block() -> None:
    prices = priced(mapped(power_of_two))
    assert prices.knows("simulated")
    assert prices.price("simulated", 9 * SLOT) == Price(2**31, "measured")
    assert prices.price("simulated", SLOT) == Price(2**28, "measured")


def test_between_two_measured_asks_of_one_block_the_block_is_that_one() -> None:
    # 7 to 13 slots take 2 GiB; what lies between is no point of the sweep, and can be nothing else.
    assert priced(mapped(power_of_two)).price("simulated", 9 * SLOT + 1) == Price(2**31, "measured")


def test_between_two_blocks_and_beyond_the_map_the_rule_speaks_and_says_so() -> None:
    prices = priced(mapped(power_of_two))
    assert prices.price("simulated", 2**30 - 1) == Price(2**30, "predicted")
    assert prices.price("simulated", 2**30 + 1) == Price(2**31, "predicted")
    assert prices.price("simulated", 100 * SLOT) == Price(2**34, "predicted")


def test_where_no_rule_gives_every_point_nothing_is_made_up() -> None:
    prices = priced(measured((1000, 4096), (5000, 12288), (70_000, 81920), (200_000, 300_000)))
    assert prices.price("simulated", 100_000) == Price(100_000, "the ask")
    assert prices.price("simulated", 5000) == Price(12288, "measured")


def test_where_two_rules_fit_and_disagree_nothing_is_made_up() -> None:
    # Two points fit the page, the power of two, and more; between them these part.
    prices = priced(measured((4096, 4096), (8192, 8192)))
    assert prices.price("simulated", 5 * 4096) == Price(5 * 4096, "the ask")


@pytest.mark.parametrize("state", [state for state in PointState if state is not PointState.MEASURED])
def test_a_point_that_was_not_measured_is_no_price(state: PointState) -> None:
    prices = priced(made_of((5000, Reading(2**30, "mapping"), state)))
    assert not prices.knows("simulated")
    assert prices.price("simulated", 5000) == Price(5000, "the ask")


def test_a_point_whose_block_is_unknown_is_no_price() -> None:
    prices = priced(made_of((5000, Unreadable("no maps"), PointState.MEASURED)))
    assert prices.price("simulated", 5000) == Price(5000, "the ask")


def test_a_price_is_never_below_the_ask_whatever_a_map_says() -> None:
    assert priced(measured((5000, 4096), (6000, 4096))).price("simulated", 5500) == Price(5500, "measured")


@given(
    rule=st.sampled_from([exact, power_of_two, multiple_of(2 * MIB), rounded_up_to(64 * MIB)]),
    slot_bytes=st.integers(1, 64 * MIB),
    slots=st.sets(st.integers(1, 64), min_size=1, max_size=12),
    asked=st.integers(1, 2**34),
)
@FUZZ
def test_what_is_called_measured_or_predicted_is_what_the_allocator_takes(
    rule: Rule, slot_bytes: int, slots: set[int], asked: int
) -> None:
    price = priced(mapped(rule, slots, slot_bytes)).price("simulated", asked)
    assert price.bytes >= asked
    assert price.known in ("measured", "predicted", "the ask")
    if price.known == "measured":
        assert price.bytes == rule(asked)
    if price.known == "the ask":
        assert price.bytes == asked


# More than one map.


def test_each_allocator_has_its_own_map_and_may_have_other_names() -> None:
    prices = PriceList()
    prices.add(mapped(power_of_two), "", "engine")
    assert prices.price("", 9 * SLOT) == prices.price("engine", 9 * SLOT) == Price(2**31, "measured")
    assert prices.price("other", 9 * SLOT) == Price(9 * SLOT, "the ask")
    assert not prices.knows("other")


def test_a_later_map_is_believed_first_and_the_points_of_both_are_kept() -> None:
    prices = priced(mapped(power_of_two, [1, 2]), mapped(exact, [2, 3]))
    assert prices.price("simulated", SLOT) == Price(2**28, "measured")
    assert prices.price("simulated", 2 * SLOT) == Price(exact(2 * SLOT), "measured")
    assert prices.price("simulated", 3 * SLOT) == Price(exact(3 * SLOT), "measured")


# The largest request.


@pytest.mark.parametrize(
    ("room", "largest"), [(2**30, 2**30), (2**31 - 1, 2**30), (2**31, 2**31), (4095, 0), (4096, 4096), (0, 0)]
)
def test_the_largest_request_stops_at_the_cliff(room: int, largest: int) -> None:
    assert priced(mapped(power_of_two)).largest_request("simulated", room) == largest


def test_the_largest_request_can_be_a_number_of_slots() -> None:
    prices = priced(mapped(power_of_two))
    assert prices.largest_request("simulated", 2**31, SLOT) == 13 * SLOT
    assert prices.largest_request("simulated", 2**31 - 1, SLOT) == 6 * SLOT
    assert prices.largest_request("simulated", SLOT - 1, SLOT) == 0


def test_without_a_map_the_largest_request_is_the_room() -> None:
    prices = PriceList()
    assert prices.largest_request("simulated", 10_000) == 10_000
    assert prices.largest_request("simulated", 10_000, 3000) == 9000
    assert prices.largest_request("simulated", 2**70) == LARGEST_SIZE_BYTES


@given(
    rule=st.sampled_from([exact, power_of_two, multiple_of(2 * MIB), rounded_up_to(64 * MIB)]),
    slots=st.sets(st.integers(1, 64), min_size=2, max_size=12),
    room=st.integers(0, 2**35),
    unit=st.sampled_from([1, 4096, SLOT]),
)
@FUZZ
def test_the_largest_request_fits_and_one_unit_more_does_not(rule: Rule, slots: set[int], room: int, unit: int) -> None:
    prices = priced(mapped(rule, slots))
    largest = prices.largest_request("simulated", room, unit)
    assert largest % unit == 0
    assert largest == 0 or prices.price("simulated", largest).bytes <= room
    assert prices.price("simulated", largest + unit).bytes > room
