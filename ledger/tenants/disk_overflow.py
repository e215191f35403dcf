"""`DiskOverflow`: savepoints that pageable memory can't hold, each in a file of its own, until their process ends.

Covers where and whether a savepoint is written, and what is read back. When writing is allowed is `write_budget`'s to
say, what is worth it the caller's. Nothing here raises for what a disk does: a write that fails leaves nothing behind
and says why, and a file that is not to the bit what was written is lost, never served.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import math
import mmap
import os
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from pinprobe.ledger.tenants.overflow_entry import Attempt, StoredFile, set_aside, unlink_quietly
from pinprobe.ledger.tenants.overflow_file import (
    DIGEST_BYTES,
    Loss,
    OverflowHeader,
    file_bytes,
    layout_fingerprint,
    padded_row_bytes,
)
from pinprobe.ledger.tenants.overflow_folder import OverflowFolder, taken_bytes
from pinprobe.ledger.tenants.overflow_outcome import NotWritten, Outcome, WriteEnd, end_of
from pinprobe.ledger.tenants.overflow_stats import OverflowCounters, OverflowStats
from pinprobe.ledger.tenants.restore import Restore, RestoreState, Stage
from pinprobe.ledger.tenants.row_transfer import RowFile, write_header, write_row
from pinprobe.ledger.tenants.savepoint_layout import SavepointLayout
from pinprobe.probes.errors import BadRequest, BookBusy, in_one_line, printable
from pinprobe.probes.units import format_bytes

#: For so long `close` waits for readers and writers that a drive does not answer.
PATIENCE_SECONDS = 10.0

_log = logging.getLogger("pinprobe")
_stores: weakref.WeakSet[DiskOverflow] = weakref.WeakSet()


class DiskOverflow:
    """Savepoints of one layout in a folder that processes may share. Any number of threads may call.

    `bound_bytes` holds for the files of all processes in the folder, each of which gives its own bound. Keys are the
    16 B digests of a `PrefixKey`. Raises `BadRequest` where the folder can't be used or the bound holds no file, and
    `BookBusy` where the folder's lock is not to be had. In a forked child it is closed, and the files stay the
    parent's.
    """

    def __init__(
        self, folder: Path, layout: SavepointLayout, bound_bytes: int, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.row_bytes = layout.row_bytes
        self.file_bytes = file_bytes(layout.row_bytes)
        self.bound_bytes = bound_bytes
        if bound_bytes < self.file_bytes:
            raise BadRequest(
                f"an overflow of {format_bytes(bound_bytes)} holds nothing: one savepoint's file takes"
                f" {self.file_bytes:,} B; give at least as much"
            )
        self._fingerprint = layout_fingerprint(layout)
        self._clock = clock
        self._place = OverflowFolder(folder)
        self.folder = self._place.folder
        self._number = 0
        self._is_open = True
        self._begin_empty()
        _stores.add(self)
        atexit.register(self.close)

    # -- writing

    def write(self, digest: bytes, tokens: int, address: int, value: float) -> Outcome:
        """Write the row at `address` to a file of its own, and return once it is on the drive.

        The address is that of whole pages, which nobody changes meanwhile. Where there is no room, files of ours of
        less `value` go first, the least first, but for those that are being read. Raises `BadRequest` for arguments
        that are none; whatever else happens, the outcome says it.
        """
        self._check(digest, address, value)
        if not 0 <= tokens < 2**64:
            raise BadRequest(f"a savepoint covers no {tokens} tokens")
        started = self._clock()
        attempt = None
        try:
            attempt = self._begun(digest, tokens, value)
            written_bytes = self._written(attempt, address)
            outcome = Outcome(WriteEnd.WRITTEN, "", written_bytes, self._clock() - started)
        except NotWritten as refusal:
            outcome = Outcome(refusal.end, refusal.text)
        except BookBusy as busy:
            outcome = Outcome(WriteEnd.BUSY, str(busy))
        except OSError as error:
            outcome = Outcome(end_of(error), printable(error.strerror or error))
        except Exception as error:  # noqa: BLE001  # whoever writes in idle moments is not to end for it
            outcome = Outcome(WriteEnd.FAILED, in_one_line(error))
            _log.error("a savepoint could not be written: %s", outcome.text)
        finally:
            with self._changed:
                if attempt is not None:
                    self._attempts.remove(attempt)
                    self._changed.notify_all()
        with self._changed:
            self._counters.add_write(outcome)
        return outcome

    def _begun(self, digest: bytes, tokens: int, value: float) -> Attempt:
        with self._changed:
            if not self._is_open:
                raise NotWritten(WriteEnd.CLOSED)
            stored = self._files.get(digest)
            if stored is not None:
                stored.value = value
                raise NotWritten(WriteEnd.ALREADY_THERE)
            if self._attempt_of(digest) is not None:
                raise NotWritten(WriteEnd.IN_PROGRESS)
            self._number += 1
            header = OverflowHeader(self._fingerprint, self.row_bytes, digest, tokens)
            attempt = Attempt(header, *self._place.new_paths(digest, self._number), value)
            self._attempts.append(attempt)
            return attempt

    def _written(self, attempt: Attempt, address: int) -> int:
        """Write it and make it one of our files; return its bytes. Whatever it raises, nothing is left of it."""
        with contextlib.ExitStack() as undo:
            for path in (attempt.path, attempt.final_path):
                undo.callback(unlink_quietly, path)
            with self._place.locked():
                descriptor = self._make_room(attempt)
            with RowFile(descriptor) as file:
                size_bytes = padded_row_bytes(self.row_bytes)
                row_hash = write_row(file, address, size_bytes, lambda: self._check_wanted(attempt))
                header = replace(attempt.header, row_hash=row_hash)
                write_header(file, header.packed())
                with self._place.locked():  # who counts what is there would see neither of the two names
                    attempt.path.rename(attempt.final_path)
                # Both after the renaming, so that a journal is written once. A name that a crash leaves without all of
                # its bytes is read by nobody: the next start deletes it.
                file.sync()
                self._place.sync()
                found = os.fstat(descriptor)
                taken = taken_bytes(found)
                with self._changed:
                    self._check_wanted(attempt)
                    self._files[header.key] = StoredFile(
                        header, attempt.final_path, attempt.value, taken, (found.st_dev, found.st_ino)
                    )
                    attempt.held_bytes = 0
                    self._counters.is_direct = file.is_direct
                undo.pop_all()
                return taken

    def _make_room(self, attempt: Attempt) -> int:
        """Set the file's bytes aside, so that no later moment finds the disk full; return it open.

        With the folder's lock held, so that two processes can't both take the last room.
        """
        used = self._place.used_bytes()
        if used + self.file_bytes > self.bound_bytes:
            self._place.clear_dead()
            used = self._place.used_bytes()
        shortage = used + self.file_bytes - self.bound_bytes
        if shortage > 0:
            self._evict(shortage, attempt.value, WriteEnd.NOT_WORTH_IT)
        try:
            descriptor = set_aside(attempt.path, self.file_bytes)
        except OSError as error:
            if end_of(error) is not WriteEnd.DISK_FULL:
                raise
            # Others filled the disk. What is worth less than this one goes, as it does for the bound.
            self._evict(self.file_bytes, attempt.value, WriteEnd.DISK_FULL)
            descriptor = set_aside(attempt.path, self.file_bytes)
        try:
            # Asked again: a file system may take a little more than the file's length, and give back less.
            shortage = self._place.used_bytes() - self.bound_bytes
            if shortage > 0:
                self._evict(shortage, attempt.value, WriteEnd.NOT_WORTH_IT)
            with self._changed:
                attempt.held_bytes = taken_bytes(os.fstat(descriptor))
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def _evict(self, shortage_bytes: int, value: float, otherwise: WriteEnd) -> None:
        """Remove files of ours of less value, the least first, or none of them where all would not be enough."""
        going, freed = [], 0
        with self._changed:
            lesser = (stored for stored in self._files.values() if stored.value < value and not stored.readers)
            for stored in sorted(lesser, key=lambda stored: stored.value):
                if freed >= shortage_bytes:
                    break
                going.append(stored)
                freed += stored.size_bytes
            if freed < shortage_bytes:
                raise NotWritten(otherwise, f"{format_bytes(shortage_bytes)} short, with nothing of less value to go")
            for stored in going:
                del self._files[stored.header.key]
            self._counters.evicted += len(going)
        for stored in going:
            stored.remove()

    def _check_wanted(self, attempt: Attempt) -> None:
        if attempt.is_dropped:
            raise NotWritten(WriteEnd.DROPPED)
        if not self._is_open:
            raise NotWritten(WriteEnd.CLOSED)

    # -- what is there

    def __contains__(self, digest: object) -> bool:
        with self._changed:
            return digest in self._files

    def __len__(self) -> int:
        with self._changed:
            return len(self._files)

    def tokens_of(self, digest: bytes) -> int | None:
        """Return how many tokens a savepoint covers; None where it is not there."""
        with self._changed:
            stored = self._files.get(digest)
            return None if stored is None else stored.header.tokens

    def revalue(self, digest: bytes, value: float) -> bool:
        """Give a savepoint another value, also while it is being written; say whether there is such a one."""
        self._check(digest, 0, value)
        with self._changed:
            found = self._files.get(digest) or self._attempt_of(digest)
            if found is not None:
                found.value = value
            return found is not None

    def drop(self, digest: bytes) -> bool:
        """Delete a savepoint's file, or end its writing; say whether there was one.

        A restore of it that has begun to read ends as if nothing had happened; one that has not, cancelled.
        """
        with self._changed:
            attempt = self._attempt_of(digest)
            if attempt is not None:
                attempt.is_dropped = True
            stored = self._files.pop(digest, None)
            self._counters.dropped += stored is not None
        if stored is not None:
            with contextlib.suppress(OSError):
                stored.remove()
        return stored is not None or attempt is not None

    # -- reading

    def begin_restore(self, digest: bytes, address: int) -> Restore | None:
        """Begin to read a savepoint into the whole pages at `address`; None where it is not there.

        A thread of its own reads from this moment on. The memory has to stay until the restore is no longer pending.
        """
        self._check(digest, address, 0.0)
        with self._changed:
            stored = self._files.get(digest)
            if stored is None or not self._is_open:
                return None
            restore = Restore(stored.path, stored.header, address, partial(self._restored, stored), self._clock)
            try:
                restore.start()
            except RuntimeError as error:
                _log.warning("a savepoint can't be restored now: %s", error)
                return None
            stored.readers += 1
            self._restores.add(restore)
            return restore

    def _restored(self, stored: StoredFile, restore: Restore, state: RestoreState) -> RestoreState:
        with self._changed:
            stored.readers -= 1
            self._restores.discard(restore)
            is_here = self._files.get(stored.header.key) is stored
            if state.lost is Loss.GONE and not is_here:
                state = RestoreState(Stage.CANCELLED)  # we removed it ourselves before it was opened
            self._counters.add_restore(state)
            if state.fault is None or not is_here:
                return state
            del self._files[stored.header.key]
        _log.warning("%s is lost: %s (%s)", printable(stored.path), state.fault.text, state.fault.loss.value)
        with contextlib.suppress(OSError):
            stored.remove()
        return state

    # -- the whole

    @property
    def held_bytes(self) -> int:
        """What our files take, those being written too, by the file system's count when they were made."""
        with self._changed:
            return self._held_bytes()

    def stats(self) -> OverflowStats:
        """Return the counters, all of one moment."""
        with self._changed:
            return self._counters.stats(len(self._files), self._held_bytes(), self.bound_bytes, self.row_bytes)

    def describe(self) -> str:
        """Say in one line what the overflow is, for the boot."""
        return (
            f"overflow to disk in {printable(self.folder)}: at most {format_bytes(self.bound_bytes)}, the files of all"
            f" processes together; a savepoint's file takes {self.file_bytes:,} B and ends with its process"
        )

    def close(self, patience_seconds: float = PATIENCE_SECONDS) -> bool:
        """Delete all that is ours and end readers and writers; say whether all have ended. A second call does nothing.

        Where a drive does not answer in time, it says False, and memory that is being read or written has to stay.
        """
        atexit.unregister(self.close)
        deadline = time.monotonic() + patience_seconds
        with self._changed:
            self._is_open = False
            restores = list(self._restores)
        for restore in restores:
            restore.cancel()
        for restore in restores:
            restore.wait(max(0.0, deadline - time.monotonic()))
        with self._changed:
            self._changed.wait_for(lambda: not self._attempts, timeout=max(0.0, deadline - time.monotonic()))
            self._files.clear()
            has_ended = not self._attempts and not self._restores
        self._place.close()
        return has_ended

    def _begin_empty(self) -> None:
        self._changed = threading.Condition()
        self._files: dict[bytes, StoredFile] = {}
        self._attempts: list[Attempt] = []
        self._restores: set[Restore] = set()
        self._counters = OverflowCounters()

    def _leave_to_parent(self) -> None:
        for restore in self._restores:
            restore.leave_to_parent()
        self._is_open = False
        self._place.leave_to_parent()
        self._begin_empty()  # with a lock that no missing thread holds

    # -- under the lock

    def _attempt_of(self, digest: bytes) -> Attempt | None:
        return next((each for each in self._attempts if each.header.key == digest and not each.is_dropped), None)

    def _held_bytes(self) -> int:
        files = sum(stored.size_bytes for stored in self._files.values())
        return files + sum(attempt.held_bytes for attempt in self._attempts)

    @staticmethod
    def _check(digest: bytes, address: int, value: float) -> None:
        if len(digest) != DIGEST_BYTES:
            raise BadRequest(f"a savepoint's key has {DIGEST_BYTES} B, not {len(digest)}")
        if address % mmap.PAGESIZE:
            raise BadRequest(f"a row is moved between a file and whole pages, and {address:#x} is within one")
        if math.isnan(value):
            raise BadRequest("a savepoint's value is a number that others can be compared with, not NaN")


def _after_in_child() -> None:
    for store in _stores:
        store._leave_to_parent()


os.register_at_fork(after_in_child=_after_in_child)
