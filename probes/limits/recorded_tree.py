"""A tree of kernel files that lies in a folder: another host's, copied, or this one's seen from within a container."""

from __future__ import annotations

import mmap
import re
from pathlib import Path

from pinprobe.probes.errors import BadRequest, printable
from pinprobe.probes.host_tree import HostTree

_PAGE = re.compile(r"^KernelPageSize: +([0-9]{1,9}) kB$", re.MULTILINE | re.ASCII)


def recorded_tree(root: Path) -> HostTree:
    """Return the tree below `root`. Its pages are as large as the smallest that its smaps names, else as those here.

    Raises `BadRequest` where there is no `proc` in it.
    """
    try:
        is_tree = (root / "proc").is_dir()
    except (OSError, ValueError):
        is_tree = False
    if not is_tree:
        raise BadRequest(f"--root {printable(root)} holds no folder proc; name the one that proc and sys lie in")
    text = HostTree(root).text("/proc/self/smaps")
    sizes = [int(size) * 1024 for size in _PAGE.findall(text)] if isinstance(text, str) else []
    return HostTree(root, page_size_bytes=min(filter(None, sizes), default=mmap.PAGESIZE))
