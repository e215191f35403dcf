"""What keeping a savepoint costs: its copy beside a plain memmove, and what a neighbour thread loses meanwhile.

Limits: the copy-out reaches 90 % of a plain memmove of the same bytes, and a neighbour that computes is off the CPU at
most 1 point more than with nothing beside it. Shown against a copy slab by slab and against waiting on the fence.
"""

from __future__ import annotations

import ctypes
import statistics
import sys
import threading
import time
from array import array
from collections.abc import Callable
from typing import Any

from pinprobe import HostPinnedLedger
from pinprobe.ledger.tenants.copy_out import CopyOut
from pinprobe.ledger.tenants.pool_entry import Place
from pinprobe.ledger.tenants.retention_pool import RetentionPool
from pinprobe.ledger.tenants.savepoint_layout import SavepointLayout, Slab
from pinprobe.ledger.tenants.savepoint_ring import SavepointRing, Ticket
from pinprobe.probes.allocators.registry import prepare_allocator

LAYOUT = SavepointLayout.of_geometry(
    48, {"conv": ((10_240, 4), "bfloat16"), "recurrent": ((48, 128, 128), "float32")}
)  # 154,927,104 B in 96 slabs
ROUNDS = 15
WATCHED_SECONDS = 0.5
TURNS = 9
FENCE_SECONDS = 0.02


class LateRing(SavepointRing):
    """A ring whose device needs a while for each copy. A stand-in: the copy is complete by the clock."""

    done_at = 0.0

    def start_late(self) -> None:
        """Have what is staged be complete in a while from now."""
        self.done_at = time.perf_counter() + FENCE_SECONDS

    def is_staged(self, ticket: Ticket) -> bool:
        """Say whether the while is over, as a query of the device would."""
        return time.perf_counter() >= self.done_at and super().is_staged(ticket)


def main() -> int:
    allocator = prepare_allocator("auto", 2 * LAYOUT.row_bytes).allocator
    allocator.notes()
    with HostPinnedLedger(allocator=allocator.name) as ledger:
        ring = LateRing(ledger, LAYOUT, 1, allocator)
        pool = RetentionPool(ledger, LAYOUT, bound_regions=1, policy="lru", chunk_tokens=2048)
        ticket = ring.stage({slab.name: slab_tensor(slab) for slab in LAYOUT.slabs})
        failed = speeds(ring, ticket, pool) + neighbours(ring, ticket, pool)
        pool.close()
        ring.close()
    return int(failed > 0)


def slab_tensor(slab: Slab) -> Any:
    import torch

    return torch.ones(slab.shape, dtype=getattr(torch, slab.dtype))


def speeds(ring: LateRing, ticket: Ticket, pool: RetentionPool) -> int:
    source = ring.address(ticket)
    place = pool.take_place(range(4096), "benchmark")  # the only one, so that every way writes the same memory
    assert place is not None
    target = place.region.address
    pool.give_back(place)

    def plain() -> None:
        ctypes.memmove(target, source, LAYOUT.row_bytes)

    def per_slab() -> None:
        views, slabs = ring.view(ticket), LAYOUT.views(target, pool)
        for name, slab in slabs.items():
            slab.copy_(views[name])

    numbers = [0]  # each savepoint is of a prompt of its own: what is here already is not copied again

    def kept() -> None:
        numbers[0] += 1
        place = pool.take_place(range(numbers[0], numbers[0] + 5000), "benchmark")
        assert place is not None
        place.region.begin()
        ctypes.memmove(place.region.address, source, LAYOUT.row_bytes)
        assert ring.is_live(ticket)
        pool.publish(place)

    ways: dict[str, Callable[[], None]] = {"plain memmove": plain, "copy-out": kept, "slab by slab": per_slab}
    took: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS):  # in turn, so that a slow moment of the machine meets all of them
        for name, way in ways.items():
            started = time.perf_counter()
            way()
            took[name].append(time.perf_counter() - started)
    medians = {name: statistics.median(seconds) for name, seconds in took.items()}
    print(f"one savepoint of {LAYOUT.row_bytes:,} B, median of {ROUNDS}\n")
    for name, seconds in medians.items():
        share = medians["plain memmove"] / seconds
        over = "   BELOW 90%" if name == "copy-out" and share < 0.9 else ""
        print(f"{name:>16}{seconds * 1e3:9.2f} ms{LAYOUT.row_bytes / seconds / 1e9:8.2f} GB/s{share:8.0%}{over}")
    return medians["plain memmove"] / medians["copy-out"] < 0.9


def neighbours(ring: LateRing, ticket: Ticket, pool: RetentionPool) -> int:
    stop = threading.Event()
    source = ring.address(ticket)

    def nothing() -> None:
        stop.wait()

    def kept() -> None:
        worker, tokens = CopyOut(ring, pool), array("q", range(5000))
        number = 0
        while not stop.is_set():
            number += 1
            ring.start_late()
            tokens[0] = number  # another prompt each time
            worker.submit(ticket, tokens, "neighbour")
            worker.drain(5)
        worker.close()

    def waits(place: Place) -> None:
        ring.start_late()
        while not ring.is_staged(ticket):  # as waiting on a fence spins
            pass
        ctypes.memmove(place.region.address, source, LAYOUT.row_bytes)

    def per_slab(place: Place) -> None:
        ring.start_late()
        while not ring.is_staged(ticket):
            time.sleep(0.001)
        views = ring.view(ticket)
        for name, slab in LAYOUT.views(place.region.address, place).items():
            slab.copy_(views[name])

    def again_and_again(copy: Callable[[Place], None]) -> None:
        place = pool.take_place(range(5000), "benchmark")
        assert place is not None
        while not stop.is_set():
            copy(place)
        pool.give_back(place)

    ways: dict[str, Callable[[], None]] = {
        "nothing": nothing,
        "copy-out": kept,
        "fence waited for": lambda: again_and_again(waits),
        "slab by slab": lambda: again_and_again(per_slab),
    }
    print(f"\na thread that computes, off the CPU beside each: median of {TURNS} times {WATCHED_SECONDS} s\n")
    seen: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(TURNS):  # in turn, since other processes take the CPU as well
        for name, beside in ways.items():
            stop.clear()
            thread = threading.Thread(target=beside)
            thread.start()
            seen[name].append(off_cpu_share())
            stop.set()
            thread.join()
    shares = {name: statistics.median(values) for name, values in seen.items()}
    for name, share in shares.items():
        more = share - shares["nothing"]
        over = "   OVER 1 point" if name == "copy-out" and more > 0.01 else ""
        print(f"{name:>16}{share:9.2%}{more * 100:+8.2f} points{over}")
    return shares["copy-out"] - shares["nothing"] > 0.01


def off_cpu_share() -> float:
    """Compute for a while in this thread; return the share of the time in which it was not on a processor."""
    started, on_cpu = time.perf_counter(), time.thread_time()
    number = 0
    while time.perf_counter() - started < WATCHED_SECONDS:
        for _ in range(10_000):
            number = (number * 31 + 7) % 1_000_003
    wall = time.perf_counter() - started
    return max(0.0, 1 - (time.thread_time() - on_cpu) / wall)


if __name__ == "__main__":
    sys.exit(main())
