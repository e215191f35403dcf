"""A ledger that remembers its fullest moment, for whoever looks only after everything was given back."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

from pinprobe.ledger.booking import Account
from pinprobe.ledger.ledger import HostPinnedLedger
from pinprobe.ledger.reservation import Adoption, Reservation

T = TypeVar("T")


class WatchedLedger(HostPinnedLedger):
    """A ledger that is verified each time it holds more than ever before.

    That costs a `verify` at every new peak: milliseconds each, which an engine would not want and a test can bear.
    """

    def __init__(self, *, limit_bytes: int | None = None) -> None:
        super().__init__(limit_bytes=limit_bytes)
        #: The account of the moment when most was reserved and retained; None before anything was reserved.
        self.fullest: Account | None = None
        self._highest_bytes = 0
        self._watching = threading.Lock()

    def reserve(self, owner: str, asked_bytes: int, allocate: Callable[[], T], **options: Any) -> Reservation[T]:
        """Reserve as `HostPinnedLedger.reserve` does, with all of its options."""
        reservation = super().reserve(owner, asked_bytes, allocate, **options)
        self._watch()
        return reservation

    def adopt(self, owner: str, held: object, **options: Any) -> Adoption:
        """Adopt as `HostPinnedLedger.adopt` does, with all of its options."""
        adoption = super().adopt(owner, held, **options)
        self._watch()
        return adoption

    def _watch(self) -> None:
        with self._watching:
            peak_bytes = self.peak_bytes
            if peak_bytes > self._highest_bytes:
                self._highest_bytes = peak_bytes
                self.fullest = self.verify()
