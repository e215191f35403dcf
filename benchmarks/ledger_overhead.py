"""What the ledger adds to an allocation: a new block, and one that the allocator kept, each beside the bare call.

Limit: a new block at most the larger of 1 % of its allocation and 1 ms. A kept block is stated, in microseconds.
"""

from __future__ import annotations

import mmap
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from pinprobe.ledger.book.host_book import HostBook
from pinprobe.ledger.ledger import HostPinnedLedger
from pinprobe.probes.allocators.allocator import Allocation, Allocator
from pinprobe.probes.allocators.registry import prepare_allocator

SIZES = {"2 MiB": 2 * 2**20, "32 MiB": 32 * 2**20, "148 MiB": 154_927_104, "1 GiB": 2**30}
ROUNDS = 15
KEPT_ROUNDS = 300


class Timed:
    """An allocator's call, and how long it took within whatever called it."""

    def __init__(self, allocator: Allocator, size: int) -> None:
        self.allocator, self.size, self.seconds = allocator, size, 0.0

    def __call__(self) -> Allocation:
        """Allocate."""
        started = time.perf_counter()
        allocation = self.allocator.allocate(self.size)
        self.seconds = time.perf_counter() - started
        return allocation


def give_back(allocation: Allocation) -> None:
    allocation.release()


def main() -> int:
    prepared = prepare_allocator("auto", max(SIZES.values()))
    allocator = prepared.allocator
    allocator.notes()
    missed = False
    shared_memory = Path("/dev/shm")  # where the book lies by default, unless there is none
    with tempfile.TemporaryDirectory(dir=shared_memory if shared_memory.is_dir() else None) as folder:
        books = {name: HostBook(Path(folder, str(number))) for number, name in enumerate(("book", "book, 1,000 held"))}
        ledgers = {
            name: HostPinnedLedger(allocator=allocator.name, book=book)
            for name, book in {"alone": None, **books}.items()
        }
        for ledger in ledgers.values():
            ledger.calibrate()
        pages = mmap.mmap(-1, 1000 * mmap.PAGESIZE)
        held = [memoryview(pages)[start : start + mmap.PAGESIZE] for start in range(0, len(pages), mmap.PAGESIZE)]
        adopted = [ledgers["book, 1,000 held"].adopt(f"tenant {index % 10}", page) for index, page in enumerate(held)]
        print(f"{allocator.name}: median of {ROUNDS} new blocks, of {KEPT_ROUNDS} kept ones; the bare call beside\n")
        print(f"{'':>8}{'ledger':>18}{'bare new':>12}{'added':>10}{'limit':>10}   {'kept, added':>12}")
        for size_name, size in SIZES.items():
            for name, ledger in ledgers.items():
                call = Timed(allocator, size)
                bare, added = added_to(call, ledger, ROUNDS, before=allocator.empty_cache)
                limit = max(0.01 * bare, 0.001)
                _, kept_added = added_to(call, ledger, KEPT_ROUNDS)
                missed |= added > limit
                figures = (
                    f"{bare * 1e3:>9.2f} ms{added * 1e3:>7.2f} ms{limit * 1e3:>7.2f} ms   {kept_added * 1e6:>9.0f} us"
                )
                print(f"{size_name:>8}{name:>18}{figures}{'   OVER' if added > limit else ''}")
        for adoption in adopted:
            adoption.release()
        for ledger in ledgers.values():
            ledger.close()
    return int(missed)


def added_to(
    call: Timed, ledger: HostPinnedLedger, rounds: int, before: Callable[[], None] = lambda: None
) -> tuple[float, float]:
    """Return the median of the bare call, and of what the ledger took beyond the call within it.

    First touch is noisy, so the two are read from the same reservation.
    """
    bare, added = [], []
    for _ in range(rounds):
        before()
        started = time.perf_counter()
        reservation = ledger.reserve("benchmark", call.size, call, free=give_back)
        added.append(time.perf_counter() - started - call.seconds)
        bare.append(call.seconds)
        reservation.release()
    return statistics.median(bare), statistics.median(added)


if __name__ == "__main__":
    sys.exit(main())
