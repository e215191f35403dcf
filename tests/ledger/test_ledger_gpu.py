"""The ledger over real pinned memory: what torch rounds and keeps, what registered memory does not."""

from __future__ import annotations

from typing import Any

import pytest

from pinprobe.ledger.booking import RowState
from pinprobe.ledger.ledger import HostPinnedLedger
from pinprobe.probes.allocators.registry import prepare_allocator
from pinprobe.probes.errors import AllocatorUnavailable
from tests.probes.allocators.fresh_process import in_fresh_process

pytestmark = pytest.mark.gpu

SLOT = 154_927_104
MIB, GIB = 2**20, 2**30


@pytest.fixture
def torch_pins() -> None:
    try:
        prepare_allocator("torch", SLOT)
    except AllocatorUnavailable as error:
        pytest.skip(str(error))


def _torch() -> Any:
    import torch

    torch.cuda.init()  # type: ignore[no-untyped-call]
    torch.empty(1, pin_memory=True)
    torch.cuda.synchronize()
    return torch


def _booked(ledger: HostPinnedLedger, state: RowState) -> int:
    return sum(row.booked_bytes for row in ledger.rows() if row.state is state)


def sixteen_slots_of_torch() -> None:
    torch = _torch()
    ledger = HostPinnedLedger(allocator="torch")
    asked = 16 * SLOT
    with ledger.reserve("cache.ring", asked, lambda: torch.empty(asked, dtype=torch.uint8, pin_memory=True)) as ring:
        assert ring.booked_bytes == 4 * GIB
        account = ledger.verify()
        assert account.holds
        assert account.reserved[0].measured
        assert account.reserved[0].resident.bytes == 4 * GIB  # type: ignore[union-attr]
    # torch keeps the block: it stays booked, and serves the same request again for nothing.
    assert _booked(ledger, RowState.RETAINED) == 4 * GIB
    again = ledger.reserve("cache.ring", asked, lambda: torch.empty(asked, dtype=torch.uint8, pin_memory=True))
    assert (again.booked_bytes, _booked(ledger, RowState.RETAINED)) == (4 * GIB, 0)
    assert ledger.peak_bytes == 4 * GIB
    again.release()
    torch._C._host_emptyCache()
    assert _booked(ledger, RowState.RETAINED) == 0


def a_block_that_a_stream_still_uses() -> None:
    """It is not handed out again: the new request takes new memory, and both are booked."""
    torch = _torch()
    ledger = HostPinnedLedger(allocator="torch")
    size = 64 * MIB

    def pinned() -> Any:
        return torch.empty(size, dtype=torch.uint8, pin_memory=True)

    first = ledger.reserve("stream", size, pinned)
    device = torch.empty(size, dtype=torch.uint8, device="cuda")
    torch.cuda._sleep(2_000_000_000)
    device.copy_(first.value, non_blocking=True)
    first.release()
    second = ledger.reserve("stream", size, pinned)
    assert second.booked_bytes == 64 * MIB
    assert _booked(ledger, RowState.RETAINED) == 64 * MIB
    torch.cuda.synchronize()


def small_tensors_and_adopted_ones() -> None:
    torch = _torch()
    weights = [torch.empty(3_000_000, dtype=torch.uint8, pin_memory=True) for _ in range(4)]
    on_the_device = torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
    ledger = HostPinnedLedger(allocator="torch")
    adopted = ledger.adopt("weights", [*weights, weights[0][100:], on_the_device])
    # Four blocks of 4 MiB; a view adds nothing, and what lies on the device takes no host memory.
    assert (adopted.asked_bytes, adopted.booked_bytes) == (12_000_000, 16 * MIB)
    assert ledger.verify().holds


def registered_memory() -> None:
    allocator = prepare_allocator("registered", 16 * SLOT).allocator
    allocator.notes()
    ledger = HostPinnedLedger(allocator="registered")
    asked = 16 * SLOT
    with ledger.reserve(
        "cache.ring", asked, lambda: allocator.allocate(asked), free=lambda memory: memory.release()
    ) as ring:
        assert ring.booked_bytes == asked
        account = ledger.verify()
        assert account.holds
        # The driver's bookkeeping, some 10 to 14 MiB a GiB, and page tables.
        assert 8 * MIB * asked // GIB < account.overhead.bytes < 32 * MIB * asked // GIB  # type: ignore[union-attr]
    assert _booked(ledger, RowState.RETAINED) == 0


@pytest.mark.parametrize(
    "held", [sixteen_slots_of_torch, a_block_that_a_stream_still_uses, small_tensors_and_adopted_ones]
)
def test_with_torch(torch_pins: None, held: Any) -> None:
    in_fresh_process(held, patience_seconds=120)


def test_registered_memory_is_booked_as_asked() -> None:
    try:
        prepare_allocator("registered", 16 * SLOT)
    except AllocatorUnavailable as error:
        pytest.skip(str(error))
    in_fresh_process(registered_memory, patience_seconds=120)
