"""RLIMIT_MEMLOCK, and what it is worth to this process: that is tried, since no text of the kernel says it.

It binds mlock, RDMA and io_uring, each by a count of its own. It does not bind what a GPU driver pins: under a limit of
64 KiB, CUDA pins gibibytes. With CAP_IPC_LOCK it binds nothing at all; but the root of a user namespace shows that
capability too and is held to the limit all the same, so the capability bits are not asked.
"""

from __future__ import annotations

import mmap
import os
import re

from pinprobe.probes.counters import read_counters
from pinprobe.probes.errors import AllocationFailed
from pinprobe.probes.host_tree import THIS_HOST, HostTree
from pinprobe.probes.limits.limit import Limit, LimitKind, Value, Words
from pinprobe.probes.own_mapping import OwnMapping
from pinprobe.probes.reading import Reading, Unreadable
from pinprobe.probes.units import LARGEST_SIZE_BYTES, format_bytes

_SOURCE = "/proc/self/limits"
_LINE = re.compile(r"^Max locked memory +([0-9]{1,20}|unlimited) +([0-9]{1,20}|unlimited) +bytes", re.MULTILINE)


def memlock_limit(tree: HostTree) -> Limit:
    """Return what this process may still lock.

    Its parts are the `soft` and `hard` limit, where these are set, and the `page` that it is counted in.

    On this host it is tried by locking: one page for real, and all that the limit leaves, and a page beyond it, by
    mlock2 with MLOCK_ONFAULT, which passes the same checks and takes no memory.
    """
    text = tree.text(_SOURCE)
    found = None if isinstance(text, Unreadable) else _LINE.search(text)
    parts: dict[str, Reading] = {}
    note = ""
    value: Value
    if isinstance(text, Unreadable):
        value = text
    elif found is None:
        value = Unreadable(f"{_SOURCE} names no locked memory")
    else:
        limits = {"soft": found[1], "hard": found[2]}
        parts = {name: Reading(int(limit), _SOURCE) for name, limit in limits.items() if limit != "unlimited"}
        parts["page"] = Reading(tree.page_size_bytes, "page size")
        value = Words("unlimited") if "soft" not in parts else _left(tree, parts["soft"])
        if tree == THIS_HOST:
            value, note = _tried(value)
    return Limit(
        LimitKind.MEMLOCK, "RLIMIT_MEMLOCK", value, _SOURCE, "mlock, RDMA, io_uring; not CUDA", parts, note=note
    )


def _left(tree: HostTree, soft: Reading) -> Reading:
    """Return the whole pages that the limit leaves; what the process has locked is read beside it."""
    locked = read_counters(tree)["VmLck"]
    left = soft.bytes - (locked.bytes if isinstance(locked, Reading) else 0)
    return Reading(max(0, left) // tree.page_size_bytes * tree.page_size_bytes, soft.source)


def _tried(value: Value) -> tuple[Value, str]:
    """Hold the value against what the kernel does. Returns the value as it then is, and how it was proven."""
    page = mmap.PAGESIZE
    try:
        with OwnMapping.anonymous(page, huge_pages=False) as mapping:
            code = mapping.lock()
        if code:
            return Reading(0, _SOURCE), f"a real mlock of one page was refused: {os.strerror(code)}"
        if not isinstance(value, Reading):
            return value, "a real mlock of one page was let through"
        if isinstance(read_counters(THIS_HOST)["VmLck"], Unreadable):
            return value, "a real mlock of one page was let through; no VmLck shows what more of them would do"
        within = value.bytes == 0 or _is_let_through(value.bytes)
        beyond = value.bytes + page <= LARGEST_SIZE_BYTES and _is_let_through(value.bytes + page)
    except AllocationFailed as error:
        return value, f"not tried: {error}"
    if beyond:
        return Words("unlimited"), f"a real mlock beyond the limit of {format_bytes(value.bytes)} was let through"
    if not within:
        return Unreadable(f"mlock of {format_bytes(value.bytes)} was refused, which is within {_SOURCE}"), ""
    return value, "a real mlock was let through up to it and refused one page beyond"


def _is_let_through(size_bytes: int) -> bool:
    """Say whether the kernel locks so much: by its count of locked memory, since a sandbox may only seem to."""
    with OwnMapping.anonymous(size_bytes, huge_pages=False) as mapping:
        before = read_counters(THIS_HOST)["VmLck"]
        code = mapping.lock_allowed()
        growth = read_counters(THIS_HOST)["VmLck"] - before
    return code == 0 and isinstance(growth, Reading) and growth.bytes >= size_bytes
