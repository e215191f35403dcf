"""What the rings of arms would take, pinned: from measured blocks of their allocators, tried in a fresh child."""

from __future__ import annotations

from collections.abc import Sequence

from pinprobe.ledger.allocator_map import map_allocator
from pinprobe.ledger.price import Price, PriceList
from pinprobe.ledger.replay.arm import Arm
from pinprobe.probes.allocators.registry import prepare_allocator
from pinprobe.probes.allocators.uncached import Uncached
from pinprobe.probes.errors import BadRequest, CouldNotMeasure
from pinprobe.probes.host_tree import THIS_HOST

# Sizes whose blocks differ by every rule that is known of, and take little.
_TRIED_BYTES, _TRIED_COUNTS = 3_000_000, (1, 2, 3, 5)


class RingPrices:
    """The price of each arm's ring on this host. `notes` has a line for each allocator that can't be tried here."""

    def __init__(self, arms: Sequence[Arm]) -> None:
        """Try each allocator once, with some small requests. Nothing is raised where that is not possible here."""
        self.notes: list[str] = []
        self._prices = PriceList()
        self._uncached: set[str] = set()
        largest: dict[str, int] = {}
        for arm in arms:
            largest[arm.allocator] = max(arm.ring_bytes, largest.get(arm.allocator, 0))
        for name, ring_bytes in largest.items():
            try:
                self._learn(name, ring_bytes)
            except (CouldNotMeasure, BadRequest) as error:
                self.notes.append(f"what {name} takes for a ring is not known here, only what is asked: {error}")

    def price(self, arm: Arm) -> Price:
        """Return what its ring takes; known as `the ask` where its allocator could not be tried."""
        if arm.allocator in self._uncached:
            pages = -(-arm.ring_bytes // THIS_HOST.page_size_bytes)
            return Price(pages * THIS_HOST.page_size_bytes, "predicted")
        return self._prices.price(arm.allocator, arm.ring_bytes)

    def _learn(self, name: str, ring_bytes: int) -> None:
        allocator = prepare_allocator(name, ring_bytes).allocator
        if isinstance(allocator, Uncached):  # which keeps nothing and takes what is asked, to the page
            self._uncached.add(name)
        else:
            self._prices.add(map_allocator(allocator.name, _TRIED_BYTES, _TRIED_COUNTS), name)
