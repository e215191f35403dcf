"""What the tiers of an arm would keep, with no memory behind them: decided by the code that decides in an engine."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pinprobe.ledger.replay.placement import PrefixNode
from pinprobe.ledger.tenants.demand import Demand, DemandStats
from pinprobe.ledger.tenants.overflow_file import file_bytes
from pinprobe.ledger.tenants.policies.policies import make_policy
from pinprobe.ledger.tenants.policies.policy import Key
from pinprobe.ledger.tenants.pool_shape import PoolShape
from pinprobe.ledger.tenants.retention import Offer, Retention
from pinprobe.ledger.tenants.spill_gate import Spillable, SpillCounter, SpillRefusal, spill_value


class RingAlone:
    """A ring whose slots are read until they are handed out again."""

    def __init__(self, slots: int) -> None:
        self._slots: deque[Key] = deque(maxlen=slots)
        self._here: Counter[Key] = Counter()

    def __contains__(self, key: object) -> bool:
        return key in self._here

    def __len__(self) -> int:
        return len(self._slots)

    def stage(self, key: Key) -> bool:
        """Put a savepoint into the next slot; say whether another savepoint is lost by that."""
        lost = self._slots[0] if len(self._slots) == self._slots.maxlen else None
        self._slots.append(key)
        self._here[key] += 1
        if lost is None:
            return False
        self._here[lost] -= 1
        if not self._here[lost]:
            del self._here[lost]
        return lost not in self._here


@dataclass(eq=False, slots=True)
class _Kept:
    node: PrefixNode
    conversation: str
    prefixes: tuple[Key, ...]


class PoolKept:
    """A pool, and its overflow where it has one: what is copied is copied at once, and takes no time.

    `read_back_bytes_per_second` stands in for what reading from disk takes; None where nobody said, and then nothing is
    worth a file.
    """

    def __init__(self, shape: PoolShape, read_back_bytes_per_second: float | None) -> None:
        demand = Demand(
            shape.bound_regions, min_entries=shape.min_regions, fixed_horizon_seconds=shape.fixed_horizon_seconds
        )
        policy = make_policy(shape.policy, shape.bound_regions)
        self.retention = Retention(
            policy, demand, is_sized_by_demand=shape.is_sized_by_demand, prefill_time=shape.prefill_time
        )
        self.counts: Counter[str] = Counter()
        self.spill = SpillCounter()
        self.peak_entries = 0
        self._chunk_tokens = shape.chunk_tokens
        self._prefill_time = shape.prefill_time
        self._read_seconds = (
            None if read_back_bytes_per_second is None else shape.layout.row_bytes / read_back_bytes_per_second
        )
        self._most_files = (shape.overflow_bytes or 0) // file_bytes(shape.layout.row_bytes)
        self._has_overflow = shape.overflow_bytes is not None
        self._kept: dict[Key, _Kept] = {}
        self._files: dict[Key, float] = {}  # by key the value of each
        self._longest: dict[str, Counter[int]] = {}  # by conversation how many entries there are of each length

    @property
    def files(self) -> int:
        """How many savepoints lie on disk."""
        return len(self._files)

    def settle(self, now_seconds: float) -> None:
        """Let those go that are too many by now."""
        for _ in range(self.retention.surplus(now_seconds)):
            evicted = self.retention.evict(now_seconds)
            if evicted is not None:
                self._went(evicted, now_seconds)
        for key in [key for key in self._files if not self.retention.demand.is_awaited(key, now_seconds)]:
            del self._files[key]

    def read(self, nodes: Sequence[PrefixNode], now_seconds: float) -> tuple[str, PrefixNode] | None:
        """Find the longest savepoint of a prompt's prefixes, in memory or on disk; return where, and which."""
        known = [node.key for node in nodes if node.key in self.retention]
        self.retention.read(known, now_seconds)
        for node in nodes:
            if node.key in self._kept:
                return "pool", node
            if node.key in self._files:
                self._come_back(node, nodes, now_seconds)
                return "disk", node
        return None

    def offer(self, node: PrefixNode, prefixes: Iterable[PrefixNode], conversation: str, now_seconds: float) -> None:
        """Offer a savepoint, with all nodes that are prefixes of it, the longest first."""
        self.counts["requests"] += 1
        if node.tokens < self._chunk_tokens:
            self.counts["below_floor"] += 1
        elif node.key in self._kept:
            self._decide(node, prefixes, conversation, now_seconds)
            self.counts["already_here"] += 1
        elif self._decide(node, prefixes, conversation, now_seconds):
            self.counts["promoted"] += 1
        else:
            self.counts["declined"] += 1

    def demand(self, now_seconds: float) -> DemandStats:
        """Return what is wanted now."""
        return self.retention.demand.stats(now_seconds)

    def _come_back(self, node: PrefixNode, nodes: Sequence[PrefixNode], now_seconds: float) -> None:
        self.counts["recalled"] += 1
        shorter = [other for other in nodes if other.tokens < node.tokens]
        self._decide(node, shorter, "", now_seconds)

    def _decide(self, node: PrefixNode, prefixes: Iterable[PrefixNode], conversation: str, now_seconds: float) -> bool:
        known = tuple(other.key for other in prefixes if other.key in self.retention)
        is_here = node.key in self._kept
        verdict = self.retention.offer(Offer(node.key, node.tokens, conversation, known), now_seconds)
        if verdict.is_kept and not is_here:
            self._kept[node.key] = _Kept(node, conversation, known)
            self._longest.setdefault(conversation, Counter())[node.tokens] += 1
        for key in verdict.evicted:
            self._went(key, now_seconds)
        self.settle(now_seconds)
        self.peak_entries = max(self.peak_entries, len(self._kept))
        return verdict.is_kept

    def _went(self, key: Key, now_seconds: float) -> None:
        kept = self._kept.pop(key)
        lengths = self._longest[kept.conversation]
        if self._has_overflow:
            self._spill(key, kept, is_dominated=max(lengths) > kept.node.tokens, now_seconds=now_seconds)
        lengths[kept.node.tokens] -= 1
        if not lengths[kept.node.tokens]:
            del lengths[kept.node.tokens]
        if not lengths:
            del self._longest[kept.conversation]

    def _spill(self, key: Key, kept: _Kept, *, is_dominated: bool, now_seconds: float) -> None:
        demand = self.retention.demand
        above = (self._kept[other].node.tokens for other in kept.prefixes if other in self._kept)
        asked = Spillable(
            tokens=kept.node.tokens,
            beyond_tokens=next(above, 0),
            chance=demand.chance(key, now_seconds),
            is_dominated=is_dominated,
            is_awaited=demand.is_awaited(key, now_seconds),
        )
        value = spill_value(asked, self._prefill_time, self._read_seconds)
        if not isinstance(value, SpillRefusal) and key not in self._files and len(self._files) >= self._most_files:
            least = min(self._files, key=lambda other: self._files[other], default=None)
            if least is None or self._files[least] >= value:
                value = SpillRefusal.NOT_WORTH_IT
            else:
                del self._files[least]
        self.spill.count(value if isinstance(value, SpillRefusal) else None)
        if not isinstance(value, SpillRefusal):
            self.counts["written"] += key not in self._files
            self._files[key] = value
        else:
            self._files.pop(key, None)
