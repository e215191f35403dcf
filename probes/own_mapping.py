"""Memory mapped straight from the kernel: what the control, the exact allocators and the page probe stand on.

The standard library's mmap keeps its address to itself and can be closed under a view; here the address, the guards and
the moment of unmapping are ours.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
from types import TracebackType

from pinprobe.probes.errors import AllocationFailed
from pinprobe.probes.units import LARGEST_SIZE_BYTES, format_bytes

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
for _name in ("munmap", "mlock"):
    getattr(_libc, _name).argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

_MAP_FAILED = ctypes.c_void_p(-1).value
_MAP_FIXED = 0x10
_MAP_NORESERVE = 0x4000
_MAP_HUGETLB = 0x40000
_PROT_NONE = 0
_MADV_HUGEPAGE = 14
_MADV_NOHUGEPAGE = 15
_MADV_POPULATE_WRITE = 23  # Linux 5.14
_HUGE_PAGE_BYTES = 2 * 2**20
# One written byte a page, in pieces: the source of a strided write is as long as the pages it writes, and must stay
# small enough to come from memory that the interpreter already has.
_PAGES_A_WRITE = 4096


class OwnMapping:
    """Memory of whole pages between inaccessible guards, so that it merges with no neighbour.

    A context manager; `unmap` may be called twice. Nothing is resident until it is written.
    """

    def __init__(self, size_bytes: int, page_bytes: int, align_bytes: int, flags: int, descriptor: int = -1) -> None:
        self.size_bytes = size_bytes
        self.page_bytes = page_bytes
        # A reservation with room to align in and for a guard at each end; what is wanted is then mapped over its
        # middle.
        self._reserved_bytes = size_bytes + align_bytes + 2 * mmap.PAGESIZE
        reserve = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
        base = _libc.mmap(None, self._reserved_bytes, _PROT_NONE, reserve, -1, 0)
        if base == _MAP_FAILED:
            raise _mapping_refused(size_bytes)
        self._base: int | None = base
        self.address: int = -(-(base + mmap.PAGESIZE) // align_bytes) * align_bytes
        access = mmap.PROT_READ | mmap.PROT_WRITE
        if _libc.mmap(self.address, size_bytes, access, flags | _MAP_FIXED, descriptor, 0) == _MAP_FAILED:
            failure = _mapping_refused(size_bytes)
            if flags & _MAP_HUGETLB:  # then it is the pool that has no pages, whatever the address space has
                failure = AllocationFailed(str(failure))
            self.unmap()
            raise failure

    @classmethod
    def anonymous(cls, asked_bytes: int, *, huge_pages: bool) -> OwnMapping:
        """Map private memory, rounded up to whole pages; with huge pages where the kernel has some for the asking.

        Raises `AllocationFailed` (with `no_address_space`) where the kernel refuses the mapping.
        """
        size = _rounded(asked_bytes, mmap.PAGESIZE)
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        mapping = None
        if huge_pages and size >= _HUGE_PAGE_BYTES:
            with contextlib.suppress(AllocationFailed):  # alignment takes room that a tight limit may not have
                mapping = cls(size, mmap.PAGESIZE, _HUGE_PAGE_BYTES, flags)
        mapping = mapping or cls(size, mmap.PAGESIZE, mmap.PAGESIZE, flags)
        # EINVAL says that this kernel has no transparent huge pages: then none will be used.
        _libc.madvise(mapping.address, size, _MADV_HUGEPAGE if huge_pages else _MADV_NOHUGEPAGE)
        return mapping

    @classmethod
    def memfd(cls, asked_bytes: int) -> OwnMapping:
        """Map a new memfd, rounded up to whole pages. The mapping keeps the memory; the descriptor is closed."""
        size = _rounded(asked_bytes, mmap.PAGESIZE)
        descriptor = os.memfd_create("pinprobe", os.MFD_CLOEXEC)
        try:
            os.ftruncate(descriptor, size)
            return cls(size, mmap.PAGESIZE, mmap.PAGESIZE, mmap.MAP_SHARED, descriptor)
        except OSError as error:
            raise AllocationFailed(f"memfd of {format_bytes(size)} failed: {error.strerror or error}") from None
        finally:
            os.close(descriptor)

    @classmethod
    def hugetlb(cls, asked_bytes: int) -> OwnMapping:
        """Map pages of the kernel's huge page pool, rounded up to whole ones of its default size, 2 MiB."""
        size = _rounded(asked_bytes, _HUGE_PAGE_BYTES)
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_HUGETLB
        return cls(size, _HUGE_PAGE_BYTES, _HUGE_PAGE_BYTES, flags)

    def write_byte(self, offset: int) -> None:
        """Write one byte, which makes its page resident."""
        ctypes.memset(self.address + offset, 1, 1)

    def write_every_page(self) -> None:
        """Write one byte in every page, which makes the whole mapping resident."""
        self._write_pages(0, self.size_bytes)

    def populate(self, offset: int, size_bytes: int) -> None:
        """Make a range of whole pages resident by the kernel's own call, which other threads may do beside.

        Raises `AllocationFailed` where there is no memory for it. Kernels that do not know the call (before 5.14) have
        every page written instead.
        """
        if not _libc.madvise(self.address + offset, size_bytes, _MADV_POPULATE_WRITE):
            return
        code = ctypes.get_errno()
        if code != errno.EINVAL:
            raise AllocationFailed(f"touching {format_bytes(size_bytes)} failed: {os.strerror(code)}")
        self._write_pages(offset, size_bytes)

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
        base, self._base = self._base, None
        if base is not None:
            _libc.munmap(base, self._reserved_bytes)

    def _write_pages(self, offset: int, size_bytes: int) -> None:
        page = mmap.PAGESIZE
        ones = b"\x01" * _PAGES_A_WRITE
        for start in range(offset, offset + size_bytes, _PAGES_A_WRITE * page):
            length = min(_PAGES_A_WRITE * page, offset + size_bytes - start)
            piece = memoryview((ctypes.c_ubyte * length).from_address(self.address + start)).cast("B")
            piece[::page] = ones[: length // page]

    def __enter__(self) -> OwnMapping:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.unmap()


def _rounded(asked_bytes: int, page_bytes: int) -> int:
    if asked_bytes > LARGEST_SIZE_BYTES:  # in C's size_t it could wrap round to something small
        raise AllocationFailed(f"{asked_bytes:,} B are more than any address space holds", no_address_space=True)
    return -(-asked_bytes // page_bytes) * page_bytes


def _mapping_refused(size_bytes: int) -> AllocationFailed:
    code = ctypes.get_errno()
    return AllocationFailed(
        f"mmap of {format_bytes(size_bytes)} failed: {os.strerror(code)}", no_address_space=code == errno.ENOMEM
    )
