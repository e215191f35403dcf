"""What a config's formulas and checks come to: exact, in fractions, and bounded at every step."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction

from pinprobe.ledger.config.expression_text import LARGEST, Parsed, Quantity, parse, shown
from pinprobe.probes.errors import BadRequest

_RECKON: Mapping[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: lambda left, right: Fraction(left // right),
    ast.Mod: operator.mod,
}
_COMPARE: Mapping[type[ast.cmpop], tuple[str, Callable[[Fraction, Fraction], bool]]] = {
    ast.Lt: ("<", operator.lt),
    ast.LtE: ("<=", operator.le),
    ast.Gt: (">", operator.gt),
    ast.GtE: (">=", operator.ge),
    ast.Eq: ("==", operator.eq),
    ast.NotEq: ("!=", operator.ne),
}


@dataclass(frozen=True)
class Formula:
    """A number as a config writes it: a literal, or arithmetic over names."""

    parsed: Parsed

    @property
    def text(self) -> str:
        """It as it was written."""
        return self.parsed.text

    @property
    def names(self) -> tuple[str, ...]:
        """The names that it stands on, in the order in which they appear."""
        return self.parsed.names

    @property
    def is_literal(self) -> bool:
        """Whether it is a value itself, so that there is nothing to show beside the value."""
        tree = self.parsed.tree
        return isinstance(tree.operand if isinstance(tree, ast.UnaryOp) else tree, ast.Constant)

    def quantity(self, numbers: Mapping[str, Quantity]) -> Quantity:
        """Work it out over `numbers`, which hold every name. Raises `BadRequest` where it comes to nothing.

        It is a size where IEC sizes or names of sizes were added, or multiplied; a size divided by a size is a bare
        number.
        """
        return _worked_out(self.parsed, self.parsed.tree, numbers)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two sides of a check, as written and as worked out."""

    left_text: str
    left: Quantity
    operator: str
    right_text: str
    right: Quantity
    holds: bool


@dataclass(frozen=True)
class Condition:
    """A check as a config writes it."""

    parsed: Parsed

    @property
    def names(self) -> tuple[str, ...]:
        """The names that it stands on, in the order in which they appear."""
        return self.parsed.names

    def verdict(self, numbers: Mapping[str, Quantity]) -> tuple[bool, tuple[Comparison, ...]]:
        """Say whether it holds, and by which comparisons: of an `and` that fails, those that fail.

        As in Python, what follows a part that decided is not worked out: `ranks == 0 or pool / ranks > 8` holds.
        Raises `BadRequest` where a side comes to nothing.
        """
        return self._verdict(self.parsed.tree, numbers)

    def _verdict(self, node: ast.expr, numbers: Mapping[str, Quantity]) -> tuple[bool, tuple[Comparison, ...]]:
        if isinstance(node, ast.BoolOp):
            deciding = isinstance(node.op, ast.Or)
            others: tuple[Comparison, ...] = ()
            for value in node.values:
                holds, comparisons = self._verdict(value, numbers)
                if holds == deciding:
                    return holds, comparisons
                others += comparisons
            return not deciding, others
        if isinstance(node, ast.UnaryOp):
            holds, comparisons = self._verdict(node.operand, numbers)
            return not holds, comparisons
        assert isinstance(node, ast.Compare)
        pairs = self._pairs(node, numbers)
        failing = tuple(pair for pair in pairs if not pair.holds)
        return not failing, failing or pairs

    def _pairs(self, node: ast.Compare, numbers: Mapping[str, Quantity]) -> tuple[Comparison, ...]:
        operands = [node.left, *node.comparators]
        values = [_worked_out(self.parsed, operand, numbers) for operand in operands]
        pairs = []
        for at, comparison in enumerate(node.ops):
            sign, compare = _COMPARE[type(comparison)]
            left, right = values[at], values[at + 1]
            texts = (self.parsed.source(operands[at]), self.parsed.source(operands[at + 1]))
            pairs.append(Comparison(texts[0], left, sign, texts[1], right, compare(left.value, right.value)))
        return tuple(pairs)


def parse_number(text: str) -> Formula:
    """Read a number, an IEC size, or arithmetic over names. Raises `BadRequest`, saying what can't stand there.

    >>> parse_number("2 * (1 GiB - pool)").quantity({"pool": Quantity(Fraction(2**29), is_size=True)})
    Quantity(value=Fraction(1073741824, 1), is_size=True)
    """
    return Formula(parse(text, is_condition=False))


def parse_condition(text: str) -> Condition:
    """Read a check. Raises `BadRequest`, saying what can't stand there.

    >>> parse_condition("8 <= slots < 64 and not slots == 9").verdict({"slots": Quantity(Fraction(16))})[0]
    True
    """
    return Condition(parse(text, is_condition=True))


def _worked_out(parsed: Parsed, node: ast.expr, numbers: Mapping[str, Quantity]) -> Quantity:
    if isinstance(node, ast.Constant):
        return parsed.literals[node.col_offset]
    if isinstance(node, ast.Name):
        return numbers[node.id]
    if isinstance(node, ast.UnaryOp):
        operand = _worked_out(parsed, node.operand, numbers)
        return Quantity(-operand.value, operand.is_size)
    assert isinstance(node, ast.BinOp)
    left, right = (_worked_out(parsed, side, numbers) for side in (node.left, node.right))
    is_division = isinstance(node.op, (ast.Div, ast.FloorDiv))
    if right.value == 0 and (is_division or isinstance(node.op, ast.Mod)):
        divisor = parsed.source(node.right)
        zero = "" if isinstance(node.right, ast.Constant) else f", since {shown(divisor)} is 0"
        raise BadRequest(f"{shown(parsed.source(node))} divides by zero{zero}")
    value = _RECKON[type(node.op)](left.value, right.value)
    if max(abs(value.numerator), value.denominator) > LARGEST:
        raise BadRequest(f"{shown(parsed.source(node))} is larger or finer than anything counted here (2**80)")
    is_size = left.is_size and not right.is_size if is_division else left.is_size or right.is_size
    return Quantity(value, is_size)
