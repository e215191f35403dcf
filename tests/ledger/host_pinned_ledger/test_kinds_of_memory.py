"""Every kind of memory that a reservation may return is booked at what it took."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from typing import Any

import pytest

from pinprobe.ledger.booking import RowState
from pinprobe.ledger.ledger import HostPinnedLedger
from pinprobe.probes.errors import BadRequest
from pinprobe.probes.own_mapping import OwnMapping
from pinprobe.probes.reading import Reading
from tests.ledger.host_pinned_ledger.real_memory import (
    KINDS,
    NOISE,
    PAGE,
    address_of,
    give_back,
    never_called,
    owners,
    prepared,
    shared,
    total,
    trim_the_heap,
    unexplained,
    verified,
)
from tests.probes.allocators.kernel_word import MIB, block_bytes, counter_bytes, smaps_bytes


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_memory_is_booked_at_what_it_took(kind: str) -> None:
    make = KINDS[kind]
    asked = 9 * MIB + 1  # not in whole pages, and for torch 16 MiB
    give_back(make(asked))  # what a library takes at its first time is no memory of the request
    if kind == "torch-host":
        prepared("torch-host").empty_cache()
    ledger = HostPinnedLedger()
    ledger.calibrate()
    trim_the_heap()  # else malloc serves it from what earlier tests left, and nothing grows
    grown = -counter_bytes("VmRSS")
    reservation = ledger.reserve("cache.ring", asked, lambda: make(asked), free=give_back)
    grown += counter_bytes("VmRSS")
    assert grown > asked - NOISE
    row = verified(ledger, "cache.ring")
    assert asked <= row.booked_bytes == reservation.booked_bytes
    assert row.booked_bytes == pytest.approx(16 * MIB if kind == "torch-host" else asked, abs=NOISE)
    assert isinstance(row.resident, Reading)
    assert row.resident.bytes == pytest.approx(grown, abs=NOISE)
    assert row.measured
    assert unexplained(ledger) < NOISE
    assert ledger.booked_bytes >= grown - NOISE
    reservation.release()
    if kind == "torch-host":
        assert owners(ledger) == {"retained": 16 * MIB}
        prepared("torch-host").empty_cache()
    # What else the process grew by is taken for opaque memory that is still there: it counts either way, and once.
    assert set(owners(ledger)) <= ({"retained"} if kind == "opaque" else set())
    assert total(ledger) < NOISE


def test_a_raw_address_is_booked_at_the_mapping_behind_it(ledger: HostPinnedLedger) -> None:
    with OwnMapping.memfd(8 * MIB) as memory:
        memory.write_every_page()
        reservation = ledger.reserve("cache.ring", 5 * MIB, lambda: memory.address)
        assert reservation.booked_bytes == block_bytes(memory.address) == 8 * MIB
        assert verified(ledger, "cache.ring").resident == Reading(smaps_bytes(memory.address, "Rss"), "smaps, pagemap")
        reservation.release()
        assert owners(ledger) == {"retained": 8 * MIB}  # nobody has unmapped it
    assert owners(ledger) == {}


@pytest.mark.parametrize(
    "allocate",
    [lambda: None, object, lambda: 2**46, lambda: bytearray(10), lambda: mmap.mmap(-1, PAGE), lambda: [b"x", None]],
    ids=["nothing", "opaque", "a wrong address", "too little", "too small a mapping", "bits"],
)
def test_whatever_comes_back_the_ask_is_booked_at_least(
    allocate: Callable[[], object], ledger: HostPinnedLedger
) -> None:
    reservation = ledger.reserve("cache.ring", 20 * MIB, allocate)
    assert 20 * MIB <= reservation.booked_bytes < 20 * MIB + NOISE
    assert verified(ledger, "cache.ring").booked_bytes == reservation.booked_bytes


def test_untouched_memory_is_booked_at_its_mapping_and_resident_as_it_is(ledger: HostPinnedLedger) -> None:
    memory = mmap.mmap(-1, 64 * MIB)
    contents = b"\1" * (8 * MIB)
    reservation = ledger.reserve("cache.ring", 64 * MIB, lambda: memory)
    before = unexplained(ledger)
    row = verified(ledger, "cache.ring")
    assert (row.booked_bytes, row.resident) == (64 * MIB, Reading(0, "smaps, pagemap"))
    memory[: 8 * MIB] = contents
    row = verified(ledger, "cache.ring")
    assert isinstance(row.resident, Reading)
    assert row.resident.bytes == smaps_bytes(address_of(memory), "Rss")
    assert row.resident.bytes >= 8 * MIB
    # What it could still hold is no cover for what others take.
    beside = shared(16 * MIB)
    found = [row.booked_bytes for row in ledger.verify().rows if row.state is RowState.UNATTRIBUTED]
    assert [amount - before for amount in found] == [pytest.approx(16 * MIB, abs=NOISE)]
    beside.close()
    reservation.release()


@pytest.mark.parametrize("asked", [0, -1, 2**56 + 1, 1.5, "1 MiB", None], ids=repr)
def test_what_is_no_size_is_refused_before_anything_is_asked_for(asked: Any, ledger: HostPinnedLedger) -> None:
    with pytest.raises(BadRequest, match=r"^cache\.ring: .* is no number of bytes that can be reserved$"):
        ledger.reserve("cache.ring", asked, never_called)
    assert owners(ledger) == {}
