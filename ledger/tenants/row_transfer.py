"""Moves a row between memory and an open file, in chunks and past the page cache, while it is hashed beside.

The page cache would hold each row a second time, in memory that the overflow is there to spare. Where a file system
refuses to go without it, the bytes go through it and are dropped from it.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import queue
import threading
from collections.abc import Callable, Iterator
from types import TracebackType

from pinprobe.ledger.tenants.overflow_file import HEADER_BYTES

#: Large enough for a drive's full speed, small enough to stop soon.
CHUNK_BYTES = 8 * 2**20


class CutShort(Exception):
    """The file ends before the row does."""


class RowFile:
    """An open file, which is closed with it. `is_direct` says whether its bytes go past the page cache.

    A context manager. Addresses, offsets and sizes are whole pages; `OSError` comes through as the system gives it.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.is_direct = True
        try:
            self._set_direct(True)
        except BaseException:
            os.close(descriptor)
            raise

    def write(self, view: memoryview, offset: int) -> None:
        """Write all of it."""
        done = 0
        while done < len(view):
            done += self._call(os.pwrite, view[done:], offset + done)

    def read(self, view: memoryview, offset: int) -> None:
        """Fill all of it. Raises `CutShort` where the file ends before."""
        done = 0
        while done < len(view):
            count = self._call(lambda file, part, at: os.preadv(file, [part], at), view[done:], offset + done)
            if not count:
                raise CutShort(f"it ends after {offset + done:,} B")
            done += count

    def sync(self) -> None:
        """Have everything on the drive."""
        os.fsync(self._descriptor)

    def _call(self, call: Callable[[int, memoryview, int], int], view: memoryview, offset: int) -> int:
        try:
            return call(self._descriptor, view, offset)
        except OSError as error:
            # After a transfer that ended within a block the next one is no longer aligned; and there are drives whose
            # blocks are larger than a page.
            if error.errno != errno.EINVAL or not self.is_direct:
                raise
        self._set_direct(False)
        return call(self._descriptor, view, offset)

    def _set_direct(self, is_wanted: bool) -> None:
        flags = fcntl.fcntl(self._descriptor, fcntl.F_GETFL)
        try:
            fcntl.fcntl(self._descriptor, fcntl.F_SETFL, flags | os.O_DIRECT if is_wanted else flags & ~os.O_DIRECT)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            is_wanted = False
        self.is_direct = is_wanted

    def __enter__(self) -> RowFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not self.is_direct:
            with contextlib.suppress(OSError):
                os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        with contextlib.suppress(OSError):  # what was to be on the drive was synced before
            os.close(self._descriptor)


class _HashBeside:
    """xxh3_128 of memory on a thread of its own, in the order in which it is given.

    A context manager; after it no memory is read any more. Where no thread can be had, the caller's own does it.
    """

    def __init__(self) -> None:
        import xxhash

        self._state = xxhash.xxh3_128()
        self._given: queue.SimpleQueue[memoryview | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = threading.Thread(
            target=self._run, name="pinprobe-row-hash", daemon=True
        )
        try:
            self._thread.start()
        except RuntimeError:
            self._thread = None

    def add(self, view: memoryview) -> None:
        """Hash what lies there, soon."""
        if self._thread is None:
            self._state.update(view)
        else:
            self._given.put(view)

    def digest(self) -> bytes:
        """Wait for the rest, and return the hash of everything that was given."""
        self._end()
        return bytes(self._state.digest())

    def _end(self) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            self._given.put(None)
            thread.join()

    def _run(self) -> None:
        while (view := self._given.get()) is not None:
            self._state.update(view)

    def __enter__(self) -> _HashBeside:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._end()


def write_row(file: RowFile, address: int, size_bytes: int, check_wanted: Callable[[], None]) -> bytes:
    """Write an empty header and behind it the memory at `address`; return the row's hash.

    Raises `OSError`, and what `check_wanted` raises between two chunks once it is wanted no more.
    """
    # Writing from the very beginning on: ext4 takes twice as long to fill what was set aside from its second page on.
    write_header(file, bytes(HEADER_BYTES))
    with _HashBeside() as hashing:
        for offset, view in _chunks(address, size_bytes):
            check_wanted()
            hashing.add(view)
            file.write(view, HEADER_BYTES + offset)
        return hashing.digest()


def read_row(file: RowFile, address: int, size_bytes: int, check_wanted: Callable[[], None]) -> bytes:
    """Read what lies behind the header into the memory at `address`; return the hash of what lies there then.

    Raises `CutShort`, `OSError`, and what `check_wanted` raises between two chunks once it is wanted no more. Whatever
    it ends with, the memory is not touched afterwards.
    """
    with _HashBeside() as hashing:
        for offset, view in _chunks(address, size_bytes):
            check_wanted()
            file.read(view, HEADER_BYTES + offset)
            hashing.add(view)
        return hashing.digest()


def write_header(file: RowFile, page: bytes) -> None:
    """Write a header's page at the file's beginning. Raises `OSError`."""
    aligned = _page()
    aligned[:] = page
    file.write(memoryview(aligned), 0)


def read_header(file: RowFile) -> bytes:
    """Return the file's first page. Raises `CutShort` and `OSError`."""
    aligned = _page()
    file.read(memoryview(aligned), 0)
    return aligned[:]


def _page() -> mmap.mmap:
    # Not closed by us: after an error its traceback still has views of it, and closing would raise another.
    return mmap.mmap(-1, HEADER_BYTES)


def _chunks(address: int, size_bytes: int) -> Iterator[tuple[int, memoryview]]:
    memory = memoryview((ctypes.c_ubyte * size_bytes).from_address(address)).cast("B")
    for offset in range(0, size_bytes, CHUNK_BYTES):
        yield offset, memory[offset : offset + CHUNK_BYTES]
