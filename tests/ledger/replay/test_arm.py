"""An arm is what a config says of its ring and its pool, and what two arms differ in is told by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from pinprobe.ledger.config.registry import load_config
from pinprobe.ledger.config.shipped import find_config
from pinprobe.ledger.replay.arm import Arm, arm_of, differences
from pinprobe.probes.errors import BadRequest
from tests.ledger.replay import made_runs
from tests.ledger.replay.made_runs import pool_of

ROW_BYTES = 154_927_104

RING = """
  {name}:
    kind: savepoint_ring
    slots: 2
    max_num_seqs: 1
    layout: {{layers: 1, attributes: {{state: {{shape: [8], dtype: float32}}}}}}
"""
POOL = """
  {name}:
    kind: retention_pool
    regions: 3
    chunk_tokens: 16
    layout: {{layers: 1, attributes: {{state: {{shape: [8], dtype: float32}}}}}}
"""


def shipped(name: str) -> Arm:
    return arm_of(load_config(find_config(name), {}))


def written(folder: Path, tenants: str) -> Arm:
    path = folder / "mine.yaml"
    path.write_text(f"engine: {{name: mine, ranks: 1, allocator: mlock}}\ntenants:{tenants}", encoding="utf-8")
    return arm_of(load_config(path, {}))


def test_the_configs_that_come_along_are_the_four_arms() -> None:
    small, large, split, demand = (
        shipped(f"savepoint-{name}") for name in ("ring-32", "ring-64", "split", "split-demand")
    )
    assert [arm.ring_slots for arm in (small, large, split, demand)] == [32, 64, 16, 16]
    assert {arm.ring_bytes // arm.ring_slots for arm in (small, large, split, demand)} == {ROW_BYTES}
    assert (small.pool, large.pool) == (None, None)
    assert split.pool is not None
    assert demand.pool is not None
    assert (split.pool.bound_regions, demand.pool.bound_regions) == (64, 31)
    assert (split.pool.is_sized_by_demand, demand.pool.is_sized_by_demand) == (False, True)


def test_a_ring_alone_takes_every_savepoint_and_a_pool_those_of_a_chunk() -> None:
    assert made_runs.arm_of().chunk_tokens == 1
    assert made_runs.arm_of(pool_of()).chunk_tokens == 2_048


def test_what_differs_is_told_and_what_does_not_is_not() -> None:
    ring, split = made_runs.arm_of(), made_runs.arm_of(pool_of(policy="chain", overflow_bytes=5_000))
    found = differences([ring, split])
    assert found == {
        "pool": ("none", "3 regions"),
        "sized by demand": ("none", "no"),
        "policy": ("none", "chain"),
        "chunk": ("none", "2,048 tokens"),
        "overflow": ("none", "4.883 KiB"),
    }
    assert differences([ring, ring]) == {} == differences([ring]) == differences([])


def test_one_thing_of_the_pool_can_be_changed() -> None:
    arm = made_runs.arm_of(pool_of()).with_pool(policy="gdsf")
    assert differences([made_runs.arm_of(pool_of()), arm]) == {"policy": ("lru", "gdsf")}


def test_a_config_of_a_ring_and_a_pool_is_an_arm(tmp_path: Path) -> None:
    arm = written(tmp_path, RING.format(name="a") + POOL.format(name="b"))
    row_bytes = 256  # 8 numbers of 4 B, and the room up to where the next slot begins
    assert (arm.name, arm.allocator, arm.ring_slots, arm.ring_bytes) == ("mine", "mlock", 2, 2 * row_bytes)
    assert arm.pool is not None
    assert (arm.pool.bound_regions, arm.chunk_tokens) == (3, 16)


@pytest.mark.parametrize(
    ("tenants", "counts"),
    [
        (POOL.format(name="a"), "0 and 1"),
        (RING.format(name="a") + RING.format(name="b"), "2 and 0"),
        (RING.format(name="a") + POOL.format(name="b") + POOL.format(name="c"), "1 and 2"),
    ],
    ids=["no ring", "two rings", "two pools"],
)
def test_any_other_number_of_rings_and_pools_is_refused(tmp_path: Path, tenants: str, counts: str) -> None:
    with pytest.raises(BadRequest, match=f"mine.yaml: an arm has one savepoint_ring .* there are {counts}$"):
        written(tmp_path, tenants)


def test_a_config_without_savepoints_is_no_arm() -> None:
    with pytest.raises(BadRequest, match="there are 0 and 0"):
        shipped("expert-tiered-2x200k")
