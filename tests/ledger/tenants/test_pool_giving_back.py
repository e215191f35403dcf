"""Trimming and closing a pool, while others read, write and fork."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

from pinprobe.ledger.ledger import HostPinnedLedger
from pinprobe.ledger.tenants.pool_entry import Place
from pinprobe.probes.own_mapping import OwnMapping
from tests.ledger.tenants.kept_savepoints import (
    REGION,
    address_of,
    booked_bytes,
    copied,
    found,
    keep,
    mapped_regions,
    opened,
    prompt,
)
from tests.ledger.tenants.savepoint_rows import MIXED, row_at, row_of
from tests.probes.allocators.kernel_word import (
    block_bytes,
)

_PATIENCE_SECONDS = 20.0


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
