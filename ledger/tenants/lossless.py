"""Sends savepoints through ring and pool and back, and holds what comes out against what went in, bit by bit."""

from __future__ import annotations

import ctypes
import hashlib
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from pinprobe.ledger.tenants.copy_out import CopyOut
from pinprobe.ledger.tenants.pool_entry import Hold
from pinprobe.ledger.tenants.pool_stats import PoolStats
from pinprobe.ledger.tenants.region_sharing import RegionLender, region_id
from pinprobe.ledger.tenants.retention_pool import RetentionPool
from pinprobe.ledger.tenants.savepoint_layout import SavepointLayout, Slab
from pinprobe.ledger.tenants.savepoint_ring import SavepointRing
from pinprobe.ledger.tenants.torch_library import load_torch
from pinprobe.probes.allocators.allocator import Allocator
from pinprobe.probes.errors import AllocatorUnavailable, CouldNotMeasure, in_one_line, printable

if TYPE_CHECKING:
    import torch

    from pinprobe.ledger.ledger import HostPinnedLedger

RING_SLOTS = 4
_LEGS = (
    "device to slot",
    "plain: device to slot",
    "slot to region",
    "plain: slot to region",
    "region to slot",
    "slot to device",
    "plain: slot to device",
)
_PLAIN_ROUNDS = 5
_PATIENCE_SECONDS = 60.0
_BORROW = (
    "import sys, hashlib; sys.path[:] = eval(sys.argv[3]);"
    "from pinprobe.ledger.tenants.region_sharing import borrow;"
    "borrowed = borrow(sys.argv[1], sys.argv[2]); print(hashlib.sha256(borrowed.read()).hexdigest())"
)


@dataclass(frozen=True, slots=True)
class Leg:
    """One way that bytes went: its name, how many in all, and the seconds that it took."""

    name: str
    bytes: int
    seconds: float

    @property
    def gigabytes_a_second(self) -> float:
        """Bytes over seconds, in units of 10**9."""
        return self.bytes / self.seconds / 1e9 if self.seconds else 0.0


@dataclass(frozen=True)
class Lossless:
    """What went in and what came out of some savepoints.

    The hashes are SHA-256 of the first savepoint's whole row: before it was staged, in the pool after all laps of the
    ring, read by another process, and after it was restored. `mismatched` names the slabs of any savepoint that
    came back otherwise, `types` says how many slabs of each type one has.
    """

    device: str
    allocator: str
    row_bytes: int
    slab_count: int
    savepoints: int
    laps: int
    types: Mapping[str, int]
    sha_before: str
    sha_in_pool: str
    sha_elsewhere: str
    sha_restored: str
    mismatched: tuple[str, ...]
    legs: tuple[Leg, ...]
    pool: PoolStats

    @property
    def holds(self) -> bool:
        """Whether every bit of every savepoint came back."""
        hashes = {self.sha_before, self.sha_in_pool, self.sha_elsewhere, self.sha_restored}
        return len(hashes) == 1 and not self.mismatched and self.pool.promoted == self.savepoints


def find_device(name: str) -> str:
    """Return `cpu` or `cuda`; `auto` is the device that torch has, else the processor.

    Raises `AllocatorUnavailable` where torch is missing, or has no such device.
    """
    try:
        torch = load_torch()
    except Exception as error:
        raise AllocatorUnavailable(f"torch can't be imported: {in_one_line(error)}", "`pip install torch`") from error
    has_device = torch.cuda.is_available()
    if name == "cuda" and not has_device:
        raise AllocatorUnavailable("torch has no CUDA device here", "--device cpu needs none")
    return "cuda" if has_device and name != "cpu" else "cpu"


def mixed_layout(scale: Fraction) -> SavepointLayout:
    """Return 96 slabs of three types: a row of 154,927,104 B at a scale of 1, and proportionally less below that."""
    heads = max(3, int(48 * scale) // 3 * 3)
    slabs = []
    for layer in range(48):
        conv_type = "bfloat16" if layer % 2 else "float16"
        slabs.append(Slab(f"layers.{layer}.conv_states", (heads * 640 // 3, 4), conv_type))
        slabs.append(Slab(f"layers.{layer}.recurrent_states", (heads, 128, 128), "float32"))
    return SavepointLayout(tuple(slabs))


def run_lossless(
    ledger: HostPinnedLedger,
    layout: SavepointLayout,
    allocator: Allocator,
    *,
    device: str = "cpu",
    savepoints: int = 1,
    laps: int = 16,
    watch: Callable[[int], None] = lambda done: None,
) -> Lossless:
    """Stage, keep, overrun, share, restore and compare.

    Each of `savepoints` is staged from the device, copied out, and compared after it came back through the ring; the
    first also stays in the pool through `laps` turns of a ring of four slots filled with other bytes. Raises `Refused`
    where the ring or the pool does not fit, `CouldNotMeasure` where a copy does not come to its end.
    """
    import torch

    stream: Any = torch.cuda.Stream(device) if device != "cpu" else None  # type: ignore[no-untyped-call]
    legs: dict[str, list[float]] = {name: [] for name in _LEGS}
    mismatched: list[str] = []
    ring = SavepointRing(ledger, layout, RING_SLOTS, allocator, turn_slots=RING_SLOTS)
    pool = RetentionPool(ledger, layout, bound_regions=2, policy="lru", chunk_tokens=1, shared=True)
    worker = CopyOut(ring, pool)

    def done() -> None:
        if stream is not None:
            stream.synchronize()

    def timed(leg: str, act: Callable[[], Any]) -> Any:
        done()
        started = time.perf_counter()
        result = act()
        done()
        legs[leg].append(time.perf_counter() - started)
        return result

    def keep(tensors: Mapping[str, torch.Tensor], number: int) -> None:
        ticket = timed("device to slot", lambda: ring.stage(tensors, stream))
        started = time.perf_counter()
        worker.submit(ticket, [number], f"conversation {number}")
        if not worker.drain(_PATIENCE_SECONDS):
            raise CouldNotMeasure(f"savepoint {number} was not copied out within {_PATIENCE_SECONDS:.0f} s")
        legs["slot to region"].append(time.perf_counter() - started)

    def restore(held: Hold) -> dict[str, torch.Tensor]:
        ticket = timed("region to slot", lambda: ring.load(held.address))
        targets = {name: torch.empty_like(view, device=device) for name, view in ring.view(ticket).items()}
        timed("slot to device", lambda: ring.restore(ticket, targets, stream))
        return targets

    try:
        blank = (ctypes.c_ubyte * layout.row_bytes)()
        for _ in range(RING_SLOTS):  # what lies between the slabs is hashed too, and a kept block may hold anything
            ring.load(ctypes.addressof(blank))
        first = _random_savepoint(layout, device, seed=0)
        sha_before = _sha_of(layout, first)
        keep(first, 0)
        for lap in range(laps):
            other = _random_savepoint(layout, device, seed=10_000 + lap)
            for _ in range(RING_SLOTS):
                ring.stage(other, stream)
        done()
        held = pool.match([0])
        if held is None:
            raise pool.last_refusal or CouldNotMeasure("the first savepoint did not reach the pool")
        with held, RegionLender(pool) as lender:
            sha_in_pool = _sha(held.address, layout)
            sha_elsewhere = _sha_in_another_process(lender.address, region_id(held))
            restored = restore(held)
        sha_restored = _sha_of(layout, restored)
        mismatched += _differences(first, restored)
        for number in range(1, savepoints):
            watch(number)
            tensors = _random_savepoint(layout, device, seed=number)
            keep(tensors, number)
            found = pool.match([number])
            if found is None:
                mismatched.append(f"savepoint {number} is not in the pool")
                continue
            with found:
                mismatched += _differences(tensors, restore(found))
        worker.close()
        stats = pool.stats()
        _plain_copies(ring, pool, device, legs)
    finally:
        worker.close()
        pool.close()
        ring.close()
    return Lossless(
        device=device,
        allocator=allocator.name,
        row_bytes=layout.row_bytes,
        slab_count=len(layout.slabs),
        savepoints=savepoints,
        laps=laps,
        types=Counter(slab.dtype for slab in layout.slabs),
        sha_before=sha_before,
        sha_in_pool=sha_in_pool,
        sha_elsewhere=sha_elsewhere,
        sha_restored=sha_restored,
        mismatched=tuple(mismatched),
        legs=tuple(Leg(name, layout.row_bytes * len(seconds), sum(seconds)) for name, seconds in legs.items()),
        pool=stats,
    )


def _random_savepoint(layout: SavepointLayout, device: str, seed: int) -> dict[str, torch.Tensor]:
    """Return bits of every pattern, those of not-a-number among them: a copy must not care."""
    import torch

    generator = torch.Generator(device).manual_seed(seed)
    row = torch.randint(0, 256, (layout.row_bytes,), dtype=torch.uint8, device=device, generator=generator)
    return {
        slab.name: row[offset : offset + slab.size_bytes].view(getattr(torch, slab.dtype)).view(slab.shape)
        for slab, offset in zip(layout.slabs, layout.offsets, strict=True)
    }


def _plain_copies(ring: SavepointRing, pool: RetentionPool, device: str, legs: dict[str, list[float]]) -> None:
    """Time the same bytes in one plain copy each: what the link and the memory give by themselves."""
    import torch

    place = pool.take_place([-1], "timing")
    if place is None:
        raise CouldNotMeasure("the pool has no region to copy into")
    size = ring.layout.row_bytes
    slot = torch.frombuffer((ctypes.c_ubyte * size).from_address(ring.address(ring.load(place.region.address))),
                            dtype=torch.uint8)  # fmt: skip
    on_device = torch.empty(size, dtype=torch.uint8, device=device)
    copies: dict[str, Callable[[], object]] = {
        "plain: device to slot": lambda: slot.copy_(on_device, non_blocking=True),
        "plain: slot to region": lambda: ctypes.memmove(place.region.address, slot.data_ptr(), size),
        "plain: slot to device": lambda: on_device.copy_(slot, non_blocking=True),
    }
    for name, copy in copies.items():
        for _ in range(_PLAIN_ROUNDS):
            if device != "cpu":
                torch.cuda.synchronize()
            started = time.perf_counter()
            copy()
            if device != "cpu":
                torch.cuda.synchronize()
            legs[name].append(time.perf_counter() - started)
    pool.give_back(place)


def _differences(before: Mapping[str, torch.Tensor], after: Mapping[str, torch.Tensor]) -> list[str]:
    import torch

    # As bytes: a not-a-number is not equal to itself, and two zeros are that differ.
    return [name for name, tensor in before.items() if not torch.equal(_bits(tensor), _bits(after[name]))]


def _sha_of(layout: SavepointLayout, tensors: Mapping[str, torch.Tensor]) -> str:
    """Hash a row as it would lie in a slot, on the host, without going through either."""
    import torch

    row = torch.zeros(layout.row_bytes, dtype=torch.uint8)
    for slab, offset in zip(layout.slabs, layout.offsets, strict=True):
        row[offset : offset + slab.size_bytes] = _bits(tensors[slab.name]).cpu()
    return _sha(row.data_ptr(), layout)


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    import torch

    return tensor.contiguous().reshape(-1).view(torch.uint8)


def _sha(address: int, layout: SavepointLayout) -> str:
    return hashlib.sha256((ctypes.c_ubyte * layout.row_bytes).from_address(address)).hexdigest()


def _sha_in_another_process(address: str, wanted_id: str) -> str:
    command = [sys.executable, "-I", "-c", _BORROW, address, wanted_id, repr(sys.path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_PATIENCE_SECONDS)
    lines = (done.stdout or done.stderr or "nothing was said").strip().splitlines()
    return printable(lines[-1])[:200]
