"""A replay with real memory: it reads and keeps what the replay of metadata does, and every byte comes back."""

from __future__ import annotations

import ctypes
import dataclasses
import os
import re
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import psutil
import pytest

from pinprobe.ledger.price import Price
from pinprobe.ledger.replay.arm import Arm
from pinprobe.ledger.replay.arm_replay import Setting, replay_arm
from pinprobe.ledger.replay.arm_result import ArmResult
from pinprobe.ledger.replay.real_replay import replay_for_real
from pinprobe.ledger.replay.real_replay_server import RealReplayServer
from pinprobe.ledger.replay.request import Request
from pinprobe.ledger.replay.shape import Shape
from pinprobe.ledger.replay.shaped_scenario import make_shaped_scenario
from pinprobe.ledger.tenants.overflow_file import file_bytes
from pinprobe.ledger.tenants.pool_shape import PoolShape
from pinprobe.ledger.tenants.prefill_time import PrefillTime
from pinprobe.ledger.tenants.region import region_bytes
from pinprobe.ledger.tenants.savepoint_layout import SavepointLayout, Slab
from pinprobe.probes.errors import AllocatorUnavailable, BadRequest, ChildDied, Refused

pytest.importorskip("torch")

PAGE = os.sysconf("SC_PAGESIZE")
#: 3 MiB a row.
LAYOUT = SavepointLayout(tuple(Slab(f"layers.{layer}", (8, 128, 128), "float32") for layer in range(6)))
SMALL = Fraction(1, 384)
SMALL_ROW = 8_192
DRIVE = Shape(sessions=8, turns=4, prompt_tokens=(3_000, 9_000))
PREFILL = PrefillTime(0.00019)
#: What both replays count in the same way.
FIGURES: tuple[str, ...] = (
    "requests", "hits", "prompt_tokens", "spared_tokens", "later_prompt_tokens", "later_spared_tokens", "staged",
    "pageable_bytes", "mean_entries", "peak_entries", "evicted", "spared_seconds", "demand", "disk_bytes",
)  # fmt: skip


def pool_of(regions: int = 5, policy: str = "gittins", **fields: object) -> PoolShape:
    shape = PoolShape(LAYOUT, regions, 2, policy, False, 2_048, False, False, None, None, None)
    return dataclasses.replace(shape, **fields)  # type: ignore[arg-type]


def arm_of(pool: PoolShape | None = None, slots: int = 3, allocator: str = "mlock") -> Arm:
    return Arm("split", allocator, slots, LAYOUT, pool)


def drive(name: str = "linear", shape: Shape = DRIVE) -> list[Request]:
    return make_shaped_scenario(name, shape)


def in_this_process(requests: list[Request], arm: Arm, setting: Setting, scale: Fraction = SMALL) -> ArmResult:
    """What the fresh process does, without one: a tenth of the time."""
    server = RealReplayServer()
    server.open(arm, setting, scale, None)
    server.replay(requests)
    return server.result()


def assert_as_without_memory(requests: list[Request], arm: Arm, setting: Setting) -> ArmResult:
    real, metadata = in_this_process(requests, arm, setting), replay_arm(requests, arm, setting)
    assert real.incidents == ()
    assert {name: getattr(real, name) for name in FIGURES} == {name: getattr(metadata, name) for name in FIGURES}
    for name in ("requests", "promoted", "declined", "already_here", "below_floor"):
        assert real.counts.get(name, 0) == metadata.counts.get(name, 0), name
    assert real.bands == metadata.bands
    return real


# What is kept


@pytest.mark.parametrize("is_sized_by_demand", [False, True], ids=["fixed", "by demand"])
@pytest.mark.parametrize("name", ["linear", "branching"])
@pytest.mark.parametrize("policy", ["gittins", "chain", "gdsf", "lru"])
def test_it_reads_and_keeps_what_the_replay_of_metadata_does(policy: str, name: str, is_sized_by_demand: bool) -> None:
    arm = arm_of(pool_of(regions=9, policy=policy, is_sized_by_demand=is_sized_by_demand))
    result = assert_as_without_memory(drive(name), arm, Setting(prefill_time=PREFILL))
    assert result.hits["pool"] > 0
    assert result.evicted > 0


@pytest.mark.parametrize("placement", ["ladder", "every-chunk"])
@pytest.mark.parametrize("name", ["agentic", "long-context"])
def test_it_does_so_where_a_prompt_places_several(name: str, placement: str) -> None:
    result = assert_as_without_memory(drive(name), arm_of(pool_of()), Setting(placement=placement))
    assert result.staged > result.requests


def test_what_is_below_the_chunk_is_not_kept() -> None:
    result = assert_as_without_memory(drive(), arm_of(pool_of(chunk_tokens=5_000)), Setting())
    assert result.counts["below_floor"] > 0
    assert result.counts["promoted"] > 0


def test_a_fixed_horizon_is_the_demands_here_too() -> None:
    arm = arm_of(pool_of(is_sized_by_demand=True, fixed_horizon_seconds=8.0))
    result = assert_as_without_memory(drive(), arm, Setting())
    assert result.demand is not None
    assert result.demand.reuse_horizon_seconds == 8.0


@pytest.mark.parametrize(
    ("name", "slots", "is_read"), [("linear", 3, False), ("linear", 5, True), ("branching", 5, True)]
)
def test_a_ring_alone_is_read_until_its_slots_are_handed_out_again(name: str, slots: int, is_read: bool) -> None:
    shape = dataclasses.replace(DRIVE, sessions=4)
    result = assert_as_without_memory(drive(name, shape), arm_of(None, slots), Setting())
    assert set(result.hits) == ({"ring"} if is_read else set())
    assert result.evicted == result.staged - slots
    assert result.pageable_bytes == 0


def test_a_pool_mapped_at_boot_holds_its_bound() -> None:
    arm = arm_of(pool_of(regions=7, is_mapped_at_boot=True))
    result = in_this_process(drive(shape=dataclasses.replace(DRIVE, sessions=2, turns=3)), arm, Setting())
    assert result.peak_entries < 7
    assert result.pageable_bytes == 7 * region_bytes(LAYOUT.row_bytes) == round(result.mean_pageable_bytes)
    assert result.measured is not None
    assert result.measured.pageable_bytes == 7 * region_bytes(SMALL_ROW)


def test_two_savepoints_of_the_very_same_tokens_are_one() -> None:
    requests = [Request(0.0, 1, None, 4_096, 4_100, 9, "a"), Request(1.0, 2, 1, 4_096, 4_200, 9, "b")]
    result = in_this_process(requests, arm_of(pool_of()), Setting())
    assert result.incidents == ()
    assert result.hits == {"pool": 1}
    assert result.spared_tokens == 4_096


# What comes back


def test_bytes_that_changed_in_the_pool_are_named_with_the_request_that_read_them() -> None:
    server = RealReplayServer()
    server.open(arm_of(pool_of(regions=8)), Setting(), SMALL, None)
    requests = drive(shape=dataclasses.replace(DRIVE, sessions=1))
    server.replay(requests[:1])
    (entry,) = server._real.pool._books.entries  # type: ignore[union-attr]  # where else would its memory be found
    ctypes.memset(entry.place.region.address + 5_000, 7, 1)
    server.replay(requests[1:])
    result = server.result()
    (incident,) = result.incidents
    assert incident.startswith("request 2 at ")
    assert "savepoint of 3,000 tokens came back from the pool with other bytes, from byte 5,000 on" in incident


def test_a_slot_that_holds_another_savepoint_is_named() -> None:
    server = RealReplayServer()
    server.open(arm_of(None, slots=4), Setting(), SMALL, None)
    requests = drive(shape=dataclasses.replace(DRIVE, sessions=2, turns=2))
    server.replay(requests[:2])
    ring = server._real._ring
    first, second = ring._addresses[0], ring._addresses[1]
    ctypes.memmove(first, second, SMALL_ROW)
    server.replay(requests[2:])
    (incident,) = server.result().incidents
    assert "came back from the ring with other bytes, from byte 0 on" in incident


def test_a_ring_in_pageable_memory_is_named_since_nothing_is_pinned() -> None:
    result = in_this_process(drive()[:3], arm_of(allocator="pageable"), Setting())
    assert result.incidents == ("the ring lies in pageable memory: nothing was pinned",)


# What it takes


def locked_bytes(pid: int) -> int:
    found = re.search(r"^VmLck:\s+(\d+) kB$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024


def test_what_is_measured_is_what_the_kernel_says_of_the_process() -> None:
    arm = arm_of(pool_of(regions=2), slots=2)
    locked, done = set(), []

    def watch(count: int) -> None:
        (child,) = psutil.Process().children()
        locked.add(locked_bytes(child.pid))
        done.append((count, child))

    requests = drive(shape=dataclasses.replace(DRIVE, sessions=2))
    result = replay_for_real(requests, arm, Setting(), Fraction(1), watch)
    (pinned_bytes,) = locked
    assert result.incidents == ()
    assert result.measured is not None
    assert result.measured.scale == 1
    assert result.pinned == Price(pinned_bytes, "measured")
    assert result.measured.pinned_bytes == pinned_bytes == 2 * LAYOUT.row_bytes
    assert result.measured.pageable_bytes == 2 * region_bytes(LAYOUT.row_bytes) == result.pageable_bytes
    # The kernel's mark may be some pages behind; and an interpreter takes some.
    taken = pinned_bytes + result.pageable_bytes
    assert -(2**20) < result.measured.rss_bytes - taken < 16 * 2**20
    counts = [count for count, _ in done]
    assert counts == sorted(counts)
    assert counts[-1] == len(requests) == result.requests
    assert not done[0][1].is_running()


def test_a_scaled_replay_keeps_what_was_taken_apart_from_what_the_arm_is() -> None:
    arm = arm_of(pool_of())
    result = in_this_process(drive(), arm, Setting())
    assert result.arm == arm
    assert result.pinned == Price(arm.ring_bytes, "the ask")
    assert result.pageable_bytes == 5 * region_bytes(LAYOUT.row_bytes)
    assert result.measured is not None
    assert result.measured.scale == SMALL
    assert result.measured.pinned_bytes == 3 * SMALL_ROW
    assert result.measured.pageable_bytes == 5 * region_bytes(SMALL_ROW)


def test_memory_is_given_back_after_the_result() -> None:
    held = locked_bytes(os.getpid())
    server = RealReplayServer()
    server.open(arm_of(pool_of()), Setting(), Fraction(1), None)
    assert locked_bytes(os.getpid()) == held + 3 * LAYOUT.row_bytes
    server.result()
    assert locked_bytes(os.getpid()) == held


@pytest.mark.parametrize("pool", [None, pool_of(regions=10**8)], ids=["a ring", "a pool"])
def test_an_arm_that_does_not_fit_is_refused_before_a_byte_of_it_is_taken(pool: PoolShape | None) -> None:
    arm = arm_of(pool, slots=4 if pool else 10**8, allocator="pageable")
    before = psutil.Process().memory_info().rss, locked_bytes(os.getpid())
    with pytest.raises(Refused) as refused:
        in_this_process(drive(), arm, Setting(), Fraction(1))
    assert psutil.Process().memory_info().rss - before[0] < 16 * 2**20
    assert locked_bytes(os.getpid()) == before[1]
    assert str(refused.value).startswith("split asks for ")
    assert "100,000,000" in str(refused.value)
    assert "give fewer of them, or a smaller scale" in str(refused.value)


# The overflow


@pytest.fixture
def overflowing(tmp_path: Path) -> Iterator[Arm]:
    folder = tmp_path / "overflow"
    yield arm_of(
        pool_of(
            regions=4, overflow_folder=folder, overflow_bytes=30 * file_bytes(LAYOUT.row_bytes), prefill_time=PREFILL
        )
    )
    assert not folder.exists(), "a replay leaves no file and no folder"


def test_what_the_pool_can_not_hold_comes_back_from_disk(overflowing: Arm) -> None:
    assert overflowing.pool is not None
    assert overflowing.pool.overflow_folder is not None
    seen: set[str] = set()

    def watch(done: int) -> None:
        assert overflowing.pool is not None
        assert overflowing.pool.overflow_folder is not None
        seen.update(path.suffix for path in overflowing.pool.overflow_folder.rglob("*"))

    result = replay_for_real(drive(shape=dataclasses.replace(DRIVE, turns=6)), overflowing, Setting(), SMALL, watch)
    assert result.incidents == ()
    assert ".row" in seen
    assert result.hits["disk"] == result.counts["recalled"] > 0
    assert 0 < result.disk_bytes <= 30 * file_bytes(LAYOUT.row_bytes)
    assert result.spill is not None
    assert result.spill.spilled > 0


@pytest.mark.parametrize("is_killed", [False, True], ids=["who watches stops", "the process is killed"])
def test_however_it_ends_early_no_process_and_no_file_is_left(overflowing: Arm, is_killed: bool) -> None:
    children: list[psutil.Process] = []

    def watch(done: int) -> None:
        if done > 10:
            children.extend(psutil.Process().children())
            if not is_killed:
                raise KeyboardInterrupt
            children[0].kill()

    with pytest.raises(ChildDied if is_killed else KeyboardInterrupt) as ended:
        replay_for_real(drive(), overflowing, Setting(), SMALL, watch)
    assert not is_killed or str(ended.value).startswith("the replaying process was killed (SIGKILL)")
    assert not children[0].is_running()


def test_an_overflow_where_no_folder_can_be_is_a_bad_request() -> None:
    arm = arm_of(pool_of(overflow_folder=Path("/proc/overflow"), overflow_bytes=2**30))
    with pytest.raises(BadRequest, match=r"the replay's overflow can't lie in /proc/overflow: "):
        replay_for_real(drive(), arm, Setting(), SMALL, lambda done: None)


# What can't be replayed


@pytest.mark.parametrize("scale", [Fraction(0), Fraction(-1, 2), Fraction(3, 2)])
def test_a_scale_that_is_none_is_refused(scale: Fraction) -> None:
    with pytest.raises(BadRequest, match="give a scale above 0 and at most 1"):
        replay_for_real(drive(), arm_of(), Setting(), scale, lambda done: None)


def test_ring_and_pool_have_to_hold_the_same_row() -> None:
    other = SavepointLayout((Slab("one", (512,), "uint8"),))
    with pytest.raises(BadRequest, match="give both one layout"):
        in_this_process(drive(), arm_of(pool_of(layout=other)), Setting())


def test_a_prompt_that_no_memory_holds_is_refused_by_its_length() -> None:
    requests = [Request(0.0, 1, None, 10**12, 10**12, 9, "a")]
    with pytest.raises(BadRequest, match=r"1,000,000,000,000 tokens is longer than a real replay writes out"):
        in_this_process(requests, arm_of(), Setting())


def test_without_torch_one_line_says_what_would_bring_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('no such library here')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(AllocatorUnavailable, match=r"ImportError: no such library here; `pip install torch`") as told:
        replay_for_real(drive(), arm_of(), Setting(), SMALL, lambda done: None)
    assert "\n" not in str(told.value)
