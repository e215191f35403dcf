"""How many savepoints the conversations that go on will read next, as far as it shows in what they read before.

A conversation that goes on reads the end of its line, and now and then a place where it branched. How long after its
last use that still happens is the *reuse horizon*: the gap that all but a small share of the spared tokens came within.
What was used within the horizon, and is an end or a branching, is the *working set*; a pool that holds it spares nearly
all that a pool without a bound would.

Savepoints that went are watched as those that stayed, up to a bound: else a pool that is too small would see short gaps
alone, and stay too small. A read that finds its savepoint gone counts twice, because it is what the pool is for.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from dataclasses import dataclass

from pinprobe.ledger.tenants.policies.policy import Key
from pinprobe.probes.errors import BadRequest

#: The share of spared tokens that is to come within the reuse horizon.
KEPT_SHARE = 0.98
#: For so long a pool keeps the size that it needed, before it gives back what it needs no more.
SETTLE_SECONDS = 60.0

# Gaps are counted in bins, four to each doubling; the last one begins after 12 days.
_BINS_PER_OCTAVE = 4
_BIN_COUNT = 20 * _BINS_PER_OCTAVE
# After so many reads what was counted before counts half, so that the horizon follows the load.
_HALVED_EVERY = 1_000
_WATCHED_PER_ENTRY = 16
_WATCHED_BESIDE = 2_048


@dataclass(frozen=True, slots=True)
class DemandStats:
    """What is wanted at one moment.

    * `demand_entries`: how many entries the pool is to hold: the largest working set of the last while, within the
      pool's bounds.
    * `working_set`: the savepoints that live conversations will read next, whether they are resident or not.
    * `reuse_horizon_seconds`: how long after its last use a savepoint is still read; None while no read was seen.
    * `evicted_unread_reachable`: entries that went unread while their conversation was alive.
    """

    demand_entries: int
    working_set: int
    reuse_horizon_seconds: float | None
    evicted_unread_reachable: int

    def words(self) -> str:
        """Say it, for a line of counters."""
        horizon = "unknown" if self.reuse_horizon_seconds is None else f"{self.reuse_horizon_seconds:.1f} s"
        return (
            f"working_set {self.working_set}, demand_entries {self.demand_entries}, reuse_horizon {horizon},"
            f" evicted_unread_reachable {self.evicted_unread_reachable}"
        )


@dataclass(eq=False, slots=True)
class _Node:
    tokens: int
    conversation: str
    used_seconds: float
    was_read: bool = False
    was_continued: bool = False
    was_evicted: bool = False


class Demand:
    """Watches what is offered, read and evicted, and says how many entries are wanted. Not for several threads at once.

    `now_seconds` is the value of a clock that never runs backwards. A `fixed_horizon_seconds` takes the place of the
    one that is learned. Raises `BadRequest` where the bounds leave no room.
    """

    def __init__(
        self,
        most_entries: int,
        *,
        min_entries: int = 1,
        kept_share: float = KEPT_SHARE,
        settle_seconds: float = SETTLE_SECONDS,
        fixed_horizon_seconds: float | None = None,
    ) -> None:
        if not 1 <= min_entries <= most_entries:
            raise BadRequest(
                f"a pool of {min_entries} to {most_entries} entries is none; give 1 or more, the less first"
            )
        if not 0 < kept_share < 1:
            raise BadRequest(f"a share of {kept_share:g} of the spared tokens can't be held; give one between 0 and 1")
        self.most_entries = most_entries
        self.min_entries = min_entries
        self._kept_share = kept_share
        self._settle_seconds = settle_seconds
        self._fixed_horizon_seconds = fixed_horizon_seconds
        # Both with the least recently used first: what could be read next, and what was continued or is over.
        self._awaited: OrderedDict[Key, _Node] = OrderedDict()
        self._passed: OrderedDict[Key, _Node] = OrderedDict()
        self._gaps = [0.0] * _BIN_COUNT
        self._reads = 0
        self._read_tokens = self._passed_tokens = 0.0
        self._horizon_seconds: float | None = None
        self._evicted_unread_reachable = 0
        # Working sets with their time, each larger than all that came after it.
        self._largest: deque[tuple[float, int]] = deque()
        self._most_watched = _WATCHED_PER_ENTRY * most_entries + _WATCHED_BESIDE

    def __contains__(self, key: object) -> bool:
        return key in self._awaited or key in self._passed

    def read(self, key: Key, now_seconds: float) -> None:
        """Learn that a request continued a savepoint that is watched, resident or not."""
        was_passed = key in self._passed
        node = self._take(key)
        self._count_gap(now_seconds - node.used_seconds, node.tokens * (2 if node.was_evicted else 1))
        self._passed_tokens += was_passed * node.tokens
        self._read_tokens += node.tokens
        node.used_seconds = now_seconds
        node.was_read = True
        self._awaited[key] = node  # also one that was continued before: there its conversation branches

    def offer(self, key: Key, parent: Key | None, tokens: int, conversation: str, now_seconds: float) -> list[Key]:
        """Learn of a savepoint, and what the longest watched one before it is; return what is watched no more."""
        if parent is not None and parent != key:
            above = self._take(parent)
            if above.was_continued:
                above.used_seconds = now_seconds  # a line begins there now; and both orders are by the last use
                self._awaited[parent] = above
            else:
                self._passed[parent] = above
            above.was_continued = True
        node = self._take(key) if key in self else _Node(tokens, conversation, now_seconds)
        node.used_seconds, node.conversation = now_seconds, conversation
        self._awaited[key] = node
        return self._drop_surplus()

    def admitted(self, key: Key) -> None:
        """Learn that an entry is resident from here on."""
        node = self._get(key)
        if node is not None:
            node.was_evicted = False

    def evicted(self, key: Key, now_seconds: float) -> None:
        """Learn that an entry had to go."""
        node = self._get(key)
        if node is not None:
            node.was_evicted = True
            is_reachable = key in self._awaited and self._is_live(node, now_seconds)
            self._evicted_unread_reachable += is_reachable and not node.was_read

    def is_awaited(self, key: Key, now_seconds: float) -> bool:
        """Say whether a savepoint is of the working set."""
        node = self._awaited.get(key)
        return node is not None and self._is_live(node, now_seconds)

    @property
    def is_passed_for_good(self) -> bool:
        """Whether what was continued is seldom read again: within the share of spared tokens that need not be held."""
        return self._passed_tokens <= (1 - self._kept_share) * self._read_tokens

    def chance(self, key: Key, now_seconds: float) -> float:
        """Return the share of reads that come later after the last use than this savepoint has waited by now.

        1 while no read was seen; 0 for what is not of the working set.
        """
        node = self._awaited.get(key)
        if node is None:
            return 0.0
        total = sum(self._gaps)
        return sum(self._gaps[_bin(now_seconds - node.used_seconds) :]) / total if total else 1.0

    def end(self, conversation: str) -> None:
        """Learn that a conversation is over: nothing of it is awaited any more."""
        for key in [key for key, node in self._awaited.items() if node.conversation == conversation]:
            self._passed[key] = self._awaited.pop(key)

    def stats(self, now_seconds: float) -> DemandStats:
        """Return what is wanted now."""
        working_set = 0
        for node in reversed(self._awaited.values()):
            if not self._is_live(node, now_seconds):
                break
            working_set += 1
        wanted = max(self.min_entries, min(working_set, self.most_entries))
        while self._largest and self._largest[-1][1] <= wanted:
            self._largest.pop()
        self._largest.append((now_seconds, wanted))
        while self._largest[0][0] < now_seconds - self._settle_seconds:
            self._largest.popleft()
        return DemandStats(self._largest[0][1], working_set, self._horizon, self._evicted_unread_reachable)

    @property
    def _horizon(self) -> float | None:
        return self._horizon_seconds if self._fixed_horizon_seconds is None else self._fixed_horizon_seconds

    def _is_live(self, node: _Node, now_seconds: float) -> bool:
        return self._horizon is None or now_seconds - node.used_seconds <= self._horizon

    def _get(self, key: Key) -> _Node | None:
        return self._awaited.get(key) or self._passed.get(key)

    def _take(self, key: Key) -> _Node:
        return self._awaited.pop(key) if key in self._awaited else self._passed.pop(key)

    def _drop_surplus(self) -> list[Key]:
        dropped = []
        while len(self._awaited) + len(self._passed) > self._most_watched:
            key, _ = (self._passed or self._awaited).popitem(last=False)
            dropped.append(key)
        return dropped

    def _count_gap(self, gap_seconds: float, weight: float) -> None:
        self._gaps[_bin(gap_seconds)] += weight
        self._reads += 1
        if self._reads % _HALVED_EVERY == 0:
            self._gaps = [count / 2 for count in self._gaps]
            self._read_tokens /= 2
            self._passed_tokens /= 2
        wanted = self._kept_share * sum(self._gaps)
        within = 0.0
        for number, count in enumerate(self._gaps):
            within += count
            if within >= wanted:
                self._horizon_seconds = 2 ** ((number + 1) / _BINS_PER_OCTAVE) - 1
                break


def _bin(gap_seconds: float) -> int:
    return min(_BIN_COUNT - 1, int(_BINS_PER_OCTAVE * math.log2(max(0.0, gap_seconds) + 1)))
