"""The headroom as it was read last, for requests that are too small to need a reading of their own.

A cgroup's figures cost the kernel a millisecond and more to add up. Within a second others take some gibibytes at most,
so a request that asks for a small part of what was left is judged by that reading, less everything that was admitted
since.
"""

from __future__ import annotations

import time

from pinprobe.ledger.admission import Request
from pinprobe.probes.headroom import Headroom, read_headroom
from pinprobe.probes.host_tree import HostTree
from pinprobe.probes.reading import Reading

_STALE_SECONDS = 1.0
_SMALL_SHARE = 256


class HeadroomSeen:
    """One reading, and what was admitted since. Not for several threads at once."""

    def __init__(self, tree: HostTree) -> None:
        self._tree = tree
        self._seen: Headroom | None = None
        self._seen_at = 0.0
        self._admitted_bytes = 0

    def for_request(self, request: Request) -> tuple[Headroom, int]:
        """Return a headroom that is good enough for a request, and what was admitted since it was read."""
        if self._seen is None or request.from_pool or not self._is_good_for(request.price.bytes):
            self._seen = read_headroom(self._tree, with_pools=request.from_pool)
            self._seen_at = time.monotonic()
            self._admitted_bytes = 0
        return self._seen, self._admitted_bytes

    def admitted(self, cost_bytes: int) -> None:
        """Count what a request is expected to take of it."""
        self._admitted_bytes += cost_bytes

    def _is_good_for(self, price_bytes: int) -> bool:
        left = self._seen.available if self._seen is not None else None
        if not isinstance(left, Reading) or time.monotonic() - self._seen_at > _STALE_SECONDS:
            return False
        return (price_bytes + self._admitted_bytes) * _SMALL_SHARE <= left.bytes
