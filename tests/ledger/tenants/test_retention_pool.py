"""The pool: its bounds, what is found, held, evicted and given back.

Regions are counted in the kernel's list of mappings, memory by its counters, and rows are read by their address.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from pinprobe.ledger.booking import RowState
from pinprobe.ledger.ledger import HostPinnedLedger
from pinprobe.ledger.tenants.demand import DemandStats
from pinprobe.ledger.tenants.pool_stats import PoolStats
from tests.ledger.tenants.in_threads import in_threads
from tests.ledger.tenants.kept_savepoints import (
    POOL,
    REGION,
    booked_bytes,
    copied,
    found,
    keep,
    mapped_regions,
    opened,
    prompt,
)
from tests.ledger.tenants.savepoint_rows import MIXED

_PATIENCE_SECONDS = 20.0


# -- what is found


def test_the_longest_savepoint_of_a_prompt_is_found_with_its_bytes(ledger: HostPinnedLedger, shared: bool) -> None:
    with opened(ledger, 8, shared=shared) as pool:
        for number, tokens in enumerate((5, 9, 14), start=1):
            assert keep(pool, prompt(1, tokens), number)
        assert [found(pool, prompt(1, tokens)) for tokens in (4, 5, 8, 9, 13, 14, 50)] == [None, 1, 1, 2, 2, 3, 3]
        assert found(pool, prompt(2, 50)) == 1  # what both conversations begin with
        assert found(pool, [7, *prompt(1, 50)]) is None
        with pool.match(prompt(1, 20)) or pytest.fail("nothing is found") as hold:
            assert hold.tokens == 14
            assert [(tensor.shape, str(tensor.dtype)) for tensor in hold.views().values()] == [
                (slab.shape, f"torch.{slab.dtype}") for slab in MIXED.slabs
            ]
            assert hold.views()["odd"].data_ptr() == hold.address + MIXED.offsets[2]


def test_two_conversations_whose_turns_are_equally_long_are_both_kept_and_both_go(ledger: HostPinnedLedger) -> None:
    with opened(ledger, 2) as pool:
        for conversation in (1, 2):
            keep(pool, prompt(conversation, 7), conversation)
        assert [found(pool, prompt(conversation, 9)) for conversation in (1, 2)] == [1, 2]
        for conversation in (3, 4):
            keep(pool, prompt(conversation, 7), conversation)
        assert [found(pool, prompt(conversation, 9)) for conversation in (1, 2, 3, 4)] == [None, None, 3, 4]


def test_a_prefix_that_is_here_already_is_not_copied_again_nor_while_it_is_being_copied(
    ledger: HostPinnedLedger,
) -> None:
    with opened(ledger, 3) as pool:
        pool.offer(9)
        place = copied(pool, 1, prompt(1, 9))
        assert place is not None
        assert not keep(pool, prompt(1, 9), 2)
        assert found(pool, prompt(1, 9)) is None
        pool.publish(place)
        assert not keep(pool, prompt(1, 9), 3)
        assert found(pool, prompt(1, 9)) == 1
        stats = pool.stats()
        assert (stats.promoted, stats.already_here, stats.resident, stats.held_regions) == (1, 2, 1, 1)
        pool.forget(prompt(1, 9))
        assert keep(pool, prompt(1, 9), 4)
        assert found(pool, prompt(1, 9)) == 4


def test_what_is_forgotten_is_just_that_prefix(ledger: HostPinnedLedger) -> None:
    with opened(ledger, 4) as pool:
        keep(pool, prompt(1, 7), 1)
        keep(pool, prompt(1, 9), 2)
        assert not pool.forget(prompt(1, 8))
        assert pool.forget(prompt(1, 9))
        assert not pool.forget(prompt(1, 9))
        assert found(pool, prompt(1, 20)) == 1
        assert (pool.stats().resident, pool.stats().evicted, pool.stats().held_regions) == (1, 0, 2)


# -- warm and cold


def test_a_region_is_cold_until_something_was_published_from_it(ledger: HostPinnedLedger) -> None:
    with opened(ledger, 1) as pool:
        pool.offer(9)
        place = copied(pool, 1, prompt(1, 9))
        assert place is not None
        pool.give_back(place, lost_the_race=True)
        for number in (2, 3):
            keep(pool, prompt(number, 9), number)
        stats = pool.stats()
        assert (stats.cold, stats.warm, stats.lost_the_race, stats.peak_regions) == (1, 1, 1, 1)
        assert stats.promoted_bytes == 2 * MIXED.row_bytes


def test_regions_are_mapped_ahead_up_to_the_bound_and_are_cold_at_their_first_use(ledger: HostPinnedLedger) -> None:
    with opened(ledger, 4) as pool:
        keep(pool, prompt(1, 9), 1)
        assert pool.map_ahead(3) == mapped_regions() == 3
        assert pool.map_ahead(2) == 3
        assert pool.map_ahead(100) == mapped_regions() == 4
        assert booked_bytes(ledger) == 4 * REGION
        for number in range(2, 5):
            keep(pool, prompt(number, 9), number)
        stats = pool.stats()
        assert (stats.cold, stats.warm, stats.evicted, stats.no_region, stats.requests) == (4, 0, 0, 0, 4)
        assert [found(pool, prompt(number, 9)) for number in range(1, 5)] == [1, 2, 3, 4]


def test_mapping_ahead_more_than_the_ledger_allows_maps_what_fits_and_is_no_lost_savepoint() -> None:
    with (
        HostPinnedLedger(limit_bytes=2 * REGION, wait_seconds=0) as ledger,
        opened(ledger, 5) as pool,
    ):
        assert pool.map_ahead(5) == mapped_regions() == 2
        assert pool.stats().requests == 0
        assert f"{POOL}: 0 offered; 2 regions held" in " ".join(ledger.printout(stats=True).split())
        assert keep(pool, prompt(1, 9), 1)


# -- what it says of itself


def test_the_counters_of_a_pool_add_up_to_what_was_done_with_it(ledger: HostPinnedLedger) -> None:
    with opened(ledger, 3) as pool:
        keep(pool, prompt(1, 7), 1, "one")
        keep(pool, prompt(1, 9), 2, "one")
        keep(pool, prompt(2, 8), 3, "two")
        keep(pool, prompt(1, 3), 4, "one")
        keep(pool, prompt(3, 9), 5, "three")
        pool.offer(9)
        pool.lose()
        hold = pool.match(prompt(3, 9))
        assert hold is not None
        assert pool.stats() == PoolStats(
            requests=6, row_bytes=MIXED.row_bytes, region_bytes=REGION, bound_regions=3, held_regions=3,
            peak_regions=3, warm=1, cold=3, promoted=4, promoted_bytes=4 * MIXED.row_bytes, lost_the_race=1,
            no_region=0, refused=0, declined=0, already_here=0, below_floor=1, trimmed=0, resident=3, reachable=3,
            dominated=0, evicted=1, being_read=1, slots=3, demand=pool.stats().demand,
        )  # fmt: skip
        keep(pool, prompt(3, 12), 6, "three")
        stats = pool.stats()
        assert (stats.resident, stats.reachable, stats.dominated) == (3, 2, 1)
        assert (stats.resident_bytes, stats.overhead_bytes) == (3 * MIXED.row_bytes, REGION - MIXED.row_bytes)
        hold.release()


def test_entries_are_dominated_by_longer_ones_of_their_own_conversation_alone(ledger: HostPinnedLedger) -> None:
    with opened(ledger, 8) as pool:
        for number, (conversation, tokens) in enumerate([(1, 7), (1, 9), (1, 12), (2, 9), (3, 8), (3, 9)]):
            keep(pool, prompt(conversation, tokens), number, f"conversation {conversation}")
        assert (pool.stats().reachable, pool.stats().dominated) == (3, 3)
        pool.forget(prompt(1, 12))
        assert (pool.stats().reachable, pool.stats().dominated) == (3, 2)


def test_what_it_is_and_what_it_counted_stand_in_the_printout(ledger: HostPinnedLedger, shared: bool) -> None:
    with opened(ledger, 2, shared=shared) as pool:
        keep(pool, prompt(1, 9), 1)
        kind = "memfds that other processes of this user can map" if shared else "private memory"
        boot, later = (" ".join(ledger.printout(stats=stats).split()) for stats in (False, True))
        described = (
            f"{POOL}: pool of at most 2 regions = {2 * REGION / 1024:.3f} KiB, pageable {kind}; a region is"
            f" {REGION:,} B, {REGION - MIXED.row_bytes:,} B more than its row; savepoints below 4 tokens are not kept"
        )
        assert described in boot
        assert "1 offered" not in boot
        assert described in later
        assert (
            f"{POOL}: 1 offered; 1 regions held of a bound of 2 = {REGION / 1024:.3f} KiB, peak 1, slots 2; warm 0,"
            f" cold 1;"
            f" promoted 1 = {MIXED.row_bytes / 1024:.3f} KiB; lost_the_race 0, failed 0, no_region 0, refused 0,"
            " declined 0, already_here 0, below_floor 0; trimmed 0, evicted 0; resident 1 (reachable 1, dominated 0,"
            " being read 0)"
        ) in later
        (row,) = (row for row in ledger.rows() if row.owner == POOL)
        assert (row.state, row.pageable, row.asked_bytes, row.booked_bytes) == (RowState.RESERVED, True, REGION, REGION)


GOOD = PoolStats(
    requests=11, row_bytes=100, region_bytes=200, bound_regions=5, held_regions=4, peak_regions=4, warm=2, cold=3,
    promoted=5, promoted_bytes=500, lost_the_race=1, no_region=1, refused=1, declined=1, already_here=1, below_floor=1,
    trimmed=0, resident=3, reachable=2, dominated=1, evicted=1, being_read=1, slots=5,
    demand=DemandStats(demand_entries=3, working_set=2, reuse_horizon_seconds=None, evicted_unread_reachable=0),
)  # fmt: skip


@pytest.mark.parametrize(
    "wrong",
    [
        {"warm": 3}, {"promoted_bytes": 501}, {"reachable": 3}, {"held_regions": 2}, {"peak_regions": 2},
        {"peak_regions": 6}, {"bound_regions": 3}, {"requests": 10}, {"slots": 6},
    ],
    ids=repr,
)  # fmt: skip
def test_counters_that_do_not_add_up_are_no_stats(wrong: dict[str, int]) -> None:
    fields = {name: getattr(GOOD, name) for name in PoolStats.__dataclass_fields__}
    assert PoolStats(**fields) == GOOD
    with pytest.raises(AssertionError):
        PoolStats(**{**fields, **wrong})


def test_many_threads_may_use_it_at_once(ledger: HostPinnedLedger) -> None:
    numbers = itertools.count(1)
    acts: list[Callable[[int], object]] = [
        lambda number: keep(pool, prompt(number % 9, 7 + number % 5), number, f"c{number % 9}"),
        lambda number: found(pool, prompt(number % 9, 20)),
        lambda number: pool.forget(prompt(number % 9, 7 + number % 5)),
        lambda number: pool.trim(number % 4),
        lambda number: pool.stats(),
        lambda number: pool.map_ahead(2),
    ]

    def act(thread: int) -> None:
        for number in itertools.islice(numbers, 60):
            acts[number * 7 % len(acts) if thread else 0](number)

    with opened(ledger, 4) as pool:
        in_threads(6, act)
        stats = pool.stats()
        assert stats.requests == stats.promoted + stats.no_region + stats.already_here
        assert mapped_regions() == stats.held_regions <= 4
