"""A config's budget as a function of its numbers: what the waterfall comes to where one of them is another."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction
from functools import cached_property
from graphlib import TopologicalSorter

from pinprobe.ledger.budget.budget import Budget, work_out
from pinprobe.ledger.budget.budget_spec import BudgetSpec
from pinprobe.ledger.config.arithmetic import Formula, parse_number
from pinprobe.ledger.config.config import Config
from pinprobe.ledger.config.expression_text import Quantity
from pinprobe.probes.errors import BadRequest


class BudgetModel:
    """The numbers and the budget of one config. Nothing is read again, so that many values can be tried.

    Raises `BadRequest` where the config has no budget.
    """

    def __init__(self, config: Config) -> None:
        if config.budget is None:
            like = "expert-tiered-2x200k has one"
            raise BadRequest(f"{config.path} has no `budget:` section, which would say what is divided; {like}")
        self.config = config
        self.spec: BudgetSpec = config.budget
        self._formulas: Mapping[str, Formula] = {name: parse_number(text) for name, text in config.formulas.items()}
        self._given = {name: Quantity(value, name in config.sizes) for name, value in config.numbers.items()}
        self._given["ranks"] = Quantity(Fraction(config.ranks))
        needs = {name: set(formula.names) for name, formula in self._formulas.items()}
        self._order = [name for name in TopologicalSorter(needs).static_order() if name in needs]

    @cached_property
    def budget(self) -> Budget:
        """The budget of the config as it is."""
        return self.at({})

    @property
    def numbers(self) -> Mapping[str, Quantity]:
        """The config's numbers as they are, `ranks` among them."""
        return self._given

    def numbers_at(self, changed: Mapping[str, Fraction]) -> dict[str, Quantity]:
        """Return all numbers where some have other values, and those with them that are worked out from these.

        Raises `BadRequest` where one comes to nothing, as where it divides by zero.
        """
        known = dict(self._given)
        for name, value in changed.items():
            known[name] = Quantity(value, self._given[name].is_size)
        if not changed:
            return known
        for name in self._order:
            if name not in changed:
                quantity = self._formulas[name].quantity(known)
                known[name] = Quantity(quantity.value, quantity.is_size or name.endswith("_bytes"))
        return known

    def at(self, changed: Mapping[str, Fraction]) -> Budget:
        """Work the budget out where some numbers have other values. Raises `BadRequest` where that can't be."""
        return work_out(self.spec, self.numbers_at(changed))

    def stands_on(self, names: Iterable[str]) -> frozenset[str]:
        """Return these numbers and all that they are worked out from."""
        found: set[str] = set()
        waiting = list(names)
        while waiting:
            name = waiting.pop()
            if name not in found:
                found.add(name)
                waiting += self._formulas[name].names if name in self._formulas else ()
        return frozenset(found)

    def assumed(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return which assumptions these numbers stand on, in the order of the config."""
        found = self.stands_on(names)
        return tuple(name for name in self.spec.assumptions if name in found)
