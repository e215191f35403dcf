"""The other end of a `MeasuringChild`: what runs in the fresh process."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
from multiprocessing.connection import Connection
from pathlib import Path

from pinprobe.probes.allocators.allocator import Allocation, Allocator
from pinprobe.probes.allocators.pageable import Pageable
from pinprobe.probes.cost import Cost
from pinprobe.probes.counters import read_mapped
from pinprobe.probes.errors import AllocationFailed, CouldNotMeasure, PinprobeError
from pinprobe.probes.host_tree import THIS_HOST
from pinprobe.probes.measure import Measurer
from pinprobe.probes.reading import Unreadable

_PR_SET_PDEATHSIG = 1


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
                answer = ("raised", AllocationFailed(_in_one_line(error)))
            pipe.send(answer)
    # No interpreter shutdown: a foreign library's destructors may hang, and the kernel takes everything back anyway.
    os._exit(0)


def _tie_to_parent(parent_pid: int) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:  # it died before the kernel was told
        os._exit(1)
    # Ctrl-C reaches the whole group; the parent decides, and its death or its `kill` is the end here.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def _in_one_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__


class _Server:
    """The calls a parent may make, with one allocator and one held allocation."""

    def __init__(self) -> None:
        self._allocator: Allocator | None = None
        self._held: Allocation | None = None

    def start(self, allocator: Allocator) -> tuple[str, ...]:
        self._allocator = allocator
        self._measurer = Measurer(THIS_HOST)
        notes = allocator.notes()
        self._mapped_when_ready = read_mapped(THIS_HOST)
        return notes

    def measure(self, asked_bytes: int, limit_bytes: int | None, control: bool) -> Cost:
        self.release()
        if limit_bytes is not None:
            self._limit_address_space(limit_bytes)
        allocator = Pageable() if control else self._allocator
        if allocator is None:
            raise CouldNotMeasure("the measuring process was not started with an allocator")
        self._held, cost = self._measurer.measure(allocator, asked_bytes)
        return cost

    def release(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            held.release()

    def empty_cache(self) -> None:
        if self._allocator is not None:
            self._allocator.empty_cache()

    def _limit_address_space(self, limit_bytes: int) -> None:
        """Let the kernel refuse any mapping beyond the limit, so that not even a misjudged request can pass it."""
        ready = self._mapped_when_ready
        if isinstance(ready, Unreadable):
            raise CouldNotMeasure(f"the limit can't be set: {ready}")
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        wanted = ready.bytes + limit_bytes
        resource.setrlimit(resource.RLIMIT_AS, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))
