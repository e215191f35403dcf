"""Memory mapped straight from the kernel: what the control, the mlock allocator and the page probe stand on.

The standard library's mmap keeps its address to itself and can be closed under a view; here the address, the guards and
the moment of unmapping are ours.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from types import TracebackType

from pinprobe.probes.errors import AllocationFailed
from pinprobe.probes.units import format_bytes

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
for _name in ("munmap", "mlock"):
    getattr(_libc, _name).argtypes = [ctypes.c_void_p, ctypes.c_size_t]
for _name in ("mprotect", "madvise"):
    getattr(_libc, _name).argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

_MAP_FAILED = ctypes.c_void_p(-1).value
_PROT_NONE = 0
_MADV_NOHUGEPAGE = 15
# One written byte a page, in pieces: the source of a strided write is as long as the pages it writes, and must stay
# small enough to come from memory that the interpreter already has.
_PAGES_A_WRITE = 4096


class OwnMapping:
    """Private anonymous memory between two inaccessible guard pages, so that it merges with no neighbour.

    A context manager; `unmap` may be called twice. Nothing is resident until it is written.
    """

    def __init__(self, address: int, size_bytes: int) -> None:
        self.address = address
        self.size_bytes = size_bytes
        self._mapped = True

    @classmethod
    def anonymous(cls, asked_bytes: int, *, huge_pages: bool) -> OwnMapping:
        """Map `asked_bytes`, rounded up to whole pages.

        Raises `AllocationFailed` (with `no_address_space`) where the kernel refuses the mapping.
        """
        page = mmap.PAGESIZE
        size = -(-asked_bytes // page) * page
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        base = _libc.mmap(None, size + 2 * page, _PROT_NONE, flags, -1, 0)
        if base == _MAP_FAILED:
            raise _mapping_refused(asked_bytes)
        if _libc.mprotect(base + page, size, mmap.PROT_READ | mmap.PROT_WRITE):
            failure = _mapping_refused(asked_bytes)
            _libc.munmap(base, size + 2 * page)
            raise failure
        if not huge_pages:
            # EINVAL says that this kernel has no transparent huge pages: then none will be used.
            _libc.madvise(base + page, size, _MADV_NOHUGEPAGE)
        return cls(base + page, size)

    def write_byte(self, offset: int) -> None:
        """Write one byte, which makes its page resident."""
        ctypes.memset(self.address + offset, 1, 1)

    def write_every_page(self) -> None:
        """Write one byte in every page, which makes the whole mapping resident."""
        page = mmap.PAGESIZE
        ones = b"\x01" * _PAGES_A_WRITE
        for start in range(0, self.size_bytes, _PAGES_A_WRITE * page):
            length = min(_PAGES_A_WRITE * page, self.size_bytes - start)
            piece = memoryview((ctypes.c_ubyte * length).from_address(self.address + start)).cast("B")
            piece[::page] = ones[: length // page]

    def lock(self) -> int:
        """Call mlock on the whole mapping; return 0 or the errno it failed with."""
        return ctypes.get_errno() if _libc.mlock(self.address, self.size_bytes) else 0

    def lock_allowed(self) -> int:
        """Ask whether `lock` would be allowed, without making a page resident; return 0 or the errno.

        mlock2 with MLOCK_ONFAULT passes the same checks (limit and privilege) and moves VmLck alone. A kernel or a
        sandbox without it answers ENOSYS, or EINVAL; then the question stays open and 0 is returned.
        """
        if not hasattr(_libc, "mlock2"):
            return 0
        failed = _libc.mlock2(ctypes.c_void_p(self.address), ctypes.c_size_t(self.size_bytes), ctypes.c_uint(1))
        code = ctypes.get_errno() if failed else 0
        return 0 if code in (errno.ENOSYS, errno.EINVAL) else code

    def unmap(self) -> None:
        """Give the memory and its guards back."""
        if self._mapped:
            self._mapped = False
            _libc.munmap(self.address - mmap.PAGESIZE, self.size_bytes + 2 * mmap.PAGESIZE)

    def __enter__(self) -> OwnMapping:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.unmap()


def _mapping_refused(asked_bytes: int) -> AllocationFailed:
    code = ctypes.get_errno()
    return AllocationFailed(
        f"mmap of {format_bytes(asked_bytes)} failed: {os.strerror(code)}", no_address_space=code == errno.ENOMEM
    )
