"""The ring of pinned slots: hand-outs, tickets, what fits and what is given back.

What lies in a slot is read by its address, what is mapped and locked by the kernel's texts. The doubles of a device
that the other tests of ring and pool use are here too.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from pinprobe.ledger.booking import Row, RowState
from pinprobe.ledger.ledger import HostPinnedLedger
from pinprobe.ledger.tenants.savepoint_layout import SavepointLayout, Slab
from pinprobe.ledger.tenants.savepoint_ring import RingStats, SavepointRing, StaleTicket, Ticket
from pinprobe.probes.allocators.allocator import Allocator
from pinprobe.probes.allocators.registry import prepare_allocator
from pinprobe.probes.errors import AllocatorUnavailable, BadRequest, PinprobeError, Refused
from tests.probes.allocators.fresh_process import run_to_its_end
from tests.probes.allocators.kernel_word import MIB, PAGE_BYTES, block_bytes, counter_bytes, mapping_ends, whole_pages

torch: Any = pytest.importorskip("torch", exc_type=ImportError)

#: Every width of item, odd sizes, and slabs that end within a page and beyond one.
MIXED = SavepointLayout(
    (
        Slab("conv", (3, 5), "bfloat16"), Slab("state", (7, 11), "float32"), Slab("odd", (13,), "uint8"),
        Slab("half", (2, 3, 5), "float16"), Slab("one", (), "int64"), Slab("wide", (4099,), "uint8"),
    )
)  # fmt: skip
#: A row of exactly one page, where slots are counted by the page.
PAGES = SavepointLayout((Slab("a", (PAGE_BYTES // 4,), "float32"),))
ALLOCATORS = ("pageable", "mlock", "torch-host")
RING = "cache.savepoint_ring"

_PATIENCE_SECONDS = 20.0


# -- savepoints that can be told from one another


def slab_bytes(slab: Slab, index: int, number: int) -> bytes:
    """What a slab of savepoint `number` holds: the number and the slab's own index, again and again."""
    stamp = struct.pack("<Q", number << 8 | index)
    return (stamp * (slab.size_bytes // 8 + 1))[: slab.size_bytes]


def stamped(layout: SavepointLayout, number: int) -> dict[str, Any]:
    """The tensors of savepoint `number`. Their bits are no float's in particular."""
    return {
        slab.name: torch.frombuffer(bytearray(slab_bytes(slab, index, number)), dtype=torch.uint8)
        .view(getattr(torch, slab.dtype))
        .view(slab.shape)
        for index, slab in enumerate(layout.slabs)
    }


def row_of(layout: SavepointLayout, number: int) -> list[bytes]:
    """Every slab of savepoint `number`, in order."""
    return [slab_bytes(slab, index, number) for index, slab in enumerate(layout.slabs)]


def row_at(layout: SavepointLayout, address: int) -> list[bytes]:
    """Every slab of the row that lies at an address, read from memory."""
    spans = zip(layout.offsets, layout.slabs, strict=True)
    return [ctypes.string_at(address + offset, slab.size_bytes) for offset, slab in spans]


def number_in(row: list[bytes]) -> int:
    """Which savepoint a row's first slab is of."""
    number: int = struct.unpack("<Q", row[0][:8])[0]
    return number >> 8


def bytes_of(tensors: Mapping[str, Any]) -> list[bytes]:
    """Every tensor's bytes."""
    return [bytes(tensor.contiguous().reshape(-1).view(torch.uint8).tolist()) for tensor in tensors.values()]


# -- the doubles of a device


class FakeStream:
    """Stands for a device's stream where there is no device: torch then takes any object for one."""


def a_stream() -> Any:
    """A stream to stage on: the copies on it are complete at once, and their fences when they are let go."""
    return torch.cuda.Stream() if torch.cuda.is_available() else FakeStream()


class HeldFence:
    """A double of a device's event: complete once it is let go. It can be asked, and hold a stream back, no more."""

    def __init__(self) -> None:
        self.asked = 0
        self.is_let_go = False
        self.held_back: list[tuple[str, Any]] = []

    def is_done(self) -> bool:
        self.asked += 1
        return self.is_let_go

    def hold_back(self, stream: Any) -> None:
        self.held_back.append((threading.current_thread().name, stream))

    def wait(self) -> None:
        raise AssertionError("somebody waits for the fence")

    synchronize = wait


class HeldFences:
    """A ring's `fence_for`: holds the copies on streams back, or none, and remembers the fences in order."""

    def __init__(self) -> None:
        self.made: list[HeldFence] = []
        self.are_held = True

    def __call__(self, stream: Any) -> HeldFence:
        fence = HeldFence()
        fence.is_let_go = stream is None or not self.are_held
        self.made.append(fence)
        return fence

    def let_go(self) -> None:
        for fence in self.made:
            fence.is_let_go = True


# -- rings


def prepared(name: str, size_bytes: int = 16 * MIB) -> Allocator:
    try:
        return prepare_allocator(name, size_bytes).allocator
    except AllocatorUnavailable as error:
        pytest.skip(str(error))


@pytest.fixture
def ledger() -> Iterator[HostPinnedLedger]:
    with HostPinnedLedger(wait_seconds=0) as ledger:
        ledger.calibrate()
        yield ledger


@pytest.fixture
def ring(ledger: HostPinnedLedger) -> Iterator[SavepointRing]:
    """Three slots of ordinary memory."""
    ring = SavepointRing(ledger, MIXED, 3, prepared("pageable"))
    yield ring
    ring.close()


def reserved(ledger: HostPinnedLedger, owner: str = RING) -> list[Row]:
    return [row for row in ledger.rows() if row.owner == owner and row.state is RowState.RESERVED]


def in_threads(count: int, act: Callable[[int], object], patience_seconds: float = _PATIENCE_SECONDS) -> None:
    """Run `act` in so many threads at once and pass on the first error of any."""
    errors: list[BaseException] = []
    start = threading.Barrier(count)

    def run(number: int) -> None:
        try:
            start.wait(_PATIENCE_SECONDS)
            act(number)
        except BaseException as error:  # noqa: BLE001  # it is raised again where the test can see it
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(patience_seconds)
        assert not thread.is_alive(), "a thread hangs"
    if errors:
        raise errors[0]


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


# -- fences


def test_a_copy_that_is_held_back_is_not_staged_until_its_fence_is_done(ledger: HostPinnedLedger) -> None:
    fences = HeldFences()
    ring = SavepointRing(ledger, MIXED, 2, prepared("pageable"), fence_for=fences)
    first, second = (ring.stage(stamped(MIXED, number), a_stream()) for number in range(2))
    assert ring.is_live(first)
    assert not ring.is_staged(first)
    assert not ring.is_staged(second)
    fences.made[1].is_let_go = True
    assert not ring.is_staged(first)
    assert ring.is_staged(second)
    fences.let_go()
    assert ring.is_staged(first)
    ring.close()


def test_the_fence_of_a_later_copy_says_nothing_of_a_stale_ticket(ledger: HostPinnedLedger) -> None:
    fences = HeldFences()
    ring = SavepointRing(ledger, MIXED, 1, prepared("pageable"), fence_for=fences)
    first = ring.stage(stamped(MIXED, 1), a_stream())
    second = ring.stage(stamped(MIXED, 2), a_stream())
    fences.let_go()
    assert not ring.is_staged(first)
    assert ring.is_staged(second)
    ring.close()


def test_while_a_copy_is_being_started_its_slot_is_not_staged(
    ring: SavepointRing, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, *_ = (ring.stage(stamped(MIXED, number)) for number in range(3))
    copy, seen = torch._foreach_copy_, []

    def looking_copy(*arguments: Any, **options: Any) -> None:
        seen.append([ring.is_live(old), ring.is_staged(old), ring.is_staged(Ticket(0, 2))])
        copy(*arguments, **options)
        seen.append([ring.is_live(old), ring.is_staged(old), ring.is_staged(Ticket(0, 2))])

    monkeypatch.setattr(torch, "_foreach_copy_", looking_copy)
    assert ring.is_staged(ring.stage(stamped(MIXED, 3)))
    assert seen == [[False, False, False]] * 2


def test_a_savepoint_whose_copy_is_not_complete_is_not_restored_by_this_processor(ledger: HostPinnedLedger) -> None:
    # Where no stream is given nothing waits for the fence by itself: the tensors would silently hold half a savepoint.
    fences = HeldFences()
    ring = SavepointRing(ledger, MIXED, 1, prepared("pageable"), fence_for=fences)
    ticket = ring.stage(stamped(MIXED, 1), a_stream())
    target = stamped(MIXED, 2)
    restored = []

    def restore() -> None:
        with contextlib.suppress(PinprobeError):  # to refuse is as good as to wait
            ring.restore(ticket, target)
            restored.append(fences.made[0].is_let_go)

    reader = threading.Thread(target=restore, daemon=True)
    reader.start()
    reader.join(0.1)
    fences.let_go()
    reader.join(_PATIENCE_SECONDS)
    assert restored in ([], [True])
    assert bytes_of(target) == row_of(MIXED, 1 if restored else 2)
    ring.close()


@pytest.mark.parametrize("way", ["stage", "load"])
def test_this_processor_writes_into_no_slot_that_a_device_still_writes_or_reads(
    ledger: HostPinnedLedger, way: str
) -> None:
    fences = HeldFences()
    ring = SavepointRing(ledger, MIXED, 1, prepared("pageable"), fence_for=fences)
    first = ring.stage(stamped(MIXED, 1), a_stream())
    ring.restore(first, stamped(MIXED, 0), a_stream())
    later = SavepointRing(ledger, MIXED, 1, prepared("pageable"), owner="cache.later")
    source = later.address(later.stage(stamped(MIXED, 2)))
    tickets: list[Ticket] = []

    def write() -> None:
        tickets.append(ring.stage(stamped(MIXED, 2)) if way == "stage" else ring.load(source))

    address = ring.address(first)
    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    for fence in fences.made[:2]:
        writer.join(0.05)
        assert writer.is_alive()
        assert row_at(MIXED, address) == row_of(MIXED, 1)
        assert not ring.is_live(first)
        fence.is_let_go = True
    writer.join(_PATIENCE_SECONDS)
    assert ring.is_staged(tickets[0])
    assert row_at(MIXED, address) == row_of(MIXED, 2)
    ring.close()
    later.close()


@pytest.mark.parametrize("way", ["on this processor", "on a stream"])
def test_a_fence_that_can_not_be_asked_or_waited_for_does_not_hold_up_its_slot_for_ever(
    ledger: HostPinnedLedger, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    fences = HeldFences()
    ring = SavepointRing(ledger, MIXED, 1, prepared("pageable"), fence_for=fences)
    ring.stage(stamped(MIXED, 1), a_stream())

    def broken(*arguments: Any) -> bool:
        raise RuntimeError("as a device's error would")

    monkeypatch.setattr(fences.made[0], "is_done", broken)
    monkeypatch.setattr(fences.made[0], "hold_back", broken)
    with pytest.raises(RuntimeError, match="device's error"):
        ring.stage(stamped(MIXED, 2), None if way == "on this processor" else a_stream())
    monkeypatch.undo()
    fences.let_go()
    tickets: list[Ticket] = []
    in_threads(1, lambda _: tickets.append(ring.stage(stamped(MIXED, 3))), 3)
    assert row_at(MIXED, ring.address(tickets[0])) == row_of(MIXED, 3)
    ring.close()


def test_after_a_copy_that_failed_the_next_one_still_waits_for_what_a_device_does_with_the_slot(
    ledger: HostPinnedLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    fences = HeldFences()
    ring = SavepointRing(ledger, MIXED, 1, prepared("pageable"), fence_for=fences)
    ring.restore(ring.stage(stamped(MIXED, 1), a_stream()), stamped(MIXED, 0), a_stream())

    def failing_copy(*arguments: Any, **options: Any) -> None:
        raise RuntimeError("as a device's error would")

    with monkeypatch.context() as patch:
        patch.setattr(torch, "_foreach_copy_", failing_copy)
        with pytest.raises(RuntimeError, match="device's error"):
            ring.stage(stamped(MIXED, 2), a_stream())
    writer = threading.Thread(target=lambda: ring.stage(stamped(MIXED, 3)), daemon=True)
    writer.start()
    writer.join(0.1)
    has_waited = writer.is_alive()
    fences.let_go()
    writer.join(_PATIENCE_SECONDS)
    assert not writer.is_alive()
    assert has_waited, "it wrote into a slot that a device is still reading"
    ring.close()


def test_a_copy_on_a_stream_waits_there_for_the_slots_last_copy_and_its_readers(ledger: HostPinnedLedger) -> None:
    fences = HeldFences()
    ring = SavepointRing(ledger, MIXED, 2, prepared("pageable"), fence_for=fences)
    first, reader, again, other, next_lap, last = streams = [a_stream() for _ in range(6)]
    ticket = ring.stage(stamped(MIXED, 1), first)
    ring.restore(ticket, stamped(MIXED, 0), reader)
    ring.restore(ticket, stamped(MIXED, 0), again)
    ring.stage(stamped(MIXED, 2), other)
    ring.stage(stamped(MIXED, 3), next_lap)
    ring.stage(stamped(MIXED, 4), other)
    ring.stage(stamped(MIXED, 5), last)
    waits = [[streams.index(stream) for _, stream in fence.held_back] for fence in fences.made]
    staged, read, read_again, beside, staged_again, _, _ = waits
    assert staged == [streams.index(stream) for stream in (reader, again, next_lap)]
    # Whoever read an earlier savepoint is waited for once, not for ever.
    assert read == read_again == [streams.index(next_lap)]
    assert beside == [streams.index(other)]
    assert staged_again == [streams.index(last)]
    ring.close()


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
