"""The tables of a replay fit a terminal whatever the names, and say of each figure what it is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pinprobe.cli.narrow_names import broken
from pinprobe.cli.replay_table import counters, standing_line
from pinprobe.cli.replay_text import render_replay
from pinprobe.ledger.replay.arm_replay import Setting, replay_arm
from pinprobe.ledger.replay.replay_run import ReplayRun, Source
from pinprobe.ledger.replay.replicates import Standing, play_arms
from pinprobe.ledger.replay.sweep_slots import Unfit, sweep_slots
from pinprobe.probes.host_facts import HostFacts, read_host_facts
from tests.ledger.replay.made_runs import arm_of, drive, pool_of, whole_run

SOURCE = Source(None, "branching", None, 9, 5)


@pytest.fixture(scope="module")
def host() -> HostFacts:
    return read_host_facts()


def played(*names: str) -> ReplayRun:
    setting = Setting()
    arms = [arm_of(pool_of(policy="lru" if at % 2 else "chain"), name=name) for at, name in enumerate(names)]
    runs = play_arms(
        lambda seed: drive(seed=seed), arms, [0], lambda requests, arm, seed: replay_arm(requests, arm, setting)
    )
    return ReplayRun(SOURCE, setting, 2**20, played=runs)


@pytest.mark.parametrize(
    "name", ["a", "an-arm-of-a-name-that-goes-on", "x" * 70, "many words in the name of this one arm"]
)
@pytest.mark.parametrize("count", [1, 3, 9])
def test_arms_of_any_name_fit_a_terminal(host: HostFacts, name: str, count: int) -> None:
    names = [f"{name}{number}" for number in range(count)]
    text = render_replay(played(*names), host, "text", [])
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text  # what the table's library puts where it cuts something off
    assert text.count("What the pools counted") == -(-count // 4)


@pytest.mark.parametrize("policies", [1, 4, 7, 30])
@pytest.mark.parametrize("slots", [1, 6, 7, 40])
def test_any_number_of_policies_and_slots_fits_a_terminal(host: HostFacts, policies: int, slots: int) -> None:
    made = sweep_slots(drive(), ["lru"], range(1, slots + 1))
    names = tuple(f"libcachesim:Policy{number}" for number in range(policies))
    points = tuple(replace(point, policy=name) for name in names for point in made.points)
    sweep = replace(made, policies=names, points=points[:-1], unfit=(Unfit(names[-1], slots, "it is unfit"),))
    run = ReplayRun(SOURCE, Setting(), 2**20, sweep=sweep)
    text = render_replay(run, host, "text", [])
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    assert all(name.partition(":")[2] in text for name in sweep.shown_policies)
    assert "everything" in text
    assert "it is unfit" in text
    assert ("-: not replayed." in text) == (slots > 1)  # a policy without any point has no place at all


def test_the_incidents_of_a_run_are_listed(host: HostFacts) -> None:
    run = played("one")
    assert run.played is not None
    (arm,) = run.played.arms
    marked = replace(arm, runs=(replace(arm.runs[0], incidents=tuple(f"number {at}" for at in range(12))),))
    text = render_replay(replace(run, played=replace(run.played, arms=(marked,))), host, "text", [])
    assert "Incident: one, seed 0: number 9." in text
    assert "and 2 more incidents; --json lists all." in text
    assert "number 10" not in text


@pytest.mark.parametrize("form", ["text", "markdown"])
def test_a_run_with_every_part_is_written_whole(host: HostFacts, form: str) -> None:
    text = render_replay(whole_run(), host, form, [])
    for part in ("Over 2 runs", "What differs", "What the pools counted", "By the length of prompts: split",
                 "Measured by the kernel's count", "What a savepoint is worth", "Savepoints written"):  # fmt: skip
        assert part in text


def test_every_counter_of_a_pool_is_shown() -> None:
    result = replay_arm(drive(), arm_of(pool_of(overflow_bytes=10 * 2**20)), Setting())
    told = counters(result)
    assert {name if name != "requests" else "offered" for name in result.counts} <= set(told)
    assert {"evicted", "working_set", "reuse_horizon_seconds", "spilled", "rejected: unmeasured"} <= set(told)


def test_the_best_is_told_with_its_distance() -> None:
    line = standing_line(Standing("split", "ring", 0.123))
    assert "split is best in every run" in line
    assert "12.3 points more" in line
    assert standing_line(Standing(reason="the spreads of a and b overlap")).endswith("the spreads of a and b overlap.")


def test_names_break_after_colons_and_hyphens_where_they_have_to() -> None:
    assert broken("savepoint-split-demand", 12) == "savepoint-\nsplit-demand"
    assert broken("libcachesim:Sieve", 12) == "libcachesim:\nSieve"
    assert broken("rejected: over", 20) == "rejected: over"
    assert broken("", 5) == ""
