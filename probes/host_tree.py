"""Where the kernel's texts are read from: a root below which `/proc` and `/sys` lie, and the page size there.

Every reader takes a `HostTree`, so that the same code reads this machine, a saved tree of another one, and a fixture.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from pathlib import Path

from pinprobe.probes.reading import Unreadable


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

        Names of mapped files may hold any byte, so what is not UTF-8 is kept as surrogates rather than refused.
        """
        try:
            return self.path(name).read_bytes().decode("utf-8", "surrogateescape")
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


THIS_HOST = HostTree()
