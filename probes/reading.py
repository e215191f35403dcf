"""A number read from the system, or the plain statement that it could not be read.

An unknown is a value here, never zero and never `None`: arithmetic with it stays unknown and keeps its reason, and it
has no truth value and no order, so that no comparison passes over it by accident.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn, TypeAlias


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A value that could not be read.

    >>> Unreadable("VmPin: no such line in /proc/self/status") - Reading(4096, "statm")
    Unreadable(reason='VmPin: no such line in /proc/self/status')
    """

    reason: str

    def __add__(self, other: Amount) -> Unreadable:
        return self

    __radd__ = __sub__ = __rsub__ = __add__

    def __bool__(self) -> NoReturn:
        raise TypeError(f"an unreadable value is neither true nor false: {self.reason}")

    def __str__(self) -> str:
        return f"unreadable, because {self.reason}"


@dataclass(frozen=True, slots=True)
class Reading:
    """A number of bytes, where it came from, and by how many bytes it may be off.

    Adding or subtracting two readings adds their error bars.

    >>> Reading(8192, "statm", error_bytes=64) - Reading(4096, "statm", error_bytes=64)
    Reading(bytes=4096, source='statm', error_bytes=128)
    """

    bytes: int
    source: str
    error_bytes: int = 0

    def __add__(self, other: Amount) -> Amount:
        return self._combined(other, +1)

    def __sub__(self, other: Amount) -> Amount:
        return self._combined(other, -1)

    def _combined(self, other: Amount, sign: int) -> Amount:
        if isinstance(other, Unreadable):
            return other
        source = self.source if self.source == other.source else f"{self.source}, {other.source}"
        return Reading(self.bytes + sign * other.bytes, source, self.error_bytes + other.error_bytes)

    def __bool__(self) -> NoReturn:
        raise TypeError("compare .bytes: a reading has no truth value, since 0 bytes is a reading too")

    def within(self, expected_bytes: int, margin_bytes: int = 0) -> bool:
        """Say whether `expected_bytes` lies inside this reading's error bar, widened by `margin_bytes`."""
        return abs(self.bytes - expected_bytes) <= self.error_bytes + margin_bytes


Amount: TypeAlias = Reading | Unreadable


def first_readable(*amounts: Amount) -> Amount:
    """Return the first amount that is a reading; where none is, an `Unreadable` that gives every reason."""
    for amount in amounts:
        if isinstance(amount, Reading):
            return amount
    return Unreadable("; ".join(dict.fromkeys(amount.reason for amount in amounts if isinstance(amount, Unreadable))))
