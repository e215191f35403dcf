"""What a pool keeps books of, under its one lock: what is known by prefix, what is kept and where, what was counted."""

from __future__ import annotations

import threading
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass

from pinprobe.ledger.tenants.policies.policy import Key
from pinprobe.ledger.tenants.pool_entry import Entry, Hold
from pinprobe.ledger.tenants.prefix_index import PrefixIndex, PrefixKey
from pinprobe.ledger.tenants.region_supply import RegionSupply
from pinprobe.ledger.tenants.retention import Offer, Retention


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
    declined: int = 0
    already_here: int = 0
    below_floor: int = 0
    trimmed: int = 0
    being_read: int = 0


@dataclass(eq=False)
class Known:
    """A prefix that is remembered, with its entry while it has one."""

    key: PrefixKey
    entry: Entry | None = None


class Books:
    """The books of one pool. Whoever calls holds `lock`, but for `let_go`, which takes it.

    `busy` are the keys of entries that can't go at this moment: they are being read, or copied into. `went` is told of
    each entry that had to go, before its place is used again; `also_known` are keys that are remembered beside those of
    the retention.
    """

    def __init__(
        self, retention: Retention, supply: RegionSupply, block_tokens: int, clock: Callable[[], float]
    ) -> None:
        self.retention = retention
        self.supply = supply
        self.lock: threading.Lock = supply.lock
        self.layout = supply.layout
        self.clock = clock
        self.index: PrefixIndex[Known] = PrefixIndex(block_tokens)
        self.entries: dict[Entry, None] = {}
        self.busy: set[Key] = set()
        self.counters = Counters()
        self.went: Callable[[Entry], None] = lambda entry: None
        self.also_known: Container[object] = ()
        self._known: dict[Key, Known] = {}

    # -- what is known

    def prefixes(self, words: Sequence[int], below: int | None = None) -> list[Known]:
        """Return what is known of a prompt's prefixes, the longest first."""
        return list(self.index.prefixes(words, below))

    def offer_of(self, key: PrefixKey, words: Sequence[int], conversation: str) -> Offer:
        """Return the offer of a savepoint."""
        above = tuple(known.key.digest for known in self.prefixes(words, below=key.tokens))
        return Offer(key.digest, key.tokens, conversation, above)

    def entry_of(self, digest: Key) -> Entry | None:
        """Return the entry of a key, where it has one."""
        known = self._known.get(digest)
        return None if known is None else known.entry

    def remember(self, key: PrefixKey) -> None:
        """Have a prefix known if something wants it to be, and forget what nothing wants any more."""
        if key.digest in self.retention and key.digest not in self._known:
            self._known[key.digest] = Known(key)
            self.index.put(key, self._known[key.digest])
        for digest in self.retention.pop_forgotten():
            self.forget_unless_wanted(digest)

    def forget_unless_wanted(self, digest: Key) -> None:
        """Forget a prefix that nothing wants to be known any more."""
        known = self._known.get(digest)
        if known is not None and digest not in self.retention and digest not in self.also_known:
            del self._known[digest]
            self.index.remove(known.key)

    # -- what becomes of a newcomer

    def decide(self, offer: Offer, key: PrefixKey) -> bool:
        """Decide about a newcomer and count it where it is not kept; else it is busy, until it is added or leaves."""
        if self.retention.is_resident(key.digest):
            self.retention.offer(offer, self.clock(), self.busy)
            self.counters.already_here += 1
            return False
        is_kept = self.admit(offer, key)
        if not is_kept:
            is_full_of_busy = self.retention.slots <= len(self.busy)
            self.counters.no_region += is_full_of_busy
            self.counters.declined += not is_full_of_busy
        return is_kept

    def admit(self, offer: Offer, key: PrefixKey) -> bool:
        """Have the retention decide about what is not here. It is busy from here on, if it is kept."""
        verdict = self.retention.offer(offer, self.clock(), self.busy)
        if verdict.is_kept:
            self.busy.add(key.digest)
        for digest in verdict.evicted:
            self._vacate(digest)
        self.evict_surplus()
        self.remember(key)
        return verdict.is_kept

    def add(self, entry: Entry) -> None:
        """Have a newcomer found from here on."""
        self.busy.discard(entry.key.digest)
        self._known[entry.key.digest].entry = entry
        self.entries[entry] = None

    def leave(self, key: PrefixKey) -> None:
        """Have a newcomer not kept after all."""
        self.busy.discard(key.digest)
        self.retention.remove(key.digest)
        self.remember(key)

    # -- who goes

    def evict_surplus(self) -> None:
        """Let those go that are too many by now, as far as nobody reads them."""
        for _ in range(self.retention.surplus(self.clock())):
            self.evict_one()

    def evict_one(self) -> bool:
        """Let the entry go that is worth least; say whether there was one to go."""
        digest = self.retention.evict(self.clock(), self.busy)
        if digest is not None:
            self._vacate(digest)
        return digest is not None

    def remove(self, entry: Entry) -> None:
        """Take an entry out. Its place is free at once, or when the last reader lets go."""
        self._take_out(entry)
        self.leave(entry.key)
        if not entry.readers:
            self.supply.free(entry.place)

    def _vacate(self, digest: Key) -> None:
        entry = self.entry_of(digest)
        assert entry is not None, "the retention keeps nothing that is not here"
        assert not entry.readers, "what is busy is never let go"
        self._take_out(entry)
        self.went(entry)
        self.supply.free(entry.place)
        self.remember(entry.key)

    def _take_out(self, entry: Entry) -> None:
        entry.is_here = False
        del self.entries[entry]
        self._known[entry.key.digest].entry = None

    # -- readers

    def hold(self, entry: Entry) -> Hold:
        """Hold an entry for reading. One that is not among the entries goes with its last reader."""
        self.counters.being_read += not entry.readers
        entry.readers += 1
        if entry.is_here:
            self.busy.add(entry.key.digest)
        return Hold(self, entry)

    def let_go(self, entry: Entry) -> None:
        """End a reader's hold; a region whose entry went meanwhile is free from here on."""
        with self.lock:
            entry.readers -= 1
            if entry.readers:
                return
            self.counters.being_read -= 1
            if entry.is_here:
                self.busy.discard(entry.key.digest)
            else:
                self.supply.free(entry.place)

    # -- what is said of an entry

    def is_dominated(self, entry: Entry) -> bool:
        """Say whether a longer savepoint of its conversation is resident."""
        return any(other.tokens > entry.tokens and other.conversation == entry.conversation for other in self.entries)

    def beyond_tokens(self, entry: Entry) -> int:
        """Return how many of its tokens would be spared without it, by the nearest resident prefix of it."""
        above = (self.entry_of(digest) for digest in entry.prefixes)
        return next((other.tokens for other in above if other is not None), 0)
