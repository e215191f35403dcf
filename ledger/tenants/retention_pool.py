"""`RetentionPool`: pageable regions, each for one savepoint, kept by the prefix of tokens that they cover.

A pool is sized by conversations, where the ring is sized by transfers. Regions are mapped when they are needed, up to a
bound that is checked before a region is taken; what an entry leaves behind is used again for the next one, warm.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pinprobe.ledger.tenants.pool_entry import Entry, Hold, Place
from pinprobe.ledger.tenants.pool_stats import PoolStats
from pinprobe.ledger.tenants.prefix_index import PrefixIndex, as_words
from pinprobe.ledger.tenants.region import Region, region_bytes
from pinprobe.probes.errors import AllocationFailed, BadRequest, CouldNotMeasure, PinprobeError, Refused
from pinprobe.probes.units import format_bytes

if TYPE_CHECKING:
    from pinprobe.ledger.ledger import HostPinnedLedger
    from pinprobe.ledger.tenants.savepoint_layout import SavepointLayout


@dataclass
class Counters:
    """What `PoolStats` counts, while it is being counted."""

    requests: int = 0
    warm: int = 0
    cold: int = 0
    lost_the_race: int = 0
    failed: int = 0
    no_region: int = 0
    refused: int = 0
    below_floor: int = 0
    trimmed: int = 0
    evicted: int = 0
    peak_regions: int = 0


@dataclass(eq=False)
class _Books:
    """Everything that changes, under one lock."""

    index: PrefixIndex[Entry]
    free: list[Place] = field(default_factory=list)
    entries: dict[Entry, None] = field(default_factory=dict)  # in order, the least recently used first
    held_regions: int = 0
    counters: Counters = field(default_factory=Counters)


class RetentionPool:
    """Savepoints by prefix, in pageable memory. Any number of threads may call.

    At most `bound_regions` regions are mapped, and at most `bound_bytes` of them; entries that cover less than
    `chunk_tokens` are not kept. `shared` regions can be mapped by other processes of the same user. Where a region is
    wanted and the bound is reached, the least recently used entry goes that nobody reads.
    """

    def __init__(
        self,
        ledger: HostPinnedLedger,
        layout: SavepointLayout,
        *,
        bound_regions: int,
        bound_bytes: int | None = None,
        chunk_tokens: int = 2048,
        shared: bool = False,
        owner: str = "cache.retention_pool",
        detail: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if chunk_tokens < 1:
            raise BadRequest(f"{owner}: a prefill chunk of {chunk_tokens} tokens is none; give 1 or more")
        self.layout = layout
        self.region_bytes = region_bytes(layout.row_bytes)
        self.chunk_tokens = chunk_tokens
        by_bytes = bound_regions if bound_bytes is None else bound_bytes // self.region_bytes
        self.bound_regions = min(bound_regions, by_bytes)
        if self.bound_regions < 1:
            raise BadRequest(f"{owner}: a bound below one region of {self.region_bytes:,} B keeps nothing")
        self._ledger = ledger
        self._shared = shared
        self._owner = owner
        self._detail = detail
        self._clock = clock
        self._lock = threading.Lock()
        self._books = _Books(PrefixIndex(chunk_tokens))
        self._is_open = True
        #: Why a region could not be had the last time that one was refused.
        self.last_refusal: PinprobeError | None = None
        ledger.introduce(owner, self)

    # -- reading

    def match(self, tokens: Sequence[int]) -> Hold | None:
        """Find the longest savepoint that covers a prefix of `tokens`, and hold it for reading."""
        with self._lock:
            entry = self._books.index.longest(tokens)
            if entry is None:
                return None
            entry.readers += 1
            self._touch(entry)
            return Hold(self, entry)

    def hold_by_id(self, wanted_id: str) -> Hold | None:
        """Hold the savepoint of an id (`region_sharing.region_id`); None where it is not here, or is another by now."""
        with self._lock:
            for entry in self._books.entries:
                if f"{entry.key.digest.hex()}-{entry.place.region.filling}" == wanted_id:
                    entry.readers += 1
                    return Hold(self, entry)
            return None

    def let_go(self, entry: Entry) -> None:
        """End a reader's hold; a region whose entry went meanwhile is free from here on."""
        with self._lock:
            entry.readers -= 1
            if not entry.readers and not entry.is_here:
                self._free(entry.place)

    # -- keeping

    def offer(self, tokens: int) -> bool:
        """Count a savepoint that is offered, and say whether it covers enough to be kept."""
        with self._lock:
            self._books.counters.requests += 1
            is_enough = tokens >= self.chunk_tokens
            self._books.counters.below_floor += not is_enough
            return is_enough

    def take_place(self, *, is_counted: bool = True) -> Place | None:
        """Return a place to copy into, warm where there is one; None, counted by its reason, where there is none.

        The bound is checked before a region is mapped. Mapping happens outside of the lock: it takes a while.
        """
        with self._lock:
            books = self._books
            if not books.free and books.held_regions >= self.bound_regions:
                self._evict_one()
            if books.free:
                return books.free.pop()
            if not self._is_open or books.held_regions >= self.bound_regions:
                books.counters.no_region += is_counted
                return None
            books.held_regions += 1
            books.counters.peak_regions = max(books.counters.peak_regions, books.held_regions)
        try:
            return self._map_place()
        except (Refused, AllocationFailed, CouldNotMeasure) as refusal:
            self.last_refusal = refusal
            with self._lock:
                self._books.held_regions -= 1
                self._books.counters.refused += is_counted
            return None
        except BaseException:
            with self._lock:
                self._books.held_regions -= 1
            raise

    def lose(self, *, by_error: bool = False) -> None:
        """Count an offered savepoint whose slot was handed out again before it was copied, or that an error ended."""
        with self._lock:
            self._books.counters.lost_the_race += not by_error
            self._books.counters.failed += by_error

    def give_back(self, place: Place, *, lost_the_race: bool = False) -> None:
        """Return a place that nothing was published from."""
        with self._lock:
            self._books.counters.lost_the_race += lost_the_race
            self._free(place)

    def publish(self, place: Place, tokens: Sequence[int], conversation: str) -> Entry:
        """Make what was copied into a place an entry that can be found; one of the same prefix gives way to it."""
        words = as_words(tokens)
        key = self._books.index.key(words)  # hashed before the lock is taken
        with self._lock:
            books = self._books
            parent = books.index.longest(words, below=key.tokens)
            place.region.finish(key.digest, key.tokens)
            books.counters.warm += place.was_used
            books.counters.cold += not place.was_used
            place.was_used = True
            earlier = books.index.get(key)
            if earlier is not None:
                self._remove(earlier)
            entry = Entry(key, conversation, parent.key if parent else None, place, self._clock())
            books.index.put(key, entry)
            books.entries[entry] = None
            if not self._is_open:
                self._remove(entry)
            return entry

    def forget(self, tokens: Sequence[int]) -> bool:
        """Drop the entry of just this prefix; say whether there was one."""
        with self._lock:
            entry = self._books.index.get(self._books.index.key(tokens))
            if entry is not None:
                self._remove(entry)
            return entry is not None

    # -- size

    def trim(self, to_regions: int = 0) -> int:
        """Give memory back until at most `to_regions` are mapped, free ones first; return how many went.

        Entries that are being read stay, and so do places that are being copied into.
        """
        with self._lock:
            going = []
            books = self._books
            while books.held_regions > to_regions:
                if not books.free and not self._evict_one():
                    break
                going.append(books.free.pop())
                to_regions += 1  # it is held until its memory is back: others may not take as much before
            books.counters.trimmed += len(going)
        self._unmap(going)
        return len(going)

    def close(self) -> None:
        """Give everything back that nobody reads or writes; the rest goes when they let go. Keeps nothing from here."""
        with self._lock:
            self._is_open = False
            for entry in list(self._books.entries):
                self._remove(entry)
            going, self._books.free = self._books.free, []
        self._unmap(going)

    def map_ahead(self, regions: int) -> int:
        """Map free regions until so many are there; return how many there are then. Their first use is still cold."""
        places = []
        while self.stats().held_regions < min(regions, self.bound_regions):
            place = self.take_place(is_counted=False)
            if place is None:
                break
            places.append(place)
        for place in places:
            self.give_back(place)
        return self.stats().held_regions

    def describe(self) -> str:
        """Say in one line what the pool is, for the boot."""
        most = format_bytes(self.bound_regions * self.region_bytes)
        count = f"{self.bound_regions} region{'' if self.bound_regions == 1 else 's'}"
        kind = "memfds that other processes of this user can map" if self._shared else "private memory"
        return (
            f"pool of at most {count} = {most}, pageable {kind}; a region is"
            f" {self.region_bytes:,} B, {self.region_bytes - self.layout.row_bytes:,} B more than its row; savepoints"
            f" below {self.chunk_tokens:,} tokens are not kept; no overflow to disk"
        )

    def report(self) -> str:
        """Say in one line what was counted."""
        return self.stats().line()

    def stats(self) -> PoolStats:
        """Return the counters, all of one moment."""
        with self._lock:
            books, counters = self._books, self._books.counters
            longest: dict[str, int] = {}
            for entry in books.entries:
                longest[entry.conversation] = max(longest.get(entry.conversation, 0), entry.tokens)
            dominated = sum(entry.tokens < longest[entry.conversation] for entry in books.entries)
            promoted = counters.warm + counters.cold
            return PoolStats(
                requests=counters.requests,
                row_bytes=self.layout.row_bytes,
                region_bytes=self.region_bytes,
                bound_regions=self.bound_regions,
                held_regions=books.held_regions,
                peak_regions=counters.peak_regions,
                warm=counters.warm,
                cold=counters.cold,
                promoted=promoted,
                promoted_bytes=promoted * self.layout.row_bytes,
                lost_the_race=counters.lost_the_race,
                failed=counters.failed,
                no_region=counters.no_region,
                refused=counters.refused,
                below_floor=counters.below_floor,
                trimmed=counters.trimmed,
                resident=len(books.entries),
                reachable=len(books.entries) - dominated,
                dominated=dominated,
                evicted=counters.evicted,
                being_read=sum(entry.readers > 0 for entry in books.entries),
            )

    def _unmap(self, places: Sequence[Place]) -> None:
        for place in places:
            try:
                place.reservation.release()
            finally:
                with self._lock:
                    self._books.held_regions -= 1

    # -- under the lock

    def _touch(self, entry: Entry) -> None:
        entry.last_used_seconds = self._clock()
        del self._books.entries[entry]
        self._books.entries[entry] = None

    def _evict_one(self) -> bool:
        for entry in self._books.entries:
            if not entry.readers:
                self._remove(entry)
                self._books.counters.evicted += 1
                return True
        return False

    def _remove(self, entry: Entry) -> None:
        """Take an entry out of the index. Its place is free at once, or when the last reader lets go."""
        entry.is_here = False
        self._books.index.remove(entry.key)
        del self._books.entries[entry]
        if not entry.readers:
            self._free(entry.place)

    def _free(self, place: Place) -> None:
        if self._is_open:
            self._books.free.append(place)
        else:
            self._books.held_regions -= 1
            place.reservation.release()

    def _map_place(self) -> Place:
        reservation = self._ledger.reserve(
            self._owner,
            self.region_bytes,
            lambda: Region(self.layout.row_bytes, self._shared),
            free=lambda region: region.unmap(),
            detail=self._detail or "regions of one savepoint each",
            allocator="memfd" if self._shared else "mmap",
            pageable=True,
        )
        return Place(reservation.value, reservation)
