"""A retention pool whose time is a trace's, so that it is the replay which says when there is an idle moment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pinprobe.ledger.tenants.demand import Demand
from pinprobe.ledger.tenants.retention_pool import RetentionPool

if TYPE_CHECKING:
    from pinprobe.ledger.ledger import HostPinnedLedger
    from pinprobe.ledger.tenants.savepoint_layout import SavepointLayout


class PacedPool(RetentionPool):
    """As `RetentionPool`, but that its copy-out leaves `settle` to whoever replays.

    Else a pool is settled in real time, and how many real seconds fall into one of the trace's is chance. A
    `fixed_horizon_seconds` takes the place of the reuse horizon that demand learns.
    """

    def __init__(
        self,
        ledger: HostPinnedLedger,
        layout: SavepointLayout,
        *,
        min_regions: int = 1,
        fixed_horizon_seconds: float | None = None,
        **options: Any,
    ) -> None:
        super().__init__(ledger, layout, min_regions=min_regions, **options)
        if fixed_horizon_seconds is not None:
            self._books.retention.demand = Demand(
                self.bound_regions, min_entries=min_regions, fixed_horizon_seconds=fixed_horizon_seconds
            )

    @property
    def idle_seconds(self) -> None:
        """It never has to be settled by the copy-out."""
        return

    @property
    def entry_count(self) -> int:
        """How many savepoints are kept. Unlike `stats` this asks no demand, which remembers being asked."""
        with self._lock:
            return self._books.retention.resident_count

    @property
    def held_regions(self) -> int:
        """How many regions are mapped."""
        with self._lock:
            return self._supply.held
