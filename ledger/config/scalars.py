"""What a value in a config means, decided from its text alone.

YAML's own rules are not asked: version 1.1 reads `010` as 8, `12:30` as 750, `no` as false and `1e9` as text, and 1.2
reads each of them differently.
"""

from __future__ import annotations

import re

from pinprobe.ledger.config.arithmetic import Condition, Formula, parse_condition, parse_number
from pinprobe.ledger.config.expression_text import shown
from pinprobe.ledger.config.marked import Listing, Scalar
from pinprobe.ledger.tenants.tenant import AUTO
from pinprobe.probes.allocators.registry import check_name
from pinprobe.probes.errors import BadRequest

#: `package.module:attribute`, as entry points are written.
CALLABLE = r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*:[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*$"
LONGEST_TEXT = 200
_FLAG_WORDS = ("yes", "no", "on", "off", "true", "false", "y", "n")


def read_number(value: object) -> Formula:
    """Read a number, a size or arithmetic over names. Raises `BadRequest`."""
    return parse_number(_scalar(value, "a number, an IEC size or arithmetic"))


def read_auto_count(value: object) -> Formula | str:
    """Read the word `auto`, or a number. Raises `BadRequest`."""
    scalar = _scalar(value, "a number, arithmetic or auto")
    return AUTO if scalar == AUTO else read_number(scalar)


def read_condition(value: object) -> Condition:
    """Read a check. Raises `BadRequest`."""
    return parse_condition(_scalar(value, "a comparison"))


def read_text(value: object) -> str:
    """Read one line of text; several are joined. Raises `BadRequest` for words that YAML takes for flags."""
    scalar = _scalar(value, "a text")
    if scalar.is_plain and scalar.lower() in _FLAG_WORDS:
        raise BadRequest(f'{shown(scalar)} is a flag to some readers of YAML; write it in quotes: "{scalar}"')
    text = " ".join(scalar.split())
    if not text.isprintable():
        raise BadRequest(f"{shown(text)} holds characters that can't be printed; leave them out")
    if not text or len(text) > LONGEST_TEXT:
        raise BadRequest(f"{shown(text)} is {len(text):,} characters long; write 1 to {LONGEST_TEXT}")
    return text


def read_flag(value: object) -> bool:
    """Read `true` or `false`, and nothing else that YAML takes for them. Raises `BadRequest`."""
    scalar = _scalar(value, "true or false")
    if not scalar.is_plain or scalar not in ("true", "false"):
        raise BadRequest(f"{shown(scalar)} is no flag; write true or false, without quotes")
    return str(scalar) == "true"


def read_callable(value: object) -> str:
    """Read `package.module:attribute`, importing nothing. Raises `BadRequest`."""
    text = str(_scalar(value, "a function as package.module:attribute"))
    if not re.match(CALLABLE, text) or "\n" in text or len(text) > LONGEST_TEXT:
        raise BadRequest(f"{shown(text)} names no function; write package.module:attribute")
    return text


def read_choice(value: object, choices: tuple[str, ...]) -> str:
    """Read one of a few words. Raises `BadRequest`."""
    text = str(_scalar(value, " or ".join(choices)))
    if text not in choices:
        raise BadRequest(f"{shown(text)} is not known here; write {' or '.join(choices)}")
    return text


def read_allocator(value: object) -> str:
    """Read the name of an allocator that is known here. Raises `BadRequest` with the nearest that is."""
    name = read_text(value)
    check_name(name)
    return name


def read_only_allocator(value: object, kind_name: str, only: str) -> str:
    """Read the name of the one allocator that a kind of tenant knows. Raises `BadRequest` for every other."""
    name = read_allocator(value)
    if name != only:
        reason = f"the memory of a {kind_name} is always {only}, whatever the engine's is"
        raise BadRequest(f"{shown(name)} does not apply: {reason}; write {only}, or leave the key out")
    return name


def plain_value(scalar: Scalar) -> int | bool | str:
    """Return a value for a document that machines read: a whole number, a flag, or the text as it is.

    A fraction stays text, since a float would not be it.
    """
    if scalar.is_plain and scalar in ("true", "false"):
        return str(scalar) == "true"
    if re.fullmatch(r"0|-?[1-9][0-9]{0,29}", scalar):
        return int(scalar)
    return str(scalar)


def _scalar(value: object, wanted: str) -> Scalar:
    if not isinstance(value, Scalar):
        what = "it is a list" if isinstance(value, Listing) else "there are keys below it"
        raise BadRequest(f"{what}, where {wanted} is wanted")
    if value.is_nothing:
        raise BadRequest(f"it has no value; write {wanted}")
    return value
