"""The largest value of one of a config's numbers with which its plan fits: a search over what the plan comes to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise

from pinprobe.ledger.config.config import Config
from pinprobe.ledger.config.marked import near, quoted
from pinprobe.ledger.plan.plan import Plan
from pinprobe.probes.errors import BadRequest, CouldNotMeasure
from pinprobe.probes.reading import Unreadable
from pinprobe.probes.units import LARGEST_SIZE_BYTES

_MIB = 2**20

PlanAt = Callable[[str], Plan]


@dataclass(frozen=True)
class Fit:
    """What the search found.

    `value` is the largest whole value that fits, in units of `unit_bytes` where the number is a size and else a count;
    None where none does. `plan` is the plan at it. `beyond` is the plan at the next value, or the reason for which the
    config takes no such value (where nothing fits, of the least value that it takes); None where every value up to the
    largest that is counted here fits. `is_monotone` is
    false where the plan was seen to come to less with a larger value: then still larger values may fit again. It
    `is_idle` where every value comes to the same.
    """

    name: str
    unit_bytes: int | None
    value: int | None
    plan: Plan | None
    beyond: Plan | str | None
    is_monotone: bool
    is_idle: bool
    tried_count: int

    @property
    def expression(self) -> str:
        """The value as a config, or `--set`, would have it."""
        return "" if self.value is None else _expression(self.value, self.unit_bytes)


def find_fit(name: str, config: Config, plan_at: PlanAt) -> Fit:
    """Search for the largest whole value of a number, or of `ranks`: a size by the MiB, or by the byte below 1 MiB.

    `plan_at` is given an expression for the number and returns the plan with it, or raises `BadRequest` where the
    config takes no such value. Raises `BadRequest` where there is no such number, and `CouldNotMeasure` where the
    headroom is not known.
    """
    numbers = {**config.numbers, "ranks": Fraction(config.ranks)}
    if name not in numbers:
        raise BadRequest(f"--fit: the config has no number {quoted(name)}; {near(name, numbers)}")
    unit = None
    if name in config.sizes:
        unit = _MIB if numbers[name] >= _MIB else 1
    return _Search(name, unit, plan_at).run(max(1, int(numbers[name]) // (unit or 1)))


def _expression(value: int, unit_bytes: int | None) -> str:
    return str(value) if unit_bytes is None else f"{value} {'MiB' if unit_bytes == _MIB else 'B'}"


@dataclass
class _Search:
    """One search under way: everything that was tried, by value."""

    name: str
    unit_bytes: int | None
    plan_at: PlanAt
    tried: dict[int, Plan | str] = field(default_factory=dict)

    def run(self, configured: int) -> Fit:
        """Double or halve the configured value until one fits and a larger one does not, then look between them."""
        most = LARGEST_SIZE_BYTES // (self.unit_bytes or 1)
        best, above = self._upward(configured, most) if self._fits(configured) else self._downward(configured)
        for value in (1, min(most, 4 * max(self.tried))):  # where the plan shrinks as the number grows, that shows here
            if self._fits(value) and value > (best or 0):
                best, above = self._upward(value, most)
        while best is not None and above is not None and above - best > 1:
            middle = (best + above) // 2
            if self._fits(middle):
                best = middle
            else:
                above = middle
        return self._answer(best, above)

    def _upward(self, fitting: int, most: int) -> tuple[int, int | None]:
        while fitting < most:
            doubled = min(most, 2 * fitting)
            if not self._fits(doubled):
                return fitting, doubled
            fitting = doubled
        return fitting, None

    def _downward(self, above: int) -> tuple[int | None, int | None]:
        while above > 1:
            half = above // 2
            if self._fits(half):
                return half, above
            if isinstance(self.tried[half], str):
                return self._from_the_least(half, above)
            above = half
        return None, None

    def _from_the_least(self, refused: int, above: int) -> tuple[int | None, int | None]:
        """Look between a value that the config does not take and one that does not fit for the least that it takes."""
        while above - refused > 1:
            middle = (refused + above) // 2
            if self._fits(middle):
                return middle, above
            if isinstance(self.tried[middle], str):
                refused = middle
            else:
                above = middle
        return None, None

    def _fits(self, value: int) -> bool:
        if value not in self.tried:
            try:
                self.tried[value] = self.plan_at(_expression(value, self.unit_bytes))
            except BadRequest as error:
                self.tried[value] = str(error)
        found = self.tried[value]
        if isinstance(found, str):
            return False
        fits = found.fits
        if isinstance(fits, Unreadable):
            remedy = "; give --headroom SIZE to plan for a host that leaves so much"
            is_host = isinstance(found.room, Unreadable)
            raise CouldNotMeasure(f"what fits is not known: the headroom is {fits}{remedy if is_host else ''}")
        return fits

    def _answer(self, value: int | None, above: int | None) -> Fit:
        totals = [
            found.needed_bytes + found.pool_needed_bytes
            for _, found in sorted(self.tried.items())
            if isinstance(found, Plan)
        ]
        is_monotone = all(smaller <= larger for smaller, larger in pairwise(totals))
        is_idle = len(set(totals)) == 1 and len(totals) > 1
        plan: Plan | None = None
        beyond: Plan | str | None = None
        if value is not None:
            found = self.tried[value]
            assert isinstance(found, Plan)
            plan, beyond = found, None if above is None else self.tried[above]
        else:  # the least value that the config takes, or why it takes none
            ordered = [self.tried[tried] for tried in sorted(self.tried)]
            beyond = next((found for found in ordered if isinstance(found, Plan)), ordered[-1])
        return Fit(self.name, self.unit_bytes, value, plan, beyond, is_monotone, is_idle, len(self.tried))
