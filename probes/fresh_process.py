"""A fresh process of our own, seen from its parent: started, called and ended.

Nothing is warm in it, and whatever it took goes back to the kernel with it, on every way out. It dies with its parent
and is first in line for the OOM killer.

multiprocessing's own `spawn` would import the caller's main module again in the child; only its pipe is used.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from multiprocessing.connection import Pipe
from types import TracebackType
from typing import Any, TypeVar

from pinprobe.probes.errors import ChildDied
from pinprobe.probes.host_tree import THIS_HOST
from pinprobe.probes.oom_kills import read_oom_kills

# The first message is the parent's sys.path, so that the child finds the same pinprobe and the same third-party
# libraries.
_BOOT = (
    "import sys; from multiprocessing.connection import Connection; pipe = Connection(int(sys.argv[1]))\n"
    "try: sys.path[:] = pipe.recv()\n"
    "except (EOFError, OSError): sys.exit(1)\n"  # the parent is gone already
    "from pinprobe.probes.call_server import serve; serve(pipe, int(sys.argv[2]), sys.argv[3])"
)
_PATIENCE_SECONDS = 5.0
_PULSE_SECONDS = 0.2

_Self = TypeVar("_Self", bound="FreshProcess")  # typing.Self is not in Python 3.10


class FreshProcess:
    """A context manager around one process that answers the calls of one object; at its end the process is gone.

    `server` is `package.module:Class`: an object of that class is made there, without arguments, and its methods are
    what can be called. `name` is what the process is called in errors. It dies with the thread that made it, so make it
    on a thread that lives as long; one thread calls at a time. Raises `ChildDied` from any call after which the process
    is found dead, with what killed it.
    """

    def __init__(self, server: str, name: str) -> None:
        self._name = name
        self._oom_kills = read_oom_kills(THIS_HOST)
        self._pipe, theirs = Pipe()
        with theirs:
            # Isolated, so that nothing in the current folder or the environment is run before our own path arrives. A
            # session of its own: Ctrl-C comes to us alone, and what the process starts can be ended with it.
            command = [sys.executable, "-I", "-c", _BOOT, str(theirs.fileno()), str(os.getpid()), server]
            # Whatever foreign code prints there goes to stderr: stdout is data.
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=2, pass_fds=[theirs.fileno()], start_new_session=True
            )
        try:
            self._send(list(sys.path))
        except BaseException:
            self.kill()
            raise

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    def call(self, method: str, *arguments: object) -> Any:
        """Call a method there and return what it returned. Arguments and results have to pickle.

        Raises whatever of our errors it raised there; what else it raised comes as `AllocationFailed`, in one line.
        """
        self._send((method, arguments))
        try:
            while not self._pipe.poll(_PULSE_SECONDS):
                # What the process forked may hold the other end open when it itself is long gone.
                if self._process.poll() is not None and not self._pipe.poll(0):
                    raise self._death()
            outcome, value = self._pipe.recv()
        except (EOFError, OSError):
            raise self._death() from None
        if outcome == "raised":
            raise value
        return value

    def kill(self) -> None:
        """End the process at once and wait until the kernel has its memory back."""
        self._pipe.close()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def __enter__(self: _Self) -> _Self:
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
            return ChildDied(f"the {self._name} stopped answering and was ended")
        if status >= 0:
            return ChildDied(f"the {self._name} ended by itself with exit code {status}; what it said is above")
        name = _signal_name(-status)
        proof = read_oom_kills(THIS_HOST).proof_since(self._oom_kills)
        if name == "SIGKILL" and proof:
            return ChildDied(f"the OOM killer ended the {self._name} ({proof}); ask for less")
        if name == "SIGKILL":
            return ChildDied(
                f"the {self._name} was killed (SIGKILL), by whom no counter tells: none counted an OOM kill"
            )
        return ChildDied(f"the {self._name} was ended by {name}")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # most real-time signals have no name
        return f"signal {number}"
