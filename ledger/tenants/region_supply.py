"""`RegionSupply`: the regions of one pool, mapped through the ledger when they are needed, used again, given back."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pinprobe.ledger.tenants.pool_entry import Place
from pinprobe.ledger.tenants.region import Region, region_bytes
from pinprobe.probes.errors import AllocationFailed, CouldNotMeasure, PinprobeError, Refused

if TYPE_CHECKING:
    from pinprobe.ledger.ledger import HostPinnedLedger
    from pinprobe.ledger.tenants.savepoint_layout import SavepointLayout


class RegionSupply:
    """At most `bound` regions, counted from before one is mapped until its memory is back.

    `lock` is the pool's. Whoever calls holds it, but for `map` and `unmap`, which take a while and take it themselves.
    """

    def __init__(
        self,
        ledger: HostPinnedLedger,
        layout: SavepointLayout,
        bound: int,
        lock: threading.Lock,
        *,
        shared: bool,
        owner: str,
        detail: str,
    ) -> None:
        self.bound = bound
        self.shared = shared
        self.held = 0
        self.peak = 0
        self.is_open = True
        #: Why a region could not be had the last time that one was refused.
        self.last_refusal: PinprobeError | None = None
        self._ledger = ledger
        self.layout = layout
        self.lock = lock
        self._owner = owner
        self._detail = detail
        self._free: list[Place] = []
        self._going = 0

    @property
    def staying(self) -> int:
        """How many regions are held whose memory is not on its way back."""
        return self.held - self._going

    @property
    def has_room(self) -> bool:
        """Whether a region is free, or could be mapped within the bound."""
        return bool(self._free) or self.held < self.bound

    def take(self) -> Place | None:
        """Return a region that is free, the one that was used last; None where none is."""
        return self._free.pop() if self._free else None

    def begin_mapping(self) -> bool:
        """Count one more region as held, for `map`; False, and nothing counted, where the bound is reached."""
        if not self.is_open or self.held >= self.bound:
            return False
        self.held += 1
        return True

    def map(self) -> Place | None:
        """Map a region that was counted; None, and counted no more, where there is no memory for it."""
        try:
            reservation = self._ledger.reserve(
                self._owner,
                region_bytes(self.layout.row_bytes),
                lambda: Region(self.layout.row_bytes, self.shared),
                free=lambda region: region.unmap(),
                detail=self._detail or "regions of one savepoint each",
                allocator="memfd" if self.shared else "mmap",
                pageable=True,
            )
        except BaseException as error:
            with self.lock:
                self.held -= 1
            if not isinstance(error, Refused | AllocationFailed | CouldNotMeasure):
                raise
            self.last_refusal = error
            return None
        with self.lock:
            self.peak = max(self.peak, self.held)
        return Place(reservation.value, reservation)

    def free(self, place: Place) -> None:
        """Have a region used again; where the supply was closed its memory goes back."""
        if self.is_open:
            self._free.append(place)
        else:
            self.held -= 1
            place.reservation.release()

    def take_going(self, to: int) -> list[Place]:
        """Take free regions for `unmap`, until at most `to` are staying.

        They are held until their memory is back: others may not take as much before.
        """
        going = []
        while self._free and self.staying > to:
            going.append(self._free.pop())
            self._going += 1
        return going

    def unmap(self, places: Sequence[Place]) -> None:
        """Give the memory of regions back that `take_going` returned."""
        for place in places:
            try:
                place.reservation.release()
            finally:
                with self.lock:
                    self.held -= 1
                    self._going -= 1
