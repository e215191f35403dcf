"""The bounds of a pool, which are never passed, and what is not kept."""

from __future__ import annotations

import ctypes
import itertools
import mmap
import threading

import pytest

from pinprobe.ledger.ledger import HostPinnedLedger
from pinprobe.ledger.tenants.region import Region, region_bytes
from pinprobe.ledger.tenants.retention_pool import RetentionPool
from pinprobe.ledger.tenants.savepoint_layout import SavepointLayout, Slab
from pinprobe.probes.errors import AllocationFailed, BadRequest
from pinprobe.probes.own_mapping import OwnMapping
from tests.ledger.tenants.in_threads import in_threads
from tests.ledger.tenants.kept_savepoints import (
    CHUNK,
    POOL,
    REGION,
    booked_bytes,
    found,
    keep,
    mapped_regions,
    opened,
    prompt,
)
from tests.ledger.tenants.savepoint_rows import MIXED
from tests.probes.allocators.kernel_word import (
    MIB,
    PAGE_BYTES,
    counter_bar_bytes,
    counter_bytes,
)

_PATIENCE_SECONDS = 20.0


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
