"""`registered`: memory mapped by ourselves and page-locked by the driver. It costs what was asked, to the page.

Three kinds of mapping, told apart because each shows in another counter: anonymous memory with huge page advice
(RssAnon), memfd (RssShmem), and the kernel's huge page pool (HugetlbPages, in no RSS). The pages are made resident by
several threads first, since the driver alone does it on one, and then registered in one call.

A copy that crosses from one registration into the next fails, though `is_pinned()` is true for its start. So a
registration is cut only where the driver's limit for one call forces it, and then only where the caller says that no
copy will cross: at the boundaries of its slots.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cached_property
from threading import Barrier
from typing import TYPE_CHECKING, Protocol

from pinprobe.probes.allocators.uncached import Uncached
from pinprobe.probes.cuda_driver import CudaDriver
from pinprobe.probes.errors import AllocationFailed, AllocatorUnavailable
from pinprobe.probes.headroom import read_headroom
from pinprobe.probes.host_tree import THIS_HOST
from pinprobe.probes.own_mapping import OwnMapping
from pinprobe.probes.reading import Reading
from pinprobe.probes.units import format_bytes

if TYPE_CHECKING:
    import torch

#: One call for 512 GiB or more fails on driver r580 and later, with an error about something else; 511.96 GiB passes.
CALL_CEILING_BYTES = 2**39
# Small pieces keep all threads busy to the end, and each is many huge pages.
_PIECE_BYTES = 64 * 2**20
_MOST_THREADS = 16


class Registrar(Protocol):
    """What page-locks mapped memory: the driver, or a double that fails on demand."""

    def register(self, address: int, size_bytes: int) -> None:
        """Page-lock. Raises `AllocationFailed`."""

    def unregister(self, address: int) -> None:
        """Let go of the registration that begins there."""


def cut(size_bytes: int, slot_bytes: int | None, ceiling_bytes: int, page_bytes: int) -> list[tuple[int, int]]:
    """Cut a range into (offset, size) pieces below the ceiling, at slot boundaries and nowhere else.

    Raises `AllocationFailed` where one call can't take the whole and no slot size is named, or a slot's end is no
    page's end (registrations are of whole pages, and two of them must not share one), or one slot alone is too large.

    >>> cut(10, 4, 9, 1), cut(10, None, 11, 1)
    ([(0, 8), (8, 2)], [(0, 10)])
    """
    if size_bytes < ceiling_bytes:
        return [(0, size_bytes)]
    limit = f"one call registers less than {format_bytes(ceiling_bytes)}"
    if slot_bytes is None:
        raise AllocationFailed(f"{limit}, and a copy across two registrations fails: name the slot size to cut at")
    if slot_bytes % page_bytes:
        raise AllocationFailed(
            f"{limit}, and slots of {slot_bytes:,} B end inside a page: pad them to {page_bytes:,} B"
        )
    slots_a_piece = (ceiling_bytes - 1) // slot_bytes
    if slots_a_piece == 0:
        raise AllocationFailed(f"{limit}, and one slot of {format_bytes(slot_bytes)} is more: it would have to be cut")
    step = slots_a_piece * slot_bytes
    return [(offset, min(step, size_bytes - offset)) for offset in range(0, size_bytes, step)]


class RegisteredMemory:
    """A mapping whose pages the driver has page-locked. `release` undoes both; the collector calls it at the latest."""

    def __init__(self, mapping: OwnMapping, pieces: list[tuple[int, int]], registrar: Registrar, kind: str) -> None:
        self.address = mapping.address
        self.size_bytes = mapping.size_bytes
        self.note = f"{kind}, registered in {len(pieces)} call{'s' if len(pieces) > 1 else ''}"
        starts = [mapping.address + offset for offset, _ in pieces]
        self._undo = weakref.finalize(self, _undo, mapping, starts, registrar)
        self._undo.atexit = False  # at exit the driver is gone before this would run, and the kernel takes all

    def release(self) -> None:
        """Unregister and unmap. Views of the memory must not be used any more."""
        self._undo()

    def tensor(self, asked_bytes: int) -> torch.Tensor:
        """Return the first `asked_bytes` as a tensor of bytes for which `is_pinned()` is true.

        The tensor and every view of it keep this memory; where all of them and this object are gone, it is released.
        """
        import torch

        if asked_bytes > self.size_bytes:
            raise AllocationFailed(f"a tensor of {asked_bytes:,} B does not fit into {self.size_bytes:,} B")
        holder = (ctypes.c_ubyte * asked_bytes).from_address(self.address)
        holder.owner = self  # type: ignore[attr-defined]  # the buffer that torch keeps alive keeps us alive
        return torch.frombuffer(holder, dtype=torch.uint8)


def _undo(mapping: OwnMapping, starts: list[int], registrar: Registrar) -> None:
    try:
        _unregister_all(starts, registrar)
    finally:
        mapping.unmap()


def _unregister_all(starts: list[int], registrar: Registrar) -> None:
    """Let go of every registration, also where one of them can't be; then raise what was said, all of it."""
    failures = []
    for start in starts:
        try:
            registrar.unregister(start)
        except AllocationFailed as error:
            failures.append(str(error))
    if failures:
        raise AllocationFailed("; ".join(failures))


def register_whole(mapping: OwnMapping, pieces: list[tuple[int, int]], registrar: Registrar) -> None:
    """Register every piece, or none: what was registered before a failure is let go of, and the failure is raised."""
    done: list[int] = []
    try:
        for offset, size in pieces:
            registrar.register(mapping.address + offset, size)
            done.append(mapping.address + offset)
    except BaseException as failure:
        try:
            _unregister_all(done, registrar)
        except AllocationFailed as worse:
            raise AllocationFailed(f"{failure}; and then: {worse}") from failure
        raise


class Touchers:
    """Threads that make pages resident, started once: a thread's first work takes memory of its own."""

    def __init__(self, thread_count: int) -> None:
        self._pool = ThreadPoolExecutor(thread_count)
        together = Barrier(thread_count)  # each has to wait for all, so that every thread is really started
        list(self._pool.map(lambda _: together.wait(), range(thread_count)))

    def touch(self, mapping: OwnMapping) -> None:
        """Make a mapping resident piece by piece; the kernel clears pages outside the interpreter's lock."""

        def populate(offset: int) -> None:
            mapping.populate(offset, min(_PIECE_BYTES, mapping.size_bytes - offset))

        pieces = [self._pool.submit(populate, offset) for offset in range(0, mapping.size_bytes, _PIECE_BYTES)]
        wait(pieces)  # all of them, before a failure of one lets the caller unmap what others still touch
        for piece in pieces:
            piece.result()


class Registered(Uncached):
    """Anonymous memory with huge page advice, registered with the driver; no cache."""

    name = "registered"
    counter = "RssAnon"
    kind = "anonymous huge pages"

    def __init__(self, ceiling_bytes: int = CALL_CEILING_BYTES) -> None:
        self._ceiling = ceiling_bytes

    @classmethod
    def prepare(cls, largest_bytes: int) -> Registered:
        """See that the driver is there. Its context, hundreds of mebibytes, is brought up in the measuring process."""
        try:
            ctypes.CDLL("libcuda.so.1")
        except OSError:
            CudaDriver()  # says what it looked for
        return cls()

    @cached_property
    def _registrar(self) -> Registrar:
        return CudaDriver()

    @cached_property
    def _touchers(self) -> Touchers:
        return Touchers(min(_MOST_THREADS, len(os.sched_getaffinity(0))))

    def __getstate__(self) -> dict[str, object]:
        return {"_ceiling": self._ceiling}

    def notes(self) -> tuple[str, ...]:
        """Name the driver's CUDA version, which brings its context and the threads up."""
        driver, _ = self._registrar, self._touchers
        return (f"registered with the driver (CUDA {driver.version})",) if isinstance(driver, CudaDriver) else ()

    def allocate(self, asked_bytes: int, slot_bytes: int | None = None) -> RegisteredMemory:
        """Map, touch and register `asked_bytes`, rounded up to whole pages.

        `slot_bytes` names where the registration may be cut, should one call not take the whole.
        """
        mapping = self._map(asked_bytes)
        try:
            pieces = cut(mapping.size_bytes, slot_bytes, self._ceiling, mapping.page_bytes)
            self._touchers.touch(mapping)
            register_whole(mapping, pieces, self._registrar)
        except BaseException:
            mapping.unmap()
            raise
        return RegisteredMemory(mapping, pieces, self._registrar, self.kind)

    def _map(self, asked_bytes: int) -> OwnMapping:
        return OwnMapping.anonymous(asked_bytes, huge_pages=True)


class RegisteredMemfd(Registered):
    """A memfd, mapped and registered: other processes can map it too."""

    name = "registered-memfd"
    counter = "RssShmem"
    kind = "memfd"

    def _map(self, asked_bytes: int) -> OwnMapping:
        return OwnMapping.memfd(asked_bytes)


class RegisteredHugetlb(Registered):
    """Pages of the kernel's huge page pool, registered. They are in no RSS."""

    name = "registered-hugetlb"
    counter = "HugetlbPages"
    kind = "huge page pool"

    @classmethod
    def prepare(cls, largest_bytes: int) -> Registered:
        """See that the driver is there and that the pool has pages enough."""
        page = 2 * 2**20
        need = -(-largest_bytes // page)
        pools = [pool for pool in read_headroom(THIS_HOST).pools if pool.page_bytes == page]
        free = pools[0].free.bytes // page if pools and isinstance(pools[0].free, Reading) else 0
        if free < need:
            raise AllocatorUnavailable(
                f"{need:,} huge pages of 2 MiB are needed and {free:,} are free",
                f"as root: `sysctl vm.nr_hugepages={need}` (they leave MemAvailable at once)",
            )
        return super().prepare(largest_bytes)

    def _map(self, asked_bytes: int) -> OwnMapping:
        return OwnMapping.hugetlb(asked_bytes)
