"""A savepoint on its way back from the overflow into a region of the pool."""

from __future__ import annotations

from typing import Protocol

from pinprobe.ledger.tenants.pool_entry import Hold, Place
from pinprobe.ledger.tenants.restore import Restore, Stage
from pinprobe.ledger.tenants.retention import Offer


class Receiver(Protocol):
    """What a recall needs of the tier that began it."""

    def receive(self, recall: Recall) -> Hold | None:
        """End a recall whose restore has ended; a hold where the savepoint came back."""


class Recall:
    """One savepoint that is being read back. Begun as soon as it is known to be wanted, and collected when it is there.

    One that nobody collects is cancelled after a while. For one thread at a time.
    """

    def __init__(self, receiver: Receiver, offer: Offer, place: Place, restore: Restore, begun_seconds: float) -> None:
        self.offer = offer
        self.place = place
        self.restore = restore
        self.begun_seconds = begun_seconds
        self.is_over = self.is_cancelled = False
        self._receiver = receiver

    @property
    def tokens(self) -> int:
        """How many tokens the savepoint covers."""
        return self.offer.tokens

    @property
    def is_pending(self) -> bool:
        """Whether it is still being read."""
        return not self.is_over and self.restore.collect().stage is Stage.PENDING

    def collect(self) -> Hold | None:
        """Hold the savepoint once it is there; None while it is not, or where it was lost. Never blocks."""
        return None if self.is_over or self.is_pending else self._receiver.receive(self)

    def cancel(self) -> None:
        """Say that nobody wants it any more: it brings nothing. One that was collected stays what it is."""
        self.is_cancelled = True
        self.restore.cancel()
