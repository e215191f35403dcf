"""An allocator from outside: `memfd`, shared memory behind a file that has no name in any folder.

Engines take such memory to hand it to other processes. pinprobe measures it like its own allocators once a package
says where it is, in the package's setup.cfg::

    [options.entry_points]
    pinprobe.allocators =
        memfd = memfd_allocator:Memfd

Then `pinprobe probe --allocator memfd --bytes 3000000` knows it, and so does `pinprobe sweep`.

The object that `prepare` returns is pickled into a measuring process, so it holds no memory, no descriptor and no
library. What it raises there has to be `AllocationFailed` with one line, after giving back what it had taken.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os

from pinprobe.probes.errors import AllocationFailed


class MemfdMemory:
    """A memfd mapped as a whole, with every page written."""

    note = "touched"

    def __init__(self, size_bytes: int) -> None:
        descriptor = os.memfd_create("pinprobe-example", os.MFD_CLOEXEC)
        try:
            os.ftruncate(descriptor, size_bytes)
            self._memory = mmap.mmap(descriptor, size_bytes, mmap.MAP_SHARED)
        finally:
            os.close(descriptor)  # the mapping keeps the file alive
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        # A memfd that nobody has written is in no counter.
        for offset in range(0, size_bytes, mmap.PAGESIZE):
            self._memory[offset] = 1

    def release(self) -> None:
        """Unmap it, which was the last hold on the file. A second call does nothing."""
        self._memory.close()


class Memfd:
    """A fresh memfd for every request; no cache."""

    name = "memfd"
    counter = "RssShmem"  # a memfd's pages are shared memory, however few processes map it

    @classmethod
    def prepare(cls, largest_bytes: int) -> Memfd:
        """Nothing is needed; a limit of this machine would be asked about here, with `AllocatorUnavailable`."""
        return cls()

    def notes(self) -> tuple[str, ...]:
        """Nothing to know."""
        return ()

    def allocated_bytes(self) -> None:
        """It keeps no account of its blocks. One that does returns their sum, as a second source."""

    def allocate(self, asked_bytes: int) -> MemfdMemory:
        """Create, map and write `asked_bytes`, rounded up to whole pages."""
        pages = -(-asked_bytes // mmap.PAGESIZE)
        try:
            return MemfdMemory(pages * mmap.PAGESIZE)
        except (OSError, OverflowError) as error:
            # ENOMEM comes from mmap, before a page was taken: under the limit that a sweep sets, that is the limit
            # speaking.
            refused = isinstance(error, OSError) and error.errno == errno.ENOMEM
            raise AllocationFailed(
                f"a memfd of {asked_bytes:,} B can't be had: {error}", no_address_space=refused
            ) from None

    def empty_cache(self) -> None:
        """Nothing is kept."""
