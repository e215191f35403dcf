"""Everything that `pinprobe budget` found out about one config, as frozen values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from pinprobe.ledger.budget.budget import Budget
from pinprobe.ledger.budget.budget_change import BudgetChange, compare_budgets
from pinprobe.ledger.budget.budget_model import BudgetModel
from pinprobe.ledger.budget.budget_wish import Answer, Wish, read_wish, solve
from pinprobe.ledger.config.checks import CheckResult, run_checks
from pinprobe.ledger.config.config import Config
from pinprobe.ledger.config.expression_text import Quantity
from pinprobe.ledger.config.marked import near, quoted
from pinprobe.ledger.config.quantity_text import write_quantity
from pinprobe.probes.errors import BadRequest

#: Reads the same config with some numbers set anew.
Reload = Callable[[Mapping[str, str]], Config]


@dataclass(frozen=True)
class BudgetReport:
    """One budget and what was asked about it.

    `levers` says what a step of each moves, and `stuck` of those that can't be moved by one why not; `remedies` what
    makes a budget fit that does not, a lever each; `answers` are one a wish and lever; `marginal` is one more of a
    number, if that was asked. `failing_checks` are the config's own checks that do not hold as it is.
    """

    config: Config
    model: BudgetModel
    levers: tuple[BudgetChange, ...]
    stuck: tuple[str, ...]
    remedies: tuple[Answer, ...]
    answers: tuple[Answer, ...]
    marginal: BudgetChange | None
    failing_checks: tuple[CheckResult, ...]

    @property
    def budget(self) -> Budget:
        """The waterfall of the config as it is."""
        return self.model.budget

    @property
    def unmet(self) -> tuple[str, ...]:
        """The wishes that no lever can meet."""
        wishes = {answer.wish.text: False for answer in self.answers if answer.wish is not None}
        wishes.update({answer.wish.text: True for answer in self.answers if answer.wish and answer.least is not None})
        return tuple(text for text, is_met in wishes.items() if not is_met)

    @property
    def exit_code(self) -> int:
        """0 where the budget fits and some lever meets every wish, else 1."""
        return 0 if self.budget.fits and not self.unmet else 1


def report_budget(
    config: Config, reload: Reload, wishes: Sequence[str] = (), lever: str | None = None, marginal: str | None = None
) -> BudgetReport:
    """Work out a config's budget and what was asked about it.

    `lever` is the one to answer with; without it all of them do. Raises `BadRequest` where the config has no budget,
    and where a wish, a lever or a number is not known.
    """
    model = BudgetModel(config)
    read = [read_wish(wish, model) for wish in wishes]
    if read and not model.spec.levers:
        raise BadRequest(f"{config.path}: the budget has no levers that could meet a wish; name some in `levers:`")
    if lever is not None and lever not in model.spec.levers:
        raise BadRequest(f"--lever: the budget has no lever {quoted(lever)}; {near(lever, model.spec.levers)}")
    used = [lever] if lever is not None else list(model.spec.levers)
    answers = tuple(_judged(solve(model, name, wish), reload) for wish in read for name in used)
    for wish in read:
        if all(answer.least is None for answer in answers if answer.wish is wish):
            _assert_it_says_something(wish, model)
    remedies = () if model.budget.fits else tuple(_judged(solve(model, name, None), reload) for name in used)
    levers, stuck = [], []
    for name in model.spec.levers:
        try:
            levers.append(_stepped(model, name, reload))
        except BadRequest as error:
            stuck.append(str(error))
    return BudgetReport(
        config,
        model,
        tuple(levers),
        tuple(stuck),
        remedies,
        answers,
        None if marginal is None else _one_more(model, marginal, reload),
        _failing(config),
    )


def _assert_it_says_something(wish: Wish, model: BudgetModel) -> None:
    try:
        wish.verdict(model.numbers, model.budget)
    except BadRequest as error:
        raise BadRequest(f"--wish: {str(error).replace('__', '.')}") from None


def _judged(answer: Answer, reload: Reload) -> Answer:
    """Ask the rest of the config about an answer: a value may do for the budget alone, and for nothing else."""
    if answer.least is None:
        return answer
    try:
        failing = [result.name for result in _failing(reload({answer.lever: _written(answer.least)}))]
    except BadRequest as error:
        return replace(answer, objection=f"the config is refused then: {error}")
    if not failing:
        return answer
    many = f"the config's checks {', '.join(failing)} fail"
    checks = f"the config's check {failing[0]} fails" if len(failing) == 1 else many
    return replace(answer, objection=f"{checks} then")


def _failing(config: Config) -> tuple[CheckResult, ...]:
    return tuple(result for result in run_checks(config) if not result.holds)


def _stepped(model: BudgetModel, lever: str, reload: Reload) -> BudgetChange:
    step = model.spec.levers[lever].formula.quantity(model.numbers)
    return _moved(model, lever, model.numbers[lever].value + step.value, reload)


def _one_more(model: BudgetModel, number: str, reload: Reload) -> BudgetChange:
    if number not in model.config.numbers:
        known = [name for name in model.config.numbers if name not in model.config.sizes]
        raise BadRequest(f"--marginal: the config has no number {quoted(number)}; {near(number, known)}")
    quantity = model.numbers[number]
    if quantity.is_size:
        what = f"{quoted(number)} is a size, {write_quantity(quantity)}"
        raise BadRequest(f"--marginal: {what}, and one more byte of it says little; name a count, such as slots")
    return _moved(model, number, quantity.value + 1, reload)


def _moved(model: BudgetModel, number: str, value: Fraction, reload: Reload) -> BudgetChange:
    text = _written(Quantity(value, model.numbers[number].is_size))
    try:
        return compare_budgets(number, model.config, reload({number: text}))
    except BadRequest as error:
        raise BadRequest(f"{number} can't be moved to {text}: {error}") from None


def _written(quantity: Quantity) -> str:
    """Write a value so that it is read as the same again."""
    unit = " B" if quantity.is_size else ""
    value = quantity.value
    return f"{value.numerator}{unit}" + (f" / {value.denominator}" if value.denominator != 1 else "")
