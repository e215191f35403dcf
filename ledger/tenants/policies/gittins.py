"""`gittins`: keeps what spares most tokens for the time in a slot, as far as it can be learned from what was read.

Every node of the prefix tree that was ever offered is watched, resident or not, up to a bound: how long it goes unread,
and whether it is read at all (`read_rates.py`). From that each node has an index by its age, the reads in a second that
waiting for it is worth. A resident entry covers nodes (`prefix_tree.py`), and its score is the sum of their indices by
the tokens that only it spares. The least score goes, the newcomer's among them: it may be refused.

What is known of a node is what the tree shows. How far is it from the newest end of its line: is it that end, the node
before, which is read where an answer is asked for again, or one further back? Was its line left behind by a newer
branch from the same node? How often was it read? How many tokens does it add, and at what pace was its line read?
"""

from __future__ import annotations

from collections.abc import Container

from pinprobe.ledger.tenants.policies.lowest_first import LowestFirst
from pinprobe.ledger.tenants.policies.policy import HALVED_EVERY, KEPT, Decision, Key, Savepoint, checked_slots
from pinprobe.ledger.tenants.policies.prefix_tree import Node, PrefixTree
from pinprobe.ledger.tenants.policies.read_rates import BIN_COUNT, BIN_STARTS_SECONDS, Group, ReadRates, age_bin
from pinprobe.ledger.tenants.policies.watch import MOST_DISTANCE, octaves

# Nodes that are watched: so many for each slot, and some more for pools of a few slots.
_WATCHED_PER_SLOT = 16
_WATCHED_BESIDE = 2048
# The rates are worked out anew when a sixteenth more was offered: often at first, when each read is news.
_RENEWED_BY = 16
# A node that was continued is read where its conversation branches: so often, before it is known how often that is.
_CONTINUED = 1 / 4


class Gittins:
    """The least expected tokens per second go. Also knows what is not resident, and drops that by a clock."""

    name = "gittins"

    def __init__(self, slots: int) -> None:
        self.slots = checked_slots(slots)
        self._tree = PrefixTree(_WATCHED_PER_SLOT * slots + _WATCHED_BESIDE)
        self._rates = ReadRates()
        self._scores: LowestFirst[Key] = LowestFirst()
        self._next_bins: LowestFirst[Node] = LowestFirst()  # by the time at which a node comes into its next age bin
        self._offers = 0
        self._renewed_at = 1

    @property
    def resident_count(self) -> int:
        """How many entries are resident."""
        return self._tree.resident_count

    def __contains__(self, key: object) -> bool:
        return key in self._tree

    def read(self, key: Key, now_seconds: float) -> None:
        """End the node's spell with a read, and begin the next."""
        self._grow_older(now_seconds)
        node = self._tree[key]
        node.was_used = True
        _group(node).count(node.watch.age_bin, was_read=True)
        node.watch.read(now_seconds)
        self._begin_spell(node, now_seconds)

    def offer(self, savepoint: Savepoint, now_seconds: float, held: Container[Key] = ()) -> Decision:
        """Put it beside the others, and let the least of all go where there are too many."""
        self._grow_older(now_seconds)
        self._count_offer()
        node = self._tree.get(savepoint.key)
        forgotten = None
        if node is None:
            node = self._meet(savepoint, now_seconds)
            dropped = self._tree.drop_surplus()
            if dropped is not None:
                self._next_bins.remove(dropped)
                forgotten = dropped.key
        elif node.is_resident:
            return KEPT
        self._tree.admit(node)
        if self.resident_count <= self.slots:
            return Decision(is_kept=True, forgotten=forgotten)
        evicted = self._evict_least(held)
        if evicted is None:  # all are held, what the newcomer's key stood for before among them
            self._evict(node)
        if evicted in (None, node.key):
            return Decision(is_kept=False, forgotten=forgotten)
        return Decision(is_kept=True, evicted=evicted, forgotten=forgotten)

    def evict(self, now_seconds: float, held: Container[Key] = ()) -> Key | None:
        """Let the entry of the least score go, as of now."""
        self._grow_older(now_seconds)
        return self._evict_least(held)

    def next_to_go(self, now_seconds: float, held: Container[Key] = ()) -> Key | None:
        """Say which entry is of the least score, as of now."""
        self._grow_older(now_seconds)
        return self._least(held)

    def remove(self, key: Key) -> None:
        """Have it resident no more; it is watched as any other."""
        node = self._tree.get(key)
        if node is not None and node.is_resident:
            self._evict(node)

    # -- residence

    def _evict_least(self, held: Container[Key]) -> Key | None:
        least = self._least(held)
        if least is not None:
            self._evict(self._tree[least])
        return least

    def _least(self, held: Container[Key]) -> Key | None:
        for node in self._tree.pop_rescored():
            self._scores.put(node.key, node.score)
        least = self._scores.lowest(held)
        return None if least is None else least[1]

    def _evict(self, node: Node) -> None:
        self._scores.remove(node.key)
        self._tree.evict(node)

    # -- watching

    def _meet(self, savepoint: Savepoint, now_seconds: float) -> Node:
        parent = None if savepoint.parent is None else self._tree[savepoint.parent]
        if parent is not None and parent.children:
            self._leave_behind(parent)
        node = self._tree.add(savepoint.key, savepoint.tokens, parent)
        if parent is not None:
            node.watch.pace = parent.watch.onward_pace
            self._go_on_from(parent)
        self._begin_spell(node, now_seconds)
        return node

    def _go_on_from(self, parent: Node) -> None:
        """Have the end of a line moved on from a node, which those further back know already."""
        behind: Node | None = parent
        for distance in range(1, MOST_DISTANCE + 1):
            if behind is None:
                return
            if behind.watch.distance < distance:
                behind.watch.distance = distance
                self._regroup(behind)
            behind = behind.parent

    def _leave_behind(self, parent: Node) -> None:
        """Mark the line that was the newest from a node, now that another one begins there.

        Older lines were marked when this one began; what continued them since then shows that they are alive.
        """
        waiting = [next(reversed(parent.children))]
        while waiting:
            node = waiting.pop()
            if not node.watch.was_left_behind:
                node.watch.was_left_behind = True
                self._regroup(node)
                waiting.extend(node.children)

    def _begin_spell(self, node: Node, now_seconds: float) -> None:
        node.watch.began_seconds = now_seconds
        node.watch.age_bin = 0
        self._next_bins.put(node, now_seconds + BIN_STARTS_SECONDS[1])
        self._regroup(node)

    def _regroup(self, node: Node) -> None:
        watch = node.watch
        traits = [
            int(octaves(watch.read_count)),
            int(octaves(max(0, node.added_tokens))),
            None if watch.pace is None else int(watch.pace),
        ]
        guess = _CONTINUED if watch.distance else 1.0
        watch.group = self._rates.group((watch.distance, watch.was_left_behind), traits, guess)
        self._tree.set_worth(node, watch.group.worth(watch.age_bin))

    def _grow_older(self, now_seconds: float) -> None:
        """Bring all ages up to now: those nodes are touched that came into another bin since the last time."""
        while (node := self._next_bins.pop_up_to(now_seconds)) is not None:
            watch, group = node.watch, _group(node)
            reached = max(watch.age_bin + 1, age_bin(now_seconds - watch.began_seconds))
            for number in range(watch.age_bin, reached):
                group.count(number, was_read=False)
            watch.age_bin = reached
            if reached + 1 < BIN_COUNT:
                self._next_bins.put(node, watch.began_seconds + BIN_STARTS_SECONDS[reached + 1])
            self._tree.set_worth(node, group.worth(reached))

    def _count_offer(self) -> None:
        self._offers += 1
        if self._offers >= self._renewed_at:
            self._rates.renew()
            self._renewed_at += max(1, min(self._renewed_at, HALVED_EVERY) // _RENEWED_BY)
        if self._offers % HALVED_EVERY == 0:
            self._rates.halve()


def _group(node: Node) -> Group:
    assert node.watch.group is not None  # from its first spell on
    return node.watch.group
