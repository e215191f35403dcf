"""Transparent huge pages: with them, registering memory with a driver is faster."""

from __future__ import annotations

import re

from pinprobe.probes.host_tree import HostTree
from pinprobe.probes.limits.limit import Absent, Limit, LimitKind, Value, Words, text_or_absent
from pinprobe.probes.reading import Unreadable

_FOLDER = "/sys/kernel/mm/transparent_hugepage"
_CHOSEN = re.compile(r"\[(\w{1,20})\]", re.ASCII)


def huge_page_mode(tree: HostTree) -> Limit:
    """Return the mode for private memory (`always`, `madvise`, `never`); the note has that of shared memory."""
    source = f"{_FOLDER}/enabled"
    text = text_or_absent(tree, source, "/sys/kernel/mm")
    chosen = _CHOSEN.search(text) if isinstance(text, str) else None
    value: Value
    if not isinstance(text, str):
        value = Absent("the kernel has none") if isinstance(text, Absent) else text
    else:
        value = Words(chosen[1]) if chosen else Unreadable(f"{source} reads {text.strip()[:40]!r}")
    shared = tree.text(f"{_FOLDER}/shmem_enabled")
    for_shared = _CHOSEN.search(shared) if isinstance(shared, str) else None
    note = f"shared memory: {for_shared[1]}" if for_shared else ""
    return Limit(LimitKind.HUGE_PAGE_MODE, "huge page mode", value, source, "speed of pinning", note=note)
