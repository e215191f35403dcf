"""`OverflowTier`: the pool's second tier: what is written to disk in idle moments, and comes back when it is read.

A savepoint is written before it has to go, not when it goes: its place is needed at once by then. So in idle moments
those few are looked at that would go next, and of them the one is written that is expected to spare most seconds; a
budget sees to it that writing takes no more than a share of what serving leaves over. What is no longer awaited is
deleted.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from dataclasses import dataclass

from pinprobe.ledger.tenants.disk_overflow import DiskOverflow
from pinprobe.ledger.tenants.overflow_stats import OverflowStats
from pinprobe.ledger.tenants.pool_books import Books, Known
from pinprobe.ledger.tenants.pool_entry import Entry, Hold, Place
from pinprobe.ledger.tenants.prefill_time import PrefillTime
from pinprobe.ledger.tenants.prefix_index import PrefixKey
from pinprobe.ledger.tenants.recall import Recall
from pinprobe.ledger.tenants.restore import Stage
from pinprobe.ledger.tenants.retention import Offer
from pinprobe.ledger.tenants.spill_gate import Spillable, SpillCounter, SpillRefusal, SpillStats, spill_value
from pinprobe.ledger.tenants.write_budget import WriteBudget

#: A recall that nobody has collected after so long is cancelled.
PATIENCE_SECONDS = 30.0

# So many of the entries that go next are looked at: more would be written that are read, and continued, before they go.
_BAND_SHARE = 1 / 8
_LEAST_BAND, _MOST_BAND = 2, 16
_NO_SAVEPOINT = bytes(16)
_PATTERN_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class TierStats:
    """What the second tier of a pool counted.

    * `spill`: what became of entries that had to go. `flushed`: entries that were written in idle moments.
    * `recalls`: restores that were begun; `recalled`: that came back and were collected; `uncollected`: that were
      cancelled because nobody came.
    * `files`: what the files themselves counted.
    """

    spill: SpillStats
    flushed: int
    recalls: int
    recalled: int
    uncollected: int
    files: OverflowStats

    def words(self) -> str:
        """Say it, for a line of counters."""
        return (
            f"overflow: {self.spill.words()}, flushed {self.flushed}; recalls {self.recalls}, recalled {self.recalled},"
            f" uncollected {self.uncollected}; {self.files.line()}"
        )


class OverflowTier:
    """Between a pool's books and its files. Any number of threads may call; `went` wants the pool's lock held."""

    def __init__(
        self,
        store: DiskOverflow,
        prefill_time: PrefillTime | None,
        books: Books,
    ) -> None:
        self._store = store
        self._prefill_time = prefill_time
        self._lock = books.lock
        self._books = books
        self._clock = books.clock
        self._budget = WriteBudget(books.clock())
        self._spill = SpillCounter()
        self._on_disk: set[bytes] = set()
        self._recalls: list[Recall] = []
        self._flushed = self._recalls_begun = self._recalled = self._uncollected = 0
        books.also_known = store
        books.went = self.went

    # -- writing

    def measure(self, place: Place) -> None:
        """Write and read one file from a region that nobody uses, so that it is known what that takes."""
        address, size = place.region.address, self._store.row_bytes
        pattern = os.urandom(min(size, _PATTERN_BYTES))  # a drive may leave out zeros
        for start in range(0, size, len(pattern)):
            ctypes.memmove(address + start, pattern, min(len(pattern), size - start))
        if self._store.write(_NO_SAVEPOINT, 0, address, 0.0).is_written:
            restore = self._store.begin_restore(_NO_SAVEPOINT, address)
            if restore is not None and not restore.wait(PATIENCE_SECONDS):
                restore.cancel()
                restore.wait(PATIENCE_SECONDS)
            self._store.drop(_NO_SAVEPOINT)

    def served(self, seconds: float) -> None:
        """Learn that serving took the last so many seconds; what it leaves over is for writing."""
        with self._lock:
            self._budget.served(seconds, self._clock())

    def went(self, entry: Entry) -> None:
        """Learn that an entry had to go."""
        value = self._value(entry)
        is_on_disk = entry.key.digest in self._store
        if isinstance(value, SpillRefusal):
            self._spill.count(value)  # its file, if it has one, is deleted in the next idle moment
        else:
            self._spill.count(None if is_on_disk else SpillRefusal.SLOT_REUSED)
            if is_on_disk:
                self._store.revalue(entry.key.digest, value)

    def use_idle_moment(self) -> bool:
        """Write the entry that is worth most, if the budget has room for one; say whether one was written."""
        self._clear()
        with self._lock:
            found = self._most_valued()
            if found is None or not self._budget.may_begin(self._store.file_bytes, self._clock()):
                return False
            value, entry = found
            held = self._books.hold(entry)
        with held:
            outcome = self._store.write(entry.key.digest, entry.tokens, held.address, value)
        with self._lock:
            self._budget.wrote(outcome.written_bytes, outcome.seconds, self._clock())
            self._flushed += outcome.is_written
            if outcome.is_written:
                self._on_disk.add(entry.key.digest)
        return outcome.is_written

    def _most_valued(self) -> tuple[float, Entry] | None:
        retention, now = self._books.retention, self._clock()
        if retention.resident_count < retention.slots:
            return None  # nothing has to go
        best: tuple[float, Entry] | None = None
        passing = set(self._books.busy)
        for _ in range(max(_LEAST_BAND, min(_MOST_BAND, round(_BAND_SHARE * retention.slots)))):
            digest = retention.next_to_go(now, passing)
            entry = None if digest is None else self._books.entry_of(digest)
            if entry is None:
                break
            passing.add(entry.key.digest)
            value = self._value(entry)
            if isinstance(value, SpillRefusal) or entry.key.digest in self._store:
                continue
            if best is None or value > best[0]:
                best = value, entry
        return best

    def _value(self, entry: Entry) -> float | SpillRefusal:
        demand, now, digest = self._books.retention.demand, self._clock(), entry.key.digest
        rate = self._store.stats().read_bytes_per_second
        asked = Spillable(
            tokens=entry.tokens,
            beyond_tokens=self._books.beyond_tokens(entry),
            chance=demand.chance(digest, now),
            is_dominated=self._books.is_dominated(entry),
            is_awaited=demand.is_awaited(digest, now),
        )
        return spill_value(asked, self._prefill_time, self._store.row_bytes / rate if rate else None)

    def _clear(self) -> None:
        """Delete what is awaited no more, and end the recalls that nobody collects."""
        with self._lock:
            demand, now = self._books.retention.demand, self._clock()
            unawaited = [digest for digest in self._on_disk if not demand.is_awaited(digest, now)]
        for digest in unawaited:
            self._store.drop(digest)  # without the lock: to delete a large file takes a while
        with self._lock:
            for digest in [digest for digest in self._on_disk if digest not in self._store]:
                self._on_disk.discard(digest)
                self._books.forget_unless_wanted(digest)
            late = [recall for recall in self._recalls if now - recall.begun_seconds > PATIENCE_SECONDS]
        self._cancel(late)

    def forget(self, digest: bytes) -> None:
        """Delete the file of a savepoint that is not to come back."""
        self._store.drop(digest)
        with self._lock:
            self._on_disk.discard(digest)
            self._books.forget_unless_wanted(digest)
            on_their_way = [recall for recall in self._recalls if recall.offer.key == digest]
        self._cancel(on_their_way)

    def _cancel(self, recalls: Sequence[Recall]) -> None:
        """End what nobody is to collect: at once where it is there, else when its reader has stopped."""
        for recall in recalls:
            recall.cancel()
            if not recall.is_pending:
                self._give_up(recall)

    def _give_up(self, recall: Recall) -> None:
        with self._lock:
            if not recall.is_over:
                self._recalls.remove(recall)
                self._uncollected += 1
                self._end(recall)

    # -- reading

    def longest(self, prefixes: Sequence[Known]) -> Known | None:
        """Return the longest prefix that has a file, unless a longer one is resident."""
        for known in prefixes:
            if known.entry is not None:
                return None
            if known.key.digest in self._store:
                return known
        return None

    def begin(self, key: PrefixKey, offer: Offer, place: Place) -> Recall | None:
        """Begin to read a savepoint into a region; None, and the region free again, where its file is gone."""
        place.region.begin()
        restore = self._store.begin_restore(key.digest, place.region.address)
        with self._lock:
            if restore is None:
                self._books.supply.free(place)
                return None
            place.key, place.conversation, place.prefixes = key, offer.conversation, offer.prefixes
            recall = Recall(self, offer, place, restore, self._clock())
            self._recalls.append(recall)
            self._recalls_begun += 1
            return recall

    def receive(self, recall: Recall) -> Hold | None:
        """End a recall whose restore has ended; a hold where the savepoint came back."""
        is_ready = recall.restore.collect().stage is Stage.READY
        with self._lock:
            if recall.is_over:
                return None
            self._recalls.remove(recall)
            if not is_ready or recall.is_cancelled or not self._books.supply.is_open:
                self._end(recall)
                return None
            recall.is_over = True
            self._recalled += 1
            return self._books.hold(self._arrive(recall))

    def _arrive(self, recall: Recall) -> Entry:
        """Make what came back an entry: one that stays, if the retention wants it, or one for its reader alone."""
        place, offer = recall.place, recall.offer
        key, place.key = place.key, None
        assert key is not None, "a recall is received once"
        place.region.finish(key.digest, key.tokens)
        place.was_used = True
        entry = Entry(key, offer.conversation, place, offer.prefixes)
        if not self._books.retention.is_resident(offer.key) and self._books.admit(offer, key):
            self._books.add(entry)
        else:
            entry.is_here = False
        return entry

    def _end(self, recall: Recall) -> None:
        recall.is_over = True
        recall.place.key = None
        self._books.supply.free(recall.place)
        self._books.forget_unless_wanted(recall.offer.key)

    def close(self) -> None:
        """End all recalls and delete all files."""
        has_ended = self._store.close()
        with self._lock:
            recalls, self._recalls = self._recalls, []
            for recall in recalls:
                if has_ended or not recall.is_pending:
                    self._end(recall)
                else:
                    self._recalls.append(recall)  # the drive may still write its memory; to collect it ends it

    # -- what it says of itself

    def describe(self) -> str:
        """Say in one line what it is, for the boot."""
        found = self._store.stats()
        rates = [
            f"{name} {rate / 1e6:,.0f} MB/s, measured"
            for name, rate in (("writes", found.write_bytes_per_second), ("reads", found.read_bytes_per_second))
            if rate is not None
        ]
        given = self._prefill_time
        prefill = "unknown: nothing is spilled until `prefill` is given" if given is None else f"{given.formula} s"
        return f"{self._store.describe()}; {', '.join(rates) or 'unmeasured'}; prefill of n tokens {prefill}"

    def stats(self) -> TierStats:
        """Return the counters. Whoever calls holds the pool's lock."""
        return TierStats(
            self._spill.stats(),
            self._flushed,
            self._recalls_begun,
            self._recalled,
            self._uncollected,
            self._store.stats(),
        )
