"""From measured points to the rule that an allocator seems to follow. Nothing here knows any allocator.

A rule is inferred, never assumed: it has to give every measured block, and where several rules do, only what they agree
on is predicted.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from pinprobe.probes.units import format_bytes


class Rule(Protocol):
    """A way to get from an ask to a block."""

    @property
    def words(self) -> str:
        """The rule as a sentence's end: `the next power of two`."""

    def block_bytes(self, asked_bytes: int) -> int | None:
        """The block for an ask; None where the measured points leave it open."""


@dataclass(frozen=True, slots=True)
class WholePages:
    """What is asked, rounded up to pages: exact."""

    page_size_bytes: int

    @property
    def words(self) -> str:
        """The rule in words."""
        return "what was asked, to the page"

    def block_bytes(self, asked_bytes: int) -> int:
        """The ask rounded up to whole pages."""
        return -(-asked_bytes // self.page_size_bytes) * self.page_size_bytes


@dataclass(frozen=True, slots=True)
class PowerOfTwo:
    """The next power of two, and never less than a page."""

    page_size_bytes: int

    @property
    def words(self) -> str:
        """The rule in words."""
        return "the next power of two"

    def block_bytes(self, asked_bytes: int) -> int:
        """The smallest power of two that holds the ask.

        >>> PowerOfTwo(4096).block_bytes(4 * 2**30), PowerOfTwo(4096).block_bytes(4 * 2**30 + 1)
        (4294967296, 8589934592)
        """
        return max(self.page_size_bytes, 1 << (asked_bytes - 1).bit_length())


@dataclass(frozen=True, slots=True)
class MultipleOf:
    """The next multiple of a step."""

    step_bytes: int

    @property
    def words(self) -> str:
        """The rule in words."""
        return f"the next multiple of {format_bytes(self.step_bytes)}"

    def block_bytes(self, asked_bytes: int) -> int:
        """The ask rounded up to the step."""
        return -(-asked_bytes // self.step_bytes) * self.step_bytes


@dataclass(frozen=True, slots=True)
class UpTo:
    """One rule for small asks and another for large ones; it changes between two measured asks."""

    small: Rule
    large: Rule
    last_small_bytes: int
    first_large_bytes: int

    @property
    def words(self) -> str:
        """The rule in words."""
        between = f"somewhere from {format_bytes(self.last_small_bytes)} to {format_bytes(self.first_large_bytes)}"
        return f"{self.small.words} for small asks, {self.large.words} for large ones (it changes {between})"

    def block_bytes(self, asked_bytes: int) -> int | None:
        """The block by the rule whose side the ask lies on."""
        if asked_bytes <= self.last_small_bytes:
            return self.small.block_bytes(asked_bytes)
        return self.large.block_bytes(asked_bytes) if asked_bytes >= self.first_large_bytes else None


@dataclass(frozen=True, slots=True)
class Inference:
    """What the measured points say of the rule.

    `fitting` are the rules that give every point, the most telling first. Where there is none, `nearest` is the one
    that gives most, and `contradictions` are the asks for which it is wrong.
    """

    fitting: tuple[Rule, ...]
    nearest: Rule | None
    supporting_count: int
    contradictions: tuple[int, ...]
    point_count: int

    def block_bytes(self, asked_bytes: int) -> int | None:
        """Predict a block: what all fitting rules agree on, else None."""
        blocks = {rule.block_bytes(asked_bytes) for rule in self.fitting}
        return blocks.pop() if len(blocks) == 1 else None


def infer_rule(points: Sequence[tuple[int, int]], page_size_bytes: int) -> Inference:
    """Infer from (asked, block) pairs in bytes.

    Two different blocks are the least that a rule is inferred from.

    >>> slot = 154_927_104
    >>> inference = infer_rule([(slot, 2**28), (2 * slot, 2**29), (3 * slot, 2**29), (4 * slot, 2**30)], 4096)
    >>> inference.fitting[0].words, inference.block_bytes(16 * slot) == 4 * 2**30
    ('the next power of two', True)
    """
    if len({block for _, block in points}) < 2:
        return Inference((), None, 0, (), len(points))
    candidates = list(_candidates(points, page_size_bytes))
    fitting = tuple(rule for rule in candidates if not _contradictions(rule, points))
    if fitting:
        return Inference(fitting, fitting[0], len(points), (), len(points))
    nearest = min(candidates, key=lambda rule: len(_contradictions(rule, points)))
    wrong = _contradictions(nearest, points)
    return Inference((), nearest, len(points) - len(wrong), tuple(wrong), len(points))


def _candidates(points: Sequence[tuple[int, int]], page_size_bytes: int) -> Iterable[Rule]:
    exact, power = WholePages(page_size_bytes), PowerOfTwo(page_size_bytes)
    yield exact
    yield power
    step = math.gcd(*(block for _, block in points))
    # A coarse step is seen only where something was rounded up to it; asks that are exact multiples would fit any.
    if step > page_size_bytes and _contradictions(exact, points):
        yield MultipleOf(step)
    # Rounding that stops at a threshold: every ask up to some point follows the power of two, every one beyond is
    # exact.
    ordered = sorted(points)
    rounded = [asked for asked, block in ordered if block != exact.block_bytes(asked)]
    beyond = [asked for asked, _ in ordered if rounded and asked > rounded[-1]]
    if beyond:
        yield UpTo(power, exact, rounded[-1], beyond[0])


def _contradictions(rule: Rule, points: Iterable[tuple[int, int]]) -> list[int]:
    return [asked for asked, block in points if rule.block_bytes(asked) != block]
