"""By how much this process grew at most, by the kernel's own high-water mark where that can be set back."""

from __future__ import annotations

import contextlib

from pinprobe.probes.counters import read_statm
from pinprobe.probes.host_tree import THIS_HOST, HostTree
from pinprobe.probes.kernel_text import kilobyte_fields
from pinprobe.probes.reading import Amount, Reading, Unreadable, first_readable

# proc(5): sets VmHWM of a process back to its VmRSS (Linux 4.0).
_RESET_THE_MARK = "5"


class PeakResident:
    """VmRSS of this process at its largest since this was made, less what it was then. Huge page pools are not in it.

    VmHWM sees every moment. Where a sandbox does not let it be set back, only the moments of `sample` are seen.
    """

    def __init__(self, tree: HostTree = THIS_HOST) -> None:
        self._tree = tree
        self._has_mark = False
        with contextlib.suppress(OSError):
            tree.path("/proc/self/clear_refs").write_text(_RESET_THE_MARK, encoding="ascii")
            self._has_mark = True
        self._floor: Amount = read_statm(tree)
        self._highest = self._floor

    @property
    def sees_every_moment(self) -> bool:
        """Whether the kernel keeps the mark, so that nobody has to look in time."""
        return self._has_mark

    def sample(self) -> None:
        """Look how much is resident now."""
        now = read_statm(self._tree)
        if isinstance(now, Reading) and (isinstance(self._highest, Unreadable) or now.bytes > self._highest.bytes):
            self._highest = now

    def grown(self) -> Amount:
        """Return the growth, at least 0; unreadable where no source tells."""
        self.sample()
        highest = self._highest
        if self._has_mark:
            fields = kilobyte_fields(self._tree.text("/proc/self/status"), ("VmHWM",), "status")
            highest = first_readable(fields["VmHWM"], highest)
        grown = highest - self._floor
        if isinstance(grown, Unreadable):
            return grown
        return Reading(max(0, grown.bytes), grown.source, grown.error_bytes)
