"""Who may take memory: the arithmetic of the bounds, and that a refusal says all that there is to say."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pinprobe.ledger.admission import (
    Bound,
    Request,
    after_waiting,
    headroom_bound,
    judge,
    limit_bound,
    usable_bounds,
)
from pinprobe.ledger.price import Price, PriceList
from pinprobe.probes.allowance import Allowance
from pinprobe.probes.errors import CouldNotMeasure, Refused
from pinprobe.probes.headroom import Headroom, HeadroomSource, HugepagePool
from pinprobe.probes.reading import Amount, Reading, Unreadable
from pinprobe.probes.walk import walk
from tests.probes.simulated import PAGE, SimulatedBench, power_of_two

FUZZ = settings(derandomize=True, deadline=None, max_examples=200)
MIB, GIB = 2**20, 2**30
SLOT = 154_927_104
SIZES = st.integers(0, 2**45)


def source(name: str, left: int | str) -> HeadroomSource:
    amount: Amount = Unreadable(left) if isinstance(left, str) else Reading(left, "told")
    return HeadroomSource(name, amount)


def host(*left: int | str, pools: tuple[HugepagePool, ...] = ()) -> Headroom:
    return Headroom(tuple(source(f"source {index}", each) for index, each in enumerate(left)), pools)


def bound(
    headroom: Headroom, keep_free: int = 0, pending: int = 0, overhead: float = 0.0, from_pool: bool = False
) -> Bound:
    found = headroom_bound(headroom, keep_free, pending, overhead, from_pool)
    assert isinstance(found, Bound), found
    return found


def wants(asked_bytes: int, price: Price | None = None) -> Request:
    return Request("cache.ring", asked_bytes, price or Price(asked_bytes, "the ask"), "simulated")


@pytest.fixture(scope="module")
def powers_of_two() -> PriceList:
    """The map of an allocator that rounds up to a power of two."""
    prices = PriceList()
    prices.add(walk(lambda: SimulatedBench(power_of_two), "simulated", SLOT, range(1, 17), Allowance(2**40, ""), PAGE))
    return prices


# What the host can give.


def test_the_smallest_source_binds_and_is_named() -> None:
    found = bound(host(8 * GIB, 3 * GIB, "no cgroup"))
    assert found == Bound("source 1 leaves 3.000 GiB", 3 * GIB)


def test_what_is_kept_free_and_what_others_are_taking_is_nobodys_room() -> None:
    found = bound(host(8 * GIB), keep_free=GIB, pending=2 * GIB)
    assert found.room_bytes == 5 * GIB
    assert found.words == "source 0 leaves 8.000 GiB, of which 1.000 GiB are kept free, and 2.000 GiB are being taken"


def test_what_pinning_takes_beside_is_left_room_for() -> None:
    found = bound(host(10 * GIB), overhead=0.25)
    assert found.room_bytes == 8 * GIB
    assert found.words.endswith("and pinning takes 25.0% more beside")


@given(left=SIZES, keep_free=SIZES, pending=SIZES, overhead=st.floats(0, 0.1))
@FUZZ
def test_a_request_that_fits_leaves_what_is_kept_free(left: int, keep_free: int, pending: int, overhead: float) -> None:
    room = bound(host(left), keep_free, pending, overhead).room_bytes
    assert room >= 0
    assert room == 0 or room * (1 + overhead) + keep_free + pending <= left * (1 + 1e-9)


def test_a_headroom_that_can_t_be_read_is_no_bound_and_no_zero() -> None:
    assert headroom_bound(host("no meminfo", "no cgroup"), 0, 0, 0.0, False) == Unreadable("no meminfo; no cgroup")


def test_the_huge_page_pool_is_room_for_what_is_asked_of_it_and_for_nothing_else() -> None:
    pools = (HugepagePool(2 * MIB, Reading(GIB, "told")), HugepagePool(GIB, Reading(4 * GIB, "told")))
    headroom = host(64 * MIB, pools=pools)
    assert bound(headroom).room_bytes == 64 * MIB
    found = bound(headroom, pending=GIB, overhead=0.1, from_pool=True)
    assert found.room_bytes == 3 * GIB  # what pinning takes beside comes from the host and not from the pool
    assert "the pool of 1.000 GiB pages leaves 4.000 GiB" in found.words


@pytest.mark.parametrize("pools", [(), (HugepagePool(2 * MIB, Unreadable("no count")),)])
def test_without_a_pool_that_can_be_read_there_is_no_bound_for_it(pools: tuple[HugepagePool, ...]) -> None:
    found = headroom_bound(host(GIB, pools=pools), 0, 0, 0.0, True)
    assert found == Unreadable("this kernel has no huge page pool that can be read")


# The limit.


def test_a_limit_leaves_what_is_neither_booked_nor_pending() -> None:
    assert limit_bound(10 * GIB, 3 * GIB, 0, "") == Bound("the limit is 10.000 GiB and 3.000 GiB are booked", 7 * GIB)
    found = limit_bound(10 * GIB, 3 * GIB, 2 * GIB, " by 4 processes")
    assert found.room_bytes == 5 * GIB
    assert found.words.endswith("3.000 GiB are booked by 4 processes, and 2.000 GiB are being taken")


@given(limit=SIZES, booked=SIZES, pending=SIZES)
@FUZZ
def test_a_limit_that_is_passed_leaves_nothing_and_never_less(limit: int, booked: int, pending: int) -> None:
    assert limit_bound(limit, booked, pending, "").room_bytes == max(0, limit - booked - pending)


def test_whatever_bound_is_known_holds_and_without_any_nothing_may_be_taken() -> None:
    headroom, limit, unknown = Bound("the host", 5), Bound("the limit", 3), Unreadable("no meminfo")
    assert usable_bounds(headroom, limit) == [headroom, limit]
    assert usable_bounds(headroom, None) == [headroom]
    assert usable_bounds(unknown, limit) == [limit]
    with pytest.raises(CouldNotMeasure, match=r"^the headroom is unreadable, because no meminfo; give limit_bytes"):
        usable_bounds(unknown, None)


# The judgement.


def test_what_fits_to_the_byte_is_admitted_and_one_byte_more_is_not() -> None:
    bounds = [Bound("the host", 2 * GIB), Bound("the limit", GIB)]
    assert judge(wants(GIB), bounds, PriceList()) is None
    refused = judge(wants(GIB + 1), bounds, PriceList())
    assert refused is not None
    assert (refused.bound, refused.room_bytes, refused.largest_bytes) == ("the limit", GIB, GIB)


def test_a_refusal_says_who_what_why_and_what_would_fit(powers_of_two: PriceList) -> None:
    price = powers_of_two.price("simulated", 9 * SLOT)
    refused = judge(wants(9 * SLOT, price), [Bound("the host leaves 1.500 GiB", 3 * GIB // 2)], powers_of_two)
    assert refused is not None
    assert str(refused) == (
        "cache.ring asks for 1.299 GiB, which costs 2.000 GiB (measured); the host leaves 1.500 GiB;"
        " the largest request that fits now is 1.000 GiB"
    )
    assert (refused.owner, refused.asked_bytes, refused.price_bytes) == ("cache.ring", 9 * SLOT, 2 * GIB)
    assert (refused.room_bytes, refused.largest_bytes, refused.exit_code) == (3 * GIB // 2, GIB, 1)


def test_where_nothing_fits_that_is_said() -> None:
    refused = judge(wants(1), [Bound("the limit", 0)], PriceList())
    assert refused is not None
    assert str(refused).endswith("; nothing fits now")
    assert refused.largest_bytes == 0


def test_it_is_the_price_that_has_to_fit_and_not_the_ask(powers_of_two: PriceList) -> None:
    asked = 2**30 + 1
    price = powers_of_two.price("simulated", asked)
    assert judge(wants(asked, price), [Bound("the limit", 2**31)], powers_of_two) is None
    assert judge(wants(asked, price), [Bound("the limit", 2**31 - 1)], powers_of_two) is not None


@given(asked=st.integers(1, 2**34), rooms=st.lists(st.integers(0, 2**35), min_size=1, max_size=3))
@FUZZ
def test_the_largest_request_that_is_named_is_admitted_and_one_byte_more_is_not(
    asked: int, rooms: list[int], powers_of_two: PriceList
) -> None:
    bounds = [Bound(f"bound {index}", room) for index, room in enumerate(rooms)]

    def judged(size: int) -> Refused | None:
        return judge(wants(size, powers_of_two.price("simulated", size)), bounds, powers_of_two)

    refused = judged(asked)
    assert (refused is None) == (powers_of_two.price("simulated", asked).bytes <= min(rooms))
    if refused is not None:
        assert refused.room_bytes == min(rooms)
        assert refused.largest_bytes < asked
        assert refused.largest_bytes == 0 or judged(refused.largest_bytes) is None
        assert judged(refused.largest_bytes + 1) is not None


def test_a_refusal_crosses_a_pipe_unchanged() -> None:
    refused = judge(wants(2 * GIB), [Bound("the limit", GIB)], PriceList())
    assert refused is not None
    there = pickle.loads(pickle.dumps(refused))
    assert (str(there), there.args, vars(there)) == (str(refused), refused.args, vars(refused))


def test_after_waiting_a_refusal_names_those_it_waited_for_and_keeps_its_figures() -> None:
    refused = judge(wants(2 * GIB), [Bound("the limit", GIB)], PriceList())
    assert refused is not None
    waited = after_waiting(refused, 1.26, ["a.ring (a thread of this process)", "b.pool (rank 1 4711)"])
    assert str(waited) == (
        f"{refused}; waited 1.3 s for what is still pending: a.ring (a thread of this process); b.pool (rank 1 4711)"
    )
    assert vars(waited) == vars(refused)
    assert after_waiting(refused, 5.0, []) is refused
