"""The walk over simulated allocators: whatever the rule, what it reports is true, and what it takes is bounded."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pinprobe.probes.allowance import Allowance
from pinprobe.probes.cliffs import find_cliffs
from pinprobe.probes.reading import Reading, Unreadable
from pinprobe.probes.sweep import PointState, Sweep
from pinprobe.probes.walk import EXACT_STREAK, Served, classify, walk
from tests.probes.simulated import (
    PAGE,
    Rule,
    SimulatedBench,
    cost_of,
    exact,
    multiple_of,
    power_of_two,
    rounded_up_to,
)

SLOT = 154_927_104
PLENTY = Allowance(2**50, "the test")
BLOCK = Reading(4096, "mapping")


def swept(
    bench: SimulatedBench, slots: Sequence[int], slot: int = SLOT, allowed: int = 2**50, fresh_children: bool = False
) -> Sweep:
    allowance = Allowance(allowed, "the test")
    return walk(lambda: bench, "simulated", slot, slots, allowance, PAGE, fresh_children=fresh_children)


def cliffs_by_definition(rule: Rule, slot: int, slots: Sequence[int]) -> list[int]:
    blocks = [rule(count * slot) for count in slots]
    return [count for count, before, after in zip(slots[1:], blocks, blocks[1:], strict=False) if after > before]


def test_a_power_of_two_cache_shows_the_known_cliffs_and_touches_each_block_once() -> None:
    bench = SimulatedBench(power_of_two)
    sweep = swept(bench, range(1, 65))
    assert [cliff.slots for cliff in find_cliffs(sweep.points)] == [2, 4, 7, 14, 28, 56]
    assert all(point.state is PointState.MEASURED for point in sweep.points)
    assert sweep.touched_bytes == bench.touched == int(31.75 * 2**30)
    assert bench.most_mapped == 24 * 2**30 == sweep.peak_bytes
    assert sweep.exit_code == 0


def test_points_that_a_kept_block_serves_name_the_count_that_made_it() -> None:
    points = {point.slots: point for point in swept(SimulatedBench(power_of_two), range(1, 17)).points}
    assert points[16].served_from_slots == 14
    assert points[16].block == Reading(4 * 2**30, "mapping")
    assert points[14].served_from_slots is None


def test_an_exact_allocator_is_sampled_and_what_was_passed_over_is_marked() -> None:
    bench = SimulatedBench(exact, caches=False)
    sweep = swept(bench, range(1, 65))
    measured = [point.slots for point in sweep.points if point.state is PointState.MEASURED]
    assert measured == [1, 2, 3, 4, 8, 16, 32, 64]
    assert bench.touched <= 2.2 * 64 * SLOT
    for point in sweep.points:
        if point.slots not in measured:
            assert point.state is PointState.PREDICTED
            assert isinstance(point.resident, Unreadable)
    assert sweep.exit_code == 0


def test_a_sample_that_contradicts_sends_the_walk_back_over_what_it_passed() -> None:
    def steps_after_twelve(asked: int) -> int:
        return exact(asked) if asked <= 12 * SLOT else power_of_two(asked)

    sweep = swept(SimulatedBench(steps_after_twelve), range(1, 33))
    assert all(point.state is PointState.MEASURED for point in sweep.points)
    assert [point.block for point in sweep.points] == [
        Reading(steps_after_twelve(point.asked_bytes), "mapping") for point in sweep.points
    ]


def test_under_a_limit_the_small_cliffs_are_measured_and_the_rest_predicted() -> None:
    bench = SimulatedBench(power_of_two)
    sweep = swept(bench, range(1, 65), allowed=int(1.33 * 2**30))
    cliffs = find_cliffs(sweep.points)
    assert [(cliff.slots, cliff.measured) for cliff in cliffs] == [
        (2, True), (4, True), (7, False), (14, False), (28, False), (56, False),
    ]  # fmt: skip
    assert bench.most_mapped <= int(1.33 * 2**30)
    assert sweep.ended is None
    assert sweep.exit_code == 0


def test_two_blocks_that_do_not_fit_together_are_taken_one_after_the_other() -> None:
    # 1 GiB beside 0.5 GiB would pass 1.25 GiB: the old block has to go first, and the cliff is measured all the same.
    bench = SimulatedBench(power_of_two)
    sweep = swept(bench, range(1, 7), allowed=int(1.25 * 2**30))
    assert [cliff.slots for cliff in find_cliffs(sweep.points) if cliff.measured] == [2, 4]
    assert bench.most_mapped == 2**30


def test_less_headroom_than_at_the_start_stops_the_walk_where_it_is() -> None:
    others_took = iter([2**50] * 5 + [1] * 100)
    bench = SimulatedBench(power_of_two)
    sweep = walk(
        lambda: bench, "simulated", SLOT, range(1, 20), PLENTY, PAGE,
        allowance_now=lambda held: Allowance(next(others_took), "now"),
    )  # fmt: skip
    assert [point.state for point in sweep.points].count(PointState.MEASURED) == 5


@pytest.mark.parametrize("stop", ["fails_at", "interrupts_at"])
def test_a_stop_on_the_way_keeps_what_was_measured_and_says_why(stop: str) -> None:
    bench = SimulatedBench(power_of_two)
    setattr(bench, stop, 7 * SLOT)
    sweep = swept(bench, range(1, 20))
    assert [point.slots for point in sweep.points if point.state is PointState.MEASURED] == [1, 2, 3, 4, 5, 6]
    assert sweep.ended in ("simulated: no", "ended by SIGINT")
    seventh = sweep.points[6]
    # A failure is that point's own result; an interrupt says nothing of the point it fell on.
    assert (seventh.state is PointState.FAILED) == (stop == "fails_at")
    assert sweep.exit_code == 3
    assert bench.closed


def test_a_control_that_lies_by_five_per_cent_voids_the_sweep() -> None:
    bench = SimulatedBench(power_of_two, control_ratio=1.05)
    sweep = swept(bench, range(1, 9))
    assert sweep.control_fault is not None
    assert "1.050" in sweep.control_fault
    assert bench.asked == []
    assert all(point.state is PointState.NOT_MEASURED for point in sweep.points)
    assert sweep.exit_code == 3


def test_blocks_smaller_than_their_requests_are_broken_promises_and_no_staircase() -> None:
    # What torch 2.13 does with rounding off and caching on: blocks are exact and kept by the power of two above them.
    bench = SimulatedBench(exact, class_of=lambda block: (block - 1).bit_length())
    sweep = swept(bench, range(1, 9))
    assert [point.slots for point in sweep.broken_promises] == [3, 5, 6, 8]
    assert sweep.exit_code == 1
    for point in sweep.broken_promises:
        assert isinstance(point.block, Reading)
        assert point.block.bytes < point.asked_bytes


def test_a_hit_needs_the_address_no_growth_and_a_block_that_holds_the_ask() -> None:
    assert classify(cost_of(100, grown=0, block=4096, address=0x10), 0x10, BLOCK) is Served.KEPT_BLOCK
    assert classify(cost_of(100, grown=0, block=4096, address=0x20), 0x10, BLOCK) is Served.NEW_BLOCK
    assert classify(cost_of(100, grown=4096, block=4096, address=0x10), 0x10, BLOCK) is Served.NEW_BLOCK
    assert classify(cost_of(5000, grown=0, block=4096, address=0x10), 0x10, BLOCK) is Served.BROKEN_PROMISE
    assert classify(cost_of(100, grown=0, block=8192, address=0x10), 0x10, BLOCK) is Served.NEW_BLOCK
    assert classify(cost_of(100, grown=0, block=None, address=0x10), 0x10, BLOCK) is Served.NEW_BLOCK


def test_each_point_in_a_fresh_process_gives_the_same_blocks_and_touches_them_all() -> None:
    bench = SimulatedBench(power_of_two)
    fresh = swept(bench, range(1, 20), fresh_children=True)
    assert [point.block for point in fresh.points] == [
        point.block for point in swept(SimulatedBench(power_of_two), range(1, 20)).points
    ]
    assert all(point.served_from_slots is None for point in fresh.points)
    assert fresh.touched_bytes == sum(power_of_two(count * SLOT) for count in range(1, 20))


RULES = st.one_of(
    st.just(exact),
    st.just(power_of_two),
    st.integers(1, 64).map(lambda slots: rounded_up_to(slots * SLOT)),
    st.integers(1, 4096).map(lambda pages: multiple_of(pages * PAGE)),
)


@given(
    rule=RULES,
    caches=st.booleans(),
    slot=st.integers(1, 2**28),
    slots=st.sets(st.integers(1, 100), min_size=1, max_size=40),
    allowed=st.one_of(st.just(2**50), st.integers(2**20, 2**35)),
)
@example(rule=power_of_two, caches=False, slot=164, slots={1, 2, 3, 25, 26, 50, 75, 76}, allowed=2**50)
def test_what_a_walk_calls_measured_is_the_block_and_what_it_takes_is_bounded(
    rule: Rule, caches: bool, slot: int, slots: set[int], allowed: int
) -> None:
    bench = SimulatedBench(rule, caches=caches)
    sweep = swept(bench, sorted(slots), slot, allowed)
    assert [point.slots for point in sweep.points] == sorted(slots)
    assert bench.most_mapped <= allowed
    assert bench.mapped == 0
    for point in sweep.points:
        if point.state is PointState.MEASURED:
            assert point.block == Reading(rule(point.asked_bytes), "mapping")
    assert not sweep.broken_promises
    if allowed == 2**50:
        # With room for all, a point is left out only where its block is certain without it.
        assert PointState.NOT_MEASURED not in {point.state for point in sweep.points}


@given(threshold=st.integers(1, 64), slots=st.integers(2, 64))
def test_cliffs_are_those_of_the_definition_wherever_rounding_ends(threshold: int, slots: int) -> None:
    rule = rounded_up_to(threshold * SLOT)
    counts = range(1, slots + 1)
    sweep = swept(SimulatedBench(rule), counts)
    found = [cliff.slots for cliff in find_cliffs(sweep.points)]
    assert found == cliffs_by_definition(rule, SLOT, counts)


@given(last=st.integers(1, 2000))
def test_a_cached_staircase_touches_at_most_2_2_times_its_largest_block(last: int) -> None:
    bench = SimulatedBench(power_of_two)
    swept(bench, range(1, last + 1))
    assert bench.touched <= 2.2 * power_of_two(last * SLOT)


def test_the_streak_before_sampling_is_short() -> None:
    bench = SimulatedBench(exact, caches=False)
    swept(bench, range(1, 1001))
    assert len(bench.asked) <= EXACT_STREAK + 10


def test_what_a_kept_block_serves_is_free_also_where_nothing_new_would_fit_beside_it() -> None:
    # 55 slots ask for 7.9 GiB while 8 GiB are kept, of 13 that may be taken: served from there, nothing touched anew.
    bench = SimulatedBench(power_of_two)
    sweep = swept(bench, range(1, 64), allowed=13 * 2**30)
    assert sweep.touched_bytes == int(15.75 * 2**30)
    assert {point.slots: point for point in sweep.points}[55].served_from_slots == 28
