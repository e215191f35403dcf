"""What the overflow's checks cost: its write and its restore beside plain ones of the same bytes in the same folder.

Limit: each reaches 80 % of the plain one. Plain is sequential and past the page cache, in pieces of 8 MiB, and a write
counts once the drive has it, as the overflow's does; it hashes nothing, sets nothing aside and renames nothing. The
share is the median of each round's own, since a drive's speed drifts.

    python benchmarks/overflow.py [FOLDER]      a folder on the drive in question; otherwise this one's drive
"""

from __future__ import annotations

import ctypes
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from pinprobe.ledger.tenants.disk_overflow import DiskOverflow
from pinprobe.ledger.tenants.overflow_file import padded_row_bytes
from pinprobe.ledger.tenants.restore import Stage
from pinprobe.ledger.tenants.row_transfer import RowFile
from pinprobe.ledger.tenants.savepoint_layout import SavepointLayout
from pinprobe.probes.own_mapping import OwnMapping

LAYOUT = SavepointLayout.of_geometry(
    48, {"conv": ((10_240, 4), "bfloat16"), "recurrent": ((48, 128, 128), "float32")}
)  # 154,927,104 B in 96 slabs
SIZE_BYTES = padded_row_bytes(LAYOUT.row_bytes)
PIECE_BYTES = 8 * 2**20
ROUNDS = 21
LIMIT = 0.8


def main() -> int:
    parent = Path(sys.argv[1]) if len(sys.argv) > 1 else Path.cwd()
    with (
        tempfile.TemporaryDirectory(prefix="overflow-", dir=parent) as folder,
        OwnMapping.anonymous(SIZE_BYTES, huge_pages=True) as source,
        OwnMapping.anonymous(SIZE_BYTES, huge_pages=True) as target,
    ):
        ctypes.memmove(source.address, os.urandom(SIZE_BYTES), SIZE_BYTES)
        target.write_every_page()
        return compared(Path(folder), source.address, target.address)


def compared(folder: Path, source: int, target: int) -> int:
    plain = folder / "plain"
    overflow = DiskOverflow(folder, LAYOUT, 3 * SIZE_BYTES)
    key = bytes(16)

    def plain_write() -> None:
        with opened(plain, os.O_RDWR | os.O_CREAT | os.O_TRUNC) as file:
            for offset, piece in pieces(source):
                file.write(piece, offset)
            file.sync()

    def plain_read() -> None:
        with opened(plain, os.O_RDONLY) as file:
            for offset, piece in pieces(target):
                file.read(piece, offset)

    def write() -> None:
        outcome = overflow.write(key, 6000, source, 1.0)
        assert outcome.is_written, outcome

    def restore() -> None:
        restore = overflow.begin_restore(key, target)
        assert restore is not None
        restore.wait(60)
        assert restore.collect().stage is Stage.READY, restore.collect()

    ways: dict[str, Callable[[], None]] = {
        "plain write": plain_write, "overflow write": write, "plain read": plain_read, "overflow restore": restore,
    }  # fmt: skip
    took: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(ROUNDS + 1):
        # In turn, and the other way round every second time, so that a slow moment of the drive meets both.
        names = list(ways) if turn % 2 else ["overflow write", "plain write", "overflow restore", "plain read"]
        for name in names:
            started = time.perf_counter()
            ways[name]()
            if turn:  # the first one is for what is loaded then
                took[name].append(time.perf_counter() - started)
        assert ctypes.string_at(target, SIZE_BYTES) == ctypes.string_at(source, SIZE_BYTES)
        overflow.drop(key)
        plain.unlink()
    stats = overflow.stats()
    overflow.close()
    way = "past the page cache" if stats.is_direct else "THROUGH THE PAGE CACHE, which this file system insists on"
    print(f"one row of {LAYOUT.row_bytes:,} B in {folder.parent}, {way}; median of {ROUNDS}\n")
    medians = {name: statistics.median(seconds) for name, seconds in took.items()}
    failed = 0
    for name, seconds in medians.items():
        beside = took["plain write" if "write" in name else "plain read"]
        share = statistics.median(plain / own for plain, own in zip(beside, took[name], strict=True))
        is_below = share < LIMIT
        failed += is_below
        print(
            f"{name:>18}{seconds * 1e3:9.1f} ms{LAYOUT.row_bytes / seconds / 1e9:8.2f} GB/s{share:8.0%}"
            f"{f'   BELOW {LIMIT:.0%}' if is_below else ''}"
        )
    return int(failed > 0)


def opened(path: Path, flags: int) -> RowFile:
    return RowFile(os.open(path, flags | os.O_CLOEXEC))


def pieces(address: int) -> list[tuple[int, memoryview]]:
    memory = memoryview((ctypes.c_ubyte * SIZE_BYTES).from_address(address)).cast("B")
    return [(offset, memory[offset : offset + PIECE_BYTES]) for offset in range(0, SIZE_BYTES, PIECE_BYTES)]


if __name__ == "__main__":
    sys.exit(main())
