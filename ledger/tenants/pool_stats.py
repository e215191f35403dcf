"""What a retention pool reports of itself: every word with its meaning, and the identities that must hold."""

from __future__ import annotations

from dataclasses import dataclass

from pinprobe.probes.units import format_bytes


@dataclass(frozen=True, slots=True)
class PoolStats:
    """The counters of a pool since it was opened. All of them were taken at one moment.

    * `requests`: savepoints that were offered.
    * `held_regions`: regions that are mapped, of at most `bound_regions`; `peak_regions` the most at one time.
    * `warm`, `cold`: promoted savepoints whose region was used before, or was mapped for them.
    * `promoted`, `promoted_bytes`: savepoints that were copied whole and published, and the bytes of their rows.
    * `lost_the_race`: copied while the ring gave the slot to another savepoint; what was copied was thrown away.
    * `failed`: an error ended their copy; the log says which.
    * `no_region`: there was no region to copy into: the bound was reached, and every entry was being read.
    * `refused`: the ledger refused the memory of a region.
    * `below_floor`: covered less than one prefill chunk.
    * `trimmed`: regions that were given back to the system by `trim`.
    * `resident`: entries that can be found, `reachable` and `dominated` together: dominated ones are those whose
      conversation has a longer one here.
    * `evicted`: entries that had to go for others. `being_read`: entries that readers hold at this moment.
    """

    requests: int
    row_bytes: int
    region_bytes: int
    bound_regions: int
    held_regions: int
    peak_regions: int
    warm: int
    cold: int
    promoted: int
    promoted_bytes: int
    lost_the_race: int
    no_region: int
    refused: int
    below_floor: int
    trimmed: int
    resident: int
    reachable: int
    dominated: int
    evicted: int
    being_read: int
    failed: int = 0

    def __post_init__(self) -> None:
        assert self.warm + self.cold == self.promoted, self
        assert self.promoted * self.row_bytes == self.promoted_bytes, self
        assert self.reachable + self.dominated == self.resident, self
        assert self.resident <= self.held_regions <= self.peak_regions <= self.bound_regions, self
        outcomes = self.promoted + self.lost_the_race + self.failed + self.no_region + self.refused + self.below_floor
        assert outcomes <= self.requests, self

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
            f" = {format_bytes(self.held_bytes)}, peak {self.peak_regions}; warm {self.warm}, cold {self.cold};"
            f" promoted {self.promoted} = {format_bytes(self.promoted_bytes)}; lost_the_race {self.lost_the_race},"
            f" failed {self.failed}, no_region {self.no_region}, refused {self.refused},"
            f" below_floor {self.below_floor}; trimmed {self.trimmed}, evicted {self.evicted};"
            f" resident {self.resident} (reachable {self.reachable},"
            f" dominated {self.dominated}, being read {self.being_read}), {format_bytes(self.resident_bytes)};"
            f" a region takes {self.overhead_bytes:,} B beside its row"
        )
