"""Bytes for people: IEC units, read and written. Machines get plain ints."""

import re
from typing import NamedTuple

from pinprobe.probes.errors import BadRequest

#: No request beyond this can be mapped on any Linux of today: x86-64 with five-level paging has 2**56 bytes of user
#: space.
LARGEST_SIZE_BYTES = 2**56

_FACTORS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_SIZE = re.compile(r"\s*([0-9]{1,30}(?:\.[0-9]{1,30})?)\s*([A-Za-z]*)\s*", re.ASCII)
# Between groups of three digits, as this tool itself writes bytes: 154,927,104 or 154_927_104.
_SEPARATORS = re.compile(r"(?<=[0-9])[,_](?=[0-9]{3}(?![0-9]))")


class Unit(NamedTuple):
    """A unit that a column of a table is written in."""

    name: str
    factor_bytes: int

    def of(self, value_bytes: int) -> str:
        """Write a number of bytes in this unit, without its name.

        >>> Unit("GiB", 2**30).of(16 * 154_927_104)
        '2.309'
        """
        return f"{value_bytes / self.factor_bytes:,.3f}"


def unit_for(largest_bytes: int) -> Unit:
    """Choose the unit in which a column with this largest value still shows three telling decimals.

    >>> unit_for(4 * 2**30).name, unit_for(3_000_000).name, unit_for(4096).name
    ('GiB', 'MiB', 'KiB')
    """
    for name in ("GiB", "MiB"):
        if abs(largest_bytes) >= _FACTORS[name] // 10:
            return Unit(name, _FACTORS[name])
    return Unit("KiB", _FACTORS["KiB"])


def format_bytes(value_bytes: int) -> str:
    """Write one size for a sentence.

    >>> format_bytes(154_927_104), format_bytes(512)
    ('0.144 GiB', '512 B')
    """
    if abs(value_bytes) < 1024:
        return f"{value_bytes} B"
    unit = unit_for(value_bytes)
    return f"{unit.of(value_bytes)} {unit.name}"


def parse_size(text: str) -> int:
    """Read a size: plain bytes, or a number with an IEC suffix.

    Raises `BadRequest`, naming the text, where it is no size, not positive, ambiguous (`64g` is 64,000,000,000 to some
    and 68,719,476,736 to others) or larger than any address space.

    >>> parse_size("154,927,104"), parse_size("148 MiB"), parse_size("1.5GiB")
    (154927104, 155189248, 1610612736)
    """
    match = _SIZE.fullmatch(_SEPARATORS.sub("", text))
    if match is None:
        raise BadRequest(f"{text!r} is not a size: give bytes, or a number with KiB, MiB, GiB or TiB")
    number, suffix = match.groups()
    if suffix and suffix not in _FACTORS:
        raise BadRequest(_wrong_suffix(text, number, suffix))
    size = _whole_bytes(number, _FACTORS[suffix or "B"])
    if size is None:
        raise BadRequest(f"{text!r} is not a whole number of bytes")
    if size == 0:
        raise BadRequest(f"{text!r} is no memory at all: give a size of 1 byte or more")
    if size > LARGEST_SIZE_BYTES:
        raise BadRequest(f"{text!r} is more than any address space holds (2**56 bytes)")
    return size


def _whole_bytes(number: str, factor: int) -> int | None:
    whole, _, decimals = number.partition(".")
    scale = 10 ** len(decimals)
    size, remainder = divmod(int(whole + decimals) * factor, scale)
    return None if remainder else size


def _wrong_suffix(text: str, number: str, suffix: str) -> str:
    letter = suffix[0].upper()
    if letter in "KMGT" and suffix.lower() in {letter.lower(), f"{letter}b".lower(), f"{letter}i".lower()}:
        return f"{text!r} is ambiguous (powers of 1000 or of 1024?): write {number}{letter}iB, or plain bytes"
    if f"{letter}ib".lower() == suffix.lower() and letter in "KMGT":
        return f"{text!r}: write {number}{letter}iB"
    return f"{text!r} has an unknown unit {suffix!r}: give bytes, or a number with KiB, MiB, GiB or TiB"
