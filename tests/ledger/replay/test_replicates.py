"""Arms side by side over several seeds, and a winner where the spreads allow one to be named."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from pinprobe.ledger.replay.arm import Arm
from pinprobe.ledger.replay.arm_replay import Setting, replay_arm
from pinprobe.ledger.replay.arm_result import ArmResult
from pinprobe.ledger.replay.replicates import ArmRuns, PlayedArms, is_seeded, play_arms, standing
from pinprobe.ledger.replay.request import Request
from tests.ledger.replay.made_runs import arm_of, drive, pool_of


def play(requests: Sequence[Request], arm: Arm, seed: int) -> ArmResult:
    return replay_arm(requests, arm, Setting(seed=seed))


def runs(name: str, *later: int) -> ArmRuns:
    """An arm whose later turns were spared so many of 100 tokens, a run each."""
    result = play(drive(), arm_of(name=name), 0)
    made = [replace(result, later_prompt_tokens=100, later_spared_tokens=spared) for spared in later]
    return ArmRuns(arm_of(name=name), tuple(made))


def test_every_seed_goes_through_every_arm() -> None:
    seen: list[tuple[str, int]] = []
    arms = [arm_of(name="ring"), arm_of(pool_of(), name="split")]
    played = play_arms(
        lambda seed: drive(seed=seed), arms, range(3, 6), play, lambda arm, seed: seen.append((arm.name, seed))
    )
    assert seen == [(name, seed) for seed in (3, 4, 5) for name in ("ring", "split")]
    assert [arm.arm.name for arm in played.arms] == ["ring", "split"]
    assert [[run.seed for run in arm.runs] for arm in played.arms] == [[3, 4, 5]] * 2
    assert played.arms[0].runs[1] == play(drive(seed=4), arms[0], 4)
    assert played.ended is None


@pytest.mark.parametrize(("before", "left"), [(1, [1]), (2, [1, 1]), (3, [2, 1]), (5, [3, 2])])
def test_an_interruption_leaves_what_was_done(before: int, left: list[int]) -> None:
    def interrupted(requests: Sequence[Request], arm: Arm, seed: int) -> ArmResult:
        nonlocal before
        before -= 1
        if before < 0:
            raise KeyboardInterrupt("ended by SIGTERM")
        return play(requests, arm, seed)

    played = play_arms(lambda seed: drive(seed=seed), [arm_of(name="a"), arm_of(name="b")], range(9), interrupted)
    assert [len(arm.runs) for arm in played.arms] == left
    assert played.ended == "ended by SIGTERM"


def test_an_interruption_before_anything_was_done_is_passed_on() -> None:
    def interrupted(requests: Sequence[Request], arm: Arm, seed: int) -> ArmResult:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        play_arms(lambda seed: drive(), [arm_of()], [0], interrupted)


def test_a_drive_in_which_nothing_is_left_to_chance_is_known_as_such() -> None:
    assert not is_seeded(lambda seed: drive("linear", seed=seed), 0)
    assert is_seeded(lambda seed: drive("one-shot-flood", seed=seed), 0)


def test_the_spread_is_from_the_lowest_to_the_highest_about_the_median() -> None:
    spread = runs("a", 30, 10, 70).spread(lambda run: run.later_spared_tokens)
    assert (spread.median, spread.low, spread.high) == (30, 10, 70)


@pytest.mark.parametrize(("later", "middle"), [((5,), 5), ((9, 1), 1), ((30, 10, 70), 30), ((4, 3, 2, 1), 2)])
def test_the_run_in_the_middle_is_a_run_that_there_was(later: tuple[int, ...], middle: int) -> None:
    assert runs("a", *later).middle.later_spared_tokens == middle


def test_the_best_is_named_with_its_distance_where_it_is_best_in_every_run() -> None:
    found = standing([runs("low", 10, 20), runs("best", 70, 50), runs("middle", 15, 45)])
    assert (found.best, found.runner_up, found.reason) == ("best", "middle", "")
    assert found.distance == pytest.approx(0.05)


@pytest.mark.parametrize(
    ("arms", "reason"),
    [
        ([("a", 10, 50), ("b", 40, 60)], "the spreads of b and a overlap"),
        ([("a", 10, 50), ("b", 50, 60)], "the spreads of b and a overlap"),
        ([("a", 50, 50), ("b", 50, 50)], "the spreads of a and b overlap"),
        ([("a", 10), ("b", 60)], "one run of each arm shows no spread"),
        ([("a", 10, 11), ("b", 60)], "one run of each arm shows no spread"),
        ([("a", 10, 11)], "one arm alone"),
        ([("a", 10, 11), ("a", 20, 21)], "two arms have the same name"),
    ],
)
def test_no_winner_is_named_inside_the_spread(arms: list[tuple[str, int]], reason: str) -> None:
    found = standing([runs(*arm) for arm in arms])
    assert (found.best, found.distance) == (None, None)
    assert found.reason.startswith(reason)


def test_savepoints_that_came_back_otherwise_are_known_from_other_incidents() -> None:
    def played(*incidents: str, mismatched: int = 0) -> PlayedArms:
        result = replace(play(drive(), arm_of(), 7), incidents=incidents, mismatched=mismatched)
        return PlayedArms((ArmRuns(arm_of(), (result,)),))

    assert not played().has_wrong_bytes
    assert not played("the ring lies in pageable memory: nothing was pinned").has_wrong_bytes
    wrong = played(
        "request 3: the savepoint of 9 tokens came back from the pool with other bytes, from byte 0 on", mismatched=1
    )
    assert wrong.has_wrong_bytes
    assert wrong.incidents[0].startswith("arm, seed 7: request 3")
