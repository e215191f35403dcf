"""The other end of a `MeasuringChild`: what runs in the fresh process."""

from __future__ import annotations

import contextlib
import ctypes
import os
import pickle
import resource
import signal
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, cast

from pinprobe.probes.allocators.allocator import Allocation, Allocator
from pinprobe.probes.allocators.pageable import Pageable
from pinprobe.probes.cost import Cost
from pinprobe.probes.counters import read_mapped
from pinprobe.probes.errors import AllocationFailed, CouldNotMeasure, PinprobeError, in_one_line
from pinprobe.probes.host_tree import THIS_HOST
from pinprobe.probes.measure import Measurer
from pinprobe.probes.reading import Unreadable

_PR_SET_PDEATHSIG = 1
# The inaccessible pages around a block, of 64 KiB at the most, and the rounding of the ask to such pages.
_GUARDS_BYTES = 4 * 2**16


def serve(pipe: Connection, parent_pid: int) -> None:
    """Answer calls until the pipe ends."""
    _tie_to_parent(parent_pid)
    server = _Server()
    with contextlib.suppress(EOFError, OSError):
        while True:
            method, arguments = pipe.recv()
            try:
                answer: tuple[str, object] = ("returned", getattr(server, method)(*arguments))
            except PinprobeError as error:
                answer = ("raised", error)
            except Exception as error:  # noqa: BLE001  # an allocator is foreign code and may raise anything
                answer = ("raised", AllocationFailed(in_one_line(error)))
            pipe.send(answer)
    # No interpreter shutdown: a foreign library's destructors may hang, and the kernel takes everything back anyway.
    os._exit(0)


def _tie_to_parent(parent_pid: int) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:  # it died before the kernel was told
        os._exit(1)
    # Ctrl-C reaches the whole group; the parent decides, and its death or its `kill` is the end here.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


class _Server:
    """The calls a parent may make, with one allocator and one held allocation."""

    def __init__(self) -> None:
        self._allocator: Allocator | None = None
        self._held: Allocation | None = None

    def start(self, pickled_allocator: bytes) -> tuple[str, ...]:
        allocator: Allocator = pickle.loads(pickled_allocator)
        self._allocator = allocator
        self._measurer = Measurer(THIS_HOST)
        return allocator.notes()

    def measure(self, asked_bytes: int, limit_bytes: int | None, control: bool) -> Cost:
        self.release()
        allocator: Allocator | None = Pageable() if control else self._allocator
        if allocator is None:
            raise CouldNotMeasure("the measuring process was not started with an allocator")
        bounded = allocator if limit_bytes is None else cast(Allocator, _Bounded(allocator, limit_bytes))
        self._held, cost = self._measurer.measure(bounded, asked_bytes)
        return cost

    def release(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            held.release()

    def empty_cache(self) -> None:
        if self._allocator is not None:
            self._allocator.empty_cache()


class _Bounded:
    """An allocator that the kernel lets map no more than a limit in one request, and so can't misjudge it.

    The limit is in force during the request alone: what the readings around it take is another matter.
    """

    def __init__(self, allocator: Allocator, limit_bytes: int) -> None:
        self._allocator = allocator
        self._limit_bytes = limit_bytes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._allocator, name)

    def allocate(self, asked_bytes: int) -> Allocation:
        mapped = read_mapped(THIS_HOST)
        if isinstance(mapped, Unreadable):
            raise CouldNotMeasure(f"the limit can't be set: {mapped}")
        before = resource.getrlimit(resource.RLIMIT_AS)
        wanted = mapped.bytes + self._limit_bytes + _GUARDS_BYTES
        soft = wanted if before[0] == resource.RLIM_INFINITY else min(wanted, before[0])
        resource.setrlimit(resource.RLIMIT_AS, (soft, before[1]))
        try:
            return self._allocator.allocate(asked_bytes)
        except MemoryError:
            raise AllocationFailed(f"no room for {asked_bytes:,} B under the limit", no_address_space=True) from None
        finally:
            resource.setrlimit(resource.RLIMIT_AS, before)
