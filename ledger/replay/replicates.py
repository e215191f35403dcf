"""Arms replayed side by side, several times each, and what their spread allows to say."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from pinprobe.ledger.replay.arm import Arm
from pinprobe.ledger.replay.arm_result import ArmResult
from pinprobe.ledger.replay.request import Request

#: Makes the requests of a seed; the same ones each time where it is a recorded trace.
Drive: TypeAlias = Callable[[int], Sequence[Request]]
#: Replays the requests of a seed through one arm.
Play: TypeAlias = Callable[[Sequence[Request], Arm, int], ArmResult]

_ONE_RUN = "one run of each arm shows no spread, so no difference is told from chance"


@dataclass(frozen=True, slots=True)
class Spread:
    """A figure over the runs of an arm: the one in the middle, the lowest and the highest."""

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class ArmRuns:
    """The runs of one arm, at least one, in the order of their seeds."""

    arm: Arm
    runs: tuple[ArmResult, ...]

    @property
    def middle(self) -> ArmResult:
        """The run in the middle by what its later turns were spared: of an even number the lower one.

        All figures of a run belong together, so that this one, and no mix of several, is what a table shows.
        """
        ordered = sorted(self.runs, key=lambda run: run.later_hit_rate)
        return ordered[(len(ordered) - 1) // 2]

    def spread(self, figure: Callable[[ArmResult], float]) -> Spread:
        """Return the spread of a figure over the runs."""
        values = [figure(run) for run in self.runs]
        return Spread(statistics.median(values), min(values), max(values))


@dataclass(frozen=True)
class PlayedArms:
    """All arms that were replayed, in the order given. `ended` says why some runs are missing; None where none is."""

    arms: tuple[ArmRuns, ...]
    ended: str | None = None

    @property
    def incidents(self) -> list[str]:
        """What went wrong in any run, with its arm and seed."""
        runs = [run for arm in self.arms for run in arm.runs]
        return [f"{run.arm.name}, seed {run.seed}: {incident}" for run in runs for incident in run.incidents]

    @property
    def has_wrong_bytes(self) -> bool:
        """Whether a savepoint of a real replay did not come back as it was."""
        return any(run.mismatched for arm in self.arms for run in arm.runs)


@dataclass(frozen=True, slots=True)
class Standing:
    """Which arm's later turns were spared most, if that can be told.

    `distance` is what lies between the best arm's lowest share and the highest of `runner_up`; `reason` says why no arm
    is named, and is empty where one is.
    """

    best: str | None = None
    runner_up: str | None = None
    distance: float | None = None
    reason: str = ""


def play_arms(
    drive: Drive,
    arms: Sequence[Arm],
    seeds: Sequence[int],
    play: Play,
    watch: Callable[[Arm, int], object] = lambda arm, seed: None,
) -> PlayedArms:
    """Replay each seed through all arms, one seed after the other, so that an interruption leaves like beside like.

    `watch` is told what begins. Ctrl-C ends it, and what was done by then is returned; where that is no run at all, the
    interruption is passed on.
    """
    runs: list[list[ArmResult]] = [[] for _ in arms]
    ended = None
    try:
        for seed in seeds:
            requests = drive(seed)
            for arm, done in zip(arms, runs, strict=True):
                watch(arm, seed)
                done.append(play(requests, arm, seed))
    except KeyboardInterrupt as interrupt:
        if not runs or not runs[0]:
            raise
        ended = str(interrupt) or "interrupted"
    played = [ArmRuns(arm, tuple(done)) for arm, done in zip(arms, runs, strict=True) if done]
    return PlayedArms(tuple(played), ended)


def is_seeded(drive: Drive, seed: int) -> bool:
    """Say whether another seed makes other requests: of a drive in which nothing is left to chance it does not."""
    return list(drive(seed)) != list(drive(seed + 1))


def standing(arms: Sequence[ArmRuns]) -> Standing:
    """Name the arm whose later turns were spared most, where its spread lies above that of all others."""
    if len(arms) < 2:
        return Standing(reason="one arm alone is neither best nor worst")
    if any(len(arm.runs) < 2 for arm in arms):
        return Standing(reason=_ONE_RUN)
    spreads = {arm.arm.name: arm.spread(lambda run: run.later_hit_rate) for arm in arms}
    if len(spreads) < len(arms):
        return Standing(reason="two arms have the same name")
    best = max(spreads, key=lambda name: spreads[name].low)
    runner_up = max((name for name in spreads if name != best), key=lambda name: spreads[name].high)
    distance = spreads[best].low - spreads[runner_up].high
    if distance <= 0:
        return Standing(reason=f"the spreads of {best} and {runner_up} overlap")
    return Standing(best, runner_up, distance)
