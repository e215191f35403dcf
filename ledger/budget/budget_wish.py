"""The least value of a lever with which the budget fits and a wish holds, or why no value does it.

The answer is found by trying, to a whole MiB, or to one where the lever is a count. Values are spread over all that
could matter; wherever the waterfall changes its character between two of them (a consumer reaches its cap, a floor is
no longer served), the place where that happens is tried as well, since between such places everything runs straight.
Then the first value that does it is approached from the last that does not: the answer does it, and one grain less does
not.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from pinprobe.ledger.budget.budget import Budget
from pinprobe.ledger.budget.budget_model import BudgetModel
from pinprobe.ledger.config.arithmetic import Comparison, Condition, parse_condition
from pinprobe.ledger.config.expression_text import Quantity
from pinprobe.ledger.config.marked import near, quoted
from pinprobe.probes.errors import BadRequest
from pinprobe.probes.units import LARGEST_SIZE_BYTES

_MIB = 2**20
#: So many values are tried before the closer look; most of what a lever does, it does between two of them.
_VALUES = 192
_LARGEST_COUNT = 2**40
#: `kv >= 700,000 tokens`, as one would say it.
_SPOKEN = re.compile(r"([A-Za-z][A-Za-z0-9_]*) *(<=|>=|==|!=|<|>) *([0-9][0-9_,.]*) +([A-Za-z][A-Za-z0-9_]*)")
_DOTTED = re.compile(r"(?<![A-Za-z0-9_.])([A-Za-z][A-Za-z0-9_]*)\.([A-Za-z][A-Za-z0-9_]*)")


@dataclass(frozen=True)
class Wish:
    """What somebody wants of a budget: `text` as it was written, over its results and the config's numbers."""

    text: str
    condition: Condition

    @property
    def names(self) -> tuple[str, ...]:
        """The results and numbers that it speaks of, as it was written."""
        return tuple(name.replace("__", ".") for name in self.condition.names)

    def verdict(self, numbers: Mapping[str, Quantity], budget: Budget) -> tuple[Comparison, bool]:
        """Say what it comes to with a budget and the numbers that it was worked out from, and whether that holds.

        Raises `BadRequest` where a side comes to nothing, as where it divides by zero.
        """
        known = dict(numbers)
        known.update({name.replace(".", "__"): quantity for name, quantity in budget.results().items()})
        holds, comparisons = self.condition.verdict(known)
        return comparisons[0], holds


@dataclass(frozen=True)
class Answer:
    """What a lever can do for a wish, or for a budget that has to fit where `wish` is None.

    `least` is the least value that does it; None where no value does. `closest` is the same value, or else the one that
    comes nearest, with the budget `with_closest`; `gap` says what the wish comes to there, unless nothing fits.
    `objection` says what else of the config speaks against the least value: a check that fails with it, for one.
    """

    lever: str
    wish: Wish | None
    now: Quantity
    holds_now: bool
    least: Quantity | None
    closest: Quantity
    with_closest: Budget | None
    gap: Comparison | None
    objection: str = ""


def read_wish(text: str, model: BudgetModel) -> Wish:
    """Read a wish such as `kv.tokens >= 700000`, or `kv >= 700,000 tokens`.

    Raises `BadRequest` where it speaks of what is not there.
    """
    results = model.budget.results()
    written = re.sub(r"\s", " ", text).strip()
    spoken = _SPOKEN.fullmatch(written)
    if spoken is not None and f"{spoken[1]}.{spoken[4]}" in results:
        written = f"{spoken[1]}.{spoken[4]} {spoken[2]} {spoken[3]}"
    for first, second in _DOTTED.findall(written):
        if f"{first}.{second}" not in results:
            raise BadRequest(
                f"--wish: no result is called {quoted(f'{first}.{second}')}; {near(f'{first}.{second}', results)}"
            )
    try:
        condition = parse_condition(_DOTTED.sub(r"\1__\2", written))
    except BadRequest as error:
        raise BadRequest(f"--wish: {str(error).replace('__', '.')}") from None
    plain = {name.replace(".", "__") for name in results} | set(model.numbers)
    for name in condition.names:
        if name not in plain:
            known = [*results, *model.numbers]
            raise BadRequest(f"--wish: no result and no number is called {quoted(name)}; {near(name, known)}")
    return Wish(text.strip(), condition)


def solve(model: BudgetModel, lever: str, wish: Wish | None) -> Answer:
    """Find the least value of one of the budget's levers."""
    return _Search(model, lever, wish).answer()


@dataclass(frozen=True)
class _Trial:
    value: Fraction
    budget: Budget
    gap: Comparison | None
    does_it: bool


@dataclass(frozen=True)
class _Search:
    model: BudgetModel
    lever: str
    wish: Wish | None

    def answer(self) -> Answer:
        now = self.model.numbers[self.lever]
        grain = self._grain(now)
        values = self._values(now, grain)
        trials = {at: self._try(at * grain) for at in values}
        for low, high in itertools.pairwise(values):
            self._find_turns(low, high, grain, trials)
        least = self._least(trials, grain)
        at_now = self._try(now.value)
        closest = (
            self._try(least) if least is not None else self._closest([trial for trial in trials.values() if trial])
        )
        return Answer(
            self.lever,
            self.wish,
            now,
            at_now is not None and at_now.does_it,
            None if least is None else Quantity(least, now.is_size),
            Quantity(closest.value if closest is not None else now.value, now.is_size),
            closest.budget if closest is not None else None,
            closest.gap if closest is not None else None,
        )

    def _find_turns(self, low: int, high: int, grain: Fraction, trials: dict[int, _Trial | None]) -> None:
        """Try both sides of every place between two values where the waterfall changes its character."""
        waiting = [(low, high)]
        while waiting:
            low, high = waiting.pop()
            if high - low > 1 and _character(trials[low]) != _character(trials[high]):
                middle = (low + high) // 2
                trials[middle] = self._try(middle * grain)
                waiting += [(low, middle), (middle, high)]

    def _least(self, trials: Mapping[int, _Trial | None], grain: Fraction) -> Fraction | None:
        before: int | None = None
        for at in sorted(trials):
            trial = trials[at]
            if trial is not None and trial.does_it:
                return self._closer(before, at, grain) * grain
            before = at
        return None

    def _try(self, value: Fraction) -> _Trial | None:
        """Try one value; None where the numbers or the budget come to nothing with it."""
        try:
            budget = self.model.at({self.lever: value})
            if self.wish is None or not budget.fits:
                return _Trial(value, budget, None, budget.fits)
            gap, holds = self.wish.verdict(self.model.numbers_at({self.lever: value}), budget)
        except BadRequest:
            return None
        return _Trial(value, budget, gap, holds)

    def _closer(self, before: int | None, grains: int, grain: Fraction) -> int:
        """Halve the way between a value that does not do it and one that does."""
        if before is None:
            return grains
        low, high = before, grains
        while high - low > 1:
            middle = (low + high) // 2
            trial = self._try(middle * grain)
            if trial is not None and trial.does_it:
                high = middle
            else:
                low = middle
        return high

    def _grain(self, now: Quantity) -> Fraction:
        step = self.model.spec.levers[self.lever].formula.quantity(self.model.numbers)
        return Fraction(_MIB) if now.is_size and step.value >= _MIB else Fraction(1)

    def _values(self, now: Quantity, grain: Fraction) -> Sequence[int]:
        """Spread values from nothing, or from one for a count, to where no more can matter, in grains."""
        first = 0 if now.is_size else 1
        if now.is_size:
            budget = self.model.budget
            sizes = [budget.capacity_bytes, *(step.wanted_bytes for step in budget.steps)]
            sizes += [share.whole_bytes for share in budget.shares]
            top = min(LARGEST_SIZE_BYTES, 2 * (sum(sizes) + max(0, int(now.value))))
        else:
            top = min(_LARGEST_COUNT, 64 * max(1, int(now.value)))
        last = max(1, int(top / grain))
        spread = {last * at // _VALUES for at in range(_VALUES + 1)}
        # Where a small lever decides, it does so among its first values.
        spread |= {2**at for at in range(last.bit_length()) if 2**at <= last} | {max(0, int(now.value / grain))}
        return sorted(at for at in spread if at >= first)

    def _closest(self, trials: Sequence[_Trial]) -> _Trial | None:
        fitting = [trial for trial in trials if trial.budget.fits]
        if fitting:
            return min(fitting, key=lambda trial: (abs(_distance(trial.gap)), trial.value))
        return min(trials, key=lambda trial: (sum(_missing(trial.budget)), trial.value), default=None)


def _character(trial: _Trial | None) -> object:
    """What of a waterfall changes at its turns and nowhere between."""
    if trial is None:
        return None
    shares = tuple((share.standing, share.floor_bytes == 0, share.lent_bytes == 0) for share in trial.budget.shares)
    paid = tuple(any(part.size_bytes for part in share.charges) for share in trial.budget.shares)
    return shares, paid, tuple(step.short_bytes == 0 for step in trial.budget.steps), trial.budget.unclaimed_bytes == 0


def _distance(gap: Comparison | None) -> Fraction:
    return Fraction(0) if gap is None else gap.left.value - gap.right.value


def _missing(budget: Budget) -> Iterator[int]:
    yield from (step.short_bytes for step in budget.short_steps)
    yield from (share.got_bytes - share.own_bytes for share in budget.overcharged)
