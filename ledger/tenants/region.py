"""A pageable place for one savepoint, one page longer than its row: that page says what lies in it.

Backed by anonymous memory, or by a memfd, which another process of the same user can map for reading. The memfd is
sealed against a change of its size, and against every writable mapping after the first, which is ours. Nothing of it is
in any file system, so nothing survives its owner.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import mmap
import os
import struct
from dataclasses import dataclass

from pinprobe.probes.errors import AllocationFailed
from pinprobe.probes.own_mapping import OwnMapping
from pinprobe.probes.units import format_bytes

# linux/fcntl.h; the last is of Linux 5.1, and the standard library names it from 3.13 on only.
_F_ADD_SEALS = 1033
_SEAL_SEAL, _SEAL_SHRINK, _SEAL_GROW, _SEAL_FUTURE_WRITE = 0x1, 0x2, 0x4, 0x10
_MFD_ALLOW_SEALING = 2

# magic, how often the region was filled, the row's bytes, the savepoint's key, the tokens it covers.
_PAGE = struct.Struct("=8sQQ16sQ")
_MAGIC = b"pinprobe"


@dataclass(frozen=True, slots=True)
class RegionPage:
    """What the last page of a region says. `filling` is odd while its row is being written."""

    filling: int
    row_bytes: int
    key: bytes
    tokens: int

    def packed(self) -> bytes:
        """Return its bytes."""
        return _PAGE.pack(_MAGIC, self.filling, self.row_bytes, self.key, self.tokens)

    @classmethod
    def parsed(cls, text: bytes) -> RegionPage | None:
        """Read it, or return None where this is no such page."""
        if len(text) < _PAGE.size:
            return None
        magic, *fields = _PAGE.unpack(text[: _PAGE.size])
        return cls(*fields) if magic == _MAGIC else None


def region_bytes(row_bytes: int) -> int:
    """Return what a region takes: its row in whole pages, and one page more."""
    return -(-row_bytes // mmap.PAGESIZE) * mmap.PAGESIZE + mmap.PAGESIZE


class Region:
    """Mapped memory for one row. Not for several threads at once, but for reading what is not being written."""

    def __init__(self, row_bytes: int, shared: bool) -> None:
        """Map it and make it resident. Raises `AllocationFailed`."""
        self.row_bytes = row_bytes
        self.size_bytes = region_bytes(row_bytes)
        self._descriptor: int | None = None
        if shared:
            self._mapping = self._map_memfd()
        else:
            self._mapping = OwnMapping.anonymous(self.size_bytes, huge_pages=True)
        self.address = self._mapping.address
        self._filling = 0
        try:
            self._mapping.populate(0, self.size_bytes)
        except BaseException:
            self.unmap()
            raise

    def begin(self) -> None:
        """Say that the row is being written."""
        self._filling += 1
        self._write_page(bytes(16), 0)

    def finish(self, key: bytes, tokens: int) -> None:
        """Say what lies in the row by now."""
        self._filling += 1
        self._write_page(key, tokens)

    @property
    def filling(self) -> int:
        """How often it was begun and finished; even where it holds a whole row."""
        return self._filling

    def read_only_descriptor(self) -> int:
        """Return a new descriptor of the memfd that can be mapped for reading alone; the caller closes it.

        Raises `AllocationFailed` where the region is not shared.
        """
        if self._descriptor is None:
            raise AllocationFailed("this region is private memory, which no other process can map")
        return os.open(f"/proc/self/fd/{self._descriptor}", os.O_RDONLY | os.O_CLOEXEC)

    def unmap(self) -> None:
        """Give the memory back. A second call does nothing."""
        self._mapping.unmap()
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def _write_page(self, key: bytes, tokens: int) -> None:
        text = RegionPage(self._filling, self.row_bytes, key, tokens).packed()
        ctypes.memmove(self.address + self.size_bytes - mmap.PAGESIZE, text, len(text))

    def _map_memfd(self) -> OwnMapping:
        try:
            descriptor = os.memfd_create("pinprobe-region", os.MFD_CLOEXEC | _MFD_ALLOW_SEALING)
        except OSError as error:
            raise AllocationFailed(f"memfd of {format_bytes(self.size_bytes)} failed: {error.strerror}") from None
        with contextlib.ExitStack() as undo:
            undo.callback(os.close, descriptor)
            try:
                os.ftruncate(descriptor, self.size_bytes)
                mapping = OwnMapping(self.size_bytes, mmap.PAGESIZE, mmap.PAGESIZE, mmap.MAP_SHARED, descriptor)
                undo.callback(mapping.unmap)
                fcntl.fcntl(descriptor, _F_ADD_SEALS, _SEAL_SHRINK | _SEAL_GROW | _SEAL_FUTURE_WRITE | _SEAL_SEAL)
            except OSError as error:
                raise AllocationFailed(f"memfd of {format_bytes(self.size_bytes)} failed: {error.strerror}") from None
            undo.pop_all()
        self._descriptor = descriptor
        return mapping
