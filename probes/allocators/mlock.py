"""`mlock`: fresh memory locked by mlock, the exact way to pin that every Linux has. What it costs is what was asked."""

from __future__ import annotations

import errno
import mmap
import os
import resource

from pinprobe.probes.allocators.uncached import MappedMemory, Uncached
from pinprobe.probes.counters import read_counters
from pinprobe.probes.errors import AllocationFailed, AllocatorUnavailable
from pinprobe.probes.host_tree import THIS_HOST
from pinprobe.probes.own_mapping import OwnMapping
from pinprobe.probes.reading import Reading
from pinprobe.probes.units import format_bytes


class Mlock(Uncached):
    """Fresh locked memory for every request; no cache."""

    name = "mlock"
    counter = "RssAnon"

    @classmethod
    def prepare(cls, largest_bytes: int) -> Mlock:
        """Ask the kernel whether this much may be locked, without locking a page.

        The capability bits are not asked: the root of a user namespace shows them all and is refused all the same.
        """
        try:
            mapping = OwnMapping.anonymous(largest_bytes, huge_pages=False)
        except AllocationFailed as error:
            raise AllocatorUnavailable(str(error), "ask for less, or raise `ulimit -v`") from None
        with mapping:
            code = mapping.lock_allowed()
        if code:
            raise AllocatorUnavailable(*_lock_refused(largest_bytes, code))
        return cls()

    def allocate(self, asked_bytes: int) -> MappedMemory:
        """Map and lock `asked_bytes`, rounded up to whole pages."""
        mapping = OwnMapping.anonymous(asked_bytes, huge_pages=False)
        code = mapping.lock()
        if code:
            mapping.unmap()
            raise AllocationFailed("; ".join(_lock_refused(asked_bytes, code)))
        return MappedMemory(mapping, "locked")


def _lock_refused(asked_bytes: int, code: int) -> tuple[str, str]:
    """Say why mlock refused, and what to do: (reason, remedy).

    The kernel counts in pages: it rounds the ask up, the limit down, and adds what the process has locked already.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    page = mmap.PAGESIZE
    locked = read_counters(THIS_HOST)["VmLck"]
    need = -(-asked_bytes // page) * page + (locked.bytes if isinstance(locked, Reading) else 0)
    within = soft == resource.RLIM_INFINITY or need <= soft // page * page
    # EPERM: the limit is 0. ENOMEM: over the limit, or truly no memory, which the limit tells apart. EAGAIN: some
    # pages.
    if code not in (errno.EPERM, errno.ENOMEM) or within:
        return f"mlock of {format_bytes(asked_bytes)} failed: {os.strerror(code)}", "ask for less"
    reason = f"mlock of {format_bytes(asked_bytes)} is over RLIMIT_MEMLOCK, which is {format_bytes(soft)}"
    if hard != resource.RLIM_INFINITY and hard < need:
        return reason, f"as root: `prlimit --pid $$ --memlock={need}` for a shell, or LimitMEMLOCK= in a unit"
    return reason, f"`ulimit -l {-(-need // 1024)}` in this shell"
