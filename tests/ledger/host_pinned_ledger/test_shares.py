"""Owners that hold parts of one mapping, and memory that was there before it was adopted."""

from __future__ import annotations

import gc
import mmap
import weakref
from typing import Any

import pytest

from pinprobe.ledger.booking import RowState
from pinprobe.ledger.ledger import HostPinnedLedger
from pinprobe.ledger.reservation import Reservation
from pinprobe.probes.allocators.allocator import Allocator
from pinprobe.probes.errors import BadRequest, Refused
from pinprobe.probes.own_mapping import OwnMapping
from pinprobe.probes.reading import Reading
from tests.ledger.host_pinned_ledger.real_memory import (
    KINDS,
    NOISE,
    PAGE,
    address_of,
    never_called,
    owners,
    shared,
    take,
    torch_ones,
    total,
    unexplained,
    verified,
)
from tests.probes.allocators.kernel_word import MIB, counter_bytes, smaps_bytes

# Shares.


def test_ten_small_tensors_in_one_mapping_book_it_once(ledger: HostPinnedLedger) -> None:
    torch = pytest.importorskip("torch")
    memory = mmap.mmap(-1, 2 * MIB)
    memory[0] = memory[100 * PAGE] = memory[-1] = 1  # three pages, which ten can't share out evenly
    held = [
        ledger.reserve(
            f"layer.{index}",
            1000,
            lambda index=index: torch.frombuffer(memory, dtype=torch.uint8, offset=index * 4096, count=1000),  # type: ignore[misc]
        )
        for index in range(10)
    ]
    assert sum(owners(ledger).values()) == 2 * MIB
    assert all(reservation.booked_bytes >= 2 * MIB // 10 for reservation in held)
    account = ledger.verify()
    assert account.holds
    resident = sum(row.resident.bytes for row in account.reserved if isinstance(row.resident, Reading))
    assert resident >= smaps_bytes(address_of(memory), "Rss") >= 3 * PAGE
    for reservation in held[1:]:
        reservation.release()
    # As long as a byte of it is held, all of it stays.
    assert owners(ledger) == {"layer.0": 2 * MIB}
    held[0].release()
    assert owners(ledger) == {"retained": 2 * MIB}


@pytest.mark.parametrize("own_mapping", [True, False], ids=["a mapping of its own", "in the heap"])
@pytest.mark.parametrize("before", [True, False], ids=["before the ledger", "after it"])
def test_one_tensor_may_be_adopted_twice_and_explains_the_process_once(own_mapping: bool, before: bool) -> None:
    torch = pytest.importorskip("torch")

    def make() -> Any:
        return torch.frombuffer(shared(16 * MIB), dtype=torch.uint8) if own_mapping else torch_ones(16 * MIB)

    tensor = make() if before else None
    ledger = HostPinnedLedger()
    ledger.calibrate()
    tensor = make() if tensor is None else tensor
    first, second = (ledger.adopt(name, tensor) for name in ("weights", "also the weights"))
    assert min(first.booked_bytes, second.booked_bytes) >= 16 * MIB
    assert unexplained(ledger) < NOISE
    second.release()
    assert 16 * MIB <= owners(ledger)["weights"] <= 16 * MIB + 2 * PAGE
    assert unexplained(ledger) < NOISE
    tensor, kept = None, weakref.ref(tensor)
    gc.collect()
    assert kept() is None
    assert owners(ledger) == {}
    assert unexplained(ledger) < NOISE


def test_a_reservation_within_a_reservation_is_booked_apart(ledger: HostPinnedLedger) -> None:
    inner: list[Reservation[mmap.mmap]] = []

    def allocate() -> mmap.mmap:
        inner.append(ledger.reserve("inner", 4 * MIB, lambda: shared(4 * MIB)))
        return shared(8 * MIB)

    outer = ledger.reserve("outer", 8 * MIB, allocate)
    assert (outer.booked_bytes, inner[0].booked_bytes) == (8 * MIB, 4 * MIB)
    assert verified(ledger, "outer").evidence == "mapping; statm agrees"


# Adopting.


@pytest.mark.parametrize("kind", ["mmap", "bytearray", "numpy", "torch", "dict"])
def test_adopting_what_was_there_before_explains_nothing_away(kind: str) -> None:
    held = KINDS[kind](16 * MIB)
    ledger = HostPinnedLedger()
    ledger.calibrate()
    beside = shared(8 * MIB)
    before = unexplained(ledger)
    assert before == pytest.approx(8 * MIB, abs=NOISE)
    adoption = ledger.adopt("weights", held)
    assert 16 * MIB <= adoption.booked_bytes <= 16 * MIB + 4 * PAGE
    row = verified(ledger, "weights")
    assert isinstance(row.resident, Reading)
    assert row.resident.bytes >= 16 * MIB
    # It was no growth, and the growth beside it is some still. That is not to be told apart where all of the growth
    # could have been this very memory; here it could not.
    after = unexplained(ledger)
    assert after in (pytest.approx(before, abs=NOISE), pytest.approx(0, abs=NOISE))
    assert ledger.booked_bytes >= 16 * MIB
    # And it is no cover for what comes after it.
    later = shared(12 * MIB)
    for rows in (ledger.rows(), ledger.verify().rows):
        found = sum(row.booked_bytes for row in rows if row.state is RowState.UNATTRIBUTED)
        assert found == pytest.approx(after + 12 * MIB, abs=NOISE)
    adoption.release()
    later.close()
    beside.close()


def test_adopting_what_was_taken_since_makes_it_explained(ledger: HostPinnedLedger) -> None:
    held = shared(16 * MIB)
    assert unexplained(ledger) == pytest.approx(16 * MIB, abs=NOISE)
    before = total(ledger)
    with ledger.adopt("weights", held) as adoption:
        assert adoption.booked_bytes == 16 * MIB
        assert unexplained(ledger) < NOISE
        assert total(ledger) == pytest.approx(before, abs=NOISE)
    assert owners(ledger) == {"retained": 16 * MIB}
    held.close()
    assert owners(ledger) == {}


def test_an_adoption_keeps_nothing_alive_and_its_row_goes_with_the_tensor(ledger: HostPinnedLedger) -> None:
    tensor = torch_ones(16 * MIB)
    gone = weakref.ref(tensor)
    adoption = ledger.adopt("weights", tensor, detail="16 MiB of ones")
    assert verified(ledger, "weights").detail == "16 MiB of ones"
    del tensor
    gc.collect()
    assert gone() is None
    assert owners(ledger) == {}
    assert adoption.booked_bytes == 0
    assert total(ledger) < NOISE
    adoption.release()


def test_an_adoption_is_booked_even_beyond_the_limit_since_it_is_there_already() -> None:
    ledger, held = HostPinnedLedger(limit_bytes=MIB), shared(4 * MIB)
    with ledger.adopt("weights", held):
        assert owners(ledger) == {"weights": 4 * MIB}
        with pytest.raises(Refused):
            ledger.reserve("cache.ring", 1, never_called)


@pytest.mark.parametrize("held", [None, object(), 5, [], bytearray(), "text"], ids=lambda held: type(held).__name__)
def test_what_shows_no_memory_can_t_be_adopted(held: object, ledger: HostPinnedLedger) -> None:
    with pytest.raises(BadRequest, match=r"^weights: what is to be adopted shows no host memory of this process$"):
        ledger.adopt("weights", held)
    assert owners(ledger) == {}


# What no row explains.


def test_memory_that_was_taken_without_asking_is_unattributed_as_long_as_it_is_there(ledger: HostPinnedLedger) -> None:
    floor = ledger.working_set_floor_bytes
    assert isinstance(floor, int)
    with OwnMapping.memfd(16 * MIB) as memory:
        memory.write_every_page()
        assert unexplained(ledger) == pytest.approx(16 * MIB, abs=NOISE)
        assert total(ledger) == pytest.approx(16 * MIB, abs=NOISE)
        assert ledger.working_set_floor_bytes == pytest.approx(floor + 16 * MIB, abs=NOISE)
        assert ledger.resident_bytes == 0
    assert unexplained(ledger) < NOISE


def test_the_floor_and_what_is_resident_make_up_the_process(ledger: HostPinnedLedger, torch_host: Allocator) -> None:
    block = take(ledger, torch_host, 12 * MIB)
    heap = ledger.reserve("heap", 16 * MIB, lambda: bytearray(b"\1") * (16 * MIB))
    resident, floor = ledger.resident_bytes, ledger.working_set_floor_bytes
    assert isinstance(resident, int)
    assert isinstance(floor, int)
    assert resident == pytest.approx(32 * MIB, abs=2 * PAGE)
    assert resident + floor == pytest.approx(counter_bytes("VmRSS"), abs=NOISE)
    heap.release()
    block.release()
