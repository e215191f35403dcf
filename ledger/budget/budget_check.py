"""Whether a `BudgetSpec` speaks of what its config has: every number, every consumer, and signs that make sense."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass

from pinprobe.ledger.budget.budget_keys import RESULTS_OF_EACH
from pinprobe.ledger.budget.budget_spec import BudgetSpec, ConsumerSpec, Term
from pinprobe.ledger.config.arithmetic import Formula
from pinprobe.ledger.config.expression_text import Quantity
from pinprobe.ledger.config.marked import Place, Problems, near, quoted
from pinprobe.ledger.config.quantity_text import write_quantity

#: More consumers, and more parts of one thing, than any table shows; a bound, since levers are tried many times.
MOST_PARTS = 64


@dataclass(frozen=True)
class BudgetCheck:
    """Looks through one section and tells what is wrong with it.

    `quantity` works a formula out, or tells why that can't be; `tell_unknown` tells the names that the config does not
    have; `count` is as `quantity` for whole numbers of 1 or more. `numbers` are the names that the config has.
    """

    quantity: Callable[[Formula, Place, str], Quantity | None]
    count: Callable[[Formula, Place, str], int | None]
    tell_unknown: Callable[[Iterable[str], Place, str], bool]
    numbers: Collection[str]
    problems: Problems

    def tell(self, spec: BudgetSpec) -> None:
        """Note every problem of a section."""
        names = [consumer.name for consumer in spec.consumers]
        for of_what, parts in self._groups(spec):
            if len(parts) > MOST_PARTS:
                message = f"{quoted(of_what)} has {len(parts):,} entries; {MOST_PARTS} are the most"
                self.problems.add(spec.place, message)
        self._tell_sign(spec.capacity, is_zero_right=False)
        for term in (*spec.claims.values(), *spec.floors.values()):
            self._tell_sign(term)
        for consumer in spec.consumers:
            self._tell_consumer(consumer, names)
        for name, step in spec.levers.items():
            self.tell_unknown([name], step.place, quoted(step.key))
            self._tell_sign(step, is_zero_right=False)
        for name in spec.assumptions:
            self.tell_unknown([name], spec.place, quoted(f"budget.assumptions.{name}"))

    @staticmethod
    def _groups(spec: BudgetSpec) -> Iterator[tuple[str, Collection[object]]]:
        yield "budget.claims", spec.claims
        yield "budget.floors", spec.floors
        yield "budget.consumers", spec.consumers
        yield "budget.levers", spec.levers
        yield "budget.assumptions", spec.assumptions
        for consumer in spec.consumers:
            above = f"budget.consumers.{consumer.name}"
            yield f"{above}.fixed", consumer.fixed
            yield f"{above}.units", consumer.units
            yield f"{above}.lends.charges", consumer.lends.charges if consumer.lends else ()

    def _tell_consumer(self, consumer: ConsumerSpec, names: Collection[str]) -> None:
        above = f"budget.consumers.{consumer.name}"
        if consumer.name in self.numbers:
            self.problems.add(consumer.place, f"{quoted(above)}: a number is called that too; call one differently")
        for term in (consumer.floor, consumer.cap, consumer.ceiling, *consumer.fixed.values()):
            if term is not None:
                self._tell_sign(term)
        for term in consumer.units.values():
            self._tell_sign(term, is_zero_right=False)
        if consumer.elsewhere is not None:
            held = consumer.elsewhere.held
            self.quantity(held.formula, held.place, quoted(held.key))
        if consumer.grows is not None:
            self.count(consumer.grows.formula, consumer.grows.place, quoted(consumer.grows.key))
        charges = consumer.lends.charges if consumer.lends is not None else {}
        self._tell_twice(consumer, [*consumer.fixed.items(), *charges.items(), *consumer.units.items()])
        others = [name for name in names if name != consumer.name]
        if consumer.lends is not None and consumer.lends.to not in others:
            message = f"{quoted(above)} lends to {quoted(consumer.lends.to)}, which is no other consumer"
            self.problems.add(consumer.place, f"{message}; {near(consumer.lends.to, others)}")
        for term in charges.values():
            unknown = [name for name in term.formula.names if name not in names]
            self.tell_unknown(unknown, term.place, quoted(term.key))

    def _tell_twice(self, consumer: ConsumerSpec, parts: Iterable[tuple[str, Term]]) -> None:
        """Tell parts that a wish could not tell apart."""
        seen = dict.fromkeys(RESULTS_OF_EACH, "a result of every consumer")
        for name, term in parts:
            if name in seen:
                self.problems.add(
                    term.place, f"{quoted(term.key)}: {seen[name]} is called that too; call one differently"
                )
            seen[name] = f"another part of {consumer.name}"

    def _tell_sign(self, term: Term, is_zero_right: bool = True) -> None:
        quantity = self.quantity(term.formula, term.place, quoted(term.key))
        if quantity is None or quantity.value > 0 or (is_zero_right and quantity.value == 0):
            return
        least = "0 or more" if is_zero_right else "more than 0"
        self.problems.add(term.place, f"{quoted(term.key)} comes to {write_quantity(quantity)}; it has to be {least}")
