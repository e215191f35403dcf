"""`RetentionPool`: pageable regions, each for one savepoint, kept by the prefix of tokens that they cover.

A pool is sized by conversations, where the ring is sized by transfers. Which savepoint is kept, and how many, is
decided by its `Retention`; here are the places and their readers. Regions are mapped when they are needed, up to a
bound that is checked before a region is taken; what an entry leaves behind is used again for the next one, warm.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from pinprobe.ledger.tenants.demand import Demand
from pinprobe.ledger.tenants.lock_over_forks import lock_over_forks
from pinprobe.ledger.tenants.overflow_tier import OverflowTier
from pinprobe.ledger.tenants.policies.policies import make_policy
from pinprobe.ledger.tenants.pool_books import Books
from pinprobe.ledger.tenants.pool_entry import Entry, Hold, Place
from pinprobe.ledger.tenants.pool_stats import PoolStats, pool_stats
from pinprobe.ledger.tenants.prefix_index import PrefixKey, as_words
from pinprobe.ledger.tenants.region import region_bytes
from pinprobe.ledger.tenants.region_supply import RegionSupply
from pinprobe.ledger.tenants.retention import Offer, Retention
from pinprobe.probes.errors import BadRequest, PinprobeError
from pinprobe.probes.units import format_bytes

if TYPE_CHECKING:
    from pinprobe.ledger.ledger import HostPinnedLedger
    from pinprobe.ledger.tenants.disk_overflow import DiskOverflow
    from pinprobe.ledger.tenants.prefill_time import PrefillTime
    from pinprobe.ledger.tenants.recall import Recall
    from pinprobe.ledger.tenants.savepoint_layout import SavepointLayout

# After so long a pool that was refused memory asks for more again.
_ASKED_AGAIN_SECONDS = 60.0
_SETTLED_EVERY_SECONDS = 1.0


class RetentionPool:
    """Savepoints by prefix, in pageable memory. Any number of threads may call.

    At most `bound_regions` regions are mapped, and at most `bound_bytes` of them; entries that cover less than
    `chunk_tokens` are not kept. `policy` names who decides which entry goes, the newcomer among them. With
    `is_sized_by_demand` it keeps as many as live conversations will read next, at least `min_regions`, and `settle`
    gives back what they want no more; so it needs somebody who calls that, as the copy-out does. `shared` regions can
    be mapped by other processes of the same user. Entries that are being read stay.
    """

    def __init__(
        self,
        ledger: HostPinnedLedger,
        layout: SavepointLayout,
        *,
        bound_regions: int,
        bound_bytes: int | None = None,
        min_regions: int = 1,
        policy: str = "gittins",
        is_sized_by_demand: bool = False,
        chunk_tokens: int = 2048,
        shared: bool = False,
        owner: str = "cache.retention_pool",
        detail: str = "",
        overflow: DiskOverflow | None = None,
        prefill_time: PrefillTime | None = None,
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
        if min_regions > self.bound_regions:
            raise BadRequest(
                f"{owner}: at least {min_regions} regions are more than its bound of {self.bound_regions}; give fewer"
            )
        self._lock = lock_over_forks()
        self._supply = RegionSupply(
            ledger, layout, self.bound_regions, self._lock, shared=shared, owner=owner, detail=detail
        )
        demand = Demand(self.bound_regions, min_entries=min_regions)
        retention = Retention(
            make_policy(policy, self.bound_regions),
            demand,
            is_sized_by_demand=is_sized_by_demand,
            prefill_time=prefill_time,
        )
        self._books = Books(retention, self._supply, chunk_tokens, clock)
        self._tier = None if overflow is None else OverflowTier(overflow, prefill_time, self._books)
        self._short_until_seconds: float | None = None
        ledger.introduce(owner, self)

    @property
    def idle_seconds(self) -> float | None:
        """How long it may be left alone before `settle` has something to do; None where it never has."""
        is_idle_for_ever = self._tier is None and not self._books.retention.is_sized_by_demand
        return None if is_idle_for_ever else _SETTLED_EVERY_SECONDS

    @property
    def last_refusal(self) -> PinprobeError | None:
        """Why a region could not be had the last time that one was refused."""
        return self._supply.last_refusal

    # -- reading

    def match(self, tokens: Sequence[int]) -> Hold | None:
        """Find the longest savepoint that covers a prefix of `tokens`, and hold it for reading.

        This is what the pool learns from, so it is asked once for a request.
        """
        words = as_words(tokens)
        with self._lock:
            prefixes = self._books.prefixes(words)
            self._books.retention.read((known.key.digest for known in prefixes), self._books.clock())
            entry = next((known.entry for known in prefixes if known.entry is not None), None)
            return None if entry is None else self._books.hold(entry)

    def hold_by_id(self, wanted_id: str) -> Hold | None:
        """Hold the savepoint of an id (`region_sharing.region_id`); None where it is not here, or is another by now."""
        with self._lock:
            for entry in self._books.entries:
                if f"{entry.key.digest.hex()}-{entry.place.region.filling}" == wanted_id:
                    return self._books.hold(entry)
            return None

    def recall(self, tokens: Sequence[int], conversation: str) -> Recall | None:
        """Begin to read a longer savepoint back than `match` would find; None where the overflow has none.

        Returns at once, or after a region was mapped for it. It is collected later, and cancelled where nobody does.
        """
        if self._tier is None:
            return None
        words = as_words(tokens)
        with self._lock:
            known = self._tier.longest(self._books.prefixes(words))
            if known is None or not self._supply.is_open:
                return None
            offer = self._books.offer_of(known.key, words, conversation)
            place = self._supply.take()
            if place is None and not self._supply.begin_mapping():
                place = self._place_of_another()
                if place is None:
                    return None
        if place is None:
            place = self._supply.map()
        if place is None:  # memory is short
            with self._lock:
                place = self._supply.take() or self._place_of_another()
        return None if place is None else self._tier.begin(known.key, offer, place)

    # -- keeping

    def offer(self, tokens: int) -> bool:
        """Count a savepoint that is offered, and say whether it covers enough to be kept."""
        with self._lock:
            self._books.counters.requests += 1
            is_enough = tokens >= self.chunk_tokens
            self._books.counters.below_floor += not is_enough
            return is_enough

    def take_place(self, tokens: Sequence[int], conversation: str) -> Place | None:
        """Return a place to copy a savepoint into, warm where there is one.

        None, counted by its reason, where it is not to be kept or there is no place. The bound is checked before a
        region is mapped; that happens outside of the lock, since it takes a while.
        """
        words = as_words(tokens)
        key = self._books.index.key(words)  # hashed before the lock is taken
        with self._lock:
            books, counters = self._books, self._books.counters
            if not self._supply.is_open:
                counters.no_region += 1
                return None
            self._ask_for_more_again()
            offer = books.offer_of(key, words, conversation)
            if not self._decide(offer, key):
                return None
            place = self._supply.take()
            if place is None and not self._supply.begin_mapping():
                counters.no_region += 1
                self._books.leave(key)
                return None
        if place is None:
            place = self._map_or_compete(offer, key)
        if place is not None:
            place.key, place.conversation, place.prefixes = key, conversation, offer.prefixes
        return place

    def lose(self, *, by_error: bool = False) -> None:
        """Count an offered savepoint whose slot was handed out again before it was copied, or that an error ended."""
        with self._lock:
            self._books.counters.lost_the_race += not by_error
            self._books.counters.failed += by_error

    def give_back(self, place: Place, *, lost_the_race: bool = False) -> None:
        """Return a place that nothing was published from."""
        with self._lock:
            self._books.counters.lost_the_race += lost_the_race
            key, place.key = place.key, None
            if key is not None:
                self._books.leave(key)
            self._supply.free(place)

    def publish(self, place: Place) -> Entry:
        """Make what was copied into a place an entry that can be found."""
        with self._lock:
            books, key = self._books, place.key
            assert key is not None, "a place is published once, and not after it was given back"
            place.key = None
            place.region.finish(key.digest, key.tokens)
            books.counters.warm += place.was_used
            books.counters.cold += not place.was_used
            place.was_used = True
            entry = Entry(key, place.conversation, place, place.prefixes)
            books.add(entry)
            if not self._supply.is_open:
                self._books.remove(entry)
            return entry

    def forget(self, tokens: Sequence[int]) -> bool:
        """Drop the entry of just this prefix, and its file; say whether there was an entry."""
        key = self._books.index.key(tokens)
        with self._lock:
            entry = self._books.entry_of(key.digest)
            if entry is not None:
                self._books.remove(entry)
        if self._tier is not None:
            self._tier.forget(key.digest)
        return entry is not None

    def end(self, conversation: str) -> None:
        """Say that a conversation is over: nothing of it is awaited any more."""
        with self._lock:
            self._books.retention.demand.end(conversation)

    # -- size

    def settle(self) -> int:
        """Give back what is above the slots that are wanted now; return how many regions went.

        For idle moments: in these the overflow is written, too.
        """
        with self._lock:
            self._books.evict_surplus()
            going = self._supply.take_going(self._books.retention.slots)
        self._supply.unmap(going)
        if self._tier is not None:
            self._tier.use_idle_moment()
        return len(going)

    def trim(self, to_regions: int = 0) -> int:
        """Give memory back until at most `to_regions` are mapped, free ones first; return how many went.

        Entries that are being read stay, and so do places that are being copied into.
        """
        with self._lock:
            going = self._supply.take_going(to_regions)
            while self._supply.staying > to_regions and self._books.evict_one():
                going += self._supply.take_going(to_regions)
            self._books.counters.trimmed += len(going)
        self._supply.unmap(going)
        return len(going)

    def close(self) -> None:
        """Give everything back that nobody reads or writes; the rest goes when they let go. Keeps nothing from here."""
        with self._lock:
            self._supply.is_open = False
            for entry in list(self._books.entries):
                self._books.remove(entry)
            going = self._supply.take_going(0)
        self._supply.unmap(going)
        if self._tier is not None:
            self._tier.close()

    def served(self, seconds: float) -> None:
        """Learn that serving took the last so many seconds: the overflow is written in what is left over."""
        if self._tier is not None:
            self._tier.served(seconds)

    def measure_overflow(self) -> None:
        """Write one savepoint's bytes to disk and read them back, so that it is known what that takes.

        Without it, or where there is no region for it, no savepoint is spilled before one came back.
        """
        if self._tier is not None and self.map_ahead(1):
            with self._lock:
                place = self._supply.take()
            if place is not None:
                self._tier.measure(place)
                self.give_back(place)

    def map_ahead(self, regions: int) -> int:
        """Map free regions until so many are there; return how many there are then. Their first use is still cold."""
        while True:
            with self._lock:
                if self._supply.staying >= min(regions, self.bound_regions) or not self._supply.begin_mapping():
                    return self._supply.staying
            place = self._supply.map()
            if place is None:
                return self.stats().held_regions
            self.give_back(place)

    def describe(self) -> str:
        """Say in one line what the pool is, for the boot."""
        most = format_bytes(self.bound_regions * self.region_bytes)
        count = f"{self.bound_regions} region{'' if self.bound_regions == 1 else 's'}"
        kind = "memfds that other processes of this user can map" if self._supply.shared else "private memory"
        retention = self._books.retention
        sized = "as many as live conversations read" if retention.is_sized_by_demand else "its size is fixed"
        return (
            f"pool of at most {count} = {most}, pageable {kind}; a region is"
            f" {self.region_bytes:,} B, {self.region_bytes - self.layout.row_bytes:,} B more than its row; savepoints"
            f" below {self.chunk_tokens:,} tokens are not kept; {retention.policy.name} decides what stays, {sized};"
            f" {'no overflow to disk: no directory is given' if self._tier is None else self._tier.describe()}"
        )

    def report(self) -> str:
        """Say in one line what was counted."""
        short = f"; short of memory: {self.last_refusal}" if self._short_until_seconds is not None else ""
        return self.stats().line() + short

    def stats(self) -> PoolStats:
        """Return the counters, all of one moment."""
        with self._lock:
            return pool_stats(self._books, None if self._tier is None else self._tier.stats())

    # -- under the lock

    def _ask_for_more_again(self) -> None:
        if self._short_until_seconds is not None and self._books.clock() >= self._short_until_seconds:
            self._short_until_seconds = None
            self._books.retention.most_slots = self.bound_regions

    def _decide(self, offer: Offer, key: PrefixKey) -> bool:
        retention = self._books.retention
        most_slots = retention.most_slots
        if self._supply.has_room or not retention.resident_count:
            return self._books.decide(offer, key)
        # Recalls, and readers of what went, have regions and no slots: a slot alone would be of no use to a newcomer,
        # so it competes for the place of an entry.
        retention.most_slots = min(most_slots, retention.resident_count)
        try:
            return self._books.decide(offer, key)
        finally:
            retention.most_slots = most_slots
            retention.surplus(self._books.clock())

    def _place_of_another(self) -> Place | None:
        return self._supply.take() if self._books.evict_one() else None

    # -- memory, outside of the lock

    def _map_or_compete(self, offer: Offer, key: PrefixKey) -> Place | None:
        """Map a region; where there is no memory for one, have the newcomer compete for those that are there."""
        try:
            place = self._supply.map()
        except BaseException:
            with self._lock:
                self._books.leave(key)
            raise
        if place is not None:
            return place
        with self._lock:
            books = self._books
            self._books.leave(key)
            if not books.retention.resident_count:
                books.counters.refused += 1
                return None
            books.retention.most_slots = books.retention.resident_count
            self._short_until_seconds = self._books.clock() + _ASKED_AGAIN_SECONDS
            if not self._books.decide(offer, key):
                return None
            place = self._supply.take()
            if place is None:
                books.counters.no_region += 1
                self._books.leave(key)
            return place
