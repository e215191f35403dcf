"""What a retention pool reports of itself: every word with its meaning, and the identities that must hold."""

from __future__ import annotations

from dataclasses import dataclass

from pinprobe.ledger.tenants.demand import DemandStats
from pinprobe.ledger.tenants.overflow_tier import TierStats
from pinprobe.ledger.tenants.pool_books import Books
from pinprobe.ledger.tenants.region import region_bytes
from pinprobe.probes.units import format_bytes


@dataclass(frozen=True, slots=True)
class PoolStats:
    """The counters of a pool since it was opened. All of them were taken at one moment.

    * `requests`: savepoints that were offered.
    * `held_regions`: regions that are mapped, or are being mapped, of at most `bound_regions`; `peak_regions` the most
      at one time, without those whose memory was refused.
    * `slots`: how many entries it may keep now: the bound, or what the demand wants, or what there is memory for.
    * `warm`, `cold`: promoted savepoints whose region was used before, or was mapped for them.
    * `promoted`, `promoted_bytes`: savepoints that were copied whole and published, and the bytes of their rows.
    * `lost_the_race`: copied while the ring gave the slot to another savepoint; what was copied was thrown away.
    * `failed`: an error ended their copy; the log says which.
    * `no_region`: there was no region to copy into: the bound was reached, and every entry was being read.
    * `refused`: the ledger refused the memory of a region, and there was no entry that could have given its own.
    * `declined`: the policy found it worth less than every entry that is kept.
    * `already_here`: its very prefix was kept already.
    * `below_floor`: covered less than one prefill chunk.
    * `trimmed`: regions that were given back to the system by `trim`.
    * `resident`: entries that can be found, `reachable` and `dominated` together: dominated ones are those whose
      conversation has a longer one here.
    * `evicted`: entries that had to go, for others or because there are to be fewer.
    * `being_read`: entries that readers hold at this moment, those that went meanwhile among them.
    * `overflow`: what the second tier counted; None where there is none.
    * `demand`: what live conversations will read next, and how long after its last use that is.
    """

    requests: int
    row_bytes: int
    region_bytes: int
    bound_regions: int
    slots: int
    held_regions: int
    peak_regions: int
    warm: int
    cold: int
    promoted: int
    promoted_bytes: int
    lost_the_race: int
    no_region: int
    refused: int
    declined: int
    already_here: int
    below_floor: int
    trimmed: int
    resident: int
    reachable: int
    dominated: int
    evicted: int
    being_read: int
    demand: DemandStats
    failed: int = 0
    overflow: TierStats | None = None

    def __post_init__(self) -> None:
        assert self.warm + self.cold == self.promoted, self
        assert self.promoted * self.row_bytes == self.promoted_bytes, self
        assert self.reachable + self.dominated == self.resident, self
        assert self.resident <= self.held_regions <= self.bound_regions, self
        assert self.resident <= self.peak_regions <= self.bound_regions, self
        assert self.slots <= self.bound_regions, self
        assert self.ended <= self.requests, self

    @property
    def ended(self) -> int:
        """How many offers came to their end, whichever it was; the others are waiting or being copied."""
        kept_not = self.declined + self.already_here + self.no_region + self.refused + self.below_floor
        return self.promoted + self.lost_the_race + self.failed + kept_not

    @property
    def held_bytes(self) -> int:
        """What the mapped regions take."""
        return self.held_regions * self.region_bytes

    @property
    def resident_bytes(self) -> int:
        """The bytes of the rows that can be found."""
        return self.resident * self.row_bytes

    @property
    def overhead_bytes(self) -> int:
        """What a region takes beside its row."""
        return self.region_bytes - self.row_bytes

    def line(self) -> str:
        """Say all of it in one line."""
        return (
            f"{self.requests} offered; {self.held_regions} regions held of a bound of {self.bound_regions}"
            f" = {format_bytes(self.held_bytes)}, peak {self.peak_regions}, slots {self.slots};"
            f" warm {self.warm}, cold {self.cold}; promoted {self.promoted} = {format_bytes(self.promoted_bytes)};"
            f" lost_the_race {self.lost_the_race}, failed {self.failed}, no_region {self.no_region},"
            f" refused {self.refused}, declined {self.declined}, already_here {self.already_here},"
            f" below_floor {self.below_floor}; trimmed {self.trimmed}, evicted {self.evicted};"
            f" resident {self.resident} (reachable {self.reachable}, dominated {self.dominated},"
            f" being read {self.being_read}), {format_bytes(self.resident_bytes)}; {self.demand.words()};"
            f" a region takes {self.overhead_bytes:,} B beside its row"
            f"{'' if self.overflow is None else '; ' + self.overflow.words()}"
        )


def pool_stats(books: Books, overflow: TierStats | None) -> PoolStats:
    """Take the counters of a pool. Whoever calls holds its lock."""
    counters, retention, supply = books.counters, books.retention, books.supply
    row_bytes = books.layout.row_bytes
    longest: dict[str, int] = {}
    for entry in books.entries:
        longest[entry.conversation] = max(longest.get(entry.conversation, 0), entry.tokens)
    dominated = sum(entry.tokens < longest[entry.conversation] for entry in books.entries)
    promoted = counters.warm + counters.cold
    return PoolStats(
        requests=counters.requests,
        row_bytes=row_bytes,
        region_bytes=region_bytes(row_bytes),
        bound_regions=supply.bound,
        slots=retention.slots,
        held_regions=supply.held,
        peak_regions=supply.peak,
        warm=counters.warm,
        cold=counters.cold,
        promoted=promoted,
        promoted_bytes=promoted * row_bytes,
        lost_the_race=counters.lost_the_race,
        failed=counters.failed,
        no_region=counters.no_region,
        refused=counters.refused,
        declined=counters.declined,
        already_here=counters.already_here,
        below_floor=counters.below_floor,
        trimmed=counters.trimmed,
        resident=len(books.entries),
        reachable=len(books.entries) - dominated,
        dominated=dominated,
        evicted=retention.evictions,
        being_read=counters.being_read,
        demand=retention.demand.stats(books.clock()),
        overflow=overflow,
    )
