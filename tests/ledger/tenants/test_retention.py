"""The mind of a pool: its policy and its demand together, without a byte."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from pinprobe.ledger.tenants.demand import Demand
from pinprobe.ledger.tenants.policies.policies import make_policy, policy_names
from pinprobe.ledger.tenants.retention import Offer, Retention

MOST = 6
LINES, TURNS = 5, 6


def retention(policy: str = "lru", *, sized: bool = False, most: int = MOST) -> Retention:
    return Retention(make_policy(policy, most), Demand(most, settle_seconds=5), is_sized_by_demand=sized)


def offered(key: tuple[int, int]) -> Offer:
    line, number = key
    return Offer(key, 1000 * (number + 1), f"c{line}", tuple((line, each) for each in reversed(range(number))))


@pytest.mark.parametrize("policy", ["lru", "gdsf", "chain", "gittins"])
def test_where_demand_sizes_it_what_nobody_awaits_goes_first(policy: str) -> None:
    mind, now = retention(policy, sized=True, most=3), 0.0
    for number in range(4):
        for line in range(3):
            now += 5
            mind.read(offered((line, number)).prefixes, now)
            assert mind.offer(offered((line, number)), now).is_kept
    assert [mind.is_resident((line, 3)) for line in range(3)] == [True] * 3
    assert mind.resident_count == 3


def test_where_its_size_is_fixed_the_policy_alone_decides() -> None:
    mind = retention("lru", most=2)
    for now, key in enumerate([(0, 0), (0, 1), (1, 0)]):
        mind.offer(offered(key), float(now))
    assert [mind.is_resident(key) for key in ((0, 0), (0, 1), (1, 0))] == [False, True, True]


def test_slots_that_are_lowered_for_want_of_memory_are_kept_to() -> None:
    mind = retention("lru", most=4)
    for number in range(4):
        mind.offer(offered((number, 0)), 0.0)
    mind.most_slots = 2
    assert mind.surplus(0.0) == 2
    assert [mind.evict(0.0), mind.evict(0.0)] == [(0, 0), (1, 0)]
    assert mind.offer(offered((4, 0)), 0.0).evicted == ((2, 0),)
    assert mind.slots == 2


@pytest.mark.parametrize("policy", policy_names())
@pytest.mark.parametrize("sized", [False, True], ids=["fixed", "sized by demand"])
def test_whatever_happens_it_keeps_to_its_slots_and_knows_what_is_resident(policy: str, sized: bool) -> None:
    class Machine(RuleBasedStateMachine):
        @initialize()
        def begin(self) -> None:
            self.mind = retention(policy, sized=sized)
            self.now = 0.0
            self.resident: set[object] = set()
            self.known: set[object] = set()
            self.held: set[object] = set()

        def keys(self, line: int, number: int) -> list[tuple[int, int]]:
            return [(line, each) for each in reversed(range(number)) if (line, each) in self.known]

        @rule(line=st.integers(0, LINES), number=st.integers(0, TURNS), wait=st.sampled_from([0.0, 1.0, 40.0]))
        def request(self, line: int, number: int, wait: float) -> None:
            self.now += wait
            self.mind.read(self.keys(line, number), self.now)
            key = (line, number)
            offer = Offer(key, 1000 * (number + 1), f"c{line}", tuple(self.keys(line, number)))
            verdict = self.mind.offer(offer, self.now, self.held)
            assert self.held.isdisjoint(verdict.evicted)
            assert set(verdict.evicted) <= self.resident
            self.resident -= set(verdict.evicted)
            self.resident |= {key} if verdict.is_kept else set()
            self.known.add(key)
            self.forget()

        @rule()
        def settle(self) -> None:
            for _ in range(self.mind.surplus(self.now)):
                self.evict()
            if not self.held:
                assert self.mind.resident_count <= self.mind.slots

        @rule()
        def evict(self) -> None:
            gone = self.mind.evict(self.now, self.held)
            assert (gone is None) == self.resident.issubset(self.held)
            if gone is not None:
                self.resident.remove(gone)
                assert gone not in self.held
            self.forget()

        @rule(line=st.integers(0, LINES), number=st.integers(0, TURNS))
        def remove(self, line: int, number: int) -> None:
            self.mind.remove((line, number))
            self.resident.discard((line, number))
            self.held.discard((line, number))
            self.forget()

        @rule(line=st.integers(0, LINES))
        def end(self, line: int) -> None:
            self.mind.demand.end(f"c{line}")

        @rule(data=st.data())
        def hold(self, data: st.DataObject) -> None:
            if self.resident:
                self.held.add(data.draw(st.sampled_from(sorted(self.resident, key=str))))

        @rule()
        def let_go(self) -> None:
            self.held.clear()

        @rule(most=st.integers(1, MOST))
        def fall_short(self, most: int) -> None:
            self.mind.most_slots = most

        def forget(self) -> None:
            for key in self.mind.pop_forgotten():
                assert key not in self.mind
                self.known.discard(key)

        @invariant()
        def it_says_what_is_resident(self) -> None:
            if hasattr(self, "mind"):
                assert self.mind.resident_count == len(self.resident) == self.mind.policy.resident_count <= MOST
                assert all(self.mind.is_resident(key) and key in self.mind for key in self.resident)

        @invariant()
        def what_it_knows_is_what_it_did_not_forget(self) -> None:
            if hasattr(self, "mind"):
                every = [(line, number) for line in range(LINES + 1) for number in range(TURNS + 1)]
                assert {key for key in every if key in self.mind} <= self.known

    run_state_machine_as_test(Machine, settings=settings(max_examples=25, stateful_step_count=40, deadline=None))
