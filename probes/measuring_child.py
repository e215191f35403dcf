"""A fresh process that measures one allocator, seen from its parent.

Each allocator is measured cold, in a process of its own: no warm arena, no cache of an earlier run, and whatever it
took goes back to the kernel with the process, on every way out. The child dies with its parent and is first in line for
the OOM killer.

multiprocessing's own `spawn` would import the caller's main module again in the child; only its pipe is used.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
from multiprocessing.connection import Pipe
from types import TracebackType
from typing import Any

from pinprobe.probes.allocators.allocator import Allocator
from pinprobe.probes.cost import Cost
from pinprobe.probes.errors import AllocatorUnavailable, ChildDied, in_one_line
from pinprobe.probes.host_tree import THIS_HOST
from pinprobe.probes.oom_kills import read_oom_kills

# The first message is the parent's sys.path, so that the child finds the same pinprobe and the same third-party
# allocators.
_BOOT = (
    "import sys; from multiprocessing.connection import Connection; pipe = Connection(int(sys.argv[1]));"
    "sys.path[:] = pipe.recv(); from pinprobe.probes.measuring_server import serve; serve(pipe, int(sys.argv[2]))"
)
_PATIENCE_SECONDS = 5.0
_PULSE_SECONDS = 0.2


class MeasuringChild:
    """A context manager around one measuring process; at its end the process is gone.

    It dies with the thread that made it, so make it on a thread that lives as long. One allocation is held at a time.
    Raises `ChildDied` from any call after which the process is found dead, with what killed it, and whatever error the
    call itself met there.
    """

    def __init__(self, allocator: Allocator) -> None:
        self._oom_kills = read_oom_kills(THIS_HOST)
        self._pipe, theirs = Pipe()
        with theirs:
            # Isolated, so that nothing in the current folder or the environment is run before our own path arrives. A
            # session of its own: Ctrl-C comes to us alone, and what an allocator starts can be ended with it.
            command = [sys.executable, "-I", "-c", _BOOT, str(theirs.fileno()), str(os.getpid())]
            # Whatever an allocator prints goes to stderr: stdout is data.
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=2, pass_fds=[theirs.fileno()], start_new_session=True
            )
        try:
            self._send(list(sys.path))
            self.notes: tuple[str, ...] = self._call("start", _pickled(allocator))
        except BaseException:
            self.kill()
            raise

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    def measure(self, asked_bytes: int, limit_bytes: int | None = None, *, control: bool = False) -> Cost:
        """Allocate and measure; the allocation stays held until `release`.

        `limit_bytes` is how much this one request may map; the kernel holds it to that.
        `control` measures the pageable control instead of the allocator.
        """
        cost: Cost = self._call("measure", asked_bytes, limit_bytes, control)
        return cost

    def release(self) -> None:
        """Give the held allocation back to its allocator."""
        self._call("release")

    def empty_cache(self) -> None:
        """Have the allocator give back what it keeps."""
        self._call("empty_cache")

    def kill(self) -> None:
        """End the process at once and wait until the kernel has its memory back."""
        self._pipe.close()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def __enter__(self) -> MeasuringChild:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self._pipe.close()  # the process ends by itself when it sees the end of the pipe
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(_PATIENCE_SECONDS)
        finally:
            self.kill()  # which a process that has ended does not mind

    def _call(self, method: str, *arguments: object) -> Any:
        self._send((method, arguments))
        try:
            while not self._pipe.poll(_PULSE_SECONDS):
                # What an allocator forked may hold the other end open when the process itself is long gone.
                if self._process.poll() is not None and not self._pipe.poll(0):
                    raise self._death()
            outcome, value = self._pipe.recv()
        except (EOFError, OSError):
            raise self._death() from None
        if outcome == "raised":
            raise value
        return value

    def _send(self, message: object) -> None:
        try:
            self._pipe.send(message)
        except OSError:
            raise self._death() from None

    def _death(self) -> ChildDied:
        try:
            status = self._process.wait(_PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:  # it lives and does not talk any more
            self._process.kill()
            self._process.wait()
            return ChildDied("the measuring process stopped answering and was ended")
        if status >= 0:
            return ChildDied(f"the measuring process ended by itself with exit code {status}; what it said is above")
        name = _signal_name(-status)
        proof = read_oom_kills(THIS_HOST).proof_since(self._oom_kills)
        if name == "SIGKILL" and proof:
            return ChildDied(f"the OOM killer ended the measuring process ({proof}); ask for less")
        if name == "SIGKILL":
            return ChildDied(
                "the measuring process was killed (SIGKILL), by whom no counter tells: none counted an OOM kill"
            )
        return ChildDied(f"the measuring process was ended by {name}")


def _pickled(allocator: Allocator) -> bytes:
    try:
        return pickle.dumps(allocator)
    except Exception as error:  # pickling runs foreign code
        raise AllocatorUnavailable(
            f"the allocator {allocator.name} can't be sent to a measuring process: {in_one_line(error)}",
            "what `prepare` returns has to pickle: keep names and paths in it, and load libraries at first use",
        ) from error


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # most real-time signals have no name
        return f"signal {number}"
