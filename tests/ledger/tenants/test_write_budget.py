"""The budget for writing beside serving: what it lets begin, told by a count of its own of what was spent and idle."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinprobe.ledger.tenants.write_budget import WriteBudget
from pinprobe.probes.errors import BadRequest

WINDOW = 10.0
SHARE = 0.25
MIB = 2**20


def budget() -> WriteBudget:
    return WriteBudget(0.0, share=SHARE, window_seconds=WINDOW)


class Watched:
    """Counts on a grid of milliseconds what a budget was told."""

    def __init__(self, length_seconds: float) -> None:
        self.busy = bytearray(math.ceil(length_seconds * 1000) + 1)
        self.written = bytearray(len(self.busy))

    def idle_seconds(self, now_ms: int) -> float:
        start = max(0, now_ms - int(WINDOW * 1000))
        return self.busy[start:now_ms].count(0) / 1000

    def spent_seconds(self, now_ms: int) -> float:
        start = max(0, now_ms - int(WINDOW * 1000))
        return self.written[start:now_ms].count(1) / 1000


#: What happens next, and for how many milliseconds: nothing, serving, or a wish to write so many MiB.
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("idle"), st.integers(1, 4000)),
        st.tuples(st.just("serve"), st.integers(1, 4000)),
        st.tuples(st.just("write"), st.integers(1, 3000)),
    ),
    min_size=1,
    max_size=40,
)


@given(STEPS)
def test_a_write_begins_only_where_it_and_what_was_spent_fit_into_the_share_of_the_idle_time(
    steps: list[tuple[str, int]],
) -> None:
    # A drive of 1 MiB a millisecond, at each moment: then the budget's expectation is right.
    tested, watched, now_ms = budget(), Watched(sum(length for _, length in steps) / 1000), 0
    has_rate = False
    for kind, length in steps:
        if kind != "write":
            watched.busy[now_ms : now_ms + length] = bytes([kind == "serve"]) * length
            now_ms += length
            if kind == "serve":
                tested.served(length / 1000, now_ms / 1000)
            continue
        idle, spent = watched.idle_seconds(now_ms), watched.spent_seconds(now_ms)
        assert tested.allowance_seconds(now_ms / 1000) == pytest.approx(SHARE * idle - spent, abs=1e-6)
        may = tested.may_begin(length * MIB, now_ms / 1000)
        left = SHARE * idle - spent
        if not has_rate:
            # A tenth of the window has to have been idle, so that the first is not written on a moment's chance.
            assert may == (idle >= WINDOW / 10 and not spent) or abs(idle - WINDOW / 10) < 1e-6
        elif abs(left - length / 1000) > 1e-6:
            assert may == (length / 1000 <= left)
        if may:
            watched.written[now_ms : now_ms + length] = b"\1" * length
            now_ms += length
            tested.wrote(length * MIB, length / 1000, now_ms / 1000)
            has_rate = True


@given(st.lists(st.tuples(st.floats(0, 30), st.floats(0, 5)), min_size=1, max_size=30))
def test_what_several_tell_of_the_same_time_is_busy_once(told: list[tuple[float, float]]) -> None:
    tested = budget()
    spans = sorted((now, seconds) for now, seconds in told)
    for now, seconds in spans:
        tested.served(seconds, now)
    now = spans[-1][0]
    start = max(0.0, now - WINDOW)
    # By the ends of the spans: between two of them everything is either busy or idle.
    edges = sorted({start, now, *(min(max(start, edge), now) for at, s in spans for edge in (at - s, at))})
    idle = sum(
        right - left for left, right in pairwise(edges) if not any(at - s <= left and right <= at for at, s in spans)
    )
    assert tested.allowance_seconds(now) == pytest.approx(SHARE * idle, abs=1e-6)


def test_nothing_is_written_while_serving_leaves_nothing_over() -> None:
    tested = budget()
    for second in range(1, 60):
        tested.served(1.0, float(second))
        assert not tested.may_begin(1, float(second))


def test_what_was_not_watched_was_not_measured_as_idle() -> None:
    tested = WriteBudget(100.0, share=SHARE, window_seconds=WINDOW)
    assert tested.allowance_seconds(100.0) == 0
    assert not tested.may_begin(1, 100.0)
    assert tested.allowance_seconds(102.0) == 0.5


def test_one_write_may_find_the_rate_out_and_no_second_meanwhile() -> None:
    tested = budget()
    assert tested.may_begin(10 * MIB, 10.0)
    assert not tested.may_begin(1, 10.0)
    tested.wrote(10 * MIB, 1.0, 11.0)
    assert tested.rate_bytes_per_second(11.0) == 10 * MIB
    assert tested.may_begin(15 * MIB, 11.0)


def test_a_write_that_took_longer_than_expected_is_paid_for_before_the_next() -> None:
    tested = budget()
    tested.wrote(100 * MIB, 0.1, 10.0)
    assert tested.may_begin(100 * MIB, 10.0)
    tested.wrote(100 * MIB, 6.0, 16.0)
    assert tested.allowance_seconds(16.0) < 0
    assert not tested.may_begin(1, 16.0)
    # Of those 6 seconds the window holds one at 25, and the rate is what both took together.
    assert tested.allowance_seconds(25.0) == pytest.approx(1.5)
    assert tested.rate_bytes_per_second(25.0) == pytest.approx(200 * MIB / 6.1)
    assert tested.may_begin(40 * MIB, 25.0)


def test_a_failed_write_costs_its_time_and_says_nothing_of_the_rate() -> None:
    tested = budget()
    tested.wrote(0, 2.0, 10.0)
    assert tested.rate_bytes_per_second(10.0) is None
    assert tested.allowance_seconds(10.0) == pytest.approx(0.5)
    assert not tested.may_begin(1, 10.0)  # the rate is unknown, and something was spent
    assert tested.may_begin(1, 20.5)


def test_a_drive_that_was_slow_once_is_tried_again_later() -> None:
    tested = budget()
    tested.wrote(1, 10.0, 10.0)
    assert not tested.may_begin(1000, 60.0)
    assert tested.may_begin(1000, 71.0)


def test_a_clock_that_steps_back_changes_nothing() -> None:
    tested = budget()
    tested.served(4.0, 10.0)
    assert tested.allowance_seconds(3.0) == tested.allowance_seconds(10.0) == 1.5


@pytest.mark.parametrize("options", [{"share": 0}, {"share": 1.5}, {"share": math.nan}, {"window_seconds": 0},
                                     {"window_seconds": math.inf}, {"window_seconds": math.nan}])  # fmt: skip
def test_a_share_or_a_window_that_is_none_is_refused(options: dict[str, float]) -> None:
    with pytest.raises(BadRequest, match=r"share|window"):
        WriteBudget(0.0, **options)
