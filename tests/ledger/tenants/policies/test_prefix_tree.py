"""The tree's sums, which are kept up to date by differences, against sums that are worked out from nothing."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pinprobe.ledger.tenants.policies.prefix_tree import Node, PrefixTree

MOST_NODES, MOST_RESIDENT = 12, 6
PICK = st.integers(0, 10_000)


def nearest_resident(node: Node | None) -> Node | None:
    while node is not None and not node.is_resident:
        node = node.parent
    return node


def covered_worth(tree: PrefixTree, resident: Node) -> int:
    """Add up all nodes whose nearest resident ancestor-or-self a node is."""
    return sum(node.worth for node in tree if nearest_resident(node) is resident)


def score(tree: PrefixTree, resident: Node) -> int:
    ancestor = nearest_resident(resident.parent)
    return covered_worth(tree, resident) * (resident.tokens - (ancestor.tokens if ancestor else 0))


def assert_sums(tree: PrefixTree) -> None:
    """Hold everything that the tree keeps against what its nodes' parents, worths and residence alone say."""
    nodes = list(tree)
    residents = [node for node in nodes if node.is_resident]
    assert tree.resident_count == len(residents)
    for node in nodes:
        assert tree[node.key] is node
        assert set(node.children) == {other for other in nodes if other.parent is node}
        assert node.parent is None or node.parent.key in tree
    for node in residents:
        assert node.cover == covered_worth(tree, node)
        assert node.ancestor is nearest_resident(node.parent)
        assert set(node.followers) == {other for other in residents if nearest_resident(other.parent) is node}
        assert node.score == score(tree, node)


class Tree(RuleBasedStateMachine):
    """Nodes come, go, change their worth, and become resident and not."""

    def __init__(self) -> None:
        super().__init__()
        self.tree = PrefixTree(MOST_NODES)
        self.count = 0
        self.scores: dict[Node, int] = {}

    def pick(self, pick: int, *, is_resident: bool | None = None) -> Node | None:
        nodes = [node for node in self.tree if is_resident in (None, node.is_resident)]
        return nodes[pick % len(nodes)] if nodes else None

    @rule(above=st.none() | st.just(-1) | PICK, tokens=st.integers(1, 50), worth=st.integers(0, 9))
    def add(self, above: int | None, tokens: int, worth: int) -> None:
        parent = None if above is None else self.pick(above)
        self.count += 1
        node = self.tree.add(self.count, tokens + (parent.tokens if parent else 0), parent)
        self.tree.set_worth(node, worth)
        known = set(self.tree)
        dropped = self.tree.drop_surplus()
        assert (dropped is None) == (len(known) <= MOST_NODES)
        if dropped is not None:
            assert not dropped.is_resident
            assert set(self.tree) == known - {dropped}

    @rule(pick=PICK, worth=st.integers(0, 9))
    def change_worth(self, pick: int, worth: int) -> None:
        node = self.pick(pick)
        if node is not None:
            node.was_used = True
            self.tree.set_worth(node, worth)

    @precondition(lambda self: self.tree.resident_count < MOST_RESIDENT)
    @rule(pick=PICK | st.just(-1))
    def admit(self, pick: int) -> None:
        node = self.pick(pick, is_resident=False)
        if node is not None:
            self.tree.admit(node)

    @rule(pick=PICK)
    def evict(self, pick: int) -> None:
        node = self.pick(pick, is_resident=True)
        if node is not None:
            self.tree.evict(node)

    @invariant()
    def all_sums_are_what_they_are_from_nothing(self) -> None:
        assert_sums(self.tree)

    @invariant()
    def every_score_that_changed_is_told(self) -> None:
        told = list(self.tree.pop_rescored())
        assert len(told) == len(set(told))
        assert all(node.is_resident for node in told)
        scores = {node: score(self.tree, node) for node in self.tree if node.is_resident}
        assert {node for node, value in scores.items() if value != self.scores.get(node)} <= set(told)
        self.scores = scores


TestTree = Tree.TestCase
TestTree.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)


def test_what_an_entry_covered_passes_to_its_ancestor_when_it_goes() -> None:
    tree = PrefixTree(10)
    system = tree.add("system", 1_000, None)
    turn = tree.add("turn", 3_000, system)
    answer = tree.add("answer", 4_000, turn)
    for node, worth in ((system, 1), (turn, 10), (answer, 100)):
        tree.set_worth(node, worth)
    tree.admit(system)
    tree.admit(turn)
    assert (system.score, turn.score) == (1 * 1_000, 110 * 2_000)
    tree.evict(turn)
    assert system.score == 111 * 1_000
    tree.admit(answer)
    assert (system.score, answer.score) == (11 * 1_000, 100 * 3_000)


def test_an_entry_is_told_to_be_scored_anew_when_its_ancestor_comes_or_goes() -> None:
    tree = PrefixTree(10)
    document = tree.add("document", 90_000, None)
    question = tree.add("question", 90_500, document)
    tree.set_worth(question, 1)
    tree.admit(question)
    assert [(node, node.score) for node in tree.pop_rescored()] == [(question, 90_500)]
    tree.admit(document)
    assert question in list(tree.pop_rescored())
    assert question.score == 500
    tree.evict(document)
    assert question in list(tree.pop_rescored())
    assert question.score == 90_500


def test_what_comes_and_goes_without_being_asked_for_is_not_kept_in_mind() -> None:
    tree = PrefixTree(3)
    for number in range(50):
        node = tree.add(number, 1_000, None)
        tree.set_worth(node, 7)
        tree.admit(node)
        tree.evict(node)
        tree.drop_surplus()
    assert len(tree) == 3
    assert list(tree.pop_rescored()) == []


def test_a_node_that_is_dropped_leaves_its_children_to_its_parent() -> None:
    tree = PrefixTree(3)
    nodes = [tree.add("first", 1_000, None)]
    for number in range(2):
        nodes.append(tree.add(number, 1_000 * (number + 2), nodes[-1]))
    for node in nodes:
        tree.set_worth(node, 7)
    tree.admit(nodes[0])
    nodes[0].was_used = nodes[2].was_used = True
    nodes[1].was_used = False
    tree.add("one more", 5_000, None)
    assert tree.drop_surplus() is nodes[1]
    assert nodes[2].parent is nodes[0]
    assert nodes[0].cover == 14
    assert_sums(tree)
