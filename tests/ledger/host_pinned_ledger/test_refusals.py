"""What is refused, before a byte is taken wherever that can be known."""

from __future__ import annotations

import mmap
from pathlib import Path

import pytest

from pinprobe.ledger.book.host_book import HostBook
from pinprobe.ledger.ledger import HostPinnedLedger
from pinprobe.probes.allocators.allocator import Allocation, Allocator
from pinprobe.probes.errors import CouldNotMeasure, Refused
from pinprobe.probes.headroom import read_headroom
from pinprobe.probes.host_tree import THIS_HOST, HostTree
from pinprobe.probes.reading import Reading, Unreadable
from pinprobe.probes.sweep import Sweep
from tests.ledger.host_pinned_ledger.real_memory import (
    NOISE,
    ODD,
    Opaque,
    never_called,
    owners,
    prepared,
    shared,
    take,
    total,
    verified,
)
from tests.probes.allocators.kernel_word import MIB, block_bytes


@pytest.mark.parametrize("with_map", [True, False], ids=["with a map", "without one"])
def test_a_refusal_takes_nothing_and_names_the_largest_request_that_really_fits(
    with_map: bool, torch_map: Sweep, torch_host: Allocator
) -> None:
    limit = 44 * MIB
    ledger = HostPinnedLedger(allocator="torch-host", limit_bytes=limit)
    if with_map:
        ledger.prices.add(torch_map)
    held = take(ledger, torch_host, ODD)  # 4 MiB, so that 40 MiB are left
    before = owners(ledger)
    asked = 33 * MIB if with_map else 41 * MIB
    with pytest.raises(Refused) as refusal:
        ledger.reserve("cache.next", asked, never_called)
    assert owners(ledger) == before
    refused = refusal.value
    assert (refused.owner, refused.asked_bytes) == ("cache.next", asked)
    assert refused.price_bytes == (64 * MIB if with_map else asked)
    assert (refused.room_bytes, refused.largest_bytes) == (40 * MIB, 32 * MIB if with_map else 40 * MIB)
    assert refused.bound == "the limit is 44.000 MiB and 4.000 MiB are booked"
    assert "\n" not in str(refused)
    for part in ("cache.next", "the limit is 44.000 MiB", "the largest request that fits now is"):
        assert part in str(refused)
    with pytest.raises(Refused):
        ledger.reserve("cache.next", refused.largest_bytes + 1, never_called)
    if with_map:
        fits = take(ledger, torch_host, refused.largest_bytes, "cache.next")
    else:
        fits = take(ledger, prepared("mlock"), refused.largest_bytes, "cache.next")
    assert block_bytes(fits.value.address) + block_bytes(held.value.address) <= limit
    assert ledger.peak_bytes <= limit
    for reservation in (fits, held):
        reservation.release()


def test_an_allocator_that_rounds_and_has_no_map_is_refused_afterwards_and_gives_back(torch_host: Allocator) -> None:
    ledger = HostPinnedLedger(allocator="torch-host", limit_bytes=40 * MIB)
    addresses = []

    def allocate() -> Allocation:
        block = torch_host.allocate(33 * MIB)
        addresses.append(block.address)
        return block

    with pytest.raises(Refused) as refusal:
        ledger.reserve("cache.ring", 33 * MIB, allocate, free=lambda block: block.release())
    refused = refusal.value
    assert (refused.asked_bytes, refused.price_bytes, refused.room_bytes) == (33 * MIB, 64 * MIB, 40 * MIB)
    assert "24.000 MiB beyond the limit" in str(refused)
    # It was given back, and what its allocator keeps of it is told.
    assert owners(ledger) == {"retained": block_bytes(addresses[0])}
    torch_host.empty_cache()
    assert owners(ledger) == {}
    small = take(ledger, torch_host, 30 * MIB)
    assert owners(ledger) == {"cache.ring": 32 * MIB}
    small.release()


def test_what_an_emptied_cache_gave_back_is_room_at_once(torch_host: Allocator) -> None:
    ledger = HostPinnedLedger(allocator="torch-host", limit_bytes=16 * MIB)
    take(ledger, torch_host, 12 * MIB).release()
    with pytest.raises(Refused, match=r"16\.000 MiB of it kept by allocators for later"):
        ledger.reserve("cache.ring", 8 * MIB, never_called, allocator="mlock")
    torch_host.empty_cache()
    with ledger.reserve("cache.ring", 16 * MIB, lambda: shared(16 * MIB)):
        assert owners(ledger) == {"cache.ring": 16 * MIB}
    assert ledger.peak_bytes == 16 * MIB  # they were never there at one time


def test_opaque_memory_that_passes_the_limit_is_refused_afterwards_too() -> None:
    ledger = HostPinnedLedger(limit_bytes=16 * MIB)
    ledger.calibrate()
    with pytest.raises(Refused):
        ledger.reserve("cache.ring", 8 * MIB, lambda: Opaque(64 * MIB))
    assert total(ledger) < NOISE


def test_what_is_to_be_kept_free_bounds_a_request_and_is_named() -> None:
    ledger = HostPinnedLedger(keep_free_bytes=2**50)
    with pytest.raises(Refused, match=r"of which 1,048,576\.000 GiB are kept free; nothing fits now$") as refusal:
        ledger.reserve("cache.ring", 1, never_called)
    assert (refusal.value.room_bytes, refusal.value.largest_bytes) == (0, 0)
    assert ledger.fit(1, 10) == 0
    available = read_headroom(THIS_HOST).available
    assert isinstance(available, Reading)
    half = HostPinnedLedger(keep_free_bytes=available.bytes // 2)
    with pytest.raises(Refused, match="kept free"):
        half.reserve("cache.ring", available.bytes * 3 // 4, never_called)
    half.reserve("cache.ring", MIB, lambda: shared(MIB)).release()


def host_with(root: Path, **texts: str | None) -> HostTree:
    """This live process on a host that has only these texts beside; a None takes one of the process's own away."""
    (root / "proc/self").mkdir(parents=True, exist_ok=True)
    for name in ("maps", "smaps", "pagemap", "statm"):
        if name not in texts:
            (root / "proc/self" / name).symlink_to(f"/proc/self/{name}")
    for name, text in texts.items():
        if text is not None:
            (root / "proc" / name).write_text(text)
    return HostTree(root)


def meminfo(available_bytes: int) -> str:
    return f"MemAvailable: {available_bytes // 1024} kB\n"


def test_without_a_headroom_nothing_is_taken_unless_there_is_a_limit(tmp_path: Path) -> None:
    tree = host_with(tmp_path)
    unbounded = HostPinnedLedger(tree=tree)
    with pytest.raises(
        CouldNotMeasure, match=r"^the headroom is unreadable, because /proc/meminfo: .*give limit_bytes"
    ):
        unbounded.reserve("cache.ring", MIB, never_called)
    with pytest.raises(CouldNotMeasure):
        unbounded.fit(MIB, 10)
    assert owners(unbounded) == {}
    ledger = HostPinnedLedger(tree=tree, limit_bytes=8 * MIB)
    reservation = ledger.reserve("cache.ring", 5 * MIB, lambda: shared(5 * MIB))
    assert verified(ledger, "cache.ring").measured
    assert ledger.fit(MIB, 10) == 3
    with pytest.raises(Refused):
        ledger.reserve("cache.next", 3 * MIB + 1, never_called)
    assert isinstance(ledger.verify().headroom.available, Unreadable)
    reservation.release()


def test_a_host_that_tells_nothing_has_its_requests_booked_as_asked_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ledger = HostPinnedLedger(tree=HostTree(tmp_path), limit_bytes=8 * MIB)
    reservation = ledger.reserve("cache.ring", 5 * MIB, lambda: shared(5 * MIB))
    assert reservation.booked_bytes == 5 * MIB
    row = verified(ledger, "cache.ring")
    assert not row.measured
    assert row.evidence.startswith("booked as asked: unreadable, because ")
    assert isinstance(row.resident, Unreadable)
    assert isinstance(row.holds, Unreadable)
    assert isinstance(ledger.resident_bytes, Unreadable)
    assert isinstance(ledger.working_set_floor_bytes, Unreadable)
    assert any("booked as asked" in record.getMessage() for record in caplog.records)
    assert "booked as asked" in " ".join(ledger.printout().split())
    assert ledger.fit(MIB, 10) == 3
    reservation.release()
    assert owners(ledger) == {}


def test_where_smaps_is_gone_the_row_stays_booked_and_its_residency_is_unreadable(tmp_path: Path) -> None:
    ledger = HostPinnedLedger(tree=host_with(tmp_path, smaps=None), limit_bytes=64 * MIB)
    reservation = ledger.reserve("cache.ring", ODD, lambda: shared(4 * MIB))
    row = verified(ledger, "cache.ring")
    assert (row.booked_bytes, row.measured) == (4 * MIB, False)
    assert row.resident == Unreadable("/proc/self/smaps: No such file or directory")
    reservation.release()


@pytest.mark.parametrize("bounded_by", ["a limit", "the host"])
def test_memory_that_somebody_still_uses_is_no_kept_block_for_the_next(bounded_by: str, tmp_path: Path) -> None:
    tree = host_with(tmp_path, meminfo=meminfo(20 * MIB))
    ledger = HostPinnedLedger(tree=tree, limit_bytes=20 * MIB if bounded_by == "a limit" else None)
    reservation = ledger.reserve("cache.ring", 12 * MIB, lambda: shared(12 * MIB))
    used = reservation.value
    reservation.release()
    if bounded_by == "the host":
        (tmp_path / "proc/meminfo").write_text(meminfo(8 * MIB))
    assert owners(ledger) == {"retained": 12 * MIB}
    with pytest.raises(Refused):
        ledger.reserve("cache.next", 12 * MIB, never_called)
    used.close()


def test_a_block_that_its_allocator_gave_back_is_no_kept_block_for_the_next(
    torch_host: Allocator, tmp_path: Path
) -> None:
    ledger = HostPinnedLedger(allocator="torch-host", tree=host_with(tmp_path, meminfo=meminfo(20 * MIB)))
    take(ledger, torch_host, 12 * MIB).release()
    torch_host.empty_cache()
    (tmp_path / "proc/meminfo").write_text(meminfo(8 * MIB))
    with pytest.raises(Refused):
        ledger.reserve("cache.ring", 12 * MIB, never_called)


def test_what_an_allocator_kept_and_let_go_of_refuses_nobody(tmp_path: Path) -> None:
    with HostPinnedLedger(limit_bytes=100 * MIB, wait_seconds=0, allocator="mine", book=HostBook(tmp_path)) as ledger:
        kept: list[mmap.mmap] = []
        for size in (64 * MIB, 2 * MIB):
            ledger.reserve(f"{size}", size, lambda size=size: shared(size), free=kept.append).release()  # type: ignore[misc]
        kept[0].close()
        held = shared(40 * MIB)
        adoption = ledger.adopt("held", held)
        # It is admitted as one that the kept block of 2 MiB will serve, and takes memory of its own.
        ledger.reserve("next", 2 * MIB, lambda: shared(2 * MIB)).release()
        adoption.release()
        with pytest.raises(Refused):
            ledger.reserve("too large", 200 * MIB, never_called)
        with HostPinnedLedger(limit_bytes=100 * MIB, wait_seconds=0, book=HostBook(tmp_path)) as other:
            other.reserve("beside", 50 * MIB, lambda: shared(50 * MIB)).release()
