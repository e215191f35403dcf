"""What one number moves: two readings of the same config, side by side, on the host and on the device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from pinprobe.ledger.budget.budget import Budget
from pinprobe.ledger.budget.budget_model import BudgetModel
from pinprobe.ledger.config.config import Config
from pinprobe.ledger.config.expression_text import Quantity
from pinprobe.ledger.tenants.kinds import load_kind


@dataclass(frozen=True, slots=True)
class HostChange:
    """What a tenant asks of the host before and after, all its copies together, and whether that is pinned."""

    tenant: str
    copies: int
    is_pinned: bool
    before_bytes: int
    after_bytes: int

    @property
    def difference_bytes(self) -> int:
        """How much more it asks for."""
        return self.after_bytes - self.before_bytes


@dataclass(frozen=True, slots=True)
class ResultChange:
    """A result of the waterfall, by its dotted name as wishes know it, before and after."""

    name: str
    before: Quantity
    after: Quantity

    @property
    def difference(self) -> Quantity:
        """How much more it is."""
        return Quantity(self.after.value - self.before.value, self.before.is_size)


@dataclass(frozen=True)
class BudgetChange:
    """What a number moves when it goes from one value to another: only what differs is in `host` and `results`."""

    number: str
    before: Quantity
    after: Quantity
    budget_before: Budget
    budget_after: Budget
    host: tuple[HostChange, ...]
    results: tuple[ResultChange, ...]

    @property
    def pinned_bytes(self) -> int:
        """How much more is pinned on the host, as far as the config's tenants ask for it."""
        return sum(change.difference_bytes for change in self.host if change.is_pinned)

    def of(self, name: str) -> Fraction:
        """By how much a result moves; 0 where it does not."""
        return next((change.difference.value for change in self.results if change.name == name), Fraction(0))


def compare_budgets(number: str, before: Config, after: Config) -> BudgetChange:
    """Compare a config with itself where one number has another value. Raises `BadRequest` where it has no budget."""
    old, new = BudgetModel(before), BudgetModel(after)
    was, is_now = old.budget.results(), new.budget.results()
    return BudgetChange(
        number,
        old.numbers[number],
        new.numbers[number],
        old.budget,
        new.budget,
        tuple(change for change in _host(before, after) if change.difference_bytes),
        tuple(ResultChange(name, was[name], is_now[name]) for name in was if was[name].value != is_now[name].value),
    )


def _host(before: Config, after: Config) -> Iterator[HostChange]:
    for old, new in zip(before.tenants, after.tenants, strict=True):
        kind = load_kind(old.kind)
        asked = [kind.asked_bytes(spec) * config.copies(spec) for spec, config in ((old, before), (new, after))]
        yield HostChange(old.name, after.copies(new), new.allocator != "pageable", *asked)
