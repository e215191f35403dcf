"""What stays booked after a release, and what goes, on every way out."""

from __future__ import annotations

import gc
import logging
import mmap
from functools import partial
from pathlib import Path

import pytest

from pinprobe.ledger.book.host_book import HostBook
from pinprobe.ledger.ledger import HostPinnedLedger
from pinprobe.ledger.mapping_book import MappingBook
from pinprobe.probes.allocators.allocator import Allocation, Allocator
from pinprobe.probes.reading import Reading
from tests.ledger.host_pinned_ledger.real_memory import (
    KINDS,
    NOISE,
    ODD,
    Opaque,
    owners,
    prepared,
    shared,
    take,
    total,
    unexplained,
    verified,
)
from tests.probes.allocators.kernel_word import MIB, block_bytes, smaps_bytes


def test_a_kept_block_moves_between_its_owner_and_retained_and_is_counted_once(
    ledger: HostPinnedLedger, torch_host: Allocator
) -> None:
    first = take(ledger, torch_host, ODD)
    address = first.value.address
    assert owners(ledger) == {"cache.ring": 4 * MIB} == {"cache.ring": smaps_bytes(address, "Rss")}
    first.release()
    assert owners(ledger) == {"retained": 4 * MIB}
    assert verified(ledger, "retained").resident == Reading(smaps_bytes(address, "Rss"), "smaps")
    second = take(ledger, torch_host, ODD)
    assert second.value.address == address
    assert owners(ledger) == {"cache.ring": 4 * MIB}
    assert verified(ledger, "cache.ring").evidence.startswith("mapping, kept from before")
    second.release()
    before = total(ledger)
    torch_host.empty_cache()
    assert before - total(ledger) == pytest.approx(4 * MIB, abs=NOISE)
    assert owners(ledger) == {}
    assert ledger.peak_bytes == 4 * MIB


@pytest.mark.parametrize("kind", ["mmap", "torch", "numpy", "opaque"])
def test_what_somebody_else_still_refers_to_stays_booked_until_he_lets_go(kind: str, ledger: HostPinnedLedger) -> None:
    reservation = ledger.reserve("cache.ring", 16 * MIB, lambda: KINDS[kind](16 * MIB))
    kept = reservation.value
    reservation.release()
    rows = {row.owner for row in ledger.rows()}
    # What lies in the heap with others can't be told from what malloc keeps: then it is growth that no row explains.
    assert ("retained" in rows) == (kind in ("mmap", "opaque"))
    assert total(ledger) == pytest.approx(16 * MIB, abs=NOISE)
    del kept
    assert set(owners(ledger)) <= ({"retained"} if kind == "opaque" else set())
    assert total(ledger) < NOISE


def test_opaque_memory_that_was_kept_is_counted_once_when_it_is_handed_out_again(ledger: HostPinnedLedger) -> None:
    first = ledger.reserve("cache.ring", 16 * MIB, lambda: Opaque(16 * MIB))
    kept = first.value
    first.release()
    second = ledger.reserve("cache.ring", 16 * MIB, lambda: kept)
    assert total(ledger) == pytest.approx(16 * MIB, abs=NOISE)
    assert ledger.peak_bytes == pytest.approx(16 * MIB, abs=NOISE)
    second.release()


def test_a_forgotten_reservation_is_released(ledger: HostPinnedLedger) -> None:
    reservation = ledger.reserve("cache.ring", 16 * MIB, lambda: shared(16 * MIB))
    del reservation
    gc.collect()
    assert owners(ledger) == {}
    assert total(ledger) < NOISE


def test_a_forgotten_block_goes_back_to_its_allocator(ledger: HostPinnedLedger, torch_host: Allocator) -> None:
    address = take(ledger, torch_host, ODD).value.address
    gc.collect()
    assert owners(ledger) == {"retained": 4 * MIB}
    again = take(ledger, torch_host, ODD)
    assert again.value.address == address
    again.release()
    torch_host.empty_cache()
    assert block_bytes(address) == 0
    assert owners(ledger) == {}


def test_a_forgotten_block_that_can_t_be_freed_is_nobody_elses_failure(ledger: HostPinnedLedger) -> None:
    block = prepared("mlock").allocate(8 * MIB)

    def free(given: Allocation) -> None:
        raise OSError("the driver is gone")

    ledger.reserve("cache.ring", 8 * MIB, lambda: block, free=free)
    gc.collect()
    with ledger.reserve("cache.next", 4 * MIB, lambda: shared(4 * MIB)):
        assert owners(ledger) == {"cache.next": 4 * MIB, "retained": 8 * MIB}
    block.release()
    assert owners(ledger) == {}


def test_a_second_release_and_the_end_of_a_with_change_nothing_more(ledger: HostPinnedLedger) -> None:
    mlock, freed = prepared("mlock"), list[int]()

    def free(block: Allocation) -> None:
        freed.append(block.address)
        block.release()

    with ledger.reserve("a", 8 * MIB, lambda: mlock.allocate(8 * MIB), free=free) as reservation:
        address = reservation.value.address
        other = take(ledger, mlock, 4 * MIB, "b")
        reservation.release()
        assert block_bytes(address) == 0
    assert freed == [address]
    with pytest.raises(ValueError, match="a was released"):
        _ = reservation.value
    assert owners(ledger) == {"b": 4 * MIB}
    other.release()


def test_a_free_that_raises_leaves_what_it_did_not_free_booked(ledger: HostPinnedLedger) -> None:
    block = prepared("mlock").allocate(8 * MIB)

    def free(given: Allocation) -> None:
        raise OSError("the driver is gone")

    reservation = ledger.reserve("cache.ring", 8 * MIB, lambda: block, free=free)
    with pytest.raises(OSError, match="the driver is gone"):
        reservation.release()
    assert owners(ledger) == {"retained": 8 * MIB}
    block.release()
    assert owners(ledger) == {}


def test_the_end_of_a_ledger_releases_all_that_is_held_the_newest_first() -> None:
    freed: list[str] = []

    def free(owner: str, memory: mmap.mmap) -> None:
        freed.append(owner)
        memory.close()
        if owner != "c":
            raise OSError(f"no {owner}")

    ledger = HostPinnedLedger()
    held = [ledger.reserve(owner, MIB, lambda: shared(MIB), free=partial(free, owner)) for owner in "abc"]
    # The rest is released where one can't be, and nothing that failed is hushed up.
    with pytest.raises(OSError, match="no a") as failure, ledger:
        assert sum(owners(ledger).values()) == 3 * MIB
    assert "no b" in str(failure.value.__context__)
    assert freed == ["c", "b", "a"]
    assert owners(ledger) == {}
    for reservation in held:
        reservation.release()
    assert len(freed) == 3


# A callable that raises.


@pytest.mark.parametrize("error", [RuntimeError, MemoryError, KeyboardInterrupt, SystemExit, GeneratorExit])
def test_a_callable_that_raises_leaves_the_ledger_as_it_was(error: type[BaseException]) -> None:
    ledger = HostPinnedLedger(limit_bytes=64 * MIB)
    held = ledger.reserve("cache.ring", 8 * MIB, lambda: shared(8 * MIB))
    released = ledger.reserve("cache.old", 4 * MIB, lambda: shared(4 * MIB))
    kept = released.value
    released.release()
    before = owners(ledger), ledger.peak_bytes, ledger.fit(MIB, 1000)

    def allocate() -> object:
        taken = shared(16 * MIB)  # some of it was taken already
        assert len(taken)
        raise error("no more")

    for _ in range(3):
        with pytest.raises(error, match="no more"):
            ledger.reserve("cache.next", 32 * MIB, allocate)
    assert (owners(ledger), ledger.peak_bytes, ledger.fit(MIB, 1000)) == before
    assert unexplained(ledger) < NOISE
    held.release()
    kept.close()


# Warnings and cost.


def test_what_is_served_from_a_kept_block_again_and_again_is_warned_of_once(
    ledger: HostPinnedLedger, torch_host: Allocator, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        take(ledger, torch_host, 5 * MIB, "new each time").release()
        torch_host.empty_cache()
    for _ in range(20):
        take(ledger, torch_host, 5 * MIB, "kept").release()
    said = [record.getMessage().split(" asked")[0] for record in caplog.records if record.levelno == logging.WARNING]
    assert said == ["new each time", "new each time", "kept"]


def test_a_reservation_beside_many_others_costs_what_the_first_one_did(
    torch_host: Allocator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Both walk over everything that is held, and are for those who want to see all of it.
    for walk in ("all_shares", "backings"):
        monkeypatch.setattr(MappingBook, walk, lambda _: pytest.fail("all that is held was walked over"))
    book = HostBook(tmp_path)
    with HostPinnedLedger(book=book, wait_seconds=0) as ledger, take(ledger, torch_host, 2 * MIB, "cache.ring"):
        (entry,) = book.read().entries
    assert [row.booked_bytes for row in entry.rows] == [2 * MIB]
