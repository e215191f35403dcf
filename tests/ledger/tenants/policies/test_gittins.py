"""`gittins`: what goes is of the least score as worked out from nothing; and what it is to learn from simple loads."""

from __future__ import annotations

import pytest

from pinprobe.ledger.replay.replay import replay
from pinprobe.ledger.replay.scenario import make_scenario
from pinprobe.ledger.tenants.policies.gittins import Gittins
from pinprobe.ledger.tenants.policies.lru import Lru
from pinprobe.ledger.tenants.policies.policy import Decision, Savepoint
from pinprobe.ledger.tenants.policies.prefix_tree import Node
from pinprobe.ledger.tenants.policies.read_rates import age_bin
from tests.ledger.tenants.policies.keeper import Keeper, drive
from tests.ledger.tenants.policies.test_prefix_tree import assert_sums, score

DRIVES = ("linear", "branching", "one-shot-flood", "agentic", "long-context")


class Watched(Gittins):
    """Looks at all nodes, which the policy itself never does, whenever one is to go."""

    evictions = 0

    def _evict_least(self, held):  # type: ignore[no-untyped-def]
        tree = self._tree
        assert_sums(tree)
        scores = {node: score(tree, node) for node in tree if node.is_resident}
        gone = super()._evict_least(held)
        free = [value for node, value in scores.items() if node.key not in held]
        assert (gone is None) == (not free)
        if gone is not None:
            assert scores[tree[gone]] == min(free)
            self.evictions += 1
        assert_sums(tree)
        return gone

    def offer(self, savepoint, now_seconds, held=()):  # type: ignore[no-untyped-def]
        decision: Decision = super().offer(savepoint, now_seconds, held)
        for node in self._tree:
            assert_watch(node, now_seconds)
        return decision


def assert_watch(node: Node, now_seconds: float) -> None:
    """A node's age is that of now, and how far it is from an end is what the tree shows."""
    assert node.watch.age_bin == age_bin(now_seconds - node.watch.began_seconds)
    children = node.children
    is_continued_twice = any(child.children for child in children)
    # A node that was dropped may have been the end, or between: so the distance may be more than can be seen now.
    assert node.watch.distance >= (2 if is_continued_twice else 1 if children else 0)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_what_goes_is_of_the_least_score_whatever_happened_before(seed: int) -> None:
    policy = Watched(6)
    drive(Keeper(policy), seed, 150)
    assert policy.evictions > 30


def test_a_node_that_was_forgotten_takes_nothing_with_it() -> None:
    policy = Watched(2)
    policy._tree.most_nodes = 12
    keeper = Keeper(policy)
    drive(keeper, 4, 250)
    assert len(keeper.known) == 12
    assert len(keeper.prompts) > 100


def test_the_newest_branch_is_not_left_behind_and_all_before_it_are() -> None:
    policy = Gittins(8)
    for number, (key, parent) in enumerate([("a", None), ("b", "a"), ("c", "b"), ("d", "a"), ("e", "d"), ("f", "a")]):
        policy.offer(Savepoint(key, parent, 1_000 * (number + 1)), float(number))
    behind = {node.key for node in policy._tree if node.watch.was_left_behind}
    assert behind == {"b", "c", "d", "e"}
    assert {node.key: node.watch.distance for node in policy._tree} == {"a": 2, "b": 1, "c": 0, "d": 1, "e": 0, "f": 0}


def test_a_flood_of_prompts_that_never_come_again_does_not_wash_conversations_away() -> None:
    requests = make_scenario("one-shot-flood", 3_000, seed=5)
    learned, plain = replay(requests, Gittins(32)), replay(requests, Lru(32))
    assert learned.spared_tokens > 3 * plain.spared_tokens


@pytest.mark.parametrize("name", DRIVES)
def test_it_spares_more_than_lru_on_every_drive(name: str) -> None:
    requests = make_scenario(name, 1_500, seed=6)
    assert replay(requests, Gittins(16)).token_hit_rate > replay(requests, Lru(16)).token_hit_rate - 0.003


@pytest.mark.slow
@pytest.mark.parametrize("slots", [8, 32, 128])
@pytest.mark.parametrize("seed", [7, 8])
@pytest.mark.parametrize("name", DRIVES)
def test_it_spares_more_than_lru_on_every_long_drive(name: str, seed: int, slots: int) -> None:
    requests = make_scenario(name, 12_000, seed)
    assert replay(requests, Gittins(slots)).token_hit_rate > replay(requests, Lru(slots)).token_hit_rate - 0.003
