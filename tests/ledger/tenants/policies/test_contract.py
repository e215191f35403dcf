"""What every policy owes its keeper, ours and those of others: the protocol of `policy.py`, word by word."""

from __future__ import annotations

import importlib.util
import itertools
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from pinprobe.ledger.tenants.policies.policies import ENTRY_POINT_GROUP, make_policy, policy_names
from pinprobe.ledger.tenants.policies.policy import Policy, Savepoint
from tests.ledger.tenants.foreign_package import install
from tests.ledger.tenants.policies.keeper import Keeper, Prompt, drive

FOREIGN = """
from pinprobe.ledger.tenants.policies.policy import KEPT, REFUSED, Decision

class FirstIn:
    name = "first-in"

    def __init__(self, slots):
        self.slots = slots
        self.entries = {}

    @property
    def resident_count(self):
        return len(self.entries)

    def __contains__(self, key):
        return key in self.entries

    def read(self, key, now_seconds):
        pass

    def offer(self, savepoint, now_seconds, held=()):
        if savepoint.key in self.entries:
            return KEPT
        evicted = None
        if len(self.entries) >= self.slots:
            evicted = self.evict(now_seconds, held)
            if evicted is None:
                return REFUSED
        self.entries[savepoint.key] = None
        return Decision(True, evicted, evicted)

    def evict(self, now_seconds, held=()):
        gone = self.next_to_go(now_seconds, held)
        self.entries.pop(gone, None)
        return gone

    def next_to_go(self, now_seconds, held=()):
        return next((key for key in self.entries if key not in held), None)

    def remove(self, key):
        self.entries.pop(key, None)
"""

OWN = ("lru", "gdsf", "chain", "gittins")
OTHERS = ("first-in", "libcachesim:Sieve")
MakePolicy = Callable[[int], Policy]


@pytest.fixture(params=[*OWN, *OTHERS])
def make(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakePolicy:
    name: str = request.param
    if name.startswith("libcachesim:") and importlib.util.find_spec("libcachesim") is None:
        pytest.skip("libcachesim is not installed")
    install(tmp_path, FOREIGN, {ENTRY_POINT_GROUP: {"first-in": ":FirstIn"}})
    monkeypatch.syspath_prepend(tmp_path)
    return lambda slots: make_policy(name, slots)


def test_every_policy_of_ours_is_held_to_the_contract() -> None:
    assert set(OWN) <= set(policy_names())


def test_whatever_happens_residents_are_what_was_kept_and_did_not_go(make: MakePolicy) -> None:
    for slots, seed in ((1, 1), (2, 2), (7, 3), (24, 4)):
        drive(Keeper(make(slots)), seed, 150)


def test_the_same_calls_have_the_same_answers(make: MakePolicy) -> None:
    logs = []
    for _ in range(2):
        keeper = Keeper(make(12))
        drive(keeper, 5, 250)
        logs.append(keeper.log)
    assert logs[0] == logs[1]


def test_a_place_that_is_free_is_taken_and_a_full_house_stays_full(make: MakePolicy) -> None:
    keeper = Keeper(make(9))
    for number in range(9):
        keeper.now_seconds += 1
        assert keeper.request(Prompt(number, None, 1_000 + number)) is None
        assert number in keeper.resident
    drive(keeper, 6, 200, is_disturbed=False)
    assert len(keeper.resident) == 9


def test_fewer_slots_take_effect_as_entries_are_evicted_and_more_as_they_come(make: MakePolicy) -> None:
    keeper = Keeper(make(20))
    drive(keeper, 7, 120, is_disturbed=False)
    keeper.policy.slots = 5
    assert keeper.policy.resident_count == 20
    # Offers that come before the keeper had time to evict: each may take a place, and none adds one.
    drive(keeper, 8, 60, is_disturbed=False)
    assert len(keeper.resident) == 20
    keeper.set_slots(5)
    drive(keeper, 9, 60, is_disturbed=False)
    assert len(keeper.resident) == 5
    keeper.set_slots(20)
    drive(keeper, 10, 120, is_disturbed=False)
    assert len(keeper.resident) == 20


def test_with_no_slot_left_everything_is_refused(make: MakePolicy) -> None:
    keeper = Keeper(make(6))
    drive(keeper, 11, 60, is_disturbed=False)
    keeper.set_slots(0)
    assert not keeper.resident
    drive(keeper, 12, 60, is_disturbed=False)
    assert not keeper.resident


def test_what_is_held_never_goes_and_where_all_are_held_the_newcomer_does(make: MakePolicy) -> None:
    keeper = Keeper(make(6))
    drive(keeper, 13, 60, is_disturbed=False)
    held = sorted(keeper.resident, key=str)
    for number in range(20):
        keeper.now_seconds += 5
        assert keeper.request(Prompt(number, None, 100_000 * number), held) is None
        assert number not in keeper.resident
    assert keeper.evict(held) is None
    assert keeper.evict(held[1:]) == held[0]


def test_a_newcomer_whose_earlier_copy_is_still_held_makes_no_surplus(make: MakePolicy) -> None:
    keeper = Keeper(make(4))
    prompts = [Prompt(number, None, 1_000) for number in range(4)]
    for prompt in prompts:
        keeper.request(prompt)
    keeper.remove(0)
    keeper.request(Prompt("other", None, 1_000))
    keeper.request(prompts[0], held=[*keeper.resident, 0])
    assert len(keeper.resident) == 4
    assert 0 not in keeper.resident


def test_what_it_remembers_is_bounded_by_the_slots_it_was_made_with(make: MakePolicy) -> None:
    policy = make(8)
    policy.slots = 1
    numbers = itertools.count()

    def flood(count: int) -> int:
        for number in itertools.islice(numbers, count):
            policy.offer(Savepoint(number, None, 1_000), 40.0 * number)
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        before_bytes = flood(2_900)
        after_bytes = flood(300)
    finally:
        tracemalloc.stop()
    assert sum(number in policy for number in range(3_200)) <= 16 * 8 + 2_048
    assert after_bytes - before_bytes < 64 * 2**10
