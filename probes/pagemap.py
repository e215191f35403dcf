"""How much of a range of addresses is resident, by the page table's own entries in /proc/PID/pagemap.

smaps tells of whole mappings only, and a small tensor lies in a large heap. Eight bytes a page are read, for the range
alone. The zero page counts as present, so this is an upper bound for memory that was read and never written.
"""

from __future__ import annotations

import os
import sys

from pinprobe.probes.host_tree import HostTree
from pinprobe.probes.reading import Amount, Reading, Unreadable

_ENTRY_BYTES = 8
_PAGES_A_READ = 1 << 20
# The byte of an entry that holds bit 63, "present", as its own highest bit.
_TOP_BYTE = _ENTRY_BYTES - 1 if sys.byteorder == "little" else 0
_ABSENT = bytes(range(0x80))


def read_present(tree: HostTree, start: int, end: int, pid: int | str = "self") -> Amount:
    """Return the bytes of the pages from `start` to `end` (both at page boundaries) that are present."""
    page = tree.page_size_bytes
    name = f"/proc/{pid}/pagemap"
    try:
        descriptor = tree.open(name)
    except OSError as error:
        return Unreadable(f"{name}: {error.strerror or error}")
    present = 0
    try:
        for first in range(start // page, end // page, _PAGES_A_READ):
            count = min(_PAGES_A_READ, end // page - first)
            entries = os.pread(descriptor, count * _ENTRY_BYTES, first * _ENTRY_BYTES)
            if len(entries) != count * _ENTRY_BYTES:
                return Unreadable(f"{name} is cut off at {first * page:#x}")
            present += len(entries[_TOP_BYTE::_ENTRY_BYTES].translate(None, _ABSENT))
    except (OSError, OverflowError) as error:
        return Unreadable(f"{name}: {error}")
    finally:
        os.close(descriptor)
    return Reading(present * page, "pagemap")
