"""What a config says has to hold, worked out: before a byte is taken, and in a test of the engine's own."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from pinprobe.ledger.config.arithmetic import Comparison, parse_condition
from pinprobe.ledger.config.config import Check, Config
from pinprobe.ledger.config.expression_text import Quantity
from pinprobe.ledger.config.quantity_text import write_alike, write_quantity
from pinprobe.ledger.tenants.kinds import load_kind
from pinprobe.probes.errors import BadRequest, CheckFailed


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One check of a config, worked out.

    `sides` are the comparisons' sides as they are written and what each comes to, in bytes where it is a size: of a
    check that fails those that make it fail, in pairs; none where a side could not be worked out. `sentence` says it
    for a person, and by how much a check fails. `place` is `file:line:column`.
    """

    name: str
    expression: str
    place: str
    holds: bool
    sides: tuple[tuple[str, Fraction], ...]
    sentence: str


def check_tenants(config: Config) -> None:
    """Raise `BadRequest` for the first tenant that its kind would refuse to open, whatever the host has.

    Kinds say so in a method `check(spec)`, which loads nothing; one that has none is not asked.
    """
    for spec in config.tenants:
        check = getattr(load_kind(spec.kind), "check", None)
        if check is not None:
            check(spec)


def run_checks(config: Config) -> tuple[CheckResult, ...]:
    """Work out every check of a config. One that can't be worked out, as where it divides by zero, fails."""
    numbers = {name: Quantity(value, name in config.sizes) for name, value in config.numbers.items()}
    numbers["ranks"] = Quantity(Fraction(config.ranks))
    return tuple(_run(check, numbers) for check in config.checks)


def assert_checks(config: Config) -> None:
    """Raise `AssertionError` naming each check that fails, with both sides: for the tests of an engine.

    ::

        def test_the_host_can_pin_what_we_configure():
            assert_checks(load_config(Path("deploy/engine.yaml")))
    """
    failing = [result for result in run_checks(config) if not result.holds]
    if failing:
        raise AssertionError("\n".join(f"{result.place}: {result.name}: {result.sentence}" for result in failing))


def refuse_failing(config: Config) -> None:
    """Raise `CheckFailed` for the first check that fails: they are what has to hold before a config is opened."""
    for result in run_checks(config):
        if not result.holds:
            raise CheckFailed(
                f"{result.place}: the check {result.name} fails: {result.sentence}; mend that, or open it all the same"
                " with --ignore-checks"
            )


def _run(check: Check, numbers: dict[str, Quantity]) -> CheckResult:
    try:
        holds, comparisons = parse_condition(check.expression).verdict(numbers)
    except BadRequest as error:
        sentence = f"{check.expression}: can't be worked out: {error}"
        return CheckResult(check.name, check.expression, check.place, False, (), sentence)
    sides = tuple(
        side
        for pair in comparisons
        for side in ((pair.left_text, pair.left.value), (pair.right_text, pair.right.value))
    )
    sentence = f"{check.expression}: {', '.join(map(_in_words, comparisons))}"
    return CheckResult(check.name, check.expression, check.place, holds, sides, sentence)


def _in_words(pair: Comparison) -> str:
    left, right = write_alike(pair.left, pair.right)
    told = f"{left} {pair.operator} {right}"
    if pair.holds:
        return f"{told} holds"
    difference = abs(pair.left.value - pair.right.value)
    if difference == 0:
        return f"{told} does not hold: they are the same"
    by = write_quantity(Quantity(difference, pair.left.is_size or pair.right.is_size))
    return f"{told} does not hold, by {by}"
