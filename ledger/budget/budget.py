"""The waterfall: how memory that several consumers share comes to be divided, worked out before anything is taken.

In this order, each step from what the step before left:

1. claims, then floors that never grow; what is left is the elastic rest;
2. each consumer's floor, less what is held elsewhere in its stead, and never above its cap;
3. by turns, each consumer grows: to its cap, and to its ceiling or its floor, whichever is higher;
4. what nobody may have is unclaimed.

What a consumer lends while it is empty stays its own: it is told beside it and is no part of what is unclaimed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from fractions import Fraction

from pinprobe.ledger.budget.budget_spec import BudgetSpec, ConsumerSpec, Term
from pinprobe.ledger.config.expression_text import Quantity
from pinprobe.probes.errors import BadConfig, BadRequest
from pinprobe.probes.units import LARGEST_SIZE_BYTES


class StepKind(str, Enum):
    """What a step of the waterfall is for."""

    CLAIM = "claim"
    FLOOR = "floor"
    CONSUMER_FLOOR = "consumer floor"
    GROWTH = "growth"


class Standing(str, Enum):
    """Where a consumer came to stand."""

    SHORT = "short of its floor"
    AT_CAP = "at its cap"
    AT_CEILING = "at its ceiling"
    AT_FLOOR = "at its floor"
    BETWEEN = "with what was left"


@dataclass(frozen=True, slots=True)
class Step:
    """One line of the waterfall.

    A claim and a floor want what they have to have; a growth wants what is missing to where it stops, and nothing is
    short where it gets less. `terms` is what the config says of it.
    """

    kind: StepKind
    name: str
    wanted_bytes: int
    taken_bytes: int
    left_bytes: int
    terms: tuple[Term, ...]

    @property
    def short_bytes(self) -> int:
        """How much is missing of what it has to have."""
        return 0 if self.kind is StepKind.GROWTH else self.wanted_bytes - self.taken_bytes


@dataclass(frozen=True, slots=True)
class Part:
    """A named part of what a consumer got."""

    name: str
    size_bytes: int


@dataclass(frozen=True)
class Share:
    """What one consumer came to.

    `whole_bytes` is its floor if nothing were held elsewhere, `held_bytes` what can be held there, and `floor_bytes`
    what has to be here. None for a cap or a ceiling means that it has none. `charges` are what is charged to it while
    it lends, `fixed` what of it holds no units. `units` are exact, a part of one included. `unpaid_bytes` is what the
    charges come to beyond all that it got.
    """

    spec: ConsumerSpec
    whole_bytes: int
    held_bytes: int
    floor_bytes: int
    cap_bytes: int | None
    ceiling_bytes: int | None
    got_bytes: int
    charges: tuple[Part, ...]
    fixed: tuple[Part, ...]
    units: Mapping[str, Fraction]
    unpaid_bytes: int = 0

    @property
    def name(self) -> str:
        """What the config calls it."""
        return self.spec.name

    @property
    def own_bytes(self) -> int:
        """What it has for itself while it lends: what it got, less the charges, which come back."""
        return self.got_bytes - sum(part.size_bytes for part in self.charges)

    @property
    def lent_bytes(self) -> int:
        """The most that it lends."""
        return 0 if self.spec.lends is None else max(0, self.own_bytes - sum(part.size_bytes for part in self.fixed))

    @property
    def away_bytes(self) -> int:
        """What of it is not here and has to be held elsewhere."""
        return max(0, self.whole_bytes - self.got_bytes) if self.spec.elsewhere is not None else 0

    @property
    def standing(self) -> Standing:
        """Where it stands among its floor, its cap and its ceiling."""
        if self.got_bytes < self.floor_bytes:
            return Standing.SHORT
        if self.got_bytes == self.cap_bytes:
            return Standing.AT_CAP
        if self.ceiling_bytes is not None and self.got_bytes == max(self.ceiling_bytes, self.floor_bytes):
            return Standing.AT_CEILING
        return Standing.AT_FLOOR if self.got_bytes == self.floor_bytes else Standing.BETWEEN


@dataclass(frozen=True)
class Budget:
    """A waterfall, worked out, in bytes of the one device that it is about."""

    spec: BudgetSpec
    capacity_bytes: int
    elastic_bytes: int
    unclaimed_bytes: int
    steps: tuple[Step, ...]
    shares: tuple[Share, ...]

    @property
    def short_steps(self) -> tuple[Step, ...]:
        """The steps that did not get what they have to have."""
        return tuple(step for step in self.steps if step.short_bytes)

    @property
    def overcharged(self) -> tuple[Share, ...]:
        """The consumers to which more is charged than what of them is not fixed."""
        return tuple(
            share
            for share in self.shares
            if share.unpaid_bytes or (share.own_bytes < share.got_bytes and share.own_bytes < _sum(share.fixed))
        )

    @property
    def fits(self) -> bool:
        """Whether every claim and every floor is served, and every charge paid."""
        return not self.short_steps and not self.overcharged

    def share(self, name: str) -> Share:
        """Return one consumer's."""
        return next(share for share in self.shares if share.name == name)

    def results(self) -> dict[str, Quantity]:
        """Every result by its dotted name, as wishes speak of it.

        `kv` is what it has for itself, `kv.tokens` a unit, `kv.floor`, `kv.lent`; parts by their own names; and
        `unclaimed`.
        """
        found = {"unclaimed": _size(self.unclaimed_bytes)}
        for share in self.shares:
            for part in (*share.fixed, *share.charges):
                found[f"{share.name}.{part.name}"] = _size(part.size_bytes)
            for name, count in share.units.items():
                found[f"{share.name}.{name}"] = Quantity(count)
            found[share.name] = _size(share.own_bytes)
            found[f"{share.name}.floor"] = _size(share.floor_bytes)
            found[f"{share.name}.lent"] = _size(share.lent_bytes)
            found[f"{share.name}.away"] = _size(share.away_bytes)
        return found


def work_out(spec: BudgetSpec, numbers: Mapping[str, Quantity]) -> Budget:
    """Divide. `numbers` hold every name that the section uses, but for the consumers.

    What is needed, and where something stops, count up to a whole byte; what there is counts down. Raises `BadConfig`
    with the place of what comes to nothing sound.
    """
    return _Waterfall(spec, numbers).budget()


@dataclass
class _Waterfall:
    spec: BudgetSpec
    numbers: Mapping[str, Quantity]
    left_bytes: int = 0
    steps: list[Step] = field(default_factory=list)

    def budget(self) -> Budget:
        capacity_bytes = self.left_bytes = self._there_is(self.spec.capacity)
        self._take_all(StepKind.CLAIM, self.spec.claims)
        self._take_all(StepKind.FLOOR, self.spec.floors)
        elastic_bytes = self.left_bytes
        needs = {consumer.name: _Need.of(consumer, self) for consumer in self.spec.consumers}
        got = {name: self._take(StepKind.CONSUMER_FLOOR, name, need.floor_bytes, need.floor_terms)
               for name, need in needs.items()}  # fmt: skip
        for consumer in self._by_turns():
            need = needs[consumer.name]
            limit = need.limit_bytes
            wanted = self.left_bytes if limit is None else max(0, limit - got[consumer.name])
            got[consumer.name] += self._take(StepKind.GROWTH, consumer.name, wanted, need.limit_terms)
        return Budget(
            self.spec,
            capacity_bytes,
            elastic_bytes,
            self.left_bytes,
            tuple(self.steps),
            tuple(self._share(needs[consumer.name], got) for consumer in self.spec.consumers),
        )

    def _take_all(self, kind: StepKind, terms: Mapping[str, Term]) -> None:
        for name, term in terms.items():
            self._take(kind, name, self.needed(term), (term,))

    def _take(self, kind: StepKind, name: str, wanted_bytes: int, terms: tuple[Term, ...]) -> int:
        taken_bytes = min(wanted_bytes, self.left_bytes)
        self.left_bytes -= taken_bytes
        self.steps.append(Step(kind, name, wanted_bytes, taken_bytes, self.left_bytes, terms))
        return taken_bytes

    def _by_turns(self) -> Iterator[ConsumerSpec]:
        turns = [
            (self._worked_out(consumer.grows), at, consumer)
            for at, consumer in enumerate(self.spec.consumers)
            if consumer.grows is not None
        ]
        return (consumer for *_, consumer in sorted(turns, key=lambda turn: turn[:2]))

    def _share(self, need: _Need, got: Mapping[str, int]) -> Share:
        consumer = need.spec
        fixed = tuple(Part(name, self.needed(term)) for name, term in consumer.fixed.items())
        numbers = {**self.numbers, **{name: _size(size_bytes) for name, size_bytes in got.items()}}
        payable = got[consumer.name]
        unpaid_bytes = 0
        charges = []
        for name, term in (consumer.lends.charges if consumer.lends is not None else {}).items():
            due = max(0, math.ceil(self._worked_out(term, numbers)))
            charges.append(Part(name, min(due, payable)))
            payable -= charges[-1].size_bytes
            unpaid_bytes += due - charges[-1].size_bytes
        counted = max(0, got[consumer.name] - _sum(charges) - _sum(fixed))
        return Share(
            consumer,
            need.whole_bytes,
            need.held_bytes,
            need.floor_bytes,
            need.cap_bytes,
            need.ceiling_bytes,
            got[consumer.name],
            tuple(charges),
            fixed,
            {name: counted / self._more_than_nothing(term) for name, term in consumer.units.items()},
            unpaid_bytes,
        )

    # -- one quantity

    def needed(self, term: Term | None) -> int:
        """Work out what has to be had, up to a whole byte; nothing where there is no term."""
        return 0 if term is None else math.ceil(self._at_least_nothing(term))

    def _there_is(self, term: Term) -> int:
        return math.floor(self._at_least_nothing(term))

    def limit(self, term: Term | None) -> int | None:
        """Work out where something stops; None where there is no term.

        Up to a whole byte as well: where a cap is the sum of what it is for, nothing of that is lost to rounding.
        """
        return None if term is None else self.needed(term)

    def held(self, term: Term) -> int:
        """Work out what another place holds: what is below nothing is nothing."""
        return max(0, math.floor(self._worked_out(term)))

    def _at_least_nothing(self, term: Term) -> Fraction:
        value = self._worked_out(term)
        if value < 0:
            raise _wrong(term, "comes to less than 0")
        return value

    def _more_than_nothing(self, term: Term) -> Fraction:
        value = self._worked_out(term)
        if value <= 0:
            raise _wrong(term, "comes to 0 or less, and nothing can be counted in that")
        return value

    def _worked_out(self, term: Term, numbers: Mapping[str, Quantity] | None = None) -> Fraction:
        try:
            value = term.formula.quantity(self.numbers if numbers is None else numbers).value
        except BadRequest as error:
            raise _wrong(term, str(error)) from None
        if abs(value) > LARGEST_SIZE_BYTES:
            raise _wrong(term, "comes to more than any address space holds (2**56 bytes)")
        return value


@dataclass(frozen=True)
class _Need:
    """What one consumer has to have and may have."""

    spec: ConsumerSpec
    whole_bytes: int
    held_bytes: int
    cap_bytes: int | None
    ceiling_bytes: int | None

    @classmethod
    def of(cls, spec: ConsumerSpec, waterfall: _Waterfall) -> _Need:
        return cls(
            spec,
            waterfall.needed(spec.floor),
            0 if spec.elsewhere is None else waterfall.held(spec.elsewhere.held),
            waterfall.limit(spec.cap),
            waterfall.limit(spec.ceiling),
        )

    @property
    def floor_bytes(self) -> int:
        here = max(0, self.whole_bytes - self.held_bytes)
        return here if self.cap_bytes is None else min(here, self.cap_bytes)

    @property
    def floor_terms(self) -> tuple[Term, ...]:
        held = None if self.spec.elsewhere is None else self.spec.elsewhere.held
        return tuple(term for term in (self.spec.floor, held) if term is not None)

    @property
    def limit_bytes(self) -> int | None:
        ceiling = None if self.ceiling_bytes is None else max(self.ceiling_bytes, self.floor_bytes)
        return min((limit for limit in (self.cap_bytes, ceiling) if limit is not None), default=None)

    @property
    def limit_terms(self) -> tuple[Term, ...]:
        return tuple(term for term in (self.spec.cap, self.spec.ceiling) if term is not None)


def _sum(parts: Iterable[Part]) -> int:
    return sum(part.size_bytes for part in parts)


def _size(size_bytes: int) -> Quantity:
    return Quantity(Fraction(size_bytes), is_size=True)


def _wrong(term: Term, words: str) -> BadConfig:
    return BadConfig([f"{term.place}: `{term.key}`: {words}"])
