"""The folder of an overflow, and the sub-folder in it that is one process's own.

In the folder lie `overflow.lock` and, for each process, `savepoints-<process>`, on which it holds an flock for as long
as it lives: the kernel lets go of that with the process, however it ends. What a dead process left is removed by the
next that starts or that needs the room: a savepoint is good for the very weights and engine that made it, and nobody
knows those after a restart. Only what has a name of ours is ever removed.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from pinprobe.ledger.book.book_folder import reason_against
from pinprobe.ledger.book.book_lock import BookLock, HeldFile
from pinprobe.probes.errors import BadRequest, printable

_PROCESS = re.compile(r"savepoints-[0-9a-f]{16}-[0-9a-f]{8}")
_FILE = re.compile(r"[0-9a-f]{32}-[0-9]{1,18}\.(?:row|new)")
_log = logging.getLogger("pinprobe")


class OverflowFolder:
    """A process's place in the folder. Two objects are two processes to the folder.

    Raises `BadRequest` where the folder can't be used, and `BookBusy` where its lock is not to be had. Later errors
    come as `OSError`: whoever writes has to tell them apart.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()
        self.own = self.folder / f"savepoints-{time.time_ns():016x}-{os.urandom(4).hex()}"
        self._lock = BookLock(self.folder / "overflow.lock")
        try:
            self._make_folder()
            with self._lock.held():
                self.clear_dead()
                self.own.mkdir(mode=0o700)
                try:
                    self._alive: HeldFile | None = _locked(self.own)
                except BaseException:
                    self.own.rmdir()
                    raise
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise _unusable(folder, f"can't be used: {printable(reason or error)}") from None
        if self._alive is None:
            raise _unusable(folder, "has a file system on which others lock what is ours")

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder's lock: nobody else takes room or renames a file meanwhile.

        Raises `BookBusy` and `OSError`.
        """
        with self._lock.held():
            yield

    def new_paths(self, digest: bytes, number: int) -> tuple[Path, Path]:
        """Return a file's name while it is being written, and its name once it is whole. No number comes twice."""
        stem = f"{digest.hex()}-{number}"
        return self.own / f"{stem}.new", self.own / f"{stem}.row"

    def used_bytes(self) -> int:
        """Count what the files of all processes take, dead ones too. With the lock held; raises `OSError`."""
        used = 0
        for process in self._processes():
            for file in _files(process):
                with contextlib.suppress(FileNotFoundError):
                    used += taken_bytes(file.stat(follow_symlinks=False))
        return used

    def clear_dead(self) -> None:
        """Remove what dead processes left. With the lock held; what can't be removed is told and left."""
        for process in self._processes():
            try:
                alive = _locked(process)
                if alive is None:
                    continue
                try:
                    _remove(process)
                finally:
                    alive.close()
            except FileNotFoundError:
                continue
            except OSError as error:
                _log.warning("what a dead process left in %s stays: %s", printable(process), error.strerror)

    def sync(self) -> None:
        """Have the names of its files on the drive."""
        descriptor = os.open(self.own, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def close(self) -> None:
        """Remove what is this process's own, and end its life for the folder. A second call does nothing."""
        alive, self._alive = self._alive, None
        if alive is None:
            return
        try:
            _remove(self.own)
        except FileNotFoundError:
            pass
        except OSError as error:
            _log.warning("%s can't be cleared: %s; the next start does it", printable(self.own), error.strerror)
        alive.close()

    def leave_to_parent(self) -> None:
        """Forget the place, in a forked child: it is the parent's, and so is everything in it."""
        self._alive = None

    def _make_folder(self) -> None:
        reason = reason_against(self.folder, is_private=True)
        if reason is None and not self.folder.exists():
            self.folder.mkdir(mode=0o700, exist_ok=True)
            reason = reason_against(self.folder, is_private=True)  # another may have been quicker
        if reason is not None:
            raise _unusable(self.folder, reason)

    def _processes(self) -> list[Path]:
        with os.scandir(self.folder) as found:
            ours = [entry for entry in found if _PROCESS.fullmatch(entry.name)]
        return sorted(Path(entry.path) for entry in ours if entry.is_dir(follow_symlinks=False))


def taken_bytes(found: os.stat_result) -> int:
    """Return what a file takes: what is set aside for it, or its length where less is, as with compression."""
    return max(found.st_size, found.st_blocks * 512)


def _unusable(folder: Path, reason: str) -> BadRequest:
    return BadRequest(
        f"the overflow can't lie in {printable(folder)}, which {reason}; name a folder of this user's on a local disk,"
        " or one that is not there yet"
    )


def _locked(process: Path) -> HeldFile | None:
    """Hold a sub-folder's lock; None where its process lives."""
    alive = HeldFile(process, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if alive.try_lock(fcntl.LOCK_EX):
            return alive
    except BaseException:
        alive.close()
        raise
    alive.close()
    return None


def _files(process: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(process) as found:
            return [entry for entry in found if _FILE.fullmatch(entry.name)]
    except FileNotFoundError:
        return []


def _remove(process: Path) -> None:
    for file in _files(process):
        path = Path(file.path)
        with contextlib.suppress(FileNotFoundError):
            if stat.S_ISREG(path.lstat().st_mode):
                path.unlink()
    with contextlib.suppress(FileNotFoundError):
        try:
            process.rmdir()
        except OSError as error:
            _log.warning("%s is left: %s, so something in it is not ours", printable(process), error.strerror)
