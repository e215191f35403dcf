"""What happened to people, to a scale."""

from __future__ import annotations

import logging
import mmap
import re

import pytest

from pinprobe.ledger.ledger import HostPinnedLedger
from pinprobe.ledger.reservation import Reservation
from pinprobe.probes.allocators.allocator import Allocation, Allocator
from pinprobe.probes.errors import BadRequest, Refused
from pinprobe.probes.headroom import read_headroom
from pinprobe.probes.host_tree import THIS_HOST
from pinprobe.probes.own_mapping import OwnMapping
from pinprobe.probes.reading import Unreadable
from pinprobe.probes.sweep import Sweep
from tests.ledger.host_pinned_ledger.real_memory import (
    NOISE,
    ODD,
    never_called,
    owners,
    prepared,
    shared,
    take,
    total,
    touched,
    unexplained,
)
from tests.probes.allocators.kernel_word import MIB, smaps_bytes


def test_five_stores_that_took_more_than_their_books_said_fail_the_check_with_both_figures(
    ledger: HostPinnedLedger, torch_host: Allocator, caplog: pytest.LogCaptureFixture
) -> None:
    """Five stores of 1.20 GiB each took 10.01 GiB while the books said 6.0; here at a sixteenth."""
    available = read_headroom(THIS_HOST).available
    if isinstance(available, Unreadable) or available.bytes < 2048 * MIB:
        pytest.skip("needs 2 GiB of headroom")
    asked = 12 * 1024 * MIB // 10 // 16
    stores = [take(ledger, torch_host, asked, "stores") for _ in range(5)]
    took = sum(smaps_bytes(store.value.address, "Rss") for store in stores)
    account = ledger.verify(claims={"stores": 5 * asked})
    honest = ledger.verify(claims={"stores": took})
    for store in stores:
        store.release()
    assert took == 5 * 128 * MIB
    assert not account.holds
    assert account.shortfalls == (
        f"stores: claimed {5 * asked:,} B, resident {took:,} B: {took - 5 * asked:,} B are in no book",
    )
    assert sum(row.booked_bytes for row in account.reserved) == took
    assert honest.holds
    assert f"booked at 0.125 GiB (ratio {128 * MIB / asked:.3f})" in caplog.text
    # A slip in a name must not pass the check for want of a row.
    with pytest.raises(BadRequest, match=r"^a claim is made for 'stores', who holds nothing; owners are nobody$"):
        ledger.verify(claims={"stores": 5 * asked})


def test_pinning_the_new_copy_while_the_old_is_alive_counts_both_in_the_peak(
    ledger: HostPinnedLedger, torch_host: Allocator
) -> None:
    old = take(ledger, torch_host, 12 * MIB, "weights")
    new = take(ledger, torch_host, 12 * MIB, "weights")
    old.release()
    torch_host.empty_cache()
    assert owners(ledger) == {"weights": 16 * MIB}
    assert ledger.peak_bytes == ledger.verify().peak_bytes == 32 * MIB
    new.release()


@pytest.mark.parametrize("kept", [False, True], ids=["a new block", "a kept block"])
def test_a_second_copy_that_rides_along_is_warned_of_and_stands_in_the_ledger(
    kept: bool, ledger: HostPinnedLedger, caplog: pytest.LogCaptureFixture
) -> None:
    """An emulation: 118 GiB asked landed as 238; here to 1/2048, and 59 MiB for 119."""
    hidden: list[mmap.mmap] = []
    block = touched(OwnMapping.memfd(59 * MIB))
    if not kept:
        block.unmap()

    def allocate() -> OwnMapping:
        hidden.append(shared(60 * MIB))
        return block if kept else touched(OwnMapping.memfd(59 * MIB))

    if kept:
        ledger.reserve("weights", 59 * MIB, lambda: block).release()
        assert owners(ledger) == {"retained": 59 * MIB}
    caplog.clear()
    reservation = ledger.reserve("weights", 59 * MIB, allocate, free=lambda memory: memory.unmap())
    (warning,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    said = warning.getMessage()
    grown = re.search(r"^weights asked for 59\.000 MiB and the process grew by ([\d.]+) ([MG]iB)", said)
    assert grown, said
    beside = float(grown[1]) * (1024 if grown[2] == "GiB" else 1)
    assert beside == pytest.approx(60 if kept else 119, abs=1)
    if not kept:
        assert "(ratio 2.0" in said
    assert reservation.booked_bytes == 59 * MIB
    assert unexplained(ledger) == pytest.approx(60 * MIB, abs=NOISE)
    assert total(ledger) == pytest.approx(119 * MIB, abs=NOISE)
    hidden.pop().close()
    assert unexplained(ledger) < NOISE
    reservation.release()


def test_a_bound_is_checked_beforehand_and_never_passed_even_for_a_moment() -> None:
    """A cache of 1200 MiB was let grow to 2460, since the limit was checked after saving; here at a sixteenth."""
    limit = 75 * MIB
    mlock, ledger = prepared("mlock"), HostPinnedLedger(limit_bytes=limit)
    held, most, largest = list[Reservation[Allocation]](), list[int](), set[int]()
    with pytest.raises(Refused):
        ledger.reserve("cache", 2460 * MIB // 16, never_called)

    def save() -> Allocation:
        block = mlock.allocate(20 * MIB)
        there = [block, *(reservation.value for reservation in held)]
        most.append(sum(smaps_bytes(each.address, "Rss") for each in there))
        return block

    for _ in range(8):
        try:
            held.append(ledger.reserve("cache", 20 * MIB, save, free=lambda block: block.release()))
        except Refused as refused:
            largest.add(refused.largest_bytes)
            held.pop(0).release()
    assert max(most) == 60 * MIB <= limit
    assert largest == {15 * MIB}
    assert ledger.peak_bytes <= limit
    for reservation in held:
        reservation.release()


def test_ranks_that_each_take_half_of_what_is_free_see_those_before_them() -> None:
    """Every rank took half of what was free: 4 x 161 to 173 GiB on 440."""
    limit, slot = 64 * MIB, MIB
    mlock, ledger, ranks = prepared("mlock"), HostPinnedLedger(limit_bytes=limit), list[Reservation[Allocation]]()
    for rank in range(5):
        half = ledger.fit(slot, 10**9) // 2 * slot
        ranks.append(take(ledger, mlock, half, f"rank.{rank}"))
    assert [reservation.asked_bytes // MIB for reservation in ranks] == [32, 16, 8, 4, 2]
    assert sum(smaps_bytes(reservation.value.address, "Rss") for reservation in ranks) == 62 * MIB <= limit
    assert ledger.fit(slot, 10**9) == 2
    assert ledger.fit(slot, 1) == 1
    for reservation in ranks:
        reservation.release()


def test_slots_are_counted_at_what_they_would_cost(torch_map: Sweep, torch_host: Allocator) -> None:
    ledger = HostPinnedLedger(allocator="torch-host", limit_bytes=40 * MIB)
    assert ledger.fit(ODD, 100) == 40 * MIB // ODD  # without a map, by the ask
    ledger.prices.add(torch_map)
    assert ledger.fit(ODD, 100) == 32 * MIB // ODD
    assert ledger.fit(ODD, 3) == 3
    reservation = take(ledger, torch_host, 32 * MIB // ODD * ODD)
    assert owners(ledger) == {"cache.ring": 32 * MIB}
    assert ledger.fit(ODD, 100) == 8 * MIB // ODD
    reservation.release()
    # The kept block is handed out again, whatever the limit leaves beside it.
    assert ledger.fit(ODD, 100) == 32 * MIB // ODD
    again = take(ledger, torch_host, 32 * MIB // ODD * ODD)
    assert ledger.peak_bytes == 32 * MIB
    again.release()
