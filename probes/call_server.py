"""The other end of a `FreshProcess`: ties itself to its parent, makes one object, and answers the calls of it."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import pickle
import signal
from multiprocessing.connection import Connection
from pathlib import Path

from pinprobe.probes.errors import AllocationFailed, PinprobeError, in_one_line, printable

_PR_SET_PDEATHSIG = 1


def serve(pipe: Connection, parent_pid: int, server: str) -> None:
    """Answer calls of an object of the class `package.module:Class` until the pipe ends; then end the process."""
    _tie_to_parent(parent_pid)
    os.set_inheritable(pipe.fileno(), False)  # what foreign code starts must not hold our end of the pipe open
    module, _, name = server.partition(":")
    served = getattr(importlib.import_module(module), name)()
    with contextlib.suppress(EOFError, OSError):
        while True:
            method, arguments = pipe.recv()
            answer = _answer(served, method, arguments)
            try:
                pipe.send(answer)
            except (TypeError, AttributeError, pickle.PicklingError) as error:  # a foreign exception may hold anything
                pipe.send(("raised", AllocationFailed(in_one_line(error))))
    # No interpreter shutdown: a foreign library's destructors may hang, and the kernel takes everything back anyway.
    os._exit(0)


def _answer(served: object, method: str, arguments: tuple[object, ...]) -> tuple[str, object]:
    try:
        return "returned", getattr(served, method)(*arguments)
    except AllocationFailed as error:
        # Rebuilt, since a foreign one may be of a class of its own, and its words may be of many lines.
        lines = str(error).strip().splitlines() or ["it gave no reason"]
        return "raised", AllocationFailed(printable(lines[0]), bool(error.no_address_space))
    except PinprobeError as error:
        return "raised", error
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001  # foreign code may raise anything
        return "raised", AllocationFailed(in_one_line(error))


def _tie_to_parent(parent_pid: int) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:  # it died before the kernel was told
        os._exit(1)
    # The parent decides, and its death or its `kill` is the end here. The terminal's signals do not come
    # here, since the process leads a group of its own; this is for those that are sent by hand.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
