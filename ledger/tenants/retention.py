"""`Retention`: what a pool keeps and how much of it, decided without a byte: one policy, and the demand it follows.

The real pool asks it under its lock; a replay asks the very same, with no memory behind it.
"""

from __future__ import annotations

from collections.abc import Container, Hashable, Iterable
from dataclasses import dataclass

from pinprobe.ledger.tenants.demand import Demand
from pinprobe.ledger.tenants.policies.policy import Key, Policy, Savepoint
from pinprobe.ledger.tenants.prefill_time import PrefillTime


@dataclass(frozen=True, slots=True)
class Offer:
    """A savepoint that is offered, with the keys of all its known prefixes, the longest first, without itself."""

    key: Key
    tokens: int
    conversation: str
    prefixes: tuple[Key, ...] = ()


@dataclass(frozen=True, slots=True)
class Verdict:
    """What becomes of a savepoint that was offered: whether it is kept, and which resident entries go for it."""

    is_kept: bool
    evicted: tuple[Key, ...] = ()


class Retention:
    """The mind of a pool. Not for several threads at once.

    The demand is watched in any case. With `is_sized_by_demand` the slots follow it, and for a newcomer that goes first
    which no live conversation awaits, in the order of the policy: in a pool of the working set's size it takes the
    place of something that is awaited. Where what was continued is read again all the same, because conversations
    branch, the policy decides alone. The slots are never above `most_slots`, which a caller may lower for a while
    where memory is short. A caller that finds entries by their prefixes has to know all keys that are `in` it:
    `pop_forgotten` says which are not any more. Where a `prefill_time` is known the policy weighs by seconds, which
    grow faster than tokens.
    """

    def __init__(
        self,
        policy: Policy,
        demand: Demand,
        *,
        is_sized_by_demand: bool = False,
        prefill_time: PrefillTime | None = None,
    ) -> None:
        self._prefill_time = prefill_time
        self.policy = policy
        self.demand = demand
        self.is_sized_by_demand = is_sized_by_demand
        self.most_slots = policy.slots
        self.evictions = 0
        self._resident: set[Key] = set()
        self._forgotten: list[Key] = []

    def __contains__(self, key: object) -> bool:
        return key in self._resident or key in self.policy or key in self.demand

    @property
    def slots(self) -> int:
        """How many entries it may hold at this moment."""
        return self.policy.slots

    @property
    def resident_count(self) -> int:
        """How many entries it counts as resident."""
        return len(self._resident)

    def is_resident(self, key: Key) -> bool:
        """Say whether an entry counts as resident."""
        return key in self._resident

    def read(self, prefixes: Iterable[Key], now_seconds: float) -> None:
        """Learn that a request came with these known prefixes, the longest first."""
        was_told = was_watched = False
        for key in prefixes:
            if not was_watched and key in self.demand:
                self.demand.read(key, now_seconds)
                was_watched = True
            if not was_told and key in self.policy:
                self.policy.read(key, now_seconds)
                was_told = True
            if was_told and was_watched:
                break

    def offer(self, offer: Offer, now_seconds: float, held: Container[Key] = ()) -> Verdict:
        """Decide about a newcomer. Where it is kept it is resident from here on, and what is evicted is not."""
        above = next((key for key in offer.prefixes if key in self.demand), None)
        self._forgotten += self.demand.offer(offer.key, above, offer.tokens, offer.conversation, now_seconds)
        self.surplus(now_seconds)
        if offer.key in self._resident:
            return Verdict(is_kept=True)
        evicted = []
        if self.is_sized_by_demand and self.demand.is_passed_for_good and len(self._resident) >= self.policy.slots:
            unawaited = self.policy.evict(now_seconds, _Awaited(held, self.demand, now_seconds))
            if unawaited is not None:
                evicted.append(unawaited)
        parent = next((key for key in offer.prefixes if key in self.policy), None)
        decision = self.policy.offer(Savepoint(offer.key, parent, self._worth(offer.tokens)), now_seconds, held)
        if decision.is_kept:
            self._resident.add(offer.key)
            self.demand.admitted(offer.key)
        if decision.evicted is not None:
            evicted.append(decision.evicted)
        for key in evicted:
            self._went(key, now_seconds)
        if decision.forgotten is not None:
            self._forgotten.append(decision.forgotten)
        return Verdict(decision.is_kept, tuple(evicted))

    def surplus(self, now_seconds: float) -> int:
        """Set the slots to what is wanted now; return how many entries there are too many, for `evict` to take."""
        wanted = self.demand.stats(now_seconds).demand_entries if self.is_sized_by_demand else self.most_slots
        self.policy.slots = max(1, min(wanted, self.most_slots))
        return max(0, len(self._resident) - self.policy.slots)

    def evict(self, now_seconds: float, held: Container[Key] = ()) -> Key | None:
        """Let the entry go that is worth least; None where there is none to go."""
        key = self.policy.evict(now_seconds, held)
        if key is not None:
            self._went(key, now_seconds)
        return key

    def next_to_go(self, now_seconds: float, held: Container[Key] = ()) -> Key | None:
        """Say which entry `evict` would let go; None also where the policy can't say it beforehand."""
        return self.policy.next_to_go(now_seconds, held)

    def remove(self, key: Key) -> None:
        """Learn that a resident entry is gone, for a reason that is not the policy's."""
        if key in self._resident:
            self._resident.remove(key)
            self._forgotten.append(key)
            self.policy.remove(key)

    def pop_forgotten(self) -> list[Key]:
        """Return the keys that are in it no more, since the last time."""
        forgotten, self._forgotten = self._forgotten, []
        return [key for key in dict.fromkeys(forgotten) if key not in self]

    def _worth(self, tokens: int) -> int:
        """Return what sparing so many tokens is worth: in tokens at the price of a prompt's first."""
        if self._prefill_time is None:
            return tokens
        return round(self._prefill_time.seconds(0, tokens) / self._prefill_time.seconds(0, 1))

    def _went(self, key: Key, now_seconds: float) -> None:
        self._resident.remove(key)
        self._forgotten.append(key)
        self.evictions += 1
        self.demand.evicted(key, now_seconds)


@dataclass(frozen=True, slots=True)
class _Awaited:
    """Entries that are held, or that live conversations will read next."""

    held: Container[Key]
    demand: Demand
    now_seconds: float

    def __contains__(self, key: object) -> bool:
        return key in self.held or (isinstance(key, Hashable) and self.demand.is_awaited(key, self.now_seconds))
