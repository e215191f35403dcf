"""What pinning was seen to take of the host beside resident pages: page tables, and the driver's bookkeeping.

It is read around each large new block, as what left the host without becoming anybody's page. Other processes' drivers
move it too, so a single figure is held to a tenth of its block, and what is priced by it is the share over all.
"""

from __future__ import annotations

from collections.abc import Sequence

from pinprobe.probes.backing import Backing
from pinprobe.probes.host_tree import HostTree
from pinprobe.probes.overhead import read_free_or_held
from pinprobe.probes.reading import Amount, Reading, Unreadable

#: Below this the host's own doings are larger than what is looked for, and two readings are not worth their time.
SMALLEST_BYTES = 256 * 2**20
_LARGEST_SHARE = 0.1


class OverheadSeen:
    """The overhead of each block that it was read around, as long as the block is there."""

    def __init__(self, tree: HostTree) -> None:
        self._tree = tree
        self._seen: dict[Backing, int] = {}

    def before(self, expected_bytes: int) -> Amount:
        """Read the host before a block is taken, where it is expected to be large enough."""
        if expected_bytes < SMALLEST_BYTES:
            return Unreadable(f"blocks below {SMALLEST_BYTES >> 20} MiB are not looked at")
        return read_free_or_held(self._tree)

    def after(self, before: Amount, new: Sequence[Backing]) -> None:
        """Read it again and keep what went beside the pages of the new blocks."""
        size = sum(backing.size_bytes for backing in new)
        if size < SMALLEST_BYTES or isinstance(before, Unreadable):
            return
        lost = before - read_free_or_held(self._tree)
        if isinstance(lost, Reading):
            self._seen[new[0]] = max(0, min(lost.bytes, int(size * _LARGEST_SHARE)))
            self._seen.update(dict.fromkeys(new[1:], 0))

    def forget(self, backing: Backing) -> None:
        """Strike a block that is gone."""
        self._seen.pop(backing, None)

    @property
    def bytes(self) -> Amount:
        """The overhead of all blocks that it was read for."""
        if not self._seen:
            return Unreadable(f"no block of {SMALLEST_BYTES >> 20} MiB or more was taken yet")
        return Reading(sum(self._seen.values()), "MemAvailable + per-CPU lists + AnonPages + Shmem")

    @property
    def share(self) -> float:
        """Overhead over block bytes; 0 as long as nothing was seen."""
        size = sum(backing.size_bytes for backing in self._seen)
        return sum(self._seen.values()) / size if size else 0.0
