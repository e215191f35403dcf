"""`RealArm`: an arm with memory behind it: a ledger, a pinned ring, and a pool with its copy-out where it has one."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

from pinprobe.ledger.replay.arm import Arm
from pinprobe.ledger.replay.arm_result import MeasuredMemory
from pinprobe.ledger.replay.paced_pool import PacedPool
from pinprobe.ledger.replay.ring_and_pool import RingAndPool
from pinprobe.ledger.replay.ring_prices import RingPrices
from pinprobe.ledger.replay.savepoint_stamp import SavepointStamp, scaled_layout
from pinprobe.ledger.replay.slots_alone import SlotsAlone
from pinprobe.ledger.replay.trace_clock import TraceClock
from pinprobe.ledger.reservation import Reservation
from pinprobe.ledger.tenants.copy_out import CopyOut
from pinprobe.ledger.tenants.disk_overflow import DiskOverflow
from pinprobe.ledger.tenants.overflow_file import file_bytes
from pinprobe.ledger.tenants.pool_shape import PoolShape
from pinprobe.ledger.tenants.pool_stats import PoolStats
from pinprobe.ledger.tenants.region import Region
from pinprobe.ledger.tenants.savepoint_layout import SavepointLayout, Slab
from pinprobe.ledger.tenants.savepoint_ring import SavepointRing, Ticket
from pinprobe.ledger.tenants.torch_library import load_torch
from pinprobe.ledger.watched_ledger import WatchedLedger
from pinprobe.probes.allocators.allocator import Allocator
from pinprobe.probes.allocators.registry import prepare_allocator
from pinprobe.probes.errors import AllocatorUnavailable, BadRequest, CouldNotMeasure, Refused, in_one_line
from pinprobe.probes.peak_resident import PeakResident
from pinprobe.probes.reading import Unreadable
from pinprobe.probes.units import format_bytes

if TYPE_CHECKING:
    import torch

RING, POOL, DEVICE = "cache.savepoint_ring", "cache.retention_pool", "replay.device"


class RealArm:
    """An arm whose memory is taken. A context manager, at whose end all of it is given back.

    A row is `scale` x the arm's; how many of them it holds is the arm's own. One row more stands in for the device:
    `stamp` writes it, `stage` hands it to the ring, and reading brings a savepoint back there. All of it, every region
    of the pool's bound, is held against the headroom before any of it is taken: raises `Refused` where it does not fit,
    `BadRequest` where ring and pool have not one row or the overflow's folder can't be used, and `AllocatorUnavailable`
    where torch or the allocator can't be had.
    """

    def __init__(
        self,
        arm: Arm,
        scale: Fraction,
        clock: TraceClock,
        *,
        overflow_folder: Path | None = None,
    ) -> None:
        if arm.pool is not None and arm.pool.layout.row_bytes != arm.ring_layout.row_bytes:
            raise BadRequest(
                f"{arm.name}: a slot of the ring holds {arm.ring_layout.row_bytes:,} B and a region of the pool"
                f" {arm.pool.layout.row_bytes:,} B; a savepoint is copied whole, so give both one layout"
            )
        self.remarks: list[str] = []
        self.pool: PacedPool | None = None
        self.overflow: DiskOverflow | None = None
        self._arm = arm
        self._scale = scale
        self._layout = scaled_layout(arm.ring_layout.row_bytes, scale)
        torch = _bring_up_torch()
        allocator = prepare_allocator(arm.allocator, arm.ring_slots * self._layout.row_bytes).allocator
        allocator.notes()  # brings its runtime up
        self.is_pinned = allocator.name != "pageable"
        with contextlib.ExitStack() as undo:
            # Of several threads each waits for the other wherever a machine has other things to do, and one copies as
            # fast as the memory goes.
            undo.callback(torch.set_num_threads, torch.get_num_threads())
            torch.set_num_threads(1)
            self._ledger = undo.enter_context(WatchedLedger())
            self._refuse_what_does_not_fit()
            self.stamp, self._device = self._take_device()
            self._peak = PeakResident()
            self._ring = self._open_ring(allocator)
            undo.callback(self._ring.close)
            self.slots: SlotsAlone | None = None
            if arm.pool is None:
                self.tiers: SlotsAlone | RingAndPool = SlotsAlone(self._ring, self._device)
                self.slots = self.tiers
            else:
                self.pool = undo.enter_context(self._opened_pool(arm.pool, clock, overflow_folder))
                worker = CopyOut(self._ring, self.pool)
                undo.callback(worker.close)
                self.tiers = RingAndPool(self._ring, self.pool, worker, self._device)
            self._open = undo.pop_all()

    def stage(self) -> Ticket:
        """Copy the device's row into the ring's next slot."""
        return self._ring.stage(self._device)

    def sample(self) -> None:
        """Look how much memory the process holds, where the kernel does not keep the highest."""
        if not self._peak.sees_every_moment:
            self._peak.sample()

    def stats(self) -> PoolStats | None:
        """Return the pool's counters; None where there is none."""
        return None if self.pool is None else self.pool.stats()

    def measured(self) -> MeasuredMemory:
        """Return what was taken at most. What the kernel contradicts, or does not tell, is added to the remarks."""
        grown = self._peak.grown()
        fullest = self._ledger.fullest
        assert fullest is not None, "a ring was reserved"
        taken = {RING: 0, POOL: 0}
        remarks: dict[str, None] = {}
        for row in fullest.reserved:
            if row.owner not in taken:
                continue
            if isinstance(row.resident, Unreadable):
                remarks[f"{row.owner} counts as booked, since what is resident of it is {row.resident}"] = None
                taken[row.owner] += row.booked_bytes
            else:
                taken[row.owner] += row.resident.bytes
        remarks |= dict.fromkeys((*fullest.shortfalls, *self._ledger.verify().shortfalls))
        self.remarks += remarks
        if isinstance(grown, Unreadable):
            self.remarks.append(f"the growth of the process is {grown}; what was booked stands in its place")
        rss_bytes = sum(taken.values()) if isinstance(grown, Unreadable) else grown.bytes
        return MeasuredMemory(taken[RING], taken[POOL], rss_bytes, self._scale)

    def close(self) -> None:
        """Give all of it back. A second call does nothing."""
        self._open.close()

    def __enter__(self) -> RealArm:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    # -- opening

    def _refuse_what_does_not_fit(self) -> None:
        """Have the ledger judge the whole of it at once, before the first byte."""
        pool, row_bytes = self._arm.pool, self._layout.row_bytes
        how = f"a ring of {self._arm.ring_slots:,} slots"
        scaled = replace(self._arm, ring_layout=self._layout)
        prices = RingPrices([scaled])
        self.remarks += prices.notes
        needed = row_bytes + prices.price(scaled).bytes
        if pool is not None:
            how += f" and a pool of {pool.bound_regions:,} regions"
            needed += pool.bound_regions * _scaled(pool, self._layout).region_bytes
        try:
            with contextlib.suppress(_Fits):
                self._ledger.reserve(self._arm.name, needed, _fits, allocator="mmap", pageable=True)
        except Refused as refusal:
            remedy = "give fewer of them, or a smaller scale"
            message = f"{refusal}; {how} of savepoints of {format_bytes(row_bytes)} were to be taken: {remedy}"
            raise Refused(message, *refusal.args[1:]) from None

    def _take_device(self) -> tuple[SavepointStamp, Mapping[str, torch.Tensor]]:
        row_bytes = self._layout.row_bytes
        # Held: a reservation that nobody holds is given back.
        self._device_row: Reservation[Region] = self._ledger.reserve(
            DEVICE,
            row_bytes,
            lambda: Region(row_bytes, shared=False),
            free=lambda region: region.unmap(),
            detail="stands in for the device",
            pageable=True,
        )
        region = self._device_row.value
        stamp = SavepointStamp(region.address, row_bytes)
        stamp.write(0)  # what it needs for that is there before the arm's memory is counted
        assert stamp.fault(0) is None
        return stamp, self._layout.views(region.address, region)

    def _open_ring(self, allocator: Allocator) -> SavepointRing:
        # All slots or none: with fewer another arm would be measured.
        slots = self._arm.ring_slots
        return SavepointRing(self._ledger, self._layout, slots, allocator, turn_slots=slots, owner=RING)

    @contextlib.contextmanager
    def _opened_pool(self, shape: PoolShape, clock: TraceClock, overflow_folder: Path | None) -> Iterator[PacedPool]:
        scaled = _scaled(shape, self._layout)
        with contextlib.ExitStack() as undo:
            if overflow_folder is not None and scaled.overflow_bytes is not None:
                self.overflow = DiskOverflow(overflow_folder, scaled.layout, scaled.overflow_bytes)
                undo.callback(self.overflow.close)
            pool = PacedPool(
                self._ledger,
                scaled.layout,
                bound_regions=shape.bound_regions,
                min_regions=shape.min_regions,
                fixed_horizon_seconds=shape.fixed_horizon_seconds,
                policy=shape.policy,
                is_sized_by_demand=shape.is_sized_by_demand,
                chunk_tokens=shape.chunk_tokens,
                shared=shape.is_shared,
                owner=POOL,
                overflow=self.overflow,
                prefill_time=shape.prefill_time,
                clock=clock,
            )
            undo.callback(pool.close)
            if shape.is_mapped_at_boot and pool.map_ahead(shape.bound_regions) < shape.bound_regions:
                raise pool.last_refusal or CouldNotMeasure(f"{self._arm.name}: its regions could not be mapped")
            pool.measure_overflow()
            yield pool


def _scaled(shape: PoolShape, layout: SavepointLayout) -> PoolShape:
    """Return a pool with other rows: as many regions, and as many files."""
    overflow = shape.overflow_bytes
    if overflow is not None:
        files = overflow // file_bytes(shape.layout.row_bytes)
        overflow = files * file_bytes(layout.row_bytes)
    return replace(shape, layout=layout, overflow_bytes=overflow)


class _Fits(Exception):
    """Raised in the place of taking memory."""


def _fits() -> NoReturn:
    raise _Fits


def _bring_up_torch() -> Any:
    try:
        library = load_torch()
    except Exception as error:
        reason = "the slots of a ring are torch's tensors, and it can't be imported"
        raise AllocatorUnavailable(f"{reason}: {in_one_line(error)}", "`pip install torch`") from error
    # The first tensors over memory that is not torch's own, and the first copies, bring in what would be no row's.
    layout = SavepointLayout((Slab("first", (4096,), "uint8"),))
    memory = ctypes.create_string_buffer(layout.row_bytes)
    stamp = SavepointStamp(ctypes.addressof(memory), layout.row_bytes)
    stamp.write(1)
    stamp.fault(0)
    layout.views(ctypes.addressof(memory), memory)
    return library
