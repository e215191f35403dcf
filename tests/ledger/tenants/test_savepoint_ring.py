"""The ring of pinned slots: hand-outs, tickets, what fits and what is given back.

What lies in a slot is read by its address, what is mapped and locked by the kernel's texts. The doubles of a device
that the other tests of ring and pool use are here too.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from pinprobe.ledger.ledger import HostPinnedLedger
from pinprobe.ledger.tenants.savepoint_layout import SavepointLayout, Slab
from pinprobe.ledger.tenants.savepoint_ring import RingStats, SavepointRing, StaleTicket, Ticket
from pinprobe.probes.errors import BadRequest
from tests.ledger.tenants.in_threads import in_threads
from tests.ledger.tenants.prepared_allocators import ALLOCATORS, prepared
from tests.ledger.tenants.savepoint_rows import MIXED, bytes_of, number_in, row_at, row_of, stamped
from tests.probes.allocators.kernel_word import PAGE_BYTES

torch: Any = pytest.importorskip("torch", exc_type=ImportError)

#: A row of exactly one page, where slots are counted by the page.
PAGES = SavepointLayout((Slab("a", (PAGE_BYTES // 4,), "float32"),))
RING = "cache.savepoint_ring"

_PATIENCE_SECONDS = 20.0


# -- handing out


def test_slots_are_handed_out_in_turn_and_round_again(ring: SavepointRing) -> None:
    tickets = [ring.stage(stamped(MIXED, number)) for number in range(8)]
    assert [ticket.slot for ticket in tickets] == [0, 1, 2, 0, 1, 2, 0, 1]
    assert [ticket.generation for ticket in tickets] == [1, 1, 1, 2, 2, 2, 3, 3]
    assert [ring.is_live(ticket) for ticket in tickets] == [False] * 5 + [True] * 3


def test_a_lap_is_one_turn_of_the_whole_ring_and_live_ones_are_never_more_than_slots(ring: SavepointRing) -> None:
    seen = []
    for number in range(7):
        ring.stage(stamped(MIXED, number))
        seen.append((ring.stats().laps, ring.stats().live))
    assert seen == [(0, 1), (0, 2), (1, 3), (1, 3), (1, 3), (2, 3), (2, 3)]
    assert ring.stats() == RingStats(slots=3, hand_outs=7, live=3, stale_reads_refused=0)


@pytest.mark.parametrize("name", ALLOCATORS)
def test_what_is_staged_lies_in_its_slot_bit_by_bit_and_nothing_beside_it(ledger: HostPinnedLedger, name: str) -> None:
    ring = SavepointRing(ledger, MIXED, 3, prepared(name))
    tickets = [ring.stage(stamped(MIXED, number)) for number in range(5)]
    for number in (2, 3, 4):
        ticket = tickets[number]
        assert ring.is_staged(ticket)
        assert row_at(MIXED, ring.address(ticket)) == row_of(MIXED, number)
        assert bytes_of(ring.view(ticket)) == row_of(MIXED, number)
    addresses = {tickets[number].slot: ring.address(tickets[number]) for number in (2, 3, 4)}
    assert [addresses[slot] - addresses[0] for slot in range(3)] == [0, MIXED.row_bytes, 2 * MIXED.row_bytes]
    assert all(address % MIXED.align_bytes == 0 for address in addresses.values())
    ring.close()


def test_a_slot_is_staged_from_tensors_that_lie_otherwise_and_need_a_gradient(ring: SavepointRing) -> None:
    tensors = stamped(MIXED, 5)
    tensors["half"] = tensors["half"].permute(2, 1, 0).contiguous().permute(2, 1, 0)
    tensors["state"] = torch.nn.Parameter(tensors["state"])
    assert not tensors["half"].is_contiguous()
    assert row_at(MIXED, ring.address(ring.stage(tensors))) == row_of(MIXED, 5)


def test_a_savepoint_comes_back_bit_by_bit(ring: SavepointRing) -> None:
    ticket = ring.stage(stamped(MIXED, 0x7FC0_FFFF_7F80))
    target = {name: torch.zeros_like(tensor) for name, tensor in stamped(MIXED, 0).items()}
    ring.restore(ticket, target)
    assert bytes_of(target) == row_of(MIXED, 0x7FC0_FFFF_7F80)


def test_tensors_of_another_layout_are_refused_and_nothing_is_handed_out(ring: SavepointRing) -> None:
    first = ring.stage(stamped(MIXED, 1))
    wrong = {**stamped(MIXED, 2), "odd": torch.zeros(14, dtype=torch.uint8)}
    with pytest.raises(BadRequest, match=r"slab odd is \(13,\)"):
        ring.stage(wrong)
    with pytest.raises(BadRequest, match="one is missing"):
        ring.restore(first, {name: tensor for name, tensor in wrong.items() if name != "one"})
    assert ring.stats().hand_outs == 1
    assert row_at(MIXED, ring.address(first)) == row_of(MIXED, 1)
    assert ring.stage(stamped(MIXED, 3)).slot == 1


def test_a_copy_that_fails_leaves_its_slot_to_nobody_and_the_ring_goes_on(
    ledger: HostPinnedLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    ring = SavepointRing(ledger, MIXED, 3, prepared("pageable"))
    old = [ring.stage(stamped(MIXED, number)) for number in range(3)]

    def failing_copy(*arguments: Any, **options: Any) -> None:
        raise RuntimeError("as a device's error would")

    with monkeypatch.context() as patch:
        patch.setattr(torch, "_foreach_copy_", failing_copy)
        with pytest.raises(RuntimeError, match="device's error"):
            ring.stage(stamped(MIXED, 3))
    assert [ring.is_live(ticket) for ticket in old] == [False, True, True]
    assert not ring.is_staged(Ticket(0, 2))
    after: list[Ticket] = []
    in_threads(1, lambda _: after.extend(ring.stage(stamped(MIXED, number)) for number in range(4, 7)), 3)
    assert [ticket.slot for ticket in after] == [1, 2, 0]
    assert row_at(MIXED, ring.address(after[2])) == row_of(MIXED, 6)
    ring.close()


# -- tickets


def test_a_ticket_is_stale_once_its_slot_was_handed_out_again(ring: SavepointRing) -> None:
    first = ring.stage(stamped(MIXED, 1))
    for number in range(2, 4):
        ring.stage(stamped(MIXED, number))
        assert ring.is_live(first)
    ring.stage(stamped(MIXED, 4))
    assert not ring.is_live(first)
    assert not ring.is_staged(first)


@pytest.mark.parametrize("way", ["view", "address", "restore"])
def test_a_read_by_a_stale_ticket_is_refused_and_counted(ring: SavepointRing, way: str) -> None:
    stale, *_ = (ring.stage(stamped(MIXED, number)) for number in range(4))
    target = stamped(MIXED, 99)
    read: dict[str, Callable[[], object]] = {
        "view": lambda: ring.view(stale),
        "address": lambda: ring.address(stale),
        "restore": lambda: ring.restore(stale, target),
    }
    for refused in (1, 2):
        with pytest.raises(StaleTicket) as error:
            read[way]()
        assert str(error.value) == ("slot 0 was handed out again: its ticket of generation 1 is stale, and it is at 2")
        assert ring.stats().stale_reads_refused == refused
    assert bytes_of(target) == row_of(MIXED, 99)


def test_asking_whether_a_ticket_is_live_or_staged_counts_as_no_read(ring: SavepointRing) -> None:
    stale, *_ = (ring.stage(stamped(MIXED, number)) for number in range(4))
    assert not ring.is_live(stale)
    assert not ring.is_staged(stale)
    assert ring.stats().stale_reads_refused == 0


def test_a_stage_during_a_restore_waits_for_it(ring: SavepointRing, monkeypatch: pytest.MonkeyPatch) -> None:
    tickets = [ring.stage(stamped(MIXED, number)) for number in range(3)]
    copy, entered, go_on = torch._foreach_copy_, threading.Event(), threading.Event()

    def slow_copy(*arguments: Any, **options: Any) -> None:
        entered.set()
        assert go_on.wait(_PATIENCE_SECONDS)
        copy(*arguments, **options)

    target = stamped(MIXED, 99)
    restoring = threading.Thread(target=lambda: ring.restore(tickets[0], target), daemon=True)
    with monkeypatch.context() as patch:
        patch.setattr(torch, "_foreach_copy_", slow_copy)
        restoring.start()
        assert entered.wait(_PATIENCE_SECONDS)
    staging = threading.Thread(target=lambda: ring.stage(stamped(MIXED, 3)), daemon=True)
    staging.start()
    staging.join(0.05)
    assert staging.is_alive()
    assert ring.is_live(tickets[0])
    go_on.set()
    restoring.join(_PATIENCE_SECONDS)
    staging.join(_PATIENCE_SECONDS)
    assert bytes_of(target) == row_of(MIXED, 0)
    assert not ring.is_live(tickets[0])


# -- what comes back


def test_a_row_in_host_memory_is_loaded_into_the_next_slot(ring: SavepointRing) -> None:
    sources = [ring.address(ring.stage(stamped(MIXED, number))) for number in range(3)]
    rows = [ctypes.create_string_buffer(ctypes.string_at(source, MIXED.row_bytes)) for source in sources]
    stale = Ticket(0, 1)
    ticket = ring.load(ctypes.addressof(rows[2]))
    assert (ticket, ring.is_staged(ticket), ring.is_live(stale)) == (Ticket(0, 2), True, False)
    assert row_at(MIXED, ring.address(ticket)) == row_of(MIXED, 2)
    assert bytes_of(ring.view(ticket)) == row_of(MIXED, 2)
    assert row_at(MIXED, sources[1]) == row_of(MIXED, 1)
    assert ring.stats().hand_outs == 4


# -- words


def test_what_it_is_and_what_it_counted_stand_in_the_printout(ledger: HostPinnedLedger, ring: SavepointRing) -> None:
    stale, *_ = (ring.stage(stamped(MIXED, number)) for number in range(7))
    with pytest.raises(StaleTicket):
        ring.view(stale)
    boot, later = (" ".join(ledger.printout(stats=stats).split()) for stats in (False, True))
    described = (
        f"{RING}: ring of 3 slots; 6 slabs (bfloat16, float16, float32, int64, uint8), {MIXED.row_bytes:,} B a row"
    )
    counted = f"{RING}: 7 hand-outs, 2 laps, 3 live; stale reads refused 1"
    assert described in boot
    assert counted not in boot
    assert described in later
    assert counted in later


# -- threads


def test_threads_that_stage_at_once_get_a_hand_out_each(ring: SavepointRing) -> None:
    tickets: list[Ticket] = []
    in_threads(6, lambda thread: tickets.extend(ring.stage(stamped(MIXED, thread)) for _ in range(50)))
    assert len(set(tickets)) == ring.stats().hand_outs == 300
    assert sorted((ticket.slot, ticket.generation) for ticket in tickets) == [
        (slot, generation) for slot in range(3) for generation in range(1, 101)
    ]
    for ticket in tickets:
        assert ring.is_live(ticket) == (ticket.generation == 100)
    for row in (row_at(MIXED, ring.address(Ticket(slot, 100))) for slot in range(3)):
        assert row == row_of(MIXED, number_in(row)), "two threads wrote into one slot"


def test_a_reader_who_finds_his_ticket_live_afterwards_has_read_his_own_savepoint_whole(ring: SavepointRing) -> None:
    newest: list[tuple[Ticket, int]] = []
    ending = time.monotonic() + 1
    read = 0

    def act(thread: int) -> None:
        nonlocal read
        while time.monotonic() < ending:
            if thread == 0:
                newest.append((ring.stage(stamped(MIXED, len(newest))), len(newest)))
            elif newest:
                ticket, number = newest[-1]
                with contextlib.suppress(StaleTicket):
                    row = row_at(MIXED, ring.address(ticket))
                    if ring.is_live(ticket):
                        assert row == row_of(MIXED, number)
                        read += 1

    in_threads(3, act)
    assert read
    assert ring.stats().hand_outs == len(newest)
