"""An exact quantity as a person reads it: sizes in IEC units, numbers as they are."""

from __future__ import annotations

from fractions import Fraction

from pinprobe.ledger.config.expression_text import Quantity

_GIB, _MIB = 2**30, 2**20
_SIZE_DECIMALS = 2
_NUMBER_DECIMALS = 6


def write_quantity(quantity: Quantity) -> str:
    """Write one quantity.

    >>> write_quantity(Quantity(Fraction(154_927_104), is_size=True)), write_quantity(Quantity(Fraction(64)))
    ('147.75 MiB', '64')
    """
    return write_alike(quantity)[0]


def write_alike(*quantities: Quantity) -> list[str]:
    """Write quantities that are to be compared: sizes in one unit, and no two different ones alike.

    The unit is GiB where all are whole in it, MiB from 1 MiB on, since that is what engines are configured in, and else
    bytes. A bare number beside a size stays a bare number.

    >>> write_alike(Quantity(Fraction(12 * 2**30), True), Quantity(Fraction(16 * 2**30), True))
    ['12 GiB', '16 GiB']
    >>> write_alike(Quantity(Fraction(2**30), True), Quantity(Fraction(2**30 + 1), True))
    ['1,073,741,824 B', '1,073,741,825 B']
    """
    sizes = [quantity.value for quantity in quantities if quantity.is_size]
    texts = [_write(quantity, *_unit(sizes)) for quantity in quantities]
    if len(set(texts)) < len(set(quantities)):
        texts = [_exactly(quantity) for quantity in quantities]
    return texts


def write_count(value: Fraction) -> str:
    """Write a count of which no part is made up: rounded towards nothing, with decimals only where it is small.

    >>> write_count(Fraction(365_066, 200_000)), write_count(Fraction(731_132, 2)), write_count(Fraction(731_133, 2))
    ('1.82', '365,566', '365,566')
    """
    if value.denominator == 1 or abs(value) >= 100:
        return f"{int(value):,}"
    return f"{int(value * 100) / 100:.2f}"


def _unit(sizes: list[Fraction]) -> tuple[str, int]:
    largest = max(map(abs, sizes), default=Fraction(0))
    if largest >= _GIB and all(size % _GIB == 0 for size in sizes):
        return "GiB", _GIB
    return ("MiB", _MIB) if largest >= _MIB else ("B", 1)


def _write(quantity: Quantity, unit: str, factor_bytes: int) -> str:
    factor, decimals = (factor_bytes, _SIZE_DECIMALS) if quantity.is_size else (1, _NUMBER_DECIMALS)
    text = _decimal(quantity.value / factor, decimals)
    if text.lstrip("-") == "0" and quantity.value != 0:
        return _exactly(quantity)
    return f"{text} {unit}" if quantity.is_size else text


def _decimal(value: Fraction, decimals: int) -> str:
    # Rounded as a fraction: a float would lose the last digits of what is compared exactly.
    whole, part = divmod(round(abs(value) * 10**decimals), 10**decimals)
    tail = f".{part:0{decimals}}".rstrip("0").rstrip(".")
    return f"{'-' if value < 0 else ''}{whole:,}{tail}"


def _exactly(quantity: Quantity) -> str:
    value = quantity.value
    text = f"{value.numerator:,}" if value.denominator == 1 else f"{value.numerator:,}/{value.denominator:,}"
    return f"{text} B" if quantity.is_size else text
