"""Files that are locked by flock, whose locks no forked child keeps, and the one lock that orders a book.

An flock belongs to the open file, and a forked child shares that: it would keep a dead parent's locks for as long as it
lives. So every such file is closed in every child that Python forks. What forks below Python, in a C library, and then
does not start another program escapes this.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from pinprobe.probes.errors import BookBusy, printable

#: For so long a process waits for the lock, which others hold for about a millisecond.
PATIENCE_SECONDS = 30.0
_FIRST_PAUSE_SECONDS = 0.0005
_LONGEST_PAUSE_SECONDS = 0.02
# Between making a file and setting its mode, another user may find it closed.
_MODE_SECONDS = 0.05

#: Every user of the folder may read and lock what lies in it; only its owner writes.
MODE = 0o644

_open_files: set[HeldFile] = set()
# Held over each fork and each opening, so that no child inherits a descriptor that is not yet in the set. It can be
# taken twice by one thread: a signal may come in the midst of an opening, and its handler may fork.
_opening = threading.RLock()


class HeldFile:
    """An open file that can be locked, and that no forked child keeps open.

    Links are not followed and pipes not waited for: in a shared folder anyone may have put them there.
    """

    def __init__(self, path: str | Path, flags: int = os.O_RDONLY) -> None:
        with _opening:
            opened = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, MODE)
            self._descriptor: int | None = opened
            _open_files.add(self)
        if flags & os.O_CREAT:
            try:
                os.fchmod(opened, MODE)  # whatever the umask left of it
            except BaseException:
                self.close()
                raise

    def try_lock(self, kind: int) -> bool:
        """Take the lock `fcntl.LOCK_EX` or `LOCK_SH` at once, or return False where another holds it."""
        assert self._descriptor is not None
        try:
            fcntl.flock(self._descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def is_at(self, path: str) -> bool:
        """Say whether this very file still has that name."""
        assert self._descriptor is not None
        mine = os.fstat(self._descriptor)
        try:
            there = Path(path).lstat()
        except FileNotFoundError:
            return False
        return (mine.st_dev, mine.st_ino) == (there.st_dev, there.st_ino)

    def close(self) -> None:
        """Unlock and close it. In a forked child, where it is closed already, this does nothing."""
        with _opening:
            if self._descriptor is None:
                return
            # Closing alone would leave the lock with whoever got a copy of the descriptor, such as a child between fork
            # and exec. A signal may raise between any two of these lines: then a second call unlocks it all the same.
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            descriptor, self._descriptor = self._descriptor, None
            _open_files.discard(self)
            os.close(descriptor)

    def close_whatever_comes(self) -> None:
        """The same, and once more where a signal raises in the midst of it: a lock that stays is everybody's."""
        try:
            self.close()
        except BaseException:
            self.close()
            raise

    def _drop(self) -> None:
        # Not unlocked: the lock is the parent's.
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


def _after_in_child() -> None:
    for file in _open_files:
        file._drop()
    _open_files.clear()
    _opening.release()


os.register_at_fork(before=_opening.acquire, after_in_parent=_opening.release, after_in_child=_after_in_child)


class BookLock:
    """An exclusive lock on a file, between processes and between the threads of each. Not re-entrant."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Hold it; raises what `acquired` does."""
        file = None
        try:
            file = self.acquired()
            yield
        finally:
            if file is not None:
                file.close_whatever_comes()

    def acquired(self) -> HeldFile:
        """Take it; it is held until what is returned is closed.

        Raises `BookBusy` where others hold it for 30 seconds, and `OSError` where the file can't be had.
        """
        # The file is opened anew for each try. So two threads have two open files and exclude each other, and a lock
        # file that somebody removed is not waited for.
        deadline = time.monotonic() + PATIENCE_SECONDS
        pause = _FIRST_PAUSE_SECONDS
        while True:
            file = self._opened()
            try:
                if file.try_lock(fcntl.LOCK_EX):
                    return file
            except BaseException:
                file.close()
                raise
            file.close()
            if time.monotonic() > deadline:
                raise BookBusy(
                    f"{printable(self.path)} has been locked by another for {PATIENCE_SECONDS:g} seconds: `lslocks`"
                    " shows by which process; end it if it hangs, or wait and try again"
                )
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    def _opened(self) -> HeldFile:
        # An existing file is opened without O_CREAT: in a sticky folder the kernel may refuse that for a file of
        # another user (fs.protected_regular).
        try:
            return HeldFile(self.path)
        except FileNotFoundError:
            with contextlib.suppress(FileExistsError):
                return HeldFile(self.path, os.O_RDONLY | os.O_CREAT | os.O_EXCL)
        except PermissionError:
            time.sleep(_MODE_SECONDS)
        return HeldFile(self.path)
