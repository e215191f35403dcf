"""A check says whether it holds, what both sides come to, and by how much it fails."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import pytest

from pinprobe.ledger.config.checks import CheckResult, assert_checks, run_checks
from pinprobe.ledger.config.config import Config
from pinprobe.ledger.config.registry import load_config

MIB = 2**20

NUMBERS = """\
engine: {name: e, ranks: 2}
numbers:
  minimum: 150_000 MiB
  target: 200 GiB
  floor: 150_138.56 MiB
  slots: 64
  third: 1 / 3
  nothing: 0
  slot_bytes: 154_927_104
"""

ReadCheck = Callable[[str], tuple[Config, CheckResult]]


@pytest.fixture
def run(tmp_path: Path) -> ReadCheck:
    """Work out one check over the numbers above."""

    def run(expression: str) -> tuple[Config, CheckResult]:
        path = tmp_path / "c.yaml"
        path.write_text(f"{NUMBERS}checks:\n  it: {expression}\n", encoding="utf-8")
        config = load_config(path)
        (result,) = run_checks(config)
        return config, result

    return run


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("slots >= 8", "64 >= 8 holds"),
        ("slots >= 100", "64 >= 100 does not hold, by 36"),
        ("slots > 64", "64 > 64 does not hold: they are the same"),
        ("slots != 64", "64 != 64 does not hold: they are the same"),
        ("slots == 63", "64 == 63 does not hold, by 1"),
        ("ranks * slots <= 127", "128 <= 127 does not hold, by 1"),
        # The sizes of engines are in MiB, and here too.
        ("minimum >= floor", "150,000 MiB >= 150,138.56 MiB does not hold, by 138.56 MiB"),
        ("target > minimum", "204,800 MiB > 150,000 MiB holds"),
        ("target > 16 GiB", "200 GiB > 16 GiB holds"),
        ("slot_bytes <= 147 MiB", "147.75 MiB <= 147 MiB does not hold, by 786,432 B"),
        ("slot_bytes * slots <= 10 GiB", "9,456 MiB <= 10,240 MiB holds"),
        ("512 KiB < 1000 B", "524,288 B < 1,000 B does not hold, by 523,288 B"),
        # Two sides that differ are never shown alike.
        ("minimum == 150_000 MiB + 1", "157,286,400,000 B == 157,286,400,001 B does not hold, by 1 B"),
        ("third == 0.3333333", "1/3 == 3,333,333/10,000,000 does not hold, by 1/30,000,000"),
        ("third > 0.5", "0.333333 > 0.5 does not hold, by 0.166667"),
        # Where somebody forgot the unit, that can be seen.
        ("150000 >= floor", "150,000 >= 150,138.56 MiB does not hold, by 150,138.42 MiB"),
        # Of several comparisons those that decide.
        ("slots >= 8 and minimum >= floor", "150,000 MiB >= 150,138.56 MiB does not hold, by 138.56 MiB"),
        ("8 <= slots <= 32", "64 <= 32 does not hold, by 32"),
        ("slots == 1 or slots == 2", "64 == 1 does not hold, by 63, 64 == 2 does not hold, by 62"),
        ("not slots >= 8", "64 >= 8 holds"),
    ],
)
def test_a_sentence_gives_both_sides_and_the_difference(run: ReadCheck, expression: str, words: str) -> None:
    _, result = run(expression)
    assert result.sentence == f"{expression}: {words}"
    assert result.holds is (words.endswith("holds") and not expression.startswith("not"))


def test_the_sides_are_exact_and_as_they_are_written(run: ReadCheck) -> None:
    _, result = run("minimum - 1 MiB >= third * (3 MiB)")
    assert result.sides == (
        ("minimum - 1 MiB", Fraction(149_999 * MIB)),
        ("third * (3 MiB)", Fraction(MIB)),
    )


def test_a_check_that_can_not_be_worked_out_fails_with_the_reason(run: ReadCheck) -> None:
    config, result = run("slots / nothing > 8")
    assert (result.holds, result.sides) == (False, ())
    assert result.sentence == (
        "slots / nothing > 8: can't be worked out: 'slots / nothing' divides by zero, since 'nothing' is 0"
    )
    with pytest.raises(AssertionError, match="divides by zero"):
        assert_checks(config)


def test_an_assertion_names_each_check_that_fails_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    checks = "checks:\n  a: slots > 1\n  b: slots > 100\n  c: minimum >= floor\n"
    path.write_text(NUMBERS + checks, encoding="utf-8")
    with pytest.raises(AssertionError) as failed:
        assert_checks(load_config(path))
    assert str(failed.value).splitlines() == [
        f"{path}:12:6: b: slots > 100: 64 > 100 does not hold, by 36",
        f"{path}:13:6: c: minimum >= floor: 150,000 MiB >= 150,138.56 MiB does not hold, by 138.56 MiB",
    ]
    assert_checks(load_config(path, {"slots": "101", "minimum": "floor"}))


def test_a_config_without_checks_has_no_results(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(NUMBERS, encoding="utf-8")
    assert run_checks(load_config(path)) == ()
    assert_checks(load_config(path))
