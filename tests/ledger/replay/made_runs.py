"""Small arms, and a run that has every part that a run can have."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from pinprobe.ledger.replay.arm import Arm
from pinprobe.ledger.replay.arm_replay import Setting, replay_arm
from pinprobe.ledger.replay.arm_result import ArmResult, MeasuredMemory
from pinprobe.ledger.replay.bands import parse_bands
from pinprobe.ledger.replay.do_no_harm import Turn, do_no_harm_rows
from pinprobe.ledger.replay.replay_run import ReplayRun, Source, modelled, worth_of
from pinprobe.ledger.replay.replicates import play_arms
from pinprobe.ledger.replay.request import Request
from pinprobe.ledger.replay.shape import Shape
from pinprobe.ledger.replay.shaped_scenario import make_shaped_scenario
from pinprobe.ledger.replay.sweep_slots import SlotSweep, Unfit, sweep_slots
from pinprobe.ledger.tenants.overflow_file import file_bytes
from pinprobe.ledger.tenants.pool_shape import PoolShape
from pinprobe.ledger.tenants.prefill_time import PrefillTime
from pinprobe.ledger.tenants.savepoint_layout import SavepointLayout, Slab

#: 1 MiB a row.
LAYOUT = SavepointLayout((Slab("layers.0", (512, 512), "float32"),))
ROW_BYTES = 2**20
SHAPE = Shape(sessions=4, turns=3)


def pool_of(regions: int = 3, policy: str = "lru", **fields: object) -> PoolShape:
    """A pool of a fixed size that is mapped as it is needed, and has no overflow."""
    shape = PoolShape(LAYOUT, regions, 1, policy, False, 2_048, False, False, None, None, None)
    return replace(shape, **fields)  # type: ignore[arg-type]


def arm_of(pool: PoolShape | None = None, slots: int = 4, name: str = "arm") -> Arm:
    return Arm(name, "mlock", slots, LAYOUT, pool)


def drive(name: str = "branching", shape: Shape = SHAPE, seed: int = 0) -> list[Request]:
    return make_shaped_scenario(name, replace(shape, seed=seed))


def whole_run() -> ReplayRun:
    """Every key of the document is in it, which no one run of the command has."""
    setting = Setting("every-chunk", PrefillTime(0.00019), 2.0**30, parse_bands("0:4k"))
    arms = [arm_of(name="ring"), arm_of(pool_of(overflow_bytes=2 * file_bytes(ROW_BYTES)), name="split")]

    def play(requests: list[Request], arm: Arm, seed: int) -> ArmResult:
        result = replay_arm(requests, arm, replace(setting, seed=seed))
        return replace(result, measured=MeasuredMemory(1, 2, 3, Fraction(1, 16)))

    played = play_arms(lambda seed: drive(seed=seed), arms, range(2), play)  # type: ignore[arg-type]
    sweep: SlotSweep = replace(sweep_slots(drive(), ["lru"], [1, 2]), unfit=(Unfit("chain", 1, "it is unfit"),))
    turns = [Turn(arm, 1, 1, number, 9, 9, 3, 5, False, 0.1, 0.2, 30.0) for arm in "ab" for number in (1, 2)]
    return ReplayRun(
        Source.of(drive(), scenario="branching", shape=SHAPE),
        setting,
        ROW_BYTES,
        modelled(setting, is_real=False),
        worth=worth_of(setting, ROW_BYTES),
        played=played,
        sweep=sweep,
        rows=do_no_harm_rows(turns),
    )
