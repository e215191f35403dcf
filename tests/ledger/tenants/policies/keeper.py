"""A keeper of savepoints with nothing behind it, which holds a policy to the protocol after every step.

What is resident is what was kept and did not go since, by what the policy answered. What is known is what the policy
says, and may change by what it tells alone.
"""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import dataclass

from pinprobe.ledger.tenants.policies.policy import Key, Policy, Savepoint


@dataclass(frozen=True)
class Prompt:
    """A node of the prefix tree, with all tokens up to it."""

    key: Key
    parent: Prompt | None
    tokens: int

    def prefixes(self) -> list[Prompt]:
        """Return it and what it continues, the longest first."""
        above = self.parent.prefixes() if self.parent else []
        return [self, *above]


class Keeper:
    """Does with a policy what a pool does, and writes down what came of it."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.made_slots = policy.slots
        self.now_seconds = 0.0
        self.prompts: dict[Key, Prompt] = {}
        self.resident: set[Key] = set()
        self.known: set[Key] = set()
        self.log: list[tuple[str, Key, Key | None]] = []

    @property
    def surplus(self) -> int:
        return max(0, len(self.resident) - self.policy.slots)

    def request(self, prompt: Prompt, held: Collection[Key] = ()) -> Key | None:
        """Read what is known of a prompt, offer its savepoint, and return what went for it."""
        before = self.surplus
        known = next((above.key for above in prompt.prefixes() if above.key in self.policy), None)
        self.prompts[prompt.key] = prompt
        if known is not None:
            self.policy.read(known, self.now_seconds)
            self._check()
        parent = next((above.key for above in prompt.prefixes()[1:] if above.key in self.policy), None)
        was_resident = prompt.key in self.resident
        decision = self.policy.offer(Savepoint(prompt.key, parent, prompt.tokens), self.now_seconds, held)
        self.log.append(("kept" if decision.is_kept else "refused", prompt.key, decision.evicted))
        if was_resident:
            assert decision.is_kept
            assert decision.evicted is None
        if decision.is_kept:
            self.resident.add(prompt.key)
        if decision.evicted is not None:
            assert decision.is_kept
            assert decision.evicted != prompt.key
            assert decision.evicted not in held
            self.resident.remove(decision.evicted)
        if decision.forgotten is not None:
            assert decision.forgotten in self.known
            assert decision.forgotten not in self.policy
        self._check(prompt.key, decision.forgotten)
        assert self.surplus <= before
        return decision.evicted

    def evict(self, held: Collection[Key] = ()) -> Key | None:
        said = self.policy.next_to_go(self.now_seconds, held)
        self._check()
        gone = self.policy.evict(self.now_seconds, held)
        assert said in (None, gone)
        self.log.append(("evicted", None, gone))
        if gone is None:
            assert self.resident <= set(held)
        else:
            assert gone not in held
            self.resident.remove(gone)
        self._check(gone)
        return gone

    def set_slots(self, slots: int) -> None:
        self.policy.slots = slots
        self._check()
        while self.surplus:
            assert self.evict() is not None

    def remove(self, key: Key) -> None:
        self.policy.remove(key)
        self.resident.discard(key)
        self.log.append(("removed", key, None))
        self._check(key)

    def _check(self, *may_change: Key | None) -> None:
        known = {key for key in self.prompts if key in self.policy}
        assert known ^ self.known <= set(may_change)
        assert self.resident <= known
        assert self.policy.resident_count == len(self.resident) <= self.made_slots
        self.known = known


def drive(keeper: Keeper, seed: int, steps: int, *, is_disturbed: bool = True) -> None:
    """Have prompts come that continue, branch, come again or come once; with it slots that change, and entries that go.

    Times are of all sizes: many things at once, and pauses of hours.
    """
    lot = random.Random(seed)
    prompts: list[Prompt] = []
    for step in range(steps):
        keeper.now_seconds += lot.choice([0.0, 0.0, 0.3, lot.expovariate(1 / 20), lot.expovariate(1 / 5_000)])
        draw = lot.random()
        if is_disturbed and draw < 0.03:
            keeper.set_slots(lot.randint(0, keeper.made_slots))
        elif is_disturbed and draw < 0.06 and prompts:
            keeper.remove(lot.choice(prompts).key)
        elif is_disturbed and draw < 0.09:
            keeper.evict(held=lot.sample(sorted(keeper.resident, key=str), len(keeper.resident) // 2))
        elif draw < 0.2 and prompts:
            keeper.request(lot.choice(prompts))
        else:
            above = lot.choice([None, *prompts[-3:], *prompts[-40:]])
            prompts.append(Prompt(f"{seed}.{step}", above, (above.tokens if above else 0) + lot.randint(0, 3_000)))
            held = lot.sample(sorted(keeper.resident, key=str), lot.randint(0, len(keeper.resident)))
            keeper.request(prompts[-1], held if lot.random() < 0.4 else ())
