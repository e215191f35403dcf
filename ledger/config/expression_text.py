"""From the text of an expression to a tree that holds nothing but arithmetic, with every literal exact.

What a config may write: `+ - * / // %`, unary minus, parentheses, numbers, IEC sizes such as `112 MiB`, and names; in
checks also comparisons, chained ones included, and `and`, `or`, `not`. Python's own parser reads it, after every
character was looked at here: no call, attribute, subscript, string, power or statement gets that far.
"""

from __future__ import annotations

import ast
import keyword
import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from pinprobe.probes.errors import BadRequest, printable
from pinprobe.probes.units import parse_size

#: Longer than any formula that a person would want to read; bounds, so that a hostile text costs no time.
LONGEST_EXPRESSION = 1000
MOST_TOKENS = 200
DEEPEST = 64
#: No value, nor the numerator or denominator of a fraction, may grow beyond it: far above any count of bytes.
LARGEST = 2**80

UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_LOGIC = ("and", "or", "not")
_MOST_DIGITS = 30

# Whatever begins like a number, up to where it can't go on: what is wrong with it is told of the whole.
_BLOB = re.compile(r"(?:[0-9]|\.[0-9])[0-9A-Za-z_.,:]*")
_NUMBER = re.compile(r"(?:[1-9][0-9]{0,2}(?:[,_][0-9]{3})+|0|[1-9][0-9]*)(?:\.[0-9]+)?(?![0-9_,.:])")
_OTHER_BASE = re.compile(r"0[xXoObB][0-9A-Fa-f]")
_UNIT_APART = re.compile(r" +([A-Za-z]+)")
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OPERATOR = re.compile(r"\*\*|<<|>>|//|<=|>=|==|!=|[-+*/%()<>]")

_ARITHMETIC = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod)
_COMPARISONS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Eq, ast.NotEq)


@dataclass(frozen=True, slots=True)
class Quantity:
    """An exact value, and whether it counts bytes."""

    value: Fraction
    is_size: bool = False


@dataclass(frozen=True)
class Parsed:
    """A tree of arithmetic. Its nodes' offsets are those of `text`; `literals` are by the offset they begin at."""

    text: str
    tree: ast.expr
    names: tuple[str, ...]
    literals: Mapping[int, Quantity]
    _unit_ends: Mapping[int, int]

    def source(self, node: ast.expr) -> str:
        """Return the text of a part, as it was written."""
        assert node.end_col_offset is not None
        end = self._unit_ends.get(node.end_col_offset, node.end_col_offset)
        return self.text[node.col_offset : end]


def parse(text: str, *, is_condition: bool) -> Parsed:
    """Read a number's formula, or a check's condition. Raises `BadRequest`, saying what can't stand there."""
    text = re.sub(r"\s", " ", text).strip()
    if not text:
        raise BadRequest("nothing is written here; write a number, an IEC size or arithmetic")
    if len(text) > LONGEST_EXPRESSION:
        raise BadRequest(f"the text is longer than {LONGEST_EXPRESSION:,} characters; split it into numbers of its own")
    scanned = _Scan(text)
    tree = _tree(scanned)
    if _judge(tree, 1) != is_condition:
        if is_condition:
            raise BadRequest(f"{shown(text)} compares nothing; a check is a comparison such as slots >= 8")
        raise BadRequest(f"{shown(text)} is a comparison, where a number is wanted; comparisons stand in checks")
    return Parsed(text, tree, tuple(scanned.names), scanned.literals, scanned.unit_ends)


def why_no_name(name: str) -> str | None:
    """Say why a number can't be called that, or return None where it can."""
    if not _WORD.fullmatch(name) or name.startswith("_") or len(name) > 100:
        return "a name is a letter, then letters, digits and _, 100 characters at most"
    if keyword.iskeyword(name) or name in UNITS or name.lower() in ("yes", "no", "on", "off", "true", "false", "null"):
        return "that word means something else; call it differently"
    return None


def shown(text: str) -> str:
    """Quote a piece of a config in a message: one line, and not too long."""
    text = printable(text)
    return repr(text if len(text) <= 80 else f"{text[:77]}...")


class _Scan:
    """One pass over the characters. `python` is the text with units blanked out, so that offsets stay the same."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.names: dict[str, None] = {}
        self.literals: dict[int, Quantity] = {}
        self.unit_ends: dict[int, int] = {}
        self._python = list(text)
        tokens = at = 0
        while at < len(text):
            if text[at] == " ":
                at += 1
                continue
            tokens += 1
            if tokens > MOST_TOKENS:
                raise BadRequest(f"the text has more than {MOST_TOKENS} parts; split it into numbers of its own")
            at = self._number(at) or self._word(at) or self._operator(at)

    @property
    def python(self) -> str:
        return "".join(self._python)

    def _number(self, start: int) -> int | None:
        blob = _BLOB.match(self.text, start)
        if blob is None:
            return None
        number = _NUMBER.match(blob[0])
        if number is None or _OTHER_BASE.match(blob[0]):
            raise BadRequest(_why_no_number(blob[0]))
        end = start + number.end()
        unit, unit_end = blob[0][number.end() :], blob.end()
        apart = None if unit else _UNIT_APART.match(self.text, end)
        if apart is not None and apart[1] not in _LOGIC:
            unit, unit_end = apart[1], apart.end()
        literal = self.text[start : unit_end if unit else end]
        self.literals[start] = _literal(literal, number[0], unit)
        self._python[start:end] = number[0].replace(",", "_")
        if unit:
            self._python[end:unit_end] = " " * (unit_end - end)
            self.unit_ends[end] = unit_end
        return unit_end if unit else end

    def _word(self, start: int) -> int | None:
        match = _WORD.match(self.text, start)
        if match is None:
            return None
        word = match[0]
        if word not in _LOGIC:
            if word in ("True", "False", "None") or word.lower() in ("yes", "no", "on", "off", "true", "false", "null"):
                raise BadRequest(f"{shown(word)} is no number; write 1 or 0, or leave the key out")
            if word in UNITS:
                raise BadRequest(f"{shown(word)} has no number before it; write 1 {word}")
            reason = why_no_name(word)
            if reason is not None:
                raise BadRequest(f"{shown(word)} can't stand in arithmetic: {reason}")
            self.names[word] = None
        return match.end()

    def _operator(self, start: int) -> int:
        match = _OPERATOR.match(self.text, start)
        if match is None:
            raise BadRequest(_why_no_operator(self.text[start : start + 2]))
        if match[0] in ("**", "<<", ">>"):
            raise BadRequest(f"{match[0]!r} is not known; write the product or the quotient out")
        return match.end()


def _literal(literal: str, number: str, unit: str) -> Quantity:
    if len(number) > _MOST_DIGITS:
        raise BadRequest(f"{shown(literal)} has more than {_MOST_DIGITS} digits")
    value = Fraction(re.sub("[,_]", "", number))
    if unit:
        if re.match("[eE][0-9]", unit):
            raise BadRequest(f"{shown(literal)}: write the digits out, such as 1_000_000")
        if unit not in UNITS:
            parse_size(literal if len(literal) <= 80 else f"{literal[:77]}...")  # says in its own words what is wrong
        value *= parse_size(f"1{unit}")
    if max(value.numerator, value.denominator) > LARGEST:
        raise BadRequest(f"{shown(literal)} is larger or finer than anything counted here (2**80)")
    return Quantity(value, is_size=bool(unit))


def _why_no_number(blob: str) -> str:
    if re.match("0[0-9]", blob):
        return f"{shown(blob)} begins with 0, which some read as octal: write {blob.lstrip('0')[:40] or '0'}"
    if _OTHER_BASE.match(blob):
        return f"{shown(blob)}: write the number in decimal digits"
    if ":" in blob:
        return f"{shown(blob)} is no number (some read 12:30 as 750): write it in decimal digits"
    if re.match(r"\.[0-9]", blob):
        return f"{shown(blob)}: write 0{blob[:40]}"
    if re.fullmatch(r"[0-9]+\.", blob):
        return f"{shown(blob)}: write {blob[:-1][:40]}"
    if re.fullmatch("[0-9_,]+", blob):
        return f"{shown(blob)} has separators elsewhere than between groups of three digits: write 154_927_104"
    return f"{shown(blob)} is no number; write decimal digits, or an IEC size such as 148 MiB"


def _why_no_operator(text: str) -> str:
    first = text[0]
    if first == "=":
        return "'=' compares nothing; write =="
    if first in "&|!":
        return f"{shown(first)} is not known; write and, or, not"
    if first in "\"'[]{}.,;:@#$`^~\\?":
        return f"{shown(first)} can't stand in arithmetic; there are numbers, names, + - * / // % and parentheses"
    return f"{shown(first)} can't stand in arithmetic; names and numbers are plain letters and digits"


def _tree(scanned: _Scan) -> ast.expr:
    try:
        return ast.parse(scanned.python, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        # Where it breaks, if Python knows; its words speak of Python, so they are not passed on.
        offset = error.offset if isinstance(error, SyntaxError) and error.offset else 0
        near = scanned.text[max(0, offset - 1) :][:20]
        where = f", near {shown(near)}" if 0 < offset <= len(scanned.text) else ""
        raise BadRequest(f"{shown(scanned.text)} is not complete arithmetic{where}") from None


def _judge(node: ast.expr, depth: int) -> bool:
    """Look at every node; return whether it is true or false rather than a number."""
    if depth > DEEPEST:
        raise BadRequest(f"the text is nested more than {DEEPEST} deep; split it into numbers of its own")
    if isinstance(node, (ast.Constant, ast.Name)):
        return False
    if isinstance(node, ast.BinOp) and isinstance(node.op, _ARITHMETIC):
        _expect_numbers(node.left, node.right, depth=depth)
        return False
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        _expect_numbers(node.operand, depth=depth)
        return False
    if isinstance(node, ast.Compare) and all(isinstance(operator, _COMPARISONS) for operator in node.ops):
        _expect_numbers(node.left, *node.comparators, depth=depth)
        return True
    if isinstance(node, ast.BoolOp):
        _expect_conditions(*node.values, depth=depth)
        return True
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        _expect_conditions(node.operand, depth=depth)
        return True
    what = {ast.Call: "a call", ast.UnaryOp: "a plus before a number"}.get(type(node), "what is written here")
    raise BadRequest(f"{what} can't stand in arithmetic; there are numbers, names, + - * / // % and parentheses")


def _expect_numbers(*nodes: ast.expr, depth: int) -> None:
    if any(_judge(node, depth + 1) for node in nodes):
        raise BadRequest("a comparison can't be reckoned or compared with; join comparisons by and, or, not")


def _expect_conditions(*nodes: ast.expr, depth: int) -> None:
    if not all(_judge(node, depth + 1) for node in nodes):
        raise BadRequest("and, or, not stand between comparisons, not between numbers; write slots > 0")
