"""What is awaited, for how long, and how many entries that makes."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinprobe.ledger.tenants.demand import KEPT_SHARE, SETTLE_SECONDS, Demand
from pinprobe.probes.errors import BadRequest

MOST = 100
#: A horizon is the end of a bin: at most a quarter of an octave above what it has to hold, in seconds and one more.
BIN = 2**0.25


def turn(demand: Demand, conversation: str, number: int, now: float, tokens: int = 1000) -> None:
    """One turn of a conversation that goes on: it reads the end of its line, and offers the next one."""
    parent = (conversation, number - 1) if number else None
    if parent in demand:
        demand.read(parent, now)
    demand.offer((conversation, number), parent if parent in demand else None, tokens, conversation, now)


def test_before_anything_was_read_the_horizon_is_unknown_and_every_end_is_awaited() -> None:
    demand = Demand(MOST)
    for number in range(5):
        turn(demand, f"c{number}", 0, now=1000.0 * number)
    stats = demand.stats(1e6)
    assert (stats.working_set, stats.demand_entries, stats.reuse_horizon_seconds) == (5, 5, None)
    assert "reuse_horizon unknown" in stats.words()


def test_a_conversation_that_goes_on_awaits_its_newest_savepoint_alone() -> None:
    demand = Demand(MOST)
    for number, conversation in itertools.product(range(6), "abc"):
        turn(demand, conversation, number, now=30.0 * number)
    assert demand.stats(150.0).working_set == 3
    assert [demand.is_awaited(("a", number), 150.0) for number in range(6)] == [False] * 5 + [True]


def test_where_a_conversation_branches_is_awaited_too() -> None:
    demand = Demand(MOST)
    turn(demand, "a", 0, 0.0)
    turn(demand, "a", 1, 10.0)
    assert not demand.is_awaited(("a", 0), 10.0)
    demand.read(("a", 0), 20.0)  # it was continued before
    assert demand.is_awaited(("a", 0), 20.0)
    demand.offer("branch", ("a", 0), 500, "a", 20.0)
    assert demand.stats(20.0).working_set == 3


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.floats(0, 20)), max_size=60))
def test_the_working_set_is_what_is_awaited_also_where_lines_begin_at_places_of_long_ago(
    events: list[tuple[int, int, float]],
) -> None:
    demand, now = Demand(MOST, fixed_horizon_seconds=30.0), 0.0
    keys: list[tuple[int, int]] = []
    for number, (line, back, wait) in enumerate(events):
        now += wait
        above = [key for key in keys if key[0] == line][-1 - back :][:1]  # an early one: it is not read before
        keys.append((line, number))
        demand.offer(keys[-1], above[0] if above else None, 100, f"{line}", now)
        assert demand.stats(now).working_set == sum(demand.is_awaited(key, now) for key in keys)


def test_what_was_not_used_for_longer_than_the_horizon_is_awaited_no_more() -> None:
    demand = Demand(MOST, settle_seconds=0)
    for number in range(10):
        turn(demand, "slow", number, 40.0 * number)
    horizon = demand.stats(360.0).reuse_horizon_seconds
    assert horizon is not None
    assert 40 <= horizon <= BIN * 41
    assert demand.stats(359.0 + horizon).working_set == 1
    assert demand.stats(361.0 + horizon).working_set == 0
    assert demand.stats(361.0 + horizon).demand_entries == 1  # never below its least


@given(st.lists(st.tuples(st.floats(0, 1e5), st.integers(1, 200_000)), min_size=1, max_size=60))
def test_the_horizon_holds_all_but_a_small_share_of_the_spared_tokens_and_little_more(
    reads: list[tuple[float, int]],
) -> None:
    demand, now = Demand(MOST), 0.0
    for number, (gap, tokens) in enumerate(reads):
        demand.offer(number, None, tokens, "c", now)
        now += gap
        demand.read(number, now)
    horizon = demand.stats(now).reuse_horizon_seconds
    assert horizon is not None
    gaps = sorted(reads)
    total = sum(tokens for _, tokens in reads)
    sums = itertools.accumulate(tokens for _, tokens in gaps)
    needed = next(gap for (gap, _), within in zip(gaps, sums, strict=True) if within >= KEPT_SHARE * total)
    assert needed <= horizon * (1 + 1e-9) + 1e-6
    assert horizon + 1 <= (needed + 1) * BIN * (1 + 1e-6)


def test_long_prompts_count_by_their_tokens() -> None:
    demand, now = Demand(MOST), 0.0
    for number in range(100):  # a hundred short ones that come soon, and one long one that comes late
        demand.offer(number, None, 100, "short", now)
        now += 1
        demand.read(number, now)
    demand.offer("long", None, 100_000, "long", now)
    demand.read("long", now + 500)
    horizon = demand.stats(now + 500).reuse_horizon_seconds
    assert horizon is not None
    assert horizon >= 500


def test_a_read_that_finds_its_savepoint_gone_counts_twice_and_widens_the_horizon() -> None:
    horizons = []
    for was_evicted in (False, True):
        demand, now = Demand(MOST, kept_share=0.9), 0.0
        for number in range(100):
            gap = 300 if number % 18 == 0 else 3  # six of a hundred come late: within a tenth, and not if counted twice
            demand.offer(number, None, 1000, "c", now)
            if was_evicted and gap > 3:
                demand.evicted(number, now)
            now += gap
            demand.read(number, now)
        horizons.append(demand.stats(now).reuse_horizon_seconds)
    assert horizons[0] is not None
    assert horizons[1] is not None
    assert horizons[0] < 10 < 300 <= horizons[1]


def test_what_was_continued_is_over_until_reads_of_it_are_more_than_the_share_that_need_not_be_held() -> None:
    demand, now = Demand(MOST), 0.0
    for number in range(200):
        turn(demand, "a", number, now := now + 5)
    assert demand.is_passed_for_good
    for number in range(100, 106):  # six reads of two hundred fall on what was continued
        demand.read(("a", number), now)
    assert not demand.is_passed_for_good


def test_the_horizon_shrinks_again_once_the_late_reads_are_long_ago() -> None:
    demand, now = Demand(MOST), 0.0
    for number in range(300):
        turn(demand, "slow", number, now := now + 600)
    grown = demand.stats(now).reuse_horizon_seconds
    for number in range(12_000):
        turn(demand, "fast", number, now := now + 2)
    shrunk = demand.stats(now).reuse_horizon_seconds
    assert grown is not None
    assert shrunk is not None
    assert shrunk < 5 < 600 <= grown


def test_a_conversation_that_is_over_leaves_the_working_set_at_once() -> None:
    demand = Demand(MOST, settle_seconds=0)
    for conversation in "abc":
        turn(demand, conversation, 0, 0.0)
    demand.end("b")
    assert demand.stats(0.0).working_set == 2
    assert demand.chance(("b", 0), 0.0) == 0
    demand.read(("b", 0), 1.0)  # it was not over after all
    assert demand.stats(1.0).working_set == 3


def test_it_grows_at_once_and_shrinks_after_a_while() -> None:
    demand, now = Demand(MOST), 0.0
    for number, conversation in itertools.product(range(3), range(20)):
        turn(demand, f"c{conversation}", number, now := now + 0.5)
    assert demand.stats(now).demand_entries == 20
    for conversation in range(15):
        demand.end(f"c{conversation}")
    assert demand.stats(now + 1).working_set == 5
    assert demand.stats(now + 1).demand_entries == 20
    assert demand.stats(now + SETTLE_SECONDS).demand_entries == 20
    assert demand.stats(now + SETTLE_SECONDS + 1).demand_entries == 5


@pytest.mark.parametrize(("conversations", "wanted"), [(1, 4), (6, 6), (30, 10)])
def test_what_is_wanted_stays_between_its_bounds(conversations: int, wanted: int) -> None:
    demand = Demand(10, min_entries=4)
    for number in range(conversations):
        turn(demand, f"c{number}", 0, 0.0)
    assert demand.stats(0.0).demand_entries == wanted
    assert demand.stats(0.0).working_set == conversations


def test_entries_that_went_unread_while_their_conversation_was_alive_are_counted() -> None:
    demand = Demand(MOST)
    for number in range(4):
        turn(demand, "read", number, 10.0 * number)
    turn(demand, "young", 0, 30.0)
    turn(demand, "over", 0, 30.0)
    demand.end("over")
    for key in (("read", 1), ("young", 0), ("over", 0), "never seen"):  # continued, alive, over, unknown
        demand.evicted(key, 31.0)
    assert demand.stats(31.0).evicted_unread_reachable == 1


@given(st.lists(st.tuples(st.integers(0, 30), st.floats(0, 50)), max_size=200))
def test_the_chance_of_a_read_falls_with_the_time_it_was_waited_for(turns: list[tuple[int, float]]) -> None:
    demand, now, numbers = Demand(MOST), 0.0, dict.fromkeys(range(31), 0)
    for conversation, pause in turns:
        turn(demand, f"c{conversation}", numbers[conversation], now := now + pause)
        numbers[conversation] += 1
    turn(demand, "asked about", 0, now)
    chances = [demand.chance(("asked about", 0), now + wait) for wait in (0, 1, 10, 100, 1e9)]
    assert chances == sorted(chances, reverse=True)
    assert all(0 <= chance <= 1 for chance in chances)


def test_what_is_watched_is_bounded_and_what_is_dropped_is_told() -> None:
    demand, dropped = Demand(2), []
    for number in range(5000):
        dropped += demand.offer(number, None, 100, "flood", float(number))
    watched = [number for number in range(5000) if number in demand]
    assert dropped == list(range(5000 - len(watched)))
    assert len(watched) == 16 * 2 + 2048


@pytest.mark.parametrize(
    "bounds", [{"min_entries": 0}, {"min_entries": 11}, {"kept_share": 0.0}, {"kept_share": 1.0}], ids=repr
)
def test_bounds_that_leave_nothing_are_refused(bounds: dict[str, float]) -> None:
    with pytest.raises(BadRequest):
        Demand(10, **bounds)  # type: ignore[arg-type]
