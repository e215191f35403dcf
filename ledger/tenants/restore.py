"""A savepoint on its way back from the overflow into memory, on a thread of its own."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from pinprobe.ledger.tenants.overflow_file import (
    Fault,
    Loss,
    OverflowHeader,
    padded_row_bytes,
    parse_header,
)
from pinprobe.ledger.tenants.row_transfer import CutShort, RowFile, read_header, read_row
from pinprobe.probes.errors import in_one_line, printable


class Stage(str, Enum):
    """How far a restore is."""

    PENDING = "pending"  # the memory may be written at any moment
    READY = "ready"  # the whole row lies there, its checksum verified over the memory itself
    LOST = "lost"  # the file was not to be had, or not what was written; what lies in the memory is worth nothing
    CANCELLED = "cancelled"  # what lies in the memory is worth nothing


@dataclass(frozen=True, slots=True)
class RestoreState:
    """How far it is and, where it was lost, why. But for `PENDING`, the memory is the caller's again."""

    stage: Stage
    fault: Fault | None = None
    seconds: float = 0.0
    is_direct: bool | None = None

    @property
    def lost(self) -> Loss | None:
        """The reason that a lost one is counted under."""
        return None if self.fault is None else self.fault.loss


class _Cancelled(Exception):
    """Nobody wants the restore any more."""


_PENDING = RestoreState(Stage.PENDING)


class Restore:
    """One restore. Any thread may ask and cancel; the memory has to stay until it is no longer pending.

    `ended` is told the end on the reader's thread before anybody else sees it, and returns what is seen.
    """

    def __init__(
        self,
        path: Path,
        wanted: OverflowHeader,
        address: int,
        ended: Callable[[Restore, RestoreState], RestoreState],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.tokens = wanted.tokens
        self._path = path
        self._wanted = wanted
        self._address = address
        self._ended = ended
        self._clock = clock
        self._state = _PENDING
        self._is_wanted = True
        self._thread = threading.Thread(target=self._run, name="pinprobe-restore", daemon=True)

    def start(self) -> None:
        """Begin to read. Raises `RuntimeError` where no thread can be had. For the store that made it."""
        self._thread.start()

    def collect(self) -> RestoreState:
        """Say how far it is, without waiting."""
        return self._state

    def cancel(self) -> None:
        """Have the reader stop after the chunk that it is at.

        Until then it stays pending, since memory is still written; `wait` says when not. One that has ended stays what
        it is.
        """
        self._is_wanted = False

    def wait(self, seconds: float) -> bool:
        """Wait until it has ended, at most so long; say whether it has. Afterwards the memory is not touched."""
        self._thread.join(seconds)
        return self._state.stage is not Stage.PENDING

    def leave_to_parent(self) -> None:
        """End it in a forked child, which has no such thread."""
        self._state = RestoreState(Stage.CANCELLED)

    def _run(self) -> None:
        started = self._clock()
        stage, fault, is_direct = Stage.LOST, None, None
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
            with RowFile(descriptor) as file:
                fault = self._read(file)
                is_direct = file.is_direct
            stage = Stage.LOST if fault else Stage.READY
        except _Cancelled:
            stage = Stage.CANCELLED
        except CutShort as cut:
            fault = Fault(Loss.CUT, str(cut))
        except OSError as error:
            fault = _fault_of(error)
        except Exception as error:  # noqa: BLE001  # a restore that never ends would hold its memory for ever
            fault = Fault(Loss.UNREADABLE, in_one_line(error))
        state = RestoreState(stage, fault, self._clock() - started, is_direct)
        try:
            state = self._ended(self, state)
        finally:
            self._state = state

    def _read(self, file: RowFile) -> Fault | None:
        header = parse_header(read_header(file))
        if isinstance(header, Fault):
            return header
        fault = header.fault_beside(self._wanted)
        if fault is not None:
            return fault
        if header.row_hash != self._wanted.row_hash:
            # Whole, and of the same tokens: but another row, as another process with other weights would have written.
            return Fault(Loss.FOREIGN, "its row is another than was written here")
        size_bytes = padded_row_bytes(header.row_bytes)
        if read_row(file, self._address, size_bytes, self._check_wanted) != header.row_hash:
            return Fault(Loss.CHECKSUM, "its row is not what was written")
        return None

    def _check_wanted(self) -> None:
        if not self._is_wanted:
            raise _Cancelled


def _fault_of(error: OSError) -> Fault:
    text = printable(error.strerror or error)
    if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ESTALE):
        return Fault(Loss.GONE, text)
    if error.errno == errno.ELOOP:
        return Fault(Loss.FOREIGN, "a symbolic link lies in its place")
    return Fault(Loss.UNREADABLE, text)
