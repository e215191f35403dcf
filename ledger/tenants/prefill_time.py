"""`PrefillTime`: how many seconds a prompt's tokens take to prefill, and from which length on a savepoint pays.

A savepoint costs the same bytes whatever it covers; what it is worth are the seconds of prefill that it spares, and
these grow faster than the prompt where attention is part of the model.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from pinprobe.probes.errors import BadRequest, printable

#: No prompt is longer; a bound, so that a slip of the finger is told and not multiplied.
MOST_TOKENS = 10**9
#: No token takes longer: a day.
_MOST_SECONDS = 86_400.0
_MOST_POINTS = 100_000

_NUMBER = r"[0-9]{1,12}(?:\.[0-9]{1,40})?(?:[eE][+-]?[0-9]{1,3})?"
_FORM = re.compile(rf"\s*({_NUMBER})\s*(?:\*?\s*n\s*(?:\+\s*({_NUMBER})\s*\*?\s*n\^2\s*)?)?", re.ASCII)
_GIVEN = "given"


@dataclass(frozen=True, slots=True)
class PrefillTime:
    """The first n tokens of a prompt take `seconds_per_token` x n + `seconds_per_token_squared` x n^2 seconds.

    `source` says whether that was given or fitted, and to how many points; it is no part of what makes two equal.
    Raises `BadRequest` where a coefficient is negative, not finite or beyond any prefill, or where both are zero: if
    prefill took no time, nothing would be worth keeping.

    >>> PrefillTime(0.00019).seconds(0, 6_300)
    1.197
    """

    seconds_per_token: float
    seconds_per_token_squared: float = 0.0
    source: str = field(default=_GIVEN, compare=False)

    def __post_init__(self) -> None:
        for value in (self.seconds_per_token, self.seconds_per_token_squared):
            if not 0 <= value <= _MOST_SECONDS:
                raise BadRequest(
                    f"a prefill time of {value} s is none; give seconds a token, from 0 to {_MOST_SECONDS:,.0f}"
                )
        if not self.seconds_per_token and not self.seconds_per_token_squared:
            raise BadRequest(
                "a prefill that takes no time makes no savepoint worth keeping; give seconds a token above 0"
            )

    def seconds(self, from_tokens: int, to_tokens: int) -> float:
        """Return how long the tokens of a prompt from `from_tokens` on up to `to_tokens` take.

        The later ones take longer where there is a square, since each looks back on all before it. Raises `BadRequest`
        where these are no tokens of a prompt.
        """
        if not 0 <= from_tokens <= to_tokens <= MOST_TOKENS:
            raise BadRequest(
                f"from token {from_tokens} to {to_tokens} is no part of a prompt; count up, from 0 to 10^9"
            )
        # By the difference first: of two large squares too little would be left.
        added = to_tokens - from_tokens
        return added * (self.seconds_per_token + self.seconds_per_token_squared * (from_tokens + to_tokens))

    def pays_from(self, row_bytes: int, bytes_per_second: float) -> int:
        """Return the shortest prompt, in tokens, whose prefill takes longer than to read its savepoint back.

        `row_bytes` is what a savepoint takes, `bytes_per_second` how fast it is read back. Raises `BadRequest` where
        either is none, or where no prompt is that long.
        """
        _check_row(row_bytes)
        if not 0 < bytes_per_second < math.inf:
            raise BadRequest(f"{bytes_per_second} bytes a second read nothing back; give a rate above 0")
        limit_seconds = row_bytes / bytes_per_second
        if self.seconds(0, MOST_TOKENS) <= limit_seconds:
            raise BadRequest(
                f"to read {row_bytes:,} B back takes {limit_seconds:g} s, and no prompt's prefill takes longer;"
                " a savepoint never pays at this rate"
            )
        # The time only grows with the length, so the length is searched for and no square root has to be exact.
        low, high = 0, MOST_TOKENS
        while high - low > 1:
            middle = (low + high) // 2
            if self.seconds(0, middle) > limit_seconds:
                high = middle
            else:
                low = middle
        return high

    @property
    def formula(self) -> str:
        """What the first n tokens of a prompt take, in seconds, for people: 0.00019*n.

        >>> PrefillTime(0.00019).formula
        '0.00019*n'
        """
        return str(self) if self.seconds_per_token_squared else f"{self}*n"

    def __str__(self) -> str:
        """Write it in the form that `parse` reads back to an equal value."""
        if not self.seconds_per_token_squared:
            return repr(float(self.seconds_per_token))
        return f"{float(self.seconds_per_token)!r}*n+{float(self.seconds_per_token_squared)!r}*n^2"

    @classmethod
    def parse(cls, text: str) -> PrefillTime:
        """Read seconds a token, or the seconds of a prompt of n tokens with their square.

        Raises `BadRequest`, naming the text, where it is neither.

        >>> PrefillTime.parse("0.00019").seconds_per_token
        0.00019
        >>> PrefillTime.parse("0.00019*n + 1.2e-9*n^2").seconds_per_token_squared
        1.2e-09
        """
        match = _FORM.fullmatch(text)
        if match is None:
            raise BadRequest(
                f"{printable(text)[:60]!r} is no prefill time: write seconds a token as 0.00019, or the seconds of"
                " n tokens as 0.00019*n+1.2e-9*n^2"
            )
        linear, square = match.groups()
        return cls(float(linear), float(square or 0.0))

    @classmethod
    def fit(cls, points: Iterable[tuple[int, float]]) -> PrefillTime:
        """Fit it to measured prompts, each its tokens and the seconds that they took from none on.

        By least squares, with no coefficient below zero: where the best would be, the best without it is taken. Raises
        `BadRequest` where a point is none, or where fewer than two lengths were measured, through which any curve runs.
        """
        measured = list(points)
        _check_points(measured)
        # In units of the longest, so that the squares of squares stay near 1.
        scale = max(tokens for tokens, _ in measured)
        scaled = [(tokens / scale, seconds) for tokens, seconds in measured]
        linear, square = _least_squares(scaled)
        return cls(linear / scale, square / scale / scale, f"fitted from {len(measured)} points")


@dataclass(frozen=True, slots=True)
class Worth:
    """What the savepoint of a prompt of so many tokens costs, which is always the same, and what it spares."""

    tokens: int
    row_bytes: int
    spared_seconds: float


@dataclass(frozen=True, slots=True)
class SavepointWorth:
    """A table: bytes that stay flat beside seconds that grow.

    `pays_from_tokens` is the length from which reading a savepoint back is sooner done than its prefill; None where no
    rate of reading was given, since then nobody knows.
    """

    prefill_time: PrefillTime
    rows: tuple[Worth, ...]
    pays_from_tokens: int | None


def savepoint_worth(
    row_bytes: int, lengths: Sequence[int], prefill_time: PrefillTime, bytes_per_second: float | None = None
) -> SavepointWorth:
    """Put the worth of savepoints of prompts of these lengths into a table, in the order given.

    Raises `BadRequest` where a length is none, and what `PrefillTime.pays_from` raises where a rate is given.
    """
    _check_row(row_bytes)
    for tokens in lengths:
        if not 1 <= tokens <= MOST_TOKENS:
            raise BadRequest(f"a prompt of {tokens} tokens is none; give lengths from 1 to 10^9")
    rows = tuple(Worth(tokens, row_bytes, prefill_time.seconds(0, tokens)) for tokens in lengths)
    pays = None if bytes_per_second is None else prefill_time.pays_from(row_bytes, bytes_per_second)
    return SavepointWorth(prefill_time, rows, pays)


def _check_row(row_bytes: int) -> None:
    if row_bytes < 1:
        raise BadRequest(f"a savepoint of {row_bytes} B is none; give the bytes of one row")


def _check_points(measured: Sequence[tuple[int, float]]) -> None:
    if len(measured) > _MOST_POINTS:
        raise BadRequest(f"{len(measured):,} points are more than a fit takes; give at most {_MOST_POINTS:,}")
    for tokens, seconds in measured:
        if not 1 <= tokens <= MOST_TOKENS or not 0 < seconds <= _MOST_SECONDS:
            raise BadRequest(
                f"{tokens} tokens in {seconds} s is no measured prefill; give more than 0, and at most a day"
            )
    lengths = sorted({tokens for tokens, _ in measured})
    if len(lengths) < 2:
        found = f"only prompts of {lengths[0]} tokens" if lengths else "no prompt"
        raise BadRequest(f"a prefill time needs two lengths to be fitted, and there is {found}; measure another length")


def _least_squares(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return the coefficients of x and of x squared, neither below zero, that come nearest to the points."""
    x2 = math.fsum(x**2 for x, _ in points)
    x3 = math.fsum(x**3 for x, _ in points)
    x4 = math.fsum(x**4 for x, _ in points)
    xy = math.fsum(x * y for x, y in points)
    x2y = math.fsum(x**2 * y for x, y in points)
    alone = [(xy / x2, 0.0), (0.0, x2y / x4)]
    determinant = x2 * x4 - x3 * x3
    if determinant > 0:
        both = (xy * x4 - x2y * x3) / determinant, (x2 * x2y - x3 * xy) / determinant
        if min(both) >= 0:
            return both
    return min(alone, key=lambda pair: math.fsum((pair[0] * x + pair[1] * x**2 - y) ** 2 for x, y in points))
