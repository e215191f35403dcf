"""Arms of a drive compared: what differs by more than an arm's own replicates do, and what can't be told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from pinprobe.ledger.replay.do_no_harm import BoundedFigure, Bounds, DoNoHarmRow
from pinprobe.probes.reading import Unreadable

#: Prompts of two arms that differ by more than this were not the same drive.
_PROMPTS_MAY_DIFFER_BY = 0.02


class Verdict(Enum):
    """What replicates allow to be said of an arm's figure beside the baseline's."""

    HIGHER = "higher"
    LOWER = "lower"
    WITHIN_THE_SPREAD = "within the spread"
    UNTOLD = "untold"


@dataclass(frozen=True, slots=True)
class Difference:
    """One figure of two arms, each from its lowest to its highest over the replicates, and what that allows to say.

    HIGHER and LOWER are said where the two ranges lie farther apart than the replicates of either arm differ. That is
    no test of significance: a few replicates are no distribution. `reason` says why nothing can be told.
    """

    figure: str
    baseline_arm: str
    arm: str
    baseline: BoundedFigure
    compared: BoundedFigure
    verdict: Verdict
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Comparison:
    """All differences from the first arm, and what speaks against comparing at all."""

    differences: tuple[Difference, ...]
    caveats: tuple[str, ...]


#: The figures that are compared, by the name of a row's field.
COMPARED_FIGURES = (
    "cached_share",
    "cached_share_later",
    "ttft_median_seconds",
    "tokens_a_second",
    "uncached_tokens_a_turn",
)


def compare(rows: Sequence[DoNoHarmRow]) -> Comparison:
    """Hold every arm against the first one. No arm is said to differ within what its own replicates differ by."""
    by_arm: dict[str, list[DoNoHarmRow]] = {}
    for row in rows:
        by_arm.setdefault(row.arm, []).append(row)
    baseline, *others = by_arm or [""]
    differences = [_difference(figure, by_arm[baseline], by_arm[arm]) for arm in others for figure in COMPARED_FIGURES]
    caveats = [caveat for arm in others for caveat in _caveats(by_arm[baseline], by_arm[arm])]
    return Comparison(tuple(differences), tuple(caveats))


def _difference(figure: str, ours: list[DoNoHarmRow], theirs: list[DoNoHarmRow]) -> Difference:
    baseline, compared = (_range([getattr(row, figure) for row in rows]) for rows in (ours, theirs))

    def told(verdict: Verdict, reason: str = "") -> Difference:
        return Difference(figure, ours[0].arm, theirs[0].arm, baseline, compared, verdict, reason)

    for side, rows in ((baseline, ours), (compared, theirs)):
        if isinstance(side, Unreadable):
            return told(Verdict.UNTOLD, f"{rows[0].arm}: {side.reason}")
        if len(rows) < 2:
            return told(Verdict.UNTOLD, f"one replicate of {rows[0].arm} shows no spread; drive it again")
    assert isinstance(baseline, Bounds)
    assert isinstance(compared, Bounds)
    spread = max(_spread([getattr(row, figure) for row in rows]) for rows in (ours, theirs))
    if compared.low - baseline.high > spread:
        return told(Verdict.HIGHER)
    if baseline.low - compared.high > spread:
        return told(Verdict.LOWER)
    for rows in (ours, theirs):
        silent = sum(row.silent_count for row in rows)
        if any(isinstance(value := getattr(row, figure), Bounds) and not value.is_exact for row in rows):
            return told(Verdict.UNTOLD, f"{silent} answers of {rows[0].arm} do not say what was cached")
    return told(Verdict.WITHIN_THE_SPREAD)


def _range(figures: Sequence[float | Bounds | Unreadable]) -> BoundedFigure:
    bounds: list[Bounds] = []
    for figure in figures:
        if isinstance(figure, Unreadable):
            return figure  # a range that leaves a replicate out would look narrower than it is
        bounds.append(figure if isinstance(figure, Bounds) else Bounds(figure, figure))
    return Bounds(min(bound.low for bound in bounds), max(bound.high for bound in bounds))


def _spread(figures: Sequence[float | Bounds | Unreadable]) -> float:
    """Return by how much replicates differ, which is not how far apart the bounds of one figure lie."""
    known = [figure if isinstance(figure, Bounds) else Bounds(figure, figure) for figure in figures
             if not isinstance(figure, Unreadable)]  # fmt: skip
    lows, highs = [bound.low for bound in known], [bound.high for bound in known]
    return max(max(lows) - min(lows), max(highs) - min(highs))


def _caveats(ours: list[DoNoHarmRow], theirs: list[DoNoHarmRow]) -> list[str]:
    names = f"{ours[0].arm} and {theirs[0].arm}"
    found = []
    counts: tuple[tuple[str, Callable[[DoNoHarmRow], int]], ...] = (
        ("turns after the first", lambda row: row.later_count),
        ("errors", lambda row: row.error_count),
    )
    for what, count in counts:
        ours_counts, theirs_counts = ({count(row) for row in rows} for rows in (ours, theirs))
        if len(ours_counts | theirs_counts) > 1:
            told = " and ".join("/".join(map(str, sorted(numbers))) for numbers in (ours_counts, theirs_counts))
            found.append(f"{names} differ in their number of {what} ({told}), so they are not the same drive")
    prompts = [_range([row.prompt_tokens_a_turn for row in rows]) for rows in (ours, theirs)]
    known = [side for side in prompts if isinstance(side, Bounds)]
    if known and max(side.high for side in known) > min(side.low for side in known) * (1 + _PROMPTS_MAY_DIFFER_BY):
        told = " and ".join("?" if isinstance(s, Unreadable) else f"{s.low:,.0f} to {s.high:,.0f}" for s in prompts)
        found.append(f"the prompts of {names} differ: {told} tokens a turn")
    return found
