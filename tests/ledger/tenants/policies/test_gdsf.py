"""`gdsf` against a dictionary of worths that is searched whole."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pinprobe.ledger.tenants.policies.gdsf import Gdsf
from pinprobe.ledger.tenants.policies.policy import Savepoint

TOKENS = (100, 250, 400, 1_000, 1_600, 5_000, 100, 3, 40)
CALLS = st.lists(st.tuples(st.integers(0, 8), st.sets(st.integers(0, 8), max_size=4)), max_size=80)


class Model:
    """By entry its worth, its uses, and when it was valued last."""

    def __init__(self, slots: int) -> None:
        self.slots, self.price, self.turn = slots, 0.0, 0
        self.entries: dict[int, tuple[float, int, int]] = {}

    def value(self, key: int, uses: int) -> None:
        self.turn += 1
        self.entries[key] = (self.price + uses * TOKENS[key], self.turn, uses)

    def offer(self, key: int, held: set[int]) -> tuple[bool, int | None]:
        if key in self.entries:
            return True, None
        evicted = None
        if len(self.entries) == self.slots:
            free = [other for other in self.entries if other not in held]
            if not free:
                return False, None
            evicted = min(free, key=lambda other: self.entries[other][:2])
            self.price = max(self.price, self.entries.pop(evicted)[0])
        self.value(key, 1)
        return True, evicted


@given(slots=st.integers(1, 5), calls=CALLS)
def test_the_entry_of_least_price_and_uses_by_tokens_goes(slots: int, calls: list[tuple[int, set[int]]]) -> None:
    policy, model = Gdsf(slots), Model(slots)
    for key, held in calls:
        if key in policy:
            policy.read(key, 0.0)
            model.value(key, model.entries[key][2] + 1)
        decision = policy.offer(Savepoint(key, None, TOKENS[key]), 0.0, held)
        assert (decision.is_kept, decision.evicted) == model.offer(key, held)
        assert {key for key in range(9) if key in policy} == set(model.entries)


def test_what_was_read_often_goes_all_the_same_when_others_are_read_today() -> None:
    policy = Gdsf(2)
    policy.offer(Savepoint("old", None, 1_000), 0.0)
    for _ in range(9):
        policy.read("old", 0.0)
    came = 0
    while "old" in policy:
        came += 1
        policy.offer(Savepoint(came, None, 1_000), 0.0)
        policy.read(came, 0.0)
    assert came == 6  # each was worth 2,000 more than the one before, so that the fifth is worth the 10,000 of the old
