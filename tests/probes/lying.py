"""Allocators that lie, or do what no allocator should: each a fake of one way in which a foreign one may go wrong."""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import time
from typing import Any

from pinprobe.probes.allocators.uncached import MappedMemory, Uncached
from pinprobe.probes.own_mapping import OwnMapping

MIB = 2**20
PAGE = mmap.PAGESIZE


class Somewhere:
    """An allocation that is nothing but an address."""

    note = "lying"

    def __init__(self, address: int) -> None:
        self.address = address

    def release(self) -> None:
        """Keep everything."""


class Lying(Uncached):
    name = "lying"
    counter = "RssShmem"

    @classmethod
    def prepare(cls, largest_bytes: int) -> Any:
        return cls()

    def __getstate__(self) -> dict[str, object]:
        return {}

    def allocate(self, asked_bytes: int) -> Somewhere | MappedMemory:
        raise NotImplementedError


class Nowhere(Lying):
    """Hands out address 0."""

    def allocate(self, asked_bytes: int) -> Somewhere:
        return Somewhere(0)


class Freed(Lying):
    """Hands out memory that it has unmapped already."""

    def allocate(self, asked_bytes: int) -> Somewhere:
        with OwnMapping.memfd(asked_bytes) as mapping:
            mapping.write_every_page()
            return Somewhere(mapping.address)


class ResidentBefore(Lying):
    """A pool that was made resident before anything was asked of it."""

    def notes(self) -> tuple[str, ...]:
        self._pool = OwnMapping.memfd(64 * MIB)
        self._pool.write_every_page()
        return ()

    def allocate(self, asked_bytes: int) -> Somewhere:
        return Somewhere(self._pool.address)


class TouchedAsNeeded(Lying):
    """An arena that makes resident what nobody used before, and hands it all out from its beginning."""

    def notes(self) -> tuple[str, ...]:
        self._pool = OwnMapping.memfd(64 * MIB)
        self._touched = 0
        return ()

    def allocate(self, asked_bytes: int) -> Somewhere:
        upto = -(-asked_bytes // PAGE) * PAGE
        if upto > self._touched:
            self._pool.populate(self._touched, upto - self._touched)
            self._touched = upto
        return Somewhere(self._pool.address)


class WrongCounter(Lying):
    """Says that its pages show in a counter in which they do not."""

    counter = "RssAnon"

    def allocate(self, asked_bytes: int) -> MappedMemory:
        mapping = OwnMapping.memfd(asked_bytes)
        mapping.write_every_page()
        return MappedMemory(mapping, "touched")


class Untouched(Lying):
    """Maps and makes nothing resident."""

    def allocate(self, asked_bytes: int) -> MappedMemory:
        return MappedMemory(OwnMapping.memfd(asked_bytes), "nothing")


class SecondCopy(Lying):
    """Takes everything twice, as an emulation that keeps an unpacked copy beside the pinned one."""

    def allocate(self, asked_bytes: int) -> MappedMemory:
        self._copy = OwnMapping.memfd(asked_bytes)
        self._copy.write_every_page()
        mapping = OwnMapping.memfd(asked_bytes)
        mapping.write_every_page()
        return MappedMemory(mapping, "touched")


class Leaking(Lying):
    """Never gives anything back."""

    def allocate(self, asked_bytes: int) -> Somewhere:
        mapping = OwnMapping.memfd(asked_bytes)
        mapping.write_every_page()
        return Somewhere(mapping.address)


class MappedBefore(Lying):
    """Has its address space from the start, so that no limit on mappings meets it."""

    def notes(self) -> tuple[str, ...]:
        self._arena = OwnMapping.memfd(1024 * MIB)
        self._next = 0
        return ()

    def allocate(self, asked_bytes: int) -> Somewhere:
        size = 4 * -(-asked_bytes // PAGE) * PAGE  # four times what is asked
        self._arena.populate(self._next, size)
        self._next += size
        return Somewhere(self._arena.address + self._next - size)


class LockedInPart(Lying):
    """Memory whose middle is locked, which makes three mappings of one."""

    counter = "RssAnon"

    def allocate(self, asked_bytes: int) -> MappedMemory:
        mapping = OwnMapping.anonymous(asked_bytes, huge_pages=False)
        mapping.write_every_page()
        assert ctypes.CDLL(None).mlock(ctypes.c_void_p(mapping.address + 16 * PAGE), ctypes.c_size_t(PAGE)) == 0
        return MappedMemory(mapping, "touched")


class Forking(Lying):
    """Leaves a child behind that holds every descriptor, and dies."""

    def allocate(self, asked_bytes: int) -> Somewhere:
        if os.fork() == 0:
            time.sleep(60)
            os._exit(0)
        os.kill(os.getpid(), 11)
        return Somewhere(0)


class Talking(Lying):
    """Prints, and raises in many lines."""

    def allocate(self, asked_bytes: int) -> Somewhere:
        sys.stdout.write("hello\n")
        raise RuntimeError("first\x1b[31m\nsecond\nthird")
