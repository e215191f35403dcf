"""The headroom for requests that need no whole reading of their own.

A whole one costs the kernel a millisecond and more, which adds up what its CPUs count. A request that fits within what
every source leaves at the very least fits, and that is read in a fraction of the time. Within a second others take some
gibibytes at most, so one that asks for a small part of what was left is judged by that reading, less everything that
was admitted since; a process that is moved to another cgroup is bound by that a second later at most. Mounts are looked
at once a second. Nothing is refused by any of this.
"""

from __future__ import annotations

import math
import time

from pinprobe.ledger.admission import Request
from pinprobe.probes.headroom import Headroom, read_headroom, read_least_headroom
from pinprobe.probes.host_tree import HostTree
from pinprobe.probes.reading import Reading, Unreadable

_STALE_SECONDS = 1.0
_SMALL_SHARE = 128


class HeadroomSeen:
    """One reading, and what was admitted since. Not for several threads at once."""

    def __init__(self, tree: HostTree) -> None:
        self._tree = tree
        self._seen: Headroom | None = None
        self._left_bytes = 0
        self._seen_at = -math.inf
        self._admitted_bytes = 0
        self._mounts: str | Unreadable = ""
        self._mounts_read_at = -math.inf

    def at_least(self, request: Request) -> tuple[Headroom, int]:
        """Return a lower bound that may be a second old, and what was admitted since it was read."""
        if request.from_pool:  # pools are in whole readings alone
            return self.whole(request)
        now = time.monotonic()
        if self._seen is not None and self._is_good_for(request.price.bytes, now):
            return self._seen, self._admitted_bytes
        if now - self._mounts_read_at > _STALE_SECONDS:
            self._mounts, self._mounts_read_at = self._tree.text("/proc/self/mountinfo"), now
        least = read_least_headroom(self._tree, self._mounts)
        if any(isinstance(source.available, Unreadable) for source in least.sources):
            return self.whole(request)  # what can't be read may be the one that binds, or be gone since the last look
        return self._keep(least)

    def whole(self, request: Request) -> tuple[Headroom, int]:
        """Read everything anew, as `at_least` returns it."""
        return self._keep(read_headroom(self._tree, with_pools=request.from_pool))

    def admitted(self, cost_bytes: int) -> None:
        """Count what a request is expected to take of it."""
        self._admitted_bytes += cost_bytes

    def _keep(self, seen: Headroom) -> tuple[Headroom, int]:
        left = seen.available
        self._left_bytes = left.bytes if isinstance(left, Reading) else 0
        self._seen, self._seen_at, self._admitted_bytes = seen, time.monotonic(), 0
        return seen, 0

    def _is_good_for(self, price_bytes: int, now: float) -> bool:
        is_fresh = now - self._seen_at <= _STALE_SECONDS
        return is_fresh and (price_bytes + self._admitted_bytes) * _SMALL_SHARE <= self._left_bytes
