"""Where the kernel's texts are read from: a root below which `/proc` and `/sys` lie, and the page size there.

Every reader takes a `HostTree`, so that the same code reads this machine, a saved tree of another one, and a fixture.
"""

from __future__ import annotations

import errno
import mmap
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from pinprobe.probes.reading import Unreadable

#: No text of the kernel is as long; a file that says so was put there by somebody. The kernel's own say 0.
LONGEST_TEXT_BYTES = 256 * 2**20
_CHUNK_BYTES = 2**16


@dataclass(frozen=True, slots=True)
class HostTree:
    """The kernel's files of one host.

    `root` is the folder that holds `proc` and `sys`. `page_size_bytes` is what `statm` and the page lists count in; it
    stands in no file of /proc, so a saved tree has to be told.
    """

    root: Path = Path("/")
    page_size_bytes: int = mmap.PAGESIZE

    def path(self, name: str) -> Path:
        """Return where the absolute path `name` (`/proc/self/status`) lies below this root."""
        return self.root / name.lstrip("/")

    def text(self, name: str) -> str | Unreadable:
        """Read a file whole, or say why it can't be read.

        Names of mapped files may hold any byte, so what is not UTF-8 is kept as surrogates rather than refused. A saved
        tree may hold what is no text at all, such as a pipe that nobody writes to or an endless device: that is told.
        """
        try:
            descriptor = self.open(name)
            try:
                status = os.fstat(descriptor)
                if not stat.S_ISREG(status.st_mode):
                    what = os.strerror(errno.EISDIR) if stat.S_ISDIR(status.st_mode) else "it is no regular file"
                    return Unreadable(f"{name}: {what}")
                if status.st_size > LONGEST_TEXT_BYTES:
                    return Unreadable(f"{name}: it is larger than {LONGEST_TEXT_BYTES // 2**20} MiB, and no text is")
                text = bytearray()
                while part := os.read(descriptor, _CHUNK_BYTES):
                    text += part
            finally:
                os.close(descriptor)
        except OSError as error:
            return Unreadable(f"{name}: {error.strerror or error}")
        except ValueError as error:  # a name with a NUL, which only a damaged text can bring here
            return Unreadable(f"{name!r}: {error}")
        return text.decode("utf-8", "surrogateescape")

    def open(self, name: str) -> int:
        """Open a file to be read, and return its descriptor. A pipe is not waited for until somebody opens its end.

        The ledger reads right after memory was touched, when nothing is in the processor's caches: a path object alone
        costs 70 microseconds then, and a file object as much again, so both are done without.
        """
        return os.open(f"{self.root}/{name}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)

    def names(self, folder: str) -> list[str]:
        """List a folder, sorted; an unreadable one is empty."""
        try:
            return sorted(entry.name for entry in self.path(folder).iterdir())
        except (OSError, ValueError):
            return []

    def has(self, name: str) -> bool:
        """Say whether there is something by that name; what may not be looked at is taken for missing."""
        try:
            return self.path(name).exists()
        except (OSError, ValueError):
            return False


THIS_HOST = HostTree()
