"""The ring and its fences: nothing is staged, restored or written before the copy that uses a slot is complete."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import pytest

from pinprobe.ledger.ledger import HostPinnedLedger
from pinprobe.ledger.tenants.savepoint_layout import SavepointLayout, Slab
from pinprobe.ledger.tenants.savepoint_ring import SavepointRing, Ticket
from pinprobe.probes.errors import PinprobeError
from tests.ledger.tenants.held_fences import HeldFences, a_stream
from tests.ledger.tenants.in_threads import in_threads
from tests.ledger.tenants.prepared_allocators import prepared
from tests.ledger.tenants.savepoint_rows import MIXED, bytes_of, row_at, row_of, stamped
from tests.probes.allocators.kernel_word import PAGE_BYTES

torch: Any = pytest.importorskip("torch", exc_type=ImportError)

#: A row of exactly one page, where slots are counted by the page.
PAGES = SavepointLayout((Slab("a", (PAGE_BYTES // 4,), "float32"),))
RING = "cache.savepoint_ring"

_PATIENCE_SECONDS = 20.0


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
