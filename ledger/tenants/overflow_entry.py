"""A file of the overflow as its store knows it: while it is being written, and once it is whole."""

from __future__ import annotations

import errno
import logging
import os
from dataclasses import dataclass
from pathlib import Path

from pinprobe.ledger.tenants.overflow_file import OverflowHeader
from pinprobe.probes.errors import printable

_log = logging.getLogger("pinprobe")


@dataclass(eq=False)
class StoredFile:
    """A whole file. `identity` (device, inode) tells it from another that somebody put in its place."""

    header: OverflowHeader
    path: Path
    value: float
    size_bytes: int
    identity: tuple[int, int]
    readers: int = 0

    def remove(self) -> None:
        """Delete it; another in its place stays. Raises `OSError`."""
        try:
            found = self.path.lstat()
            if (found.st_dev, found.st_ino) == self.identity:
                self.path.unlink()
        except FileNotFoundError:
            pass


@dataclass(eq=False)
class Attempt:
    """A file that is being written, at `path` until it is whole. `held_bytes` are set aside for it."""

    header: OverflowHeader
    path: Path
    final_path: Path
    value: float
    held_bytes: int = 0
    is_dropped: bool = False


def set_aside(path: Path, size_bytes: int) -> int:
    """Make a file with all its bytes set aside; return it open. Where that raises `OSError`, there is no file."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        try:
            os.posix_fallocate(descriptor, 0, size_bytes)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL):
                raise
            # A C library that does not stand in for a file system that can't: its length alone counts for the bound.
            os.ftruncate(descriptor, size_bytes)
    except BaseException:
        os.close(descriptor)
        unlink_quietly(path)
        raise
    return descriptor


def unlink_quietly(path: Path) -> None:
    """Delete what an attempt that failed left. What can't be deleted now is told; the next start deletes it."""
    try:
        path.unlink()
    except FileNotFoundError:
        pass
    except OSError as error:
        _log.warning("%s can't be deleted: %s", printable(path), error.strerror)
