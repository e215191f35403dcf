"""How an attempt to write a savepoint to the overflow ended."""

from __future__ import annotations

import errno
from dataclasses import dataclass
from enum import Enum


class WriteEnd(str, Enum):
    """Written, or the reason why not. Where it was not written, nothing of it is left in the folder."""

    WRITTEN = "written"
    ALREADY_THERE = "already_there"  # its value is the new one from now on
    IN_PROGRESS = "in_progress"  # another thread is writing it
    NOT_WORTH_IT = "not_worth_it"  # no room, and nothing of ours there that is worth less
    DISK_FULL = "disk_full"
    TOO_LARGE = "too_large"  # for the file system, or for the process's limit of a file's size
    FOLDER_GONE = "folder_gone"
    NOT_PERMITTED = "not_permitted"
    BUSY = "busy"  # another process does not let go of the folder's lock
    DROPPED = "dropped"  # while it was being written
    CLOSED = "closed"  # the store was, before or meanwhile
    FAILED = "failed"  # any other error of the system


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end, a few words on it for people, and what writing took: 0 B where the savepoint was not written."""

    end: WriteEnd
    text: str = ""
    written_bytes: int = 0
    seconds: float = 0.0

    @property
    def is_written(self) -> bool:
        """Whether this very call wrote it."""
        return self.end is WriteEnd.WRITTEN


_ENDS = {
    errno.ENOSPC: WriteEnd.DISK_FULL,
    errno.EDQUOT: WriteEnd.DISK_FULL,
    errno.EFBIG: WriteEnd.TOO_LARGE,
    errno.ENOENT: WriteEnd.FOLDER_GONE,
    errno.ENOTDIR: WriteEnd.FOLDER_GONE,
    errno.ESTALE: WriteEnd.FOLDER_GONE,
    errno.EACCES: WriteEnd.NOT_PERMITTED,
    errno.EPERM: WriteEnd.NOT_PERMITTED,
    errno.EROFS: WriteEnd.NOT_PERMITTED,
}


class NotWritten(Exception):
    """Ends an attempt from within, with its reason."""

    def __init__(self, end: WriteEnd, text: str = "") -> None:
        super().__init__(end, text)
        self.end = end
        self.text = text


def end_of(error: OSError) -> WriteEnd:
    """Put an error of the system among the ends.

    >>> end_of(OSError(errno.ENOSPC, "No space left on device")).value
    'disk_full'
    """
    return _ENDS.get(error.errno or 0, WriteEnd.FAILED)
