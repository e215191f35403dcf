"""/dev/shm: how much its files may take. It binds those alone: no memfd, no pinned memory, no shared anonymous one."""

from __future__ import annotations

import os
import re

from pinprobe.probes.host_tree import THIS_HOST, HostTree
from pinprobe.probes.kernel_text import kilobyte_fields
from pinprobe.probes.limits.limit import Absent, Limit, LimitKind, Value
from pinprobe.probes.reading import Amount, Reading, Unreadable

PLACE = "/dev/shm"

_SOURCE = "/proc/self/mountinfo"
_SIZE = re.compile(r"(?:^|,)size=([0-9]{1,18})([kmg]?)(?:,|$)", re.ASCII)
_FACTORS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30}


def shared_memory_limit(tree: HostTree) -> Limit:
    """Return what files in /dev/shm may still take. Its parts are the `total`, and on this host what is `used`."""
    total = _total(tree)
    value: Value = total
    parts = {"total": total} if isinstance(total, Reading) else {}
    if isinstance(total, Reading) and tree == THIS_HOST:
        used = _used()
        if isinstance(used, Reading):
            value = Reading(max(0, total.bytes - used.bytes), _SOURCE)
            parts["used"] = used
    return Limit(LimitKind.SHARED_MEMORY, PLACE, value, _SOURCE, "files; no memfd", parts)


def _total(tree: HostTree) -> Reading | Absent | Unreadable:
    mounts = tree.text(_SOURCE)
    if isinstance(mounts, Unreadable):
        return mounts
    options = None
    for line in mounts.split("\n"):
        before, separator, after = line.partition(" - ")
        place, kind = before.split(), after.split()
        if separator and len(place) > 4 and place[4] == PLACE and len(kind) > 2:
            options = kind[2] if kind[0] == "tmpfs" else ""  # the last one lies over those before it
    if options is None:
        return Absent("not mounted")
    if not options:
        return Unreadable(f"{PLACE} is no tmpfs, by {_SOURCE}")
    size = _SIZE.search(options)
    if size is not None:
        return Reading(int(size[1]) * _FACTORS[size[2]], _SOURCE)
    # The kernel leaves the size out where it is the default: half of the memory.
    memory = kilobyte_fields(tree.text("/proc/meminfo"), ["MemTotal"], "/proc/meminfo")["MemTotal"]
    return Reading(memory.bytes // 2, "/proc/meminfo MemTotal") if isinstance(memory, Reading) else memory


def _used() -> Amount:
    try:
        found = os.statvfs(PLACE)
    except OSError as error:
        return Unreadable(f"{PLACE}: {error.strerror or error}")
    return Reading((found.f_blocks - found.f_bfree) * found.f_frsize, f"statvfs {PLACE}")
