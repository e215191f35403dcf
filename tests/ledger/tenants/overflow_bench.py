"""Savepoints for an overflow, the memory that they lie in, and its folder as the file system has it."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import random
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from pinprobe.ledger.tenants import row_transfer
from pinprobe.ledger.tenants.disk_overflow import DiskOverflow
from pinprobe.ledger.tenants.overflow_file import padded_row_bytes
from pinprobe.ledger.tenants.overflow_outcome import WriteEnd
from pinprobe.ledger.tenants.restore import Restore, Stage
from pinprobe.ledger.tenants.savepoint_layout import SavepointLayout, Slab
from pinprobe.probes.own_mapping import OwnMapping

if TYPE_CHECKING:
    import pytest

PATIENCE_SECONDS = 60
#: Not whole pages, so that the row ends within one.
SMALL = SavepointLayout((Slab("state", (777, 5), "float32"), Slab("odd", (333,), "uint8")))
#: In pieces of a page, its file takes a while to write and to read.
LARGE = SavepointLayout((Slab("state", (4, 2**20), "uint8"),))
#: By the numbers here alone: the header, and the row in whole pages.
SMALL_FILE_BYTES = 4096 + 4 * 4096
LARGE_FILE_BYTES = 4096 + 4 * 2**20


def key(number: int) -> bytes:
    return number.to_bytes(16, "big")


def row(number: int, layout: SavepointLayout = SMALL) -> bytes:
    """The pages of savepoint `number`: no two are alike, and none is zero."""
    return random.Random(number).randbytes(padded_row_bytes(layout.row_bytes))


class Pages:
    """Whole pages of memory for one row."""

    def __init__(self, layout: SavepointLayout = SMALL) -> None:
        self._mapping = OwnMapping.anonymous(layout.row_bytes, huge_pages=False)
        self.address = self._mapping.address
        self.size_bytes = padded_row_bytes(layout.row_bytes)

    @property
    def content(self) -> bytes:
        return ctypes.string_at(self.address, self.size_bytes)

    @content.setter
    def content(self, content: bytes) -> None:
        assert len(content) == self.size_bytes
        ctypes.memmove(self.address, content, self.size_bytes)

    def holding(self, number: int, layout: SavepointLayout = SMALL) -> int:
        """Fill it with savepoint `number`; return its address."""
        self.content = row(number, layout)
        return self.address

    def unmap(self) -> None:
        self._mapping.unmap()


def wait_for(is_so: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not is_so():
        assert time.monotonic() < deadline, "it never came to be"
        time.sleep(0.001)


def our_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("pinprobe-r")]


def files(folder: Path) -> list[Path]:
    """Every file below the folder but for the lock, the oldest first."""
    found = [path for path in folder.rglob("*") if path.is_file() and path.name != "overflow.lock"]
    return sorted(found, key=lambda path: path.stat().st_mtime_ns)


def on_disk_bytes(folder: Path) -> int:
    """What the files take by du's count, of blocks and of lengths, whichever is more."""
    paths = [str(path) for path in files(folder)]
    counts = []
    for options in (["--block-size=1"], ["--apparent-size", "--block-size=1"]):
        done = subprocess.run(["du", "-c", *options, *paths], capture_output=True, text=True, check=True)
        counts.append(int(done.stdout.splitlines()[-1].split()[0]) if paths else 0)
    return max(counts)


def written(overflow: DiskOverflow, pages: Pages, *numbers: int, value: float = 1.0) -> None:
    for number in numbers:
        outcome = overflow.write(key(number), number, pages.holding(number), value)
        assert outcome.end is WriteEnd.WRITTEN, outcome


def ended(restore: Restore | None) -> Restore:
    assert restore is not None
    assert restore.wait(PATIENCE_SECONDS)
    return restore


def is_read_back(overflow: DiskOverflow, pages: Pages, number: int) -> bool:
    pages.content = bytes(pages.size_bytes)
    restore = overflow.begin_restore(key(number), pages.address)
    if restore is None:
        return False
    assert ended(restore).collect().stage is Stage.READY, restore.collect()
    assert pages.content == row(number)
    return True


def used_bytes_while_it_changes(folder: Path) -> int:
    """What the files take at one moment: with the lock held nobody takes room, and who deletes only makes it less."""
    used = 0
    with (folder / "overflow.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for path in [path for place in folder.glob("savepoints-*") for path in place.iterdir()]:
            with contextlib.suppress(FileNotFoundError):
                found = path.stat()
                used += max(found.st_size, found.st_blocks * 512)
    return used


class Stepped:
    """Stands between the pieces of a transfer: while it holds them, each stops after its first until it is let on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.holds = False
        self._entered, self._go_on = threading.Semaphore(0), threading.Event()
        self._pieces = row_transfer._chunks
        monkeypatch.setattr(row_transfer, "CHUNK_BYTES", LARGE.row_bytes // 4)
        monkeypatch.setattr(row_transfer, "_chunks", self._stepped)

    def _stepped(self, address: int, size_bytes: int) -> Iterator[tuple[int, memoryview]]:
        for offset, piece in self._pieces(address, size_bytes):
            if offset and self.holds:
                self._entered.release()
                assert self._go_on.wait(PATIENCE_SECONDS)
            yield offset, piece

    def wait_until_held(self, count: int = 1) -> None:
        for _ in range(count):
            assert self._entered.acquire(timeout=PATIENCE_SECONDS)

    def let_on(self) -> None:
        self.holds = False
        self._go_on.set()
