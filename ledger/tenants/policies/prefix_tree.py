"""`PrefixTree`: nodes by what they continue, resident or not, and for each resident one the sum of what it covers.

A request that would have read a node which is not resident reads the nearest resident one above it: this one *covers*
the node. So the worth of a resident node is the sum of the worths of all nodes that it covers, itself included. Each
node keeps that sum for the nodes below it down to the next resident ones; a change walks up to the nearest resident
node, and nothing ever walks over all of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from pinprobe.ledger.tenants.policies.policy import Key
from pinprobe.ledger.tenants.policies.watch import Watch


@dataclass(eq=False, slots=True)
class Node:
    """A savepoint that was offered once.

    Worths are whole numbers, so that a sum that was added to and taken from for days is still exact.
    """

    key: Key
    tokens: int
    parent: Node | None
    watch: Watch = field(default_factory=Watch)
    children: dict[Node, None] = field(default_factory=dict)  # a set that keeps its order, as `followers` is
    is_resident: bool = False
    #: Its nearest resident ancestor, and the nodes whose nearest it is: kept while it is resident.
    ancestor: Node | None = None
    followers: dict[Node, None] = field(default_factory=dict)
    #: What it is worth itself, and together with those below it that are not covered by a resident node below it.
    worth: int = 0
    cover: int = 0
    #: Whether anything continued or read it since the clock's hand came by.
    was_used: bool = True

    @property
    def added_tokens(self) -> int:
        """The tokens that it covers beyond its parent."""
        return self.tokens - (self.parent.tokens if self.parent else 0)

    @property
    def score(self) -> int:
        """Its cover by the tokens that only it spares: those beyond its nearest resident ancestor."""
        return self.cover * (self.tokens - (self.ancestor.tokens if self.ancestor else 0))


class PrefixTree:
    """At most `most_nodes` nodes; more than are ever resident at a time, or there would be none to drop."""

    def __init__(self, most_nodes: int) -> None:
        self.most_nodes = most_nodes
        self.resident_count = 0
        self._nodes: dict[Key, Node] = {}
        self._clock: deque[Node] = deque()  # the hand points at the first
        self._rescored: dict[Node, None] = {}

    def __len__(self) -> int:
        return len(self._nodes)

    def __contains__(self, key: object) -> bool:
        return key in self._nodes

    def __getitem__(self, key: Key) -> Node:
        return self._nodes[key]

    def __iter__(self) -> Iterator[Node]:
        return iter(self._nodes.values())

    def get(self, key: Key) -> Node | None:
        """Return a node, or None where it is not known."""
        return self._nodes.get(key)

    def pop_rescored(self) -> Iterator[Node]:
        """Yield the resident nodes whose score may have changed since they were last yielded, each once."""
        rescored, self._rescored = self._rescored, {}
        return iter(rescored)

    # -- nodes

    def add(self, key: Key, tokens: int, parent: Node | None) -> Node:
        """Add a node that is not resident and worth nothing yet."""
        node = self._nodes[key] = Node(key, tokens, parent)
        self._clock.append(node)
        if parent is not None:
            parent.children[node] = None
        return node

    def drop_surplus(self) -> Node | None:
        """Drop a node where there are too many: the clock's next that is neither resident nor used since last time.

        Its children continue its parent from here on. Called after each `add`, so that one is enough.
        """
        if len(self._nodes) <= self.most_nodes:
            return None
        while True:
            node = self._clock.popleft()
            if not node.is_resident and not node.was_used:
                break
            node.was_used = False
            self._clock.append(node)
        self.set_worth(node, 0)
        for child in node.children:
            child.parent = node.parent
        if node.parent is not None:
            del node.parent.children[node]
            node.parent.children.update(node.children)
        del self._nodes[node.key]
        return node

    def set_worth(self, node: Node, worth: int) -> None:
        """Say what a node is worth by itself."""
        if worth != node.worth:
            difference = worth - node.worth
            node.worth = worth
            self._add_cover(node, difference)

    # -- residence

    def admit(self, node: Node) -> None:
        """Make a node resident: it covers itself and what is below it, which its ancestor covers no more."""
        ancestor = self._nearest(node)
        if node.parent is not None:
            self._add_cover(node.parent, -node.cover)
        node.is_resident = True
        self.resident_count += 1
        node.ancestor = ancestor
        for follower in self._resident_below(node):
            if ancestor is not None:
                del ancestor.followers[follower]
            follower.ancestor = node
            node.followers[follower] = None
            self._rescored[follower] = None
        if ancestor is not None:
            ancestor.followers[node] = None
        self._rescored[node] = None

    def evict(self, node: Node) -> None:
        """Make a node one that is not resident: what it covered passes to its ancestor, and so do its followers."""
        node.is_resident = False
        self.resident_count -= 1
        self._rescored.pop(node, None)
        for follower in node.followers:
            follower.ancestor = node.ancestor
            self._rescored[follower] = None
        if node.ancestor is not None:
            del node.ancestor.followers[node]
            node.ancestor.followers.update(node.followers)
        node.ancestor = None
        node.followers = {}
        if node.parent is not None:
            self._add_cover(node.parent, node.cover)

    def _add_cover(self, node: Node | None, difference: int) -> None:
        while node is not None:
            node.cover += difference
            if node.is_resident:
                self._rescored[node] = None
                return
            node = node.parent

    def _nearest(self, node: Node) -> Node | None:
        above = node.parent
        while above is not None and not above.is_resident:
            above = above.parent
        return above

    def _resident_below(self, node: Node) -> Iterator[Node]:
        """Yield the nodes that a newly resident one is the nearest to, without looking below them."""
        waiting = list(node.children)
        while waiting:
            below = waiting.pop()
            if below.is_resident:
                yield below
            else:
                waiting.extend(below.children)
