"""A budget as one bar: who has which part of it, and what of that is lent."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pinprobe.cli.grid import WIDTH
from pinprobe.ledger.budget.budget import Budget, StepKind

_CLAIMS, _FLOORS, _UNCLAIMED = "-", "=", "."


@dataclass(frozen=True, slots=True)
class _Segment:
    mark: str
    meaning: str
    size_bytes: int


def draw_budget(budget: Budget) -> str:
    """Draw the bar in plain characters, with a legend.

    A consumer has a capital letter, and the same letter, small, where its memory is lent while it is empty.
    """
    segments = [segment for segment in _segments(budget) if segment.size_bytes]
    width = WIDTH - len("[]")
    drawn, filled_bytes = "", 0
    for segment in segments:
        filled_bytes += segment.size_bytes
        # Up to where it ends, so that rounding never adds up; what is too small for a column is in the legend alone.
        drawn += segment.mark * (round(filled_bytes * width / budget.capacity_bytes) - len(drawn))
    legend = ["".join(part) for part in _folded([f"{segment.mark} {segment.meaning}" for segment in segments])]
    return "\n".join([f"[{drawn}]", *legend])


def _segments(budget: Budget) -> Iterator[_Segment]:
    for kind, mark, meaning in ((StepKind.CLAIM, _CLAIMS, "claims"), (StepKind.FLOOR, _FLOORS, "floors")):
        yield _Segment(mark, meaning, sum(step.taken_bytes for step in budget.steps if step.kind is kind))
    used: set[str] = set()
    for share in budget.shares:
        letters = [letter for letter in share.name.lower() if letter.isalpha() and letter not in used]
        letter = letters[0] if letters else "x"
        used.add(letter)
        yield _Segment(letter.upper(), share.name, share.got_bytes - share.lent_bytes)
        to = share.spec.lends.to if share.spec.lends is not None else ""
        yield _Segment(letter, f"{share.name}, lent to {to}", share.lent_bytes)
    yield _Segment(_UNCLAIMED, "unclaimed", budget.unclaimed_bytes)


def _folded(parts: list[str]) -> Iterator[list[str]]:
    """Put the legend's parts into as many lines as they need."""
    line: list[str] = []
    for part in parts:
        if line and sum(map(len, line)) + 3 + len(part) > WIDTH:
            yield line
            line = []
        line += [part] if not line else ["   ", part]
    if line:
        yield line
