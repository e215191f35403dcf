"""The arithmetic of configs: exact, bounded, and nothing but arithmetic."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from fractions import Fraction

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pinprobe.ledger.config.arithmetic import parse_condition, parse_number
from pinprobe.ledger.config.expression_text import LARGEST, Quantity
from pinprobe.probes.errors import BadRequest

FUZZ = settings(derandomize=True, deadline=None, max_examples=150)
MIB = 2**20

NUMBERS = {
    "slots": Quantity(Fraction(64)),
    "nothing": Quantity(Fraction(0)),
    "pool": Quantity(Fraction(3 * MIB), is_size=True),
}


def value(text: str) -> Fraction:
    return parse_number(text).quantity(NUMBERS).value


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("8", 8),
        ("-8", -8),
        ("154_927_104", 154_927_104),
        ("154,927,104 B", 154_927_104),
        ("16 * 148 MiB", 16 * 148 * MIB),
        ("16*148MiB", 16 * 148 * MIB),
        ("44.47 GiB", Fraction(4447 * 2**30, 100)),
        ("0.1 + 0.2", Fraction(3, 10)),
        ("2 + 3 * 4", 14),
        ("(2 + 3) * 4", 20),
        ("7 / 2", Fraction(7, 2)),
        ("7 // 2", 3),
        ("-7 // 2", -4),
        ("7 % 4", 3),
        ("-7 % 4", 1),
        ("2 - -3", 5),
        ("slots * 2", 128),
        ("pool / (1 MiB)", 3),
        ("\n  1\t+\n  2 ", 3),
        ("1 TiB * 1 TiB", 2**80),
        ("0 MiB", 0),
    ],
)
def test_arithmetic_is_exact(text: str, expected: Fraction) -> None:
    assert value(text) == expected


@pytest.mark.parametrize(
    ("text", "because"),
    [
        ("", "nothing is written"),
        ("   ", "nothing is written"),
        ("64g", "ambiguous (powers of 1000 or of 1024?): write 64GiB"),
        ("2 * 64 GB", "ambiguous (powers of 1000 or of 1024?): write 64GiB"),
        ("64gib", "write 64GiB"),
        ("1 PiB", "unknown unit 'PiB'"),
        ("2 slots", "unknown unit 'slots'"),
        ("010", "octal: write 10"),
        ("00", "octal: write 0"),
        ("0x10", "decimal digits"),
        ("0o17", "decimal digits"),
        ("0b1", "decimal digits"),
        ("1e9", "write the digits out"),
        ("1.5e3", "write the digits out"),
        ("12:30", "some read 12:30 as 750"),
        ("1_00", "groups of three"),
        ("1,0000", "groups of three"),
        ("1__000", "groups of three"),
        (".5", "write 0.5"),
        ("5.", "write 5"),
        ("1.2.3", "is no number"),
        (".inf", "can't stand in arithmetic"),
        ("yes", "is no number"),
        ("True", "is no number"),
        ("off", "is no number"),
        ("null", "is no number"),
        ("MiB", "no number before it"),
        ("148 MiB MiB", "no number before it"),
        ("+5", "a plus before a number"),
        ("2 ** 3", "write the product"),
        ("slots = 3", "write =="),
        ("slots >= 3", "comparisons stand in checks"),
        ("(slots > 3) + 1", "can't be reckoned"),
        ("not slots", "between comparisons"),
        ("slots and 3", "between comparisons"),
        ("min(slots, 3)", "can't stand in arithmetic"),
        ("slots(3)", "a call"),
        ("slots.real", "can't stand in arithmetic"),
        ("slots[0]", "can't stand in arithmetic"),
        ("'slots'", "can't stand in arithmetic"),
        ("f'{slots}'", "can't stand in arithmetic"),
        ("[1]", "can't stand in arithmetic"),
        ("{1}", "can't stand in arithmetic"),
        ("1, 2", "groups of three"),
        ("()", "can't stand in arithmetic"),
        ("slots if 1 else 2", "'if' can't stand"),
        ("lambda: 1", "'lambda' can't stand"),
        ("await slots", "'await' can't stand"),
        ("slots := 1", "can't stand in arithmetic"),
        ("__import__", "can't stand in arithmetic"),
        ("~slots", "can't stand in arithmetic"),
        ("slots & 1", "write and, or, not"),
        ("slots << 1", "write the product"),
        ("slots # 1", "can't stand in arithmetic"),
        ("slots; slots", "can't stand in arithmetic"),
        ("\u0663", "plain letters and digits"),
        ("\uff11", "plain letters and digits"),
        ("sl\u00f6ts", "plain letters and digits"),
        ("1 2", "not complete arithmetic, near '2'"),
        ("(1", "not complete"),
        ("1)", "not complete"),
        ("1 +", "not complete"),
        ("1 / 0", "'1 / 0' divides by zero"),
        ("slots % nothing", "divides by zero, since 'nothing' is 0"),
        ("1 // (slots - 64)", "divides by zero, since 'slots - 64' is 0"),
        ("1 TiB * 1 TiB + 1", "larger or finer"),
        ("1 / (1 TiB * 1 TiB) / 2", "larger or finer"),
        ("9" * 31, "more than 30 digits"),
        ("9" * 30, "larger or finer"),
        ("0." + "0" * 27 + "1", "larger or finer"),
        ("1" + " + 1" * 300, "longer than 1,000 characters"),
        ("1" + "+1" * 150, "more than 200 parts"),
        ("1" + "+1" * 90, "more than 64 deep"),
        ("-" * 100 + "1", "more than 64 deep"),
        ("(" * 150 + "1" + ")" * 150, "more than 200 parts"),
    ],
    ids=lambda text: text[:20] or "empty",
)
def test_what_is_no_arithmetic_is_refused_with_what_would_be_right(text: str, because: str) -> None:
    with pytest.raises(BadRequest, match=re.escape(because)) as refused:
        value(text)
    assert len(str(refused.value).splitlines()) == 1
    assert len(str(refused.value)) < 300


@pytest.mark.parametrize(
    ("text", "is_size"),
    [
        ("148 MiB", True),
        ("148", False),
        ("16 * 148 MiB", True),
        ("pool + 1", True),
        ("pool / 2", True),
        ("pool / (1 MiB)", False),
        ("pool // (1 MiB)", False),
        ("pool % (1 MiB)", True),
        ("-pool", True),
        ("slots / pool", False),
    ],
)
def test_a_size_stays_one_until_it_is_divided_by_a_size(text: str, is_size: bool) -> None:
    assert parse_number(text).quantity(NUMBERS).is_size is is_size


def test_names_are_told_in_their_order_and_a_bare_value_from_arithmetic() -> None:
    assert parse_number("pool * slots + pool").names == ("pool", "slots")
    assert parse_number("-148 MiB").is_literal
    assert not parse_number("148 MiB * 1").is_literal


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("slots == 64", True),
        ("slots != 64", False),
        ("1 < slots <= 64", True),
        ("1 < slots <= 63 < 100", False),
        ("not slots > 64", True),
        ("slots > 64 or pool == 3 MiB", True),
        ("slots > 64 and pool == 3 MiB", False),
        ("slots == 64 and not (pool < 3 MiB or slots < 64)", True),
        # What follows a part that decided is not worked out, as in Python.
        ("nothing == 0 or slots / nothing > 8", True),
        ("nothing > 0 and slots / nothing > 8", False),
    ],
)
def test_a_condition_is_true_or_false(text: str, holds: bool) -> None:
    assert parse_condition(text).verdict(NUMBERS)[0] is holds


@pytest.mark.parametrize(
    ("text", "because"),
    [
        ("slots", "compares nothing"),
        ("slots + 1", "compares nothing"),
        ("slots and slots > 1", "between comparisons"),
        ("not slots", "between comparisons"),
        ("(slots > 1) > 1", "can't be reckoned"),
        ("slots in pool", "'in' can't stand"),
        ("slots is pool", "'is' can't stand"),
        ("slots <> pool", "not complete"),
        ("slots > 1 && slots < 3", "write and, or, not"),
    ],
)
def test_what_is_no_condition_is_refused(text: str, because: str) -> None:
    with pytest.raises(BadRequest, match=re.escape(because)):
        parse_condition(text)


@pytest.mark.parametrize(
    ("text", "sides"),
    [
        ("slots>=2*(3 MiB)", [("slots", "2*(3 MiB)")]),
        ("(slots + 1) >= 148 MiB ", [("slots + 1", "148 MiB")]),
        ("1 < slots < 8", [("slots", "8")]),  # the pair that fails
        ("1 < slots < 80", [("1", "slots"), ("slots", "80")]),
        ("slots > 1 and slots > 64 and pool > 4 MiB", [("slots", "64")]),  # the first that decides
        ("slots > 64 or pool > 4 MiB", [("slots", "64"), ("pool", "4 MiB")]),
        ("not (slots > 1)", [("slots", "1")]),
    ],
)
def test_a_verdict_names_the_comparisons_that_decide_as_they_are_written(
    text: str, sides: list[tuple[str, str]]
) -> None:
    comparisons = parse_condition(text).verdict(NUMBERS)[1]
    assert [(comparison.left_text, comparison.right_text) for comparison in comparisons] == sides


# -- against an independent evaluation

Tree = tuple[str, Fraction | None]
_UNITS = {"": 1, " B": 1, "KiB": 2**10, " MiB": 2**20, "  GiB": 2**30}
_RECKON: dict[str, Callable[[Fraction, Fraction], Fraction]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": lambda left, right: Fraction(left // right),
    "%": operator.mod,
}


def _bounded(result: Fraction | None) -> Fraction | None:
    return result if result is not None and max(abs(result.numerator), result.denominator) <= LARGEST else None


def _reckoned(left: Tree, sign: str, right: Tree) -> Tree:
    """The text of two parts and a sign, and what it comes to; None where it comes to nothing."""
    text = f"({left[0]}){sign}({right[0]})"
    if left[1] is None or right[1] is None or (right[1] == 0 and sign in ("/", "//", "%")):
        return text, None
    return text, _bounded(_RECKON[sign](left[1], right[1]))


def _literal(whole: int, decimals: str, unit: str) -> Tree:
    digits = f"{whole}.{decimals}" if decimals else f"{whole}"
    return f"{digits}{unit}", Fraction(digits) * _UNITS[unit]


_LEAVES = st.one_of(
    st.builds(_literal, st.integers(0, 10**9), st.text("0123456789", max_size=4), st.sampled_from(list(_UNITS))),
    st.sampled_from([(name, quantity.value) for name, quantity in NUMBERS.items()]),
)
_TREES: st.SearchStrategy[Tree] = st.recursive(
    _LEAVES,
    lambda parts: st.one_of(
        st.builds(_reckoned, parts, st.sampled_from(list(_RECKON)), parts),
        st.builds(lambda part: (f"-({part[0]})", None if part[1] is None else -part[1]), parts),
    ),
    max_leaves=20,
)


@given(tree=_TREES)
@FUZZ
def test_any_arithmetic_comes_to_what_fractions_make_of_it(tree: Tree) -> None:
    text, expected = tree
    if len(text) > 1000:
        return
    if expected is None:
        with pytest.raises(BadRequest):
            value(text)
    else:
        assert value(text) == expected


@given(left=_TREES, right=_TREES, sign=st.sampled_from(["<", "<=", ">", ">=", "==", "!="]))
@FUZZ
def test_any_comparison_is_decided_as_fractions_decide_it(left: Tree, right: Tree, sign: str) -> None:
    text = f"{left[0]} {sign} {right[0]}"
    if len(text) > 1000 or left[1] is None or right[1] is None:
        return
    compare = {"<": "lt", "<=": "le", ">": "gt", ">=": "ge", "==": "eq", "!=": "ne"}[sign]
    holds, comparisons = parse_condition(text).verdict(NUMBERS)
    assert holds is getattr(operator, compare)(left[1], right[1])
    assert [(pair.left.value, pair.right.value) for pair in comparisons] == [(left[1], right[1])]


_PIECES = st.sampled_from(
    [*"+-*/%()<>=!.,:_'\"[]{}#\\@&|^~ \n\t0189abBxe", "//", "**", "MiB", "slots", "pool", " and ", "not ", "if ", "64g"]
)


@given(text=st.one_of(st.text(), st.lists(_PIECES, max_size=60).map("".join)))
@example(text="1if 1else 1")
@example(text="0_0")
@example(text="\x00")
@FUZZ
def test_any_text_is_a_number_or_is_refused_in_one_line(text: str) -> None:
    refusals = []
    try:
        formula = parse_number(text)
        if set(formula.names) <= set(NUMBERS):
            formula.quantity(NUMBERS)
    except BadRequest as error:
        refusals.append(str(error))
    try:
        condition = parse_condition(text)
        if set(condition.names) <= set(NUMBERS):
            condition.verdict(NUMBERS)
    except BadRequest as error:
        refusals.append(str(error))
    assert refusals, "no text is a number and a condition at a time"
    assert all(refusal.isprintable() for refusal in refusals)
