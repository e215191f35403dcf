"""`chain` against a model that works out every ancestor from the whole prefix tree, after each step."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinprobe.ledger.tenants.policies.chain import Chain
from pinprobe.ledger.tenants.policies.policy import Key, Savepoint


@dataclass
class Entry:
    """A resident entry. What was above it when it came is never forgotten here; what went does not come back to it."""

    key: int
    tokens: int
    above: list[Entry]
    price: float
    is_resident: bool = True
    discount: float = 1.0

    @property
    def ancestor(self) -> Entry | None:
        return next((entry for entry in self.above if entry.is_resident), None)


@dataclass
class Model:
    """All entries, and where each stands: its nearest resident ancestor, and the entries that it is that one of."""

    slots: int
    price: float = 0.0
    entries: dict[int, Entry] = field(default_factory=dict)
    stands: dict[int, tuple[object, ...]] = field(default_factory=dict)
    reads: list[float] = field(default_factory=lambda: [1.0, 1.0])
    chances: list[float] = field(default_factory=lambda: [1.0, 1.0])

    def followers(self, entry: Entry) -> list[Entry]:
        return [other for other in self.entries.values() if other.ancestor is entry]

    def worth(self, entry: Entry) -> float:
        marginal = entry.tokens - (entry.ancestor.tokens if entry.ancestor else 0)
        return entry.price + marginal * entry.discount

    def value_anew(self, read: int | None = None) -> None:
        """Value what stands elsewhere than before, and what was read, by what a dominated entry is worth today."""
        ratio = min(1.0, self.reads[1] / self.chances[1] / (self.reads[0] / self.chances[0]))
        before = self.stands
        self.stands = {
            key: (id(entry.ancestor), *map(id, self.followers(entry)), id(entry)) for key, entry in self.entries.items()
        }
        for key, entry in self.entries.items():
            if key == read or self.stands[key] != before.get(key):
                entry.discount = ratio if self.followers(entry) else 1.0

    def read(self, key: int) -> None:
        entry = self.entries[key]
        self.reads[bool(self.followers(entry))] += 1
        entry.price = self.price
        self.value_anew(key)

    def offer(self, key: int, parent: int | None, tokens: int) -> None:
        for entry in self.entries.values():
            self.chances[bool(self.followers(entry))] += 1
        if key not in self.entries:
            above = [] if parent is None else [self.entries[parent], *self.entries[parent].above]
            self.entries[key] = Entry(key, tokens, above, self.price)
            self.value_anew()

    def go(self, key: int, *, is_evicted: bool = True) -> None:
        if is_evicted:
            self.price = max(self.price, self.worth(self.entries[key]))
        self.entries.pop(key).is_resident = False
        self.value_anew()


#: A prompt that continues one of those before (or none), or comes again; what it adds; what is held; what is removed.
STEPS = st.lists(
    st.tuples(st.integers(-2, 30), st.integers(1, 4), st.sets(st.integers(0, 40), max_size=3), st.integers(-20, 40)),
    min_size=8,
    max_size=40,
)


@given(slots=st.integers(1, 8), steps=STEPS)
def test_the_entry_of_least_price_and_marginal_tokens_goes(
    slots: int, steps: list[tuple[int, int, set[int], int]]
) -> None:
    policy, model = Chain(slots), Model(slots)
    prompts: list[tuple[int | None, int]] = []  # the prompt that each continues, and its tokens
    for number, added, held, removed in steps:
        comes_again = bool(prompts) and added == 4
        if comes_again:
            key = number % len(prompts)
        else:
            above = number if 0 <= number < len(prompts) else None
            key = len(prompts)
            prompts.append((above, added * 1_000 + (0 if above is None else prompts[above][1])))
        known = [line for line in line_of(prompts, key) if line in policy]
        if known:
            policy.read(known[0], 0.0)
            model.read(known[0])
        parent = next((line for line in known if line != key), None)
        was_resident = key in model.entries
        decision = policy.offer(Savepoint(key, parent, prompts[key][1]), 0.0, held)
        model.offer(key, parent, prompts[key][1])
        if was_resident or len(model.entries) <= slots:
            assert (decision.is_kept, decision.evicted) == (True, None)
        else:
            assert_least(model, decision.evicted if decision.is_kept else key, held, key)
        if removed >= 0 and removed in policy:
            policy.remove(removed)
            model.go(removed, is_evicted=False)
        assert {line for line in range(len(prompts)) if line in policy} == set(model.entries)


def assert_least(model: Model, gone: Key | None, held: set[int], newcomer: int) -> None:
    """No entry that could go is worth less than what went. Of equal ones any may."""
    free = [entry for key, entry in model.entries.items() if key not in held]
    if not free:
        assert gone == newcomer
        model.go(newcomer, is_evicted=False)
        return
    assert isinstance(gone, int)
    assert gone not in held
    least = min(map(model.worth, free))
    assert model.worth(model.entries[gone]) == pytest.approx(least, rel=1e-12)
    model.go(gone)


def line_of(prompts: list[tuple[int | None, int]], key: int | None) -> list[int]:
    found = []
    while key is not None:
        found.append(key)
        key = prompts[key][0]
    return found


def test_an_entry_whose_ancestor_went_is_worth_all_that_it_covers_now() -> None:
    policy = Chain(3)
    policy.offer(Savepoint("document", None, 90_000), 0.0)
    policy.offer(Savepoint("question", "document", 90_500), 0.0)
    policy.offer(Savepoint("other", None, 5_000), 0.0)
    policy.remove("document")
    policy.offer(Savepoint("more", None, 6_000), 0.0)
    assert policy.offer(Savepoint("last", None, 7_000), 0.0).evicted == "other"
    assert "question" in policy
