"""The pool: its bounds, what is found, held, evicted and given back.

Regions are counted in the kernel's list of mappings, memory by its counters, and rows are read by their address.
"""

from __future__ import annotations

import ctypes
import itertools
import mmap
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pinprobe.ledger.booking import RowState
from pinprobe.ledger.ledger import HostPinnedLedger
from pinprobe.ledger.tenants.demand import DemandStats
from pinprobe.ledger.tenants.pool_entry import Place
from pinprobe.ledger.tenants.pool_stats import PoolStats
from pinprobe.ledger.tenants.region import Region, region_bytes
from pinprobe.ledger.tenants.region_sharing import region_id
from pinprobe.ledger.tenants.retention_pool import RetentionPool
from pinprobe.ledger.tenants.savepoint_layout import SavepointLayout, Slab
from pinprobe.probes.errors import AllocationFailed, BadRequest
from pinprobe.probes.own_mapping import OwnMapping
from tests.ledger.tenants.test_savepoint_ring import MIXED, in_threads, number_in, row_at, row_of
from tests.probes.allocators.kernel_word import (
    MIB,
    PAGE_BYTES,
    block_bytes,
    counter_bar_bytes,
    counter_bytes,
    whole_pages,
)

POOL = "cache.retention_pool"
#: Tokens of a prefill chunk here, and of a block of the index.
CHUNK = 4
REGION = whole_pages(MIXED.row_bytes) + PAGE_BYTES

_PATIENCE_SECONDS = 20.0


# -- pools and what is put into them


@pytest.fixture
def ledger() -> Iterator[HostPinnedLedger]:
    with HostPinnedLedger(wait_seconds=0) as ledger:
        ledger.calibrate()
        yield ledger


@pytest.fixture(params=[False, True], ids=["private", "shared"])
def shared(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@contextmanager
def opened(
    ledger: HostPinnedLedger,
    bound_regions: int,
    *,
    shared: bool = True,
    layout: SavepointLayout = MIXED,
    **options: Any,
) -> Iterator[RetentionPool]:
    """A pool that has given everything back in the end; the least recently used goes, where nothing else is said."""
    pool = RetentionPool(
        ledger, layout, bound_regions=bound_regions, chunk_tokens=CHUNK, shared=shared, **{"policy": "lru", **options}
    )
    try:
        yield pool
    finally:
        pool.close()
    assert pool.stats().held_regions == 0
    assert booked_bytes(ledger) == 0


def prompt(conversation: int, tokens: int) -> list[int]:
    """The first tokens of a conversation. All begin with the same system prompt, of a block and a half."""
    return [*range(min(tokens, 6)), *(100 * conversation + index for index in range(tokens - 6))]


def copied(pool: RetentionPool, number: int, tokens: Sequence[int], conversation: str = "c") -> Place | None:
    """A place with the row of savepoint `number` in it, as the copy-out would leave it."""
    place = pool.take_place(tokens, conversation)
    if place is not None:
        place.region.begin()
        for offset, slab in zip(pool.layout.offsets, row_of(pool.layout, number), strict=True):
            ctypes.memmove(place.region.address + offset, slab, len(slab))
    return place


def keep(pool: RetentionPool, tokens: Sequence[int], number: int, conversation: str = "c") -> bool:
    """Offer a savepoint and have it kept; say whether it was."""
    if not pool.offer(len(tokens)):
        return False
    place = copied(pool, number, tokens, conversation)
    if place is not None:
        pool.publish(place)
    return place is not None


def found(pool: RetentionPool, tokens: Sequence[int]) -> int | None:
    """Which savepoint is found for a prompt; None where none is. Its row has to be whole."""
    hold = pool.match(tokens)
    if hold is None:
        return None
    with hold:
        row = row_at(pool.layout, hold.address)
    number = number_in(row)
    assert row == row_of(pool.layout, number)
    return number


def address_of(pool: RetentionPool, tokens: Sequence[int]) -> int:
    """Where the savepoint that is found for a prompt lies."""
    with pool.match(tokens) or pytest.fail("nothing is found") as hold:
        return hold.address


def mapped_regions() -> int:
    """How many shared regions the kernel says are mapped in this process."""
    return Path("/proc/self/maps").read_text(encoding="utf-8").count("/memfd:pinprobe-region")


def booked_bytes(ledger: HostPinnedLedger) -> int:
    """What is booked for the pool, or pending."""
    return sum(row.booked_bytes for row in ledger.rows() if row.owner == POOL)


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


# -- the bounds


@pytest.mark.parametrize(
    ("by_count", "by_bytes", "bound"),
    [(4, None, 4), (4, 10 * REGION, 4), (100, 3 * REGION, 3), (100, 4 * REGION - 1, 3)],
)
def test_the_bound_is_the_tighter_of_count_and_bytes(
    ledger: HostPinnedLedger, by_count: int, by_bytes: int | None, bound: int
) -> None:
    pool = RetentionPool(
        ledger, MIXED, bound_regions=by_count, bound_bytes=by_bytes, policy="lru", chunk_tokens=CHUNK, shared=True
    )
    for number in range(1, 3 * bound):
        assert keep(pool, prompt(number, 9), number)
        assert mapped_regions() == min(number, bound)
        assert booked_bytes(ledger) == min(number, bound) * REGION
    stats = pool.stats()
    assert (stats.bound_regions, stats.held_regions, stats.peak_regions) == (bound, bound, bound)
    assert (stats.cold, stats.warm, stats.evicted) == (bound, 2 * bound - 1, 2 * bound - 1)
    assert stats.held_bytes == bound * REGION
    pool.close()
    assert mapped_regions() == 0


def test_the_bound_is_checked_before_a_region_is_taken_and_not_after_saving(ledger: HostPinnedLedger) -> None:
    # From the field, scaled by 20: a cache that checked its limit after it had saved held 2,460 MiB of 1,200.
    bound, layout = 60 * MIB, SavepointLayout((Slab("state", (3 * MIB - PAGE_BYTES,), "uint8"),))
    pool = RetentionPool(
        ledger, layout, bound_regions=1000, bound_bytes=bound, policy="lru", chunk_tokens=CHUNK
    )  # fmt: skip
    before = counter_bytes("VmRSS")
    most, done = 0, threading.Event()

    def watch() -> None:
        nonlocal most
        while not done.is_set():
            most = max(most, counter_bytes("VmRSS") - before)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    for number in range(41):  # 123 MiB
        pool.offer(9)
        place = pool.take_place(prompt(number, 9), "c")
        assert place is not None
        ctypes.memset(place.region.address, number, layout.row_bytes)
        pool.publish(place)
        assert booked_bytes(ledger) <= bound
    done.set()
    watcher.join()
    pool.close()
    assert bound - 4 * MIB <= most <= bound + 4 * MIB
    assert pool.stats().peak_regions == 20


def test_savepoints_that_a_count_caps_are_bounded_in_bytes_and_stand_in_the_printout(ledger: HostPinnedLedger) -> None:
    # From the field, scaled by 1,024: 32 conversations with 4 checkpoints of 149.6 MiB each were capped by their count
    # alone, and 18.7 GiB stood in no panel that showed memory.
    layout = SavepointLayout((Slab("state", (149 * 1024 + 614,), "uint8"),))
    bound = 6 * MIB
    pool = RetentionPool(
        ledger, layout, bound_regions=32 * 4, bound_bytes=bound, policy="lru", chunk_tokens=CHUNK, shared=True
    )
    for conversation, turn in itertools.product(range(32), range(1, 5)):
        assert keep(pool, prompt(conversation, 6 + turn), 4 * conversation + turn, f"conversation {conversation}")
    most = bound // region_bytes(layout.row_bytes)
    assert mapped_regions() == pool.stats().held_regions == most == 39
    assert booked_bytes(ledger) <= bound
    printout = ledger.printout(stats=True)
    shown = [line.split() for line in printout.splitlines() if line.startswith(f"{POOL} ")]
    assert len(shown) == 1, printout
    text = " ".join(printout.split())
    assert f"{POOL}: pool of at most 39 regions = 5.941 MiB, pageable memfds that other processes" in text
    assert f"{POOL}: 128 offered; 39 regions held of a bound of 39 = 5.941 MiB" in text
    pool.close()


def test_the_bound_is_not_passed_for_a_moment_while_many_threads_take_places(ledger: HostPinnedLedger) -> None:
    bound, threads, layout = 5, 6, SavepointLayout((Slab("state", (64 * 1024,), "float32"),))
    size = region_bytes(layout.row_bytes)
    seen: list[int] = []

    def act(thread: int) -> None:
        if thread:
            for number in range(thread, 20 * threads, threads):
                keep(pool, prompt(number, 9), number)
                assert found(pool, prompt(number, 9)) in (number, None)
            working.discard(thread)
        while not thread and working:
            # No region is unmapped meanwhile, so that a list of mappings can't count one twice.
            seen.append(mapped_regions())
            assert counter_bytes("RssShmem") - before <= bound * size + counter_bar_bytes()
            assert booked_bytes(ledger) <= bound * size

    for _ in range(5):
        working = set(range(1, threads))
        before = counter_bytes("RssShmem")
        with opened(ledger, bound, layout=layout) as pool:
            in_threads(threads, act)
            stats = pool.stats()
            assert mapped_regions() == stats.held_regions == stats.peak_regions == bound
        assert stats.requests == 100 == stats.promoted + stats.no_region
    assert max(seen) == bound


def test_a_trim_has_given_its_memory_back_before_others_may_take_as_much(
    ledger: HostPinnedLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    unmap, unmapping, go_on = Region.unmap, threading.Event(), threading.Event()

    def slow_unmap(region: Region) -> None:
        unmapping.set()
        assert go_on.wait(_PATIENCE_SECONDS)
        unmap(region)

    with opened(ledger, 2) as pool:
        for number in (1, 2):
            keep(pool, prompt(number, 9), number)
        monkeypatch.setattr(Region, "unmap", slow_unmap)
        trimmer = threading.Thread(target=pool.trim, daemon=True)
        taker = threading.Thread(target=lambda: keep(pool, prompt(3, 9), 3), daemon=True)
        trimmer.start()
        assert unmapping.wait(_PATIENCE_SECONDS)
        taker.start()
        taker.join(0.3)
        mapped, booked = mapped_regions(), booked_bytes(ledger)
        go_on.set()
        trimmer.join(_PATIENCE_SECONDS)
        taker.join(_PATIENCE_SECONDS)
    assert mapped <= 2
    assert booked <= 2 * REGION


@pytest.mark.parametrize(
    ("by_count", "by_bytes"), [(0, None), (-1, None), (4, REGION - 1), (4, 0), (0, 10 * REGION)], ids=repr
)
def test_a_bound_below_one_region_is_refused(ledger: HostPinnedLedger, by_count: int, by_bytes: int | None) -> None:
    with pytest.raises(BadRequest, match=f"{POOL}: a bound below one region of {REGION:,} B keeps nothing"):
        RetentionPool(ledger, MIXED, bound_regions=by_count, bound_bytes=by_bytes)


@pytest.mark.parametrize("chunk", [0, -1])
def test_a_chunk_of_no_tokens_is_refused_when_the_pool_is_opened(ledger: HostPinnedLedger, chunk: int) -> None:
    with pytest.raises(BadRequest):
        RetentionPool(ledger, MIXED, bound_regions=4, chunk_tokens=chunk)


# -- who goes


def test_the_least_recently_used_goes_first_and_being_found_is_use(ledger: HostPinnedLedger) -> None:
    with opened(ledger, 3) as pool:
        for number in (1, 2, 3):
            keep(pool, prompt(number, 9), number)
        assert found(pool, prompt(1, 9)) == 1
        keep(pool, prompt(4, 9), 4)
        assert found(pool, prompt(2, 9)) is None
        assert not keep(pool, prompt(1, 9), 5)  # it is here, and being offered is use
        keep(pool, prompt(6, 9), 6)
        kept = [number for number in range(1, 7) if found(pool, prompt(number, 9)) is not None]
        assert kept == [1, 4, 6]
        assert pool.stats().evicted == 2


def test_an_entry_that_is_being_read_stays_until_it_is_let_go_and_its_region_is_not_used_meanwhile(
    ledger: HostPinnedLedger,
) -> None:
    with opened(ledger, 1) as pool:
        keep(pool, prompt(1, 9), 1)
        first, second = pool.match(prompt(1, 9)), pool.match(prompt(1, 9))
        assert first is not None
        assert second is not None
        for hold in (first, second):
            assert not keep(pool, prompt(2, 9), 2)
            assert row_at(MIXED, hold.address) == row_of(MIXED, 1)
            assert found(pool, prompt(1, 9)) == 1
            hold.release()
        assert keep(pool, prompt(2, 9), 2)
        assert (found(pool, prompt(1, 9)), found(pool, prompt(2, 9))) == (None, 2)
        stats = pool.stats()
        assert (stats.no_region, stats.promoted, stats.evicted, stats.being_read) == (2, 2, 1, 0)


def test_where_the_oldest_is_being_read_the_next_one_goes(ledger: HostPinnedLedger) -> None:
    with opened(ledger, 2) as pool:
        for number in (1, 2):
            keep(pool, prompt(number, 9), number)
        hold = pool.match(prompt(1, 9))
        assert hold is not None
        assert found(pool, prompt(2, 9)) == 2  # 1 is the least recently used now
        with hold:
            assert keep(pool, prompt(3, 9), 3)
            assert pool.stats().being_read == 1
            assert row_at(MIXED, hold.address) == row_of(MIXED, 1)
        assert [found(pool, prompt(number, 9)) for number in (1, 2, 3)] == [1, None, 3]


@pytest.mark.parametrize("way", ["forgotten", "forgotten and kept again", "trimmed"])
def test_what_goes_while_it_is_being_read_stays_readable_and_its_region_is_free_afterwards(
    ledger: HostPinnedLedger, way: str
) -> None:
    with opened(ledger, 2) as pool:
        keep(pool, prompt(1, 9), 1)
        hold = pool.match(prompt(1, 9))
        assert hold is not None
        if way == "forgotten":
            assert pool.forget(prompt(1, 9))
            assert found(pool, prompt(1, 9)) is None
        elif way == "forgotten and kept again":
            assert pool.forget(prompt(1, 9))
            assert keep(pool, prompt(1, 9), 2)
            assert found(pool, prompt(1, 9)) == 2
        else:
            assert pool.trim() == 0
            assert found(pool, prompt(1, 9)) == 1
        for number in range(3, 7):
            keep(pool, prompt(number, 9), number)
            assert row_at(MIXED, hold.address) == row_of(MIXED, 1)
        assert mapped_regions() == 2
        hold.release()
        keep(pool, prompt(7, 9), 7)
        keep(pool, prompt(8, 9), 8)
        assert [found(pool, prompt(number, 9)) for number in (7, 8)] == [7, 8]
        assert mapped_regions() == pool.stats().held_regions == 2


def test_a_hold_that_was_let_go_shows_no_address_and_lets_go_once(ledger: HostPinnedLedger) -> None:
    with opened(ledger, 1) as pool:
        keep(pool, prompt(1, 9), 1)
        with pool.match(prompt(1, 9)) or pytest.fail("nothing is found") as other:
            hold = pool.match(prompt(1, 9))
            assert hold is not None
            hold.release()
            hold.release()
            assert pool.stats().being_read == 1, "a second release let go of what another reader holds"
            for use in (lambda: hold.address, lambda: hold.region, hold.views):
                with pytest.raises(BadRequest, match="this hold was released"):
                    use()
            assert row_at(MIXED, other.address) == row_of(MIXED, 1)
        assert pool.stats().being_read == 0


def test_an_id_holds_one_filling_of_one_region(ledger: HostPinnedLedger) -> None:
    with opened(ledger, 1) as pool:
        keep(pool, prompt(1, 9), 1)
        with pool.match(prompt(1, 9)) or pytest.fail("nothing is found") as hold:
            name = region_id(hold)
            assert name == f"{hold.key.hex()}-2"
        with pool.hold_by_id(name) or pytest.fail("it is not found") as by_id:
            assert row_at(MIXED, by_id.address) == row_of(MIXED, 1)
            assert not keep(pool, prompt(2, 9), 2)
        assert pool.forget(prompt(1, 9))
        keep(pool, prompt(1, 9), 3)  # the same prefix and the same region, but filled again
        assert pool.hold_by_id(name) is None
        for other in ("", "-", name[:-1], name + "0", name.upper(), "é" * 40):
            assert pool.hold_by_id(other) is None
        assert pool.stats().being_read == 0


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


# -- what is not kept


def test_what_covers_less_than_a_chunk_is_not_kept(ledger: HostPinnedLedger) -> None:
    with opened(ledger, 4) as pool:
        assert [pool.offer(tokens) for tokens in (0, CHUNK - 1, CHUNK, CHUNK + 1)] == [False, False, True, True]
        assert (pool.stats().requests, pool.stats().below_floor, pool.stats().held_regions) == (4, 2, 0)


def test_where_the_ledger_refuses_a_region_an_entry_gives_its_own_and_more_is_asked_for_later() -> None:
    now = 0.0
    with (
        HostPinnedLedger(limit_bytes=4 * REGION + 100, wait_seconds=0) as ledger,
        opened(ledger, 8, clock=lambda: now) as pool,
        ledger.reserve("other", 2 * REGION, lambda: mmap.mmap(-1, 2 * REGION)) as other,
    ):
        assert all(keep(pool, prompt(number, 9), number) for number in range(1, 5))
        stats = pool.stats()
        assert (stats.refused, stats.promoted, stats.held_regions, stats.slots, stats.evicted) == (0, 4, 2, 2, 2)
        assert mapped_regions() == 2
        assert booked_bytes(ledger) == 2 * REGION
        assert [found(pool, prompt(number, 9)) for number in (1, 2, 3, 4)] == [None, None, 3, 4]
        assert "short of memory: " in pool.report()
        other.release()
        assert keep(pool, prompt(5, 9), 5)
        assert mapped_regions() == 2
        now += 60
        assert keep(pool, prompt(6, 9), 6)
        assert mapped_regions() == 3
        assert "short of memory" not in pool.report()


def test_where_the_ledger_refuses_the_first_region_nothing_is_kept() -> None:
    with (
        HostPinnedLedger(limit_bytes=REGION - 1, wait_seconds=0) as ledger,
        opened(ledger, 8) as pool,
    ):
        assert not keep(pool, prompt(1, 9), 1)
        stats = pool.stats()
        assert (stats.refused, stats.held_regions, stats.peak_regions, mapped_regions()) == (1, 0, 0, 0)


def test_where_the_kernel_has_no_memory_for_a_region_it_is_refused(
    ledger: HostPinnedLedger, monkeypatch: pytest.MonkeyPatch, shared: bool
) -> None:
    def no_memory(self: OwnMapping, offset: int, size_bytes: int) -> None:
        raise AllocationFailed("touching it failed: Cannot allocate memory")

    with opened(ledger, 2, shared=shared) as pool:
        with monkeypatch.context() as patch:
            patch.setattr(OwnMapping, "populate", no_memory)
            assert not keep(pool, prompt(1, 9), 1)
        assert (pool.stats().refused, pool.stats().held_regions, mapped_regions()) == (1, 0, 0)
        assert booked_bytes(ledger) == 0
        assert keep(pool, prompt(1, 9), 1)


def test_an_error_that_nobody_expects_is_passed_on_and_nothing_is_held(
    ledger: HostPinnedLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: OwnMapping, offset: int, size_bytes: int) -> None:
        raise MemoryError("nobody expects this")

    with opened(ledger, 1) as pool:
        with monkeypatch.context() as patch:
            patch.setattr(OwnMapping, "populate", broken)
            with pytest.raises(MemoryError):
                pool.take_place(prompt(1, 9), "c")
        assert (pool.stats().held_regions, mapped_regions(), booked_bytes(ledger)) == (0, 0, 0)
        assert keep(pool, prompt(1, 9), 1)


# -- giving back


def test_a_trim_takes_free_regions_first_then_the_least_recently_used(ledger: HostPinnedLedger, shared: bool) -> None:
    with opened(ledger, 5, shared=shared) as pool:
        for number in range(1, 5):
            keep(pool, prompt(number, 9), number)
        pool.map_ahead(5)
        assert found(pool, prompt(1, 9)) == 1
        addresses = [address_of(pool, prompt(number, 9)) for number in (2, 3, 4, 1)]
        assert pool.trim(5) == 0
        assert pool.trim(4) == 1
        assert [found(pool, prompt(number, 9)) for number in (2, 3, 4, 1)] == [2, 3, 4, 1]
        assert pool.trim(1) == 3
        assert [found(pool, prompt(number, 9)) for number in range(1, 5)] == [1, None, None, None]
        assert sorted(block_bytes(address) for address in addresses) == [0, 0, 0, REGION]
        assert booked_bytes(ledger) == REGION
        assert pool.trim() == 1
        assert pool.trim() == 0
        stats = pool.stats()
        assert (stats.trimmed, stats.held_regions, stats.peak_regions, stats.resident) == (5, 0, 5, 0)
        assert keep(pool, prompt(9, 9), 9)
        assert pool.stats().cold == 5


def test_a_trim_leaves_what_is_being_read_or_written(ledger: HostPinnedLedger) -> None:
    with opened(ledger, 3) as pool:
        for number in (1, 2):
            keep(pool, prompt(number, 9), number)
        pool.offer(9)
        place = copied(pool, 3, prompt(3, 9))
        hold = pool.match(prompt(1, 9))
        assert place is not None
        assert hold is not None
        assert pool.trim() == 1
        assert mapped_regions() == 2
        assert row_at(MIXED, hold.address) == row_of(MIXED, 1)
        hold.release()
        pool.publish(place)
        assert [found(pool, prompt(number, 9)) for number in (1, 2, 3)] == [1, None, 3]


def test_close_gives_back_all_that_nobody_uses_and_the_rest_when_they_let_go(
    ledger: HostPinnedLedger, shared: bool
) -> None:
    with opened(ledger, 6, shared=shared) as pool:
        for number in (1, 2):
            keep(pool, prompt(number, 9), number)
        pool.offer(9)
        pool.offer(9)
        published, given_back = copied(pool, 3, prompt(3, 9)), copied(pool, 4, prompt(4, 9))
        pool.map_ahead(6)
        hold = pool.match(prompt(1, 9))
        assert published is not None
        assert given_back is not None
        assert hold is not None
        pool.close()
        pool.close()
        assert booked_bytes(ledger) == 3 * REGION
        assert pool.stats().held_regions == 3
        assert row_at(MIXED, hold.address) == row_of(MIXED, 1)
        assert found(pool, prompt(1, 9)) is None
        assert not keep(pool, prompt(5, 9), 5)
        address = hold.address
        for let_go in (
            hold.release, lambda: pool.give_back(given_back), lambda: pool.publish(published),
        ):  # fmt: skip
            before = pool.stats().held_regions
            let_go()
            assert pool.stats().held_regions == before - 1
        assert found(pool, prompt(3, 9)) is None
        assert [block_bytes(place) for place in (address, published.region.address, given_back.region.address)] == [
            0
        ] * 3
        stats = pool.stats()
        assert (stats.promoted, stats.no_region, stats.resident) == (3, 1, 0)


def test_a_region_that_is_being_mapped_while_the_pool_closes_goes_with_its_writer(
    ledger: HostPinnedLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    populate, mapping, go_on = OwnMapping.populate, threading.Event(), threading.Event()
    places: list[Place | None] = []

    def slow_populate(self: OwnMapping, offset: int, size_bytes: int) -> None:
        mapping.set()
        assert go_on.wait(_PATIENCE_SECONDS)
        populate(self, offset, size_bytes)

    with opened(ledger, 1) as pool:
        monkeypatch.setattr(OwnMapping, "populate", slow_populate)
        taker = threading.Thread(target=lambda: places.append(pool.take_place(prompt(1, 9), "c")), daemon=True)
        taker.start()
        assert mapping.wait(_PATIENCE_SECONDS)
        pool.close()
        go_on.set()
        taker.join(_PATIENCE_SECONDS)
        (place,) = places
        assert place is not None
        assert mapped_regions() == 1
        pool.give_back(place)
        assert mapped_regions() == 0


def test_newcomers_take_the_place_of_others_while_a_reader_keeps_a_region_of_what_went(
    ledger: HostPinnedLedger,
) -> None:
    with opened(ledger, 3) as pool:
        for number in (1, 2, 3):
            keep(pool, prompt(number, 9), number)
        hold = pool.match(prompt(1, 9))
        assert hold is not None
        pool.forget(prompt(1, 9))  # its region stays with the reader, and there is a slot without one
        for number in range(4, 8):
            assert keep(pool, prompt(number, 9), number)
            assert mapped_regions() == 3
        assert [found(pool, prompt(number, 9)) for number in (2, 3, 6, 7)] == [None, None, 6, 7]
        assert (pool.stats().no_region, pool.stats().evicted) == (0, 4)
        others = [pool.match(prompt(number, 9)) for number in (6, 7)]
        assert not keep(pool, prompt(8, 9), 8)
        assert pool.stats().no_region == 1, "now every entry is being read"
        for each in (hold, *others):
            assert each is not None
            each.release()
        for number in range(10, 13):
            keep(pool, prompt(number, 9), number)
        assert [found(pool, prompt(number, 9)) for number in range(10, 13)] == [10, 11, 12]


def test_a_child_that_is_forked_in_the_midst_of_a_call_does_not_wait_for_a_thread_that_it_has_not(
    ledger: HostPinnedLedger,
) -> None:
    asked, pauses = threading.Event(), [0.3]

    def slow_clock() -> float:  # it is asked in the midst of a call
        asked.set()
        time.sleep(pauses.pop() if pauses else 0)
        return 0.0

    with opened(ledger, 1, clock=slow_clock) as pool:
        caller = threading.Thread(target=pool.match, args=(prompt(1, 9),), daemon=True)
        caller.start()
        assert asked.wait(_PATIENCE_SECONDS)
        child = os.fork()
        if not child:
            signal.alarm(5)
            os._exit(pool.stats().resident)
        assert os.waitpid(child, 0) == (child, 0)
        caller.join(_PATIENCE_SECONDS)
        assert found(pool, prompt(1, 9)) is None


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
