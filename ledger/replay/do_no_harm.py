"""Whether a change did harm: the finished turns of a drive as one row for each arm and replicate.

An *arm* is one way to run the server, a *replicate* one drive of it from a cold cache. Figures are of the turns after
the first of each session, which are the ones that a cache can serve; only the first share of cached tokens is of all.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from pinprobe.probes.reading import Unreadable

_NO_CACHED = "no answer says how many tokens were cached; vLLM does with --enable-prompt-tokens-details"


@dataclass(frozen=True, slots=True)
class Bounds:
    """A figure that lies between two numbers, which are one where it is known exactly."""

    low: float
    high: float

    @property
    def is_exact(self) -> bool:
        """Say whether both are one."""
        return self.low == self.high


Figure: TypeAlias = float | Unreadable
BoundedFigure: TypeAlias = Bounds | Unreadable


@dataclass(frozen=True, slots=True)
class Turn:
    """One request of a session, answered or not; `number` and `replicate` count from 1.

    Tokens are as the server counts them. `is_counted`: it did not say how many came out, so the pieces of its stream
    were counted. `error` says why there was no answer, and is empty where there was one.
    """

    arm: str
    replicate: int
    session: int
    number: int
    wanted_prompt_tokens: int
    prompt_tokens: int | Unreadable
    cached_tokens: int | Unreadable
    output_tokens: int | Unreadable
    is_counted: bool
    ttft_seconds: Figure
    seconds: Figure
    tokens_a_second: Figure
    error: str = ""


@dataclass(frozen=True, slots=True)
class Incident:
    """Something that happened in a drive and that whoever reads its figures has to know."""

    arm: str
    replicate: int
    what: str


@dataclass(frozen=True, slots=True)
class DoNoHarmRow:
    """What one drive came to.

    * `cached_share`: cached tokens of all prompts' tokens; `cached_share_later` the same after each first turn.
    * `ttft_median_seconds`, `tokens_a_second` (the median of each request's own rate), `uncached_tokens_a_turn` and
      `prompt_tokens_a_turn` (means): of the `later_count` turns after the first.
    * `silent_count`: answers that did not say what was cached. Some servers leave it out where it is 0, so the figures
      above then lie between all of it uncached and all of it cached.
    * `turn_count`: answered turns; `error_count`: the others.
    """

    arm: str
    replicate: int
    cached_share: BoundedFigure
    cached_share_later: BoundedFigure
    ttft_median_seconds: Figure
    tokens_a_second: Figure
    uncached_tokens_a_turn: BoundedFigure
    prompt_tokens_a_turn: Figure
    silent_count: int
    turn_count: int
    later_count: int
    error_count: int
    incidents: tuple[str, ...]


def do_no_harm_rows(
    turns: Iterable[Turn], incidents: Iterable[Incident] = (), silent_is_zero: bool = False
) -> tuple[DoNoHarmRow, ...]:
    """Make a row of each arm and replicate: arms as they first come, replicates in their order.

    With `silent_is_zero`, which is for whoever knows that the server leaves a 0 out, an answer that does not say what
    was cached counts as none of it, and the row says so; a drive in which no answer says it stays unreadable.
    """
    by_drive: dict[tuple[str, int], list[Turn]] = {}
    told: dict[tuple[str, int], list[str]] = {}
    for turn in turns:
        by_drive.setdefault((turn.arm, turn.replicate), []).append(turn)
    for incident in incidents:
        by_drive.setdefault((incident.arm, incident.replicate), [])
        told.setdefault((incident.arm, incident.replicate), []).append(incident.what)
    arms = list(dict.fromkeys(arm for arm, _ in by_drive))
    drives = sorted(by_drive, key=lambda drive: (arms.index(drive[0]), drive[1]))
    return tuple(_row(*drive, by_drive[drive], told.get(drive, []), silent_is_zero) for drive in drives)


def _row(arm: str, replicate: int, turns: list[Turn], told: list[str], silent_is_zero: bool) -> DoNoHarmRow:
    answered = [turn for turn in turns if not turn.error]
    silent = [turn for turn in answered if isinstance(turn.cached_tokens, Unreadable)]
    if silent_is_zero and 0 < len(silent) < len(answered):
        answered = [
            replace(turn, cached_tokens=0) if isinstance(turn.cached_tokens, Unreadable) else turn for turn in answered
        ]
        told = [*told, f"{len(silent)} of {len(answered)} answers do not say what was cached, taken as 0 as was asked"]
    later = [turn for turn in answered if turn.number > 1]
    ordered = sorted(turns, key=lambda turn: (turn.number, turn.session))
    return DoNoHarmRow(
        arm=arm,
        replicate=replicate,
        cached_share=_cached_share(answered, "no turn was answered"),
        cached_share_later=_cached_share(later, "no turn after the first was answered"),
        ttft_median_seconds=_median([turn.ttft_seconds for turn in later]),
        tokens_a_second=_median([turn.tokens_a_second for turn in later]),
        uncached_tokens_a_turn=_uncached(later),
        prompt_tokens_a_turn=_prompt_mean(later),
        silent_count=len(silent),
        turn_count=len(answered),
        later_count=len(later),
        error_count=len(turns) - len(answered),
        incidents=(*_grouped_errors(ordered), *_remarks(answered), *told),
    )


def _cached_share(turns: Sequence[Turn], none: str) -> BoundedFigure:
    sums = _sums(turns, none)
    if isinstance(sums, Unreadable):
        return sums
    prompt_tokens, cached_least, cached_most, _ = sums
    return Bounds(cached_least / prompt_tokens, cached_most / prompt_tokens)


def _uncached(turns: Sequence[Turn]) -> BoundedFigure:
    sums = _sums(turns, "no turn after the first was answered")
    if isinstance(sums, Unreadable):
        return sums
    prompt_tokens, cached_least, cached_most, count = sums
    return Bounds((prompt_tokens - cached_most) / count, (prompt_tokens - cached_least) / count)


def _sums(turns: Sequence[Turn], none: str) -> tuple[int, int, int, int] | Unreadable:
    """Sum the prompts' tokens, those cached at least and at most, and count the turns that say how long they were."""
    known = [(turn.prompt_tokens, turn.cached_tokens) for turn in turns if isinstance(turn.prompt_tokens, int)]
    if not turns:
        return Unreadable(none)
    if not sum(prompt for prompt, _ in known):
        return Unreadable("no answer says how many tokens its prompt had")
    if all(isinstance(cached, Unreadable) for _, cached in known):
        return Unreadable(_NO_CACHED)
    least = sum(cached for _, cached in known if isinstance(cached, int))
    silent = sum(prompt for prompt, cached in known if isinstance(cached, Unreadable))
    return sum(prompt for prompt, _ in known), least, least + silent, len(known)


def _prompt_mean(turns: Sequence[Turn]) -> Figure:
    known = [turn.prompt_tokens for turn in turns if isinstance(turn.prompt_tokens, int)]
    return statistics.fmean(known) if known else Unreadable("no answer after the first says how long its prompt was")


def _median(figures: Sequence[Figure]) -> Figure:
    known = [figure for figure in figures if not isinstance(figure, Unreadable)]
    if known:
        return statistics.median(known)
    return next((f for f in figures if isinstance(f, Unreadable)), Unreadable("no turn after the first was answered"))


def _grouped_errors(turns: Sequence[Turn]) -> list[str]:
    places: dict[str, list[Turn]] = {}
    for turn in turns:
        if turn.error:
            places.setdefault(turn.error, []).append(turn)
    found = []
    for error, where in places.items():
        more = f" and {len(where) - 1} more" if len(where) > 1 else ""
        found.append(f"session {where[0].session}, turn {where[0].number}{more}: {error}")
    return found


def _remarks(turns: Sequence[Turn]) -> list[str]:
    counted = sum(turn.is_counted for turn in turns)
    unsized = sum(isinstance(turn.prompt_tokens, Unreadable) for turn in turns)
    rateless = sum(isinstance(turn.tokens_a_second, Unreadable) for turn in turns)
    remarks = []
    if counted:
        remarks.append(
            f"{counted} of {len(turns)} answers give no count of tokens; the pieces of the stream were counted"
        )
    if unsized:
        remarks.append(f"{unsized} of {len(turns)} answers do not say how long their prompt was and are in no share")
    if rateless:
        remarks.append(f"{rateless} of {len(turns)} answers came in one piece and are in no rate")
    return remarks
