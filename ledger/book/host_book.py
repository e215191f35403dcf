"""The book of a host: what the processes that share a folder hold of its memory, an entry for each.

In the folder lie `book.lock`, and for each process `<process>.alive` and `<process>.json`. The process holds an flock
on the first for as long as it lives, and the kernel lets go of it with the process, however that ends; so life is seen
across pid namespaces too, where a pid says nothing. The second has its rows. What a dead process left is removed by
whoever next looks, and what can't be read is moved out of the way, and never in the way.

All who may write into the folder trust each other: any of them can hold the lock or put files there.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import itertools
import logging
import os
import re
import stat
import threading
import time
import weakref
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType

from pinprobe.ledger.book.book_entry import (
    TEXT_LIMIT_BYTES,
    BookEntry,
    BookReading,
    BookRow,
    Unusable,
    entry_text,
    parse_entry,
)
from pinprobe.ledger.book.book_folder import (
    REMEDY,
    default_book_folder,
    given_by_environment,
    make_folder,
    reason_against,
)
from pinprobe.ledger.book.book_lock import MODE, BookLock, HeldFile
from pinprobe.probes.errors import BadRequest, CouldNotMeasure, printable

__all__ = ["HostBook", "default_book_folder"]

#: So many files that could not be read are kept for whoever wants to know why.
DAMAGED_KEPT = 8

_OURS = re.compile(r"([0-9a-f]{16}-[0-9a-f]{8})\.(?:alive|json|new-[0-9]+)")
_DAMAGED = re.compile(r"([0-9a-f]{16}-[0-9a-f]{8})\.json\.damaged-([0-9]{1,18})")
_log = logging.getLogger("pinprobe")
_books: weakref.WeakSet[HostBook] = weakref.WeakSet()


class HostBook:
    """The book, and this process's own entry in it.

    An object registers its process at its first `locked` or `write`; one that only reads leaves no trace. Two objects
    are two processes to the book. In a forked child, and after `close`, an object begins anew: `process` is another
    one, without rows, and the parent's entry stays the parent's. Files of ours that somebody removed are made anew at
    the next `locked`.

    Threads may share it. `locked` and `read` wait for each other, and neither may be called inside `locked` by the same
    thread: it would wait for itself until `BookBusy`. Callers put their own `write` calls in order.

    Raises `BadRequest` where the folder can't be used, `BookBusy` where the lock is not to be had, and
    `CouldNotMeasure` where the folder fails later: it is full, gone, or closed to this user.
    """

    folder: Path
    process: str
    label: str
    _alive: HeldFile | None
    _alive_inode: int | None
    _rows: tuple[BookRow, ...]
    _writing: threading.Lock

    def __init__(self, folder: Path | None = None, label: str = "") -> None:
        self._is_private = folder is None and given_by_environment() is None
        self.folder = default_book_folder() if folder is None else folder.absolute()
        reason = reason_against(self.folder, self._is_private, to_write=False)
        if reason is not None:
            raise BadRequest(f"the host's book can't be read: {printable(self.folder)} {reason}; {REMEDY}")
        self.label = label
        self._lock = BookLock(self.folder / "book.lock")
        self._numbers = itertools.count()
        self._begin_anew()
        _books.add(self)

    @contextlib.contextmanager
    def locked(self) -> Iterator[BookReading]:
        """Hold the book's lock, and yield what the other live processes hold or are about to take.

        Nobody else can look meanwhile, so hold it shortly: look, decide, write a pending row.
        """
        held = None
        try:
            with _TroubleTold(self.folder, "read"):
                self._make_ready()
                held = self._lock.acquired()
                processes = self._processes()
                self._register(processes.pop(self.process, {}))
                others = self._look(processes)
            yield others
        finally:
            if held is not None:
                held.close_whatever_comes()

    def write(self, rows: Sequence[BookRow]) -> None:
        """Replace this process's whole entry, at once for every reader. With or without the lock.

        Where it fails, the entry is what it was.
        """
        rows = tuple(rows)
        with _TroubleTold(self.folder, "written"):
            if self._alive is None:
                self._make_ready()
                with self._lock.held():
                    if self._alive is None:  # another thread may have been quicker
                        self._register({})
            with self._writing:
                self._put(rows)
                self._rows = rows

    def read(self) -> BookReading:
        """Look at what all live processes hold, this one included."""
        with _TroubleTold(self.folder, "read"):
            if not self.folder.exists() and self._alive is None:
                return BookReading()  # nobody has begun a book
            with self._lock.held():
                return self._look(self._processes())

    @property
    def reach(self) -> str:
        """One sentence's worth of how far the book reaches: who shares it, and how many live processes do."""
        with _TroubleTold(self.folder, "read"):
            is_there = self.folder.exists()
            live = sum(self._is_alive(process) for process in self._processes()) if is_there else 0
        place = printable(self.folder) if is_there else f"{printable(self.folder)}, once that folder is there"
        if self._is_private:
            return f"processes of user {os.geteuid()} that see {place}, which is theirs alone ({live} live)"
        return f"processes of all users and containers that see {place}, a shared folder ({live} live)"

    def close(self) -> None:
        """Remove this process's entry and end its life for the book. A second call does nothing."""
        alive = self._alive
        if alive is None:
            return
        # The sign of life goes first: a live process without rows would be reported as unreadable.
        for ending in ("alive", "json"):
            with contextlib.suppress(OSError):
                Path(self._path(self.process, ending)).unlink()
        alive.close()
        self._begin_anew()

    def __enter__(self) -> HostBook:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    # -- this process

    def _begin_anew(self) -> None:
        atexit.unregister(self.close)
        # Names sort by when their processes began.
        self.process = f"{time.time_ns():016x}-{os.urandom(4).hex()}"
        self._alive = None
        self._alive_inode = None
        self._rows = ()
        # A new one too: in a forked child, the old one may be held by a thread that is not there.
        self._writing = threading.Lock()

    def _make_ready(self) -> None:
        # Only at the beginning: a folder made anew where a shared one is gone would be a book of one process alone.
        if self._alive is None:
            make_folder(self.folder, self._is_private)

    def _register(self, found: Mapping[str, int]) -> None:
        """Make sure, under the lock, that both of this process's files are there, and are its own.

        Others may have removed them, or put copies there. `found` has the number of each file's inode.
        """
        path = self._path(self.process, "alive")
        if self._alive is None:
            self._alive = self._sign_of_life(path)
            try:
                self._put(())
            except BaseException:
                self.close()
                raise
            atexit.register(self.close)
            return
        inode = found.get(f"{self.process}.alive")
        # The folder's numbers may be others than the files' own, as on overlays: what was seen before is compared.
        if inode is None or (inode != self._alive_inode and not self._alive.is_at(path)):
            _log.warning("%s was removed while its process lives; made anew", printable(path))
            gone, self._alive = self._alive, self._sign_of_life(path)
            gone.close()
            inode = None
        self._alive_inode = inode
        with self._writing:
            if f"{self.process}.json" not in found:
                self._put(self._rows)

    def _sign_of_life(self, path: str) -> HeldFile:
        # Locked before it has its name, so that nobody ever sees it without a lock.
        new = self._new_path()
        alive = HeldFile(new, os.O_RDONLY | os.O_CREAT | os.O_EXCL)
        try:
            if not alive.try_lock(fcntl.LOCK_EX):
                raise CouldNotMeasure(f"{printable(new)} is locked by another; {REMEDY}")
            Path(new).rename(path)
        except BaseException:
            alive.close()
            Path(new).unlink(missing_ok=True)
            raise
        return alive

    def _put(self, rows: tuple[BookRow, ...]) -> None:
        text = entry_text(BookEntry(self.process, os.getpid(), self.label, rows))
        new = self._new_path()
        opened = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, MODE)
        try:
            try:
                os.fchmod(opened, MODE)
                while text:  # after a short write, the next one says why
                    text = text[os.write(opened, text) :]
            finally:
                os.close(opened)
            os.rename(new, self._path(self.process, "json"))  # noqa: PTH104  # see _path
        except BaseException:
            Path(new).unlink(missing_ok=True)
            raise

    # -- all processes, under the lock

    def _look(self, processes: Mapping[str, Collection[str]]) -> BookReading:
        entries, unreadable, set_aside = [], [], []
        for process, names in processes.items():
            # The rows are read before life is tested: who ends meanwhile takes back his sign of life first.
            found = self._entry_of(process)
            if isinstance(found, Unusable) and found.is_damaged:
                set_aside += self._set_aside(process, found.reason)
            if not self._is_alive(process):
                self._remove(names)
            elif isinstance(found, BookEntry):
                entries.append(found)
            else:
                unreadable.append(f"process {process}: {found.reason}")
        return BookReading(tuple(entries), tuple(unreadable), tuple(set_aside))

    def _processes(self) -> dict[str, dict[str, int]]:
        """Return each process that has files here, and their names with inodes, in the order in which they began."""
        with os.scandir(self.folder) as entries:
            inodes = sorted((entry.name, entry.inode()) for entry in entries)
        found: dict[str, dict[str, int]] = {}
        for name, inode in inodes:
            if match := _OURS.fullmatch(name):
                found.setdefault(match[1], {})[name] = inode
        return found

    def _damaged(self) -> list[re.Match[str]]:
        names = sorted(os.listdir(self.folder))  # noqa: PTH208  # see _path
        return [match for match in map(_DAMAGED.fullmatch, names) if match]

    def _is_alive(self, process: str) -> bool:
        try:
            file = HeldFile(self._path(process, "alive"))
        except FileNotFoundError:
            return False
        except OSError:
            return True  # what can't be looked at is never taken for dead
        with contextlib.closing(file):
            return not file.try_lock(fcntl.LOCK_SH)

    def _entry_of(self, process: str) -> BookEntry | Unusable:
        path = self._path(process, "json")
        try:
            opened = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
            with os.fdopen(opened, "rb") as file:
                if not stat.S_ISREG(os.fstat(opened).st_mode):
                    return Unusable("it is no file")
                text = file.read(TEXT_LIMIT_BYTES + 1)
        except FileNotFoundError:
            return Unusable("its rows are missing or were set aside, until it writes again", is_damaged=False)
        except OSError as error:
            if Path(path).is_symlink() or Path(path).is_dir():
                return Unusable("it is no file")
            return Unusable(f"{Path(path).name}: {error.strerror or error}", is_damaged=False)
        if len(text) > TEXT_LIMIT_BYTES:
            return Unusable(f"it is larger than {TEXT_LIMIT_BYTES:,} B")
        return parse_entry(text, process)

    def _set_aside(self, process: str, reason: str) -> list[str]:
        path = self._path(process, "json")
        earlier = sorted((int(match[2]), match[0]) for match in self._damaged())
        number = earlier[-1][0] + 1 if earlier else 1
        kept = f"{path}.damaged-{number}"
        try:
            Path(path).rename(kept)
        except OSError:  # another user's, in a sticky folder
            return []
        self._remove([name for _, name in earlier[::-1][DAMAGED_KEPT - 1 :]])
        line = f"{printable(path)}: {reason}; kept as {Path(kept).name}"
        _log.warning("%s", line)
        return [line]

    def _remove(self, names: Iterable[str]) -> None:
        for name in names:
            with contextlib.suppress(OSError):  # gone by now, or another user's in a sticky folder
                (self.folder / name).unlink()

    # -- paths and errors

    def _path(self, process: str, ending: str) -> str:
        # Text, not a path object: this is done beside each allocation, when nothing is in the processor's caches.
        return f"{self.folder}/{process}.{ending}"

    def _new_path(self) -> str:
        return self._path(self.process, f"new-{next(self._numbers)}")


class _TroubleTold:
    """Turns what the file system says into what can be done about it."""

    def __init__(self, folder: Path, done: str) -> None:
        self._folder, self._done = folder, done

    def __enter__(self) -> None:
        """Nothing is to be done before."""

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, OSError):
            place, reason = error.filename or self._folder, error.strerror or error
            raise CouldNotMeasure(
                f"the host's book can't be {self._done}: {printable(place)}: {reason}; mend that, or {REMEDY}"
            ) from None


def _after_in_child() -> None:
    for book in _books:
        book._begin_anew()


os.register_at_fork(after_in_child=_after_in_child)
