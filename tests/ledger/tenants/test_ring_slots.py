"""How many slots a ring has, what they cost, and that all of it is given back."""

from __future__ import annotations

import ctypes
import logging
from typing import Any

import pytest

from pinprobe.ledger.booking import Row, RowState
from pinprobe.ledger.ledger import HostPinnedLedger
from pinprobe.ledger.tenants.savepoint_layout import SavepointLayout, Slab
from pinprobe.ledger.tenants.savepoint_ring import SavepointRing, StaleTicket
from pinprobe.probes.errors import BadRequest, PinprobeError, Refused
from tests.ledger.tenants.prepared_allocators import ALLOCATORS, prepared
from tests.ledger.tenants.savepoint_rows import MIXED, stamped
from tests.probes.allocators.fresh_process import run_to_its_end
from tests.probes.allocators.kernel_word import MIB, PAGE_BYTES, block_bytes, counter_bytes, mapping_ends, whole_pages

torch: Any = pytest.importorskip("torch", exc_type=ImportError)

#: A row of exactly one page, where slots are counted by the page.
PAGES = SavepointLayout((Slab("a", (PAGE_BYTES // 4,), "float32"),))
RING = "cache.savepoint_ring"

_PATIENCE_SECONDS = 20.0


def reserved(ledger: HostPinnedLedger, owner: str = RING) -> list[Row]:
    return [row for row in ledger.rows() if row.owner == owner and row.state is RowState.RESERVED]


# -- how many fit


def test_all_slots_are_one_reservation_of_whole_rows(ledger: HostPinnedLedger) -> None:
    ring = SavepointRing(ledger, MIXED, 5, prepared("mlock"), owner="cache.other", detail="rank 3")
    (row,) = reserved(ledger, "cache.other")
    assert (ring.slots, row.asked_bytes) == (5, 5 * MIXED.row_bytes)
    assert row.booked_bytes == whole_pages(5 * MIXED.row_bytes)
    assert row.detail == f"5 slots x {MIXED.row_bytes:,} B, rank 3"
    assert (row.pageable, row.allocator) == (False, "mlock")
    ring.close()


def test_pinned_slots_are_locked_and_pageable_ones_are_said_to_be_so(ledger: HostPinnedLedger) -> None:
    locked = counter_bytes("VmLck")
    pinned = SavepointRing(ledger, PAGES, 8, prepared("mlock"))
    assert counter_bytes("VmLck") - locked == 8 * PAGE_BYTES
    pageable = SavepointRing(ledger, PAGES, 8, prepared("pageable"), owner="cache.pageable")
    assert counter_bytes("VmLck") - locked == 8 * PAGE_BYTES
    assert [row.pageable for row in reserved(ledger) + reserved(ledger, "cache.pageable")] == [False, True]
    pageable.close()
    pinned.close()


def test_under_a_limit_it_takes_what_fits_and_says_how_much_that_is(caplog: pytest.LogCaptureFixture) -> None:
    with HostPinnedLedger(limit_bytes=10 * PAGE_BYTES, wait_seconds=0) as ledger:
        ledger.reserve("engine", 3 * PAGE_BYTES, lambda: prepared("pageable").allocate(3 * PAGE_BYTES))
        with caplog.at_level(logging.WARNING, "pinprobe"):
            ring = SavepointRing(ledger, PAGES, 12, prepared("mlock"), turn_slots=2)
        assert ring.slots == ring.stats().slots == 7
        (row,) = reserved(ledger)
        assert row.booked_bytes == 7 * PAGE_BYTES
        assert row.detail == f"7 slots x {PAGE_BYTES:,} B, of 12 that were wanted"
        assert f"{RING}: 7 of 12 slots fit now" in caplog.messages
        assert f"{RING}: ring of 7 slots" in " ".join(ledger.printout().split())
        tickets = [ring.stage(stamped(PAGES, number)) for number in range(8)]
        assert [ticket.slot for ticket in tickets] == [0, 1, 2, 3, 4, 5, 6, 0]
        ring.close()


def test_where_all_fit_nothing_is_said(ledger: HostPinnedLedger, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "pinprobe"):
        SavepointRing(ledger, PAGES, 12, prepared("mlock"), turn_slots=12).close()
    assert caplog.messages == []


def test_less_than_one_turn_is_refused_with_the_figures_and_nothing_is_taken() -> None:
    allocator = prepared("mlock")
    with HostPinnedLedger(limit_bytes=4 * PAGE_BYTES, wait_seconds=0) as ledger:
        ledger.calibrate()
        before, locked = mapping_ends(), counter_bytes("VmLck")
        with pytest.raises(Refused) as refused:
            SavepointRing(ledger, PAGES, 64, allocator, turn_slots=5)
        assert not reserved(ledger)
        assert counter_bytes("VmLck") == locked
        assert not [
            start for start, end in mapping_ends().items() if start not in before and end - start == 5 * PAGE_BYTES
        ]
    error = refused.value
    assert (error.owner, error.asked_bytes, error.room_bytes, error.largest_bytes) == (
        RING, 5 * PAGE_BYTES, 4 * PAGE_BYTES, 4 * PAGE_BYTES,
    )  # fmt: skip
    assert str(error).endswith("one turn hands out 5 slots, 20.000 KiB")
    assert "the limit is 16.000 KiB and 0 B are booked" in str(error)
    assert "\n" not in str(error)


def test_a_refusal_is_not_announced_as_slots_that_fit(caplog: pytest.LogCaptureFixture) -> None:
    with (
        HostPinnedLedger(limit_bytes=4 * PAGE_BYTES, wait_seconds=0) as ledger,
        caplog.at_level(logging.WARNING, "pinprobe"),
        pytest.raises(Refused),
    ):
        SavepointRing(ledger, PAGES, 64, prepared("mlock"), turn_slots=5)
    assert not [message for message in caplog.messages if "slots fit now" in message]


class Rivals(HostPinnedLedger):
    """A ledger where others take two more pages between the look and the leap, three times."""

    moves = 3

    def fit(self, slot_bytes: int, wanted: int, *, allocator: str | None = None) -> int:
        fitting = super().fit(slot_bytes, wanted, allocator=allocator)
        if self.moves:
            self.moves -= 1
            self.reserve("rival", 2 * PAGE_BYTES, lambda: prepared("pageable").allocate(2 * PAGE_BYTES))
        return fitting


def test_where_others_are_faster_three_times_what_is_left_is_taken_all_the_same() -> None:
    with Rivals(limit_bytes=20 * PAGE_BYTES, wait_seconds=0) as ledger:
        ring = SavepointRing(ledger, PAGES, 64, prepared("mlock"), turn_slots=4)
        assert 4 <= ring.slots <= 14
        ring.close()


@pytest.mark.parametrize(
    ("name", "limit_bytes", "most"),
    [("pageable", 3 * PAGE_BYTES - 1, 4), ("torch-host", 5 * MIB, 4)],
    ids=["a limit within a page", "an allocator that rounds up"],
)
def test_the_limit_holds_for_what_an_allocator_really_takes(name: str, limit_bytes: int, most: int) -> None:
    # The ask fits and the block does not: as many slots as fit are fewer than `fit` could know.
    row = PAGE_BYTES // 2 if name == "pageable" else MIB
    layout, allocator = SavepointLayout((Slab("a", (row,), "uint8"),)), prepared(name)
    allocator.empty_cache()
    with HostPinnedLedger(limit_bytes=limit_bytes, wait_seconds=0) as ledger:
        ring = SavepointRing(ledger, layout, 8, allocator)
        booked, slots = sum(row.booked_bytes for row in reserved(ledger)), ring.slots
        ring.close()
    assert booked <= limit_bytes
    assert slots == most


def test_the_name_of_an_allocator_is_refused_with_what_makes_it_one(ledger: HostPinnedLedger) -> None:
    name: Any = "mlock"
    with pytest.raises(BadRequest, match=r"'mlock' is an allocator's name.* prepare_allocator\(name, bytes\)"):
        SavepointRing(ledger, PAGES, 2, name)
    assert not [row for row in ledger.rows() if row.state is not RowState.UNATTRIBUTED]


@pytest.mark.parametrize("slots", [0, -3])
def test_a_ring_without_a_slot_is_refused(ledger: HostPinnedLedger, slots: int) -> None:
    with pytest.raises(BadRequest):
        SavepointRing(ledger, MIXED, slots, prepared("pageable"))
    assert not reserved(ledger)


# -- giving back


@pytest.mark.parametrize("name", ALLOCATORS)
def test_close_gives_all_of_it_back_and_makes_every_ticket_stale(ledger: HostPinnedLedger, name: str) -> None:
    locked = counter_bytes("VmLck")
    ring = SavepointRing(ledger, MIXED, 200, prepared(name))
    tickets = [ring.stage(stamped(MIXED, number)) for number in range(3)]
    address = ring.address(tickets[0])
    assert block_bytes(address) >= 200 * MIXED.row_bytes
    ring.close()
    ring.close()
    assert block_bytes(address) == 0
    assert counter_bytes("VmLck") == locked
    assert not [row for row in ledger.rows() if row.state is not RowState.UNATTRIBUTED]
    for ticket in tickets:
        assert not ring.is_live(ticket)
        assert not ring.is_staged(ticket)
        with pytest.raises(StaleTicket):
            ring.address(ticket)


def test_a_closed_ring_stages_nothing_and_says_so_in_one_line(ring: SavepointRing) -> None:
    ring.close()
    with pytest.raises(PinprobeError) as error:
        ring.stage(stamped(MIXED, 1))
    assert "\n" not in str(error.value)


def load_into_a_closed_ring() -> str:
    row = ctypes.create_string_buffer(MIXED.row_bytes)
    with HostPinnedLedger() as ledger:
        ring = SavepointRing(ledger, MIXED, 200, prepared("pageable"))
        ring.close()
        try:
            ring.load(ctypes.addressof(row))
        except PinprobeError as error:
            return str(error)
    return "it was let through"


def test_a_closed_ring_loads_nothing_rather_than_write_where_its_memory_was() -> None:
    ended = run_to_its_end(load_into_a_closed_ring)
    assert ended.code == 0, f"the process ended with {ended.code}"
    assert b"it was let through" not in ended.pickled


def test_a_ledger_that_closes_takes_the_ring_with_it() -> None:
    ledger = HostPinnedLedger()
    ring = SavepointRing(ledger, MIXED, 200, prepared("mlock"))
    address = ring.address(ring.stage(stamped(MIXED, 1)))
    ledger.close()
    assert block_bytes(address) == 0
