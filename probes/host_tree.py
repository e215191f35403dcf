"""Where the kernel's texts are read from: a root below which `/proc` and `/sys` lie, and the page size there.

Every reader takes a `HostTree`, so that the same code reads this machine, a saved tree of another one, and a fixture.
"""

from __future__ import annotations

import mmap
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from pinprobe.probes.reading import Unreadable

#: No text of the kernel is as long; a file that says so was put there by somebody. The kernel's own say 0.
LONGEST_TEXT_BYTES = 256 * 2**20


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
        """Read a file whole, in one call, or say why it can't be read.

        Names of mapped files may hold any byte, so what is not UTF-8 is kept as surrogates rather than refused. A saved
        tree may hold what is no text at all, such as a pipe that nobody writes to or an endless device: that is told.
        """
        try:
            with open(self.path(name), "rb", buffering=0, opener=_open_at_once) as file:
                status = os.fstat(file.fileno())
                if not stat.S_ISREG(status.st_mode):
                    return Unreadable(f"{name}: it is no regular file")
                if status.st_size > LONGEST_TEXT_BYTES:
                    return Unreadable(f"{name}: it is larger than {LONGEST_TEXT_BYTES // 2**20} MiB, and no text is")
                return file.readall().decode("utf-8", "surrogateescape")
        except OSError as error:
            return Unreadable(f"{name}: {error.strerror or error}")
        except ValueError as error:  # a name with a NUL, which only a damaged text can bring here
            return Unreadable(f"{name!r}: {error}")

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


def _open_at_once(path: str, flags: int) -> int:
    # A pipe would be waited for until somebody opens its other end.
    return os.open(path, flags | os.O_NONBLOCK)


THIS_HOST = HostTree()
