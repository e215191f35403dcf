"""The tiers of an arm with a pool: the ring stages and brings back, the pool and its overflow keep."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pinprobe.ledger.replay.paced_pool import PacedPool
from pinprobe.ledger.replay.tiers import Found, Prefix
from pinprobe.ledger.tenants.copy_out import CopyOut
from pinprobe.ledger.tenants.pool_entry import Hold
from pinprobe.ledger.tenants.recall import Recall
from pinprobe.ledger.tenants.savepoint_ring import SavepointRing, Ticket
from pinprobe.probes.errors import CouldNotMeasure

if TYPE_CHECKING:
    import torch

_PATIENCE_SECONDS = 60.0


class RingAndPool:
    """Waits for every copy to come to its end, so that what is kept does not hang on how fast this machine is."""

    def __init__(
        self, ring: SavepointRing, pool: PacedPool, worker: CopyOut, device: Mapping[str, torch.Tensor]
    ) -> None:
        self.late_recalls = 0
        self._ring = ring
        self._pool = pool
        self._worker = worker
        self._device = device

    @property
    def entry_count(self) -> int:
        """How many savepoints the pool keeps."""
        return self._pool.entry_count

    @property
    def held_regions(self) -> int:
        """How many of its regions are mapped."""
        return self._pool.held_regions

    def settle(self) -> None:
        """Give back what is wanted no more, and write to disk what is worth it."""
        self._pool.settle()

    def read(self, prefixes: Sequence[Prefix], words: array[int], conversation: str) -> Found | None:
        """Bring the longest one back as an engine does: from its region, or from disk, into a slot, and to the device.

        A file that is not read back within a minute is counted, and what memory has is read in its place.
        """
        recall = self._pool.recall(words, conversation)
        held = self._pool.match(words)
        back = None if recall is None else self._waited_for(recall)
        if back is not None and held is not None:
            held.release()
        tier, hold = ("pool", held) if back is None else ("disk", back)
        if hold is None:
            return None
        with hold:
            ticket = self._ring.load(hold.address)
            self._ring.restore(ticket, self._device)
            return Found(tier, hold.tokens)

    def keep(self, ticket: Ticket, prefix: Prefix, words: array[int], conversation: str) -> None:
        """Offer it to the pool, and wait until it was copied or is not to be. Raises `CouldNotMeasure`."""
        self._worker.submit(ticket, words, conversation)
        if not self._worker.drain(_PATIENCE_SECONDS):
            raise CouldNotMeasure(
                f"a savepoint was not copied out within {_PATIENCE_SECONDS:.0f} s; is this machine short of processors?"
            )
        self._pool.settle()

    def _waited_for(self, recall: Recall) -> Hold | None:
        if not recall.restore.wait(_PATIENCE_SECONDS):
            self.late_recalls += 1
            recall.cancel()
            return None
        return recall.collect()
