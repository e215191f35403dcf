"""`lru` against a list in the order of use."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pinprobe.ledger.tenants.policies.lru import Lru
from pinprobe.ledger.tenants.policies.policy import Savepoint

#: What is read or offered, and which entries are held meanwhile.
CALLS = st.lists(st.tuples(st.integers(0, 8), st.sets(st.integers(0, 8), max_size=4)), max_size=60)


class Model:
    """A list, the least recently used first."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.order: list[int] = []

    def use(self, key: int, held: set[int]) -> tuple[bool, int | None]:
        evicted = None
        if key in self.order:
            self.order.remove(key)
        elif len(self.order) == self.slots:
            free = [other for other in self.order if other not in held]
            if not free:
                return False, None
            evicted = free[0]
            self.order.remove(evicted)
        self.order.append(key)
        return True, evicted


@given(slots=st.integers(1, 5), calls=CALLS)
def test_the_least_recently_used_entry_that_is_not_held_goes(slots: int, calls: list[tuple[int, set[int]]]) -> None:
    policy, model = Lru(slots), Model(slots)
    for key, held in calls:
        if key in policy:
            policy.read(key, 0.0)
        decision = policy.offer(Savepoint(key, None, 1_000), 0.0, held)
        assert (decision.is_kept, decision.evicted) == model.use(key, held)
        assert {key for key in range(9) if key in policy} == set(model.order)


def test_a_read_alone_makes_an_entry_the_most_recently_used() -> None:
    policy = Lru(2)
    for key in "ab":
        policy.offer(Savepoint(key, None, 1_000), 0.0)
    policy.read("a", 0.0)
    assert policy.offer(Savepoint("c", None, 1_000), 0.0).evicted == "b"
