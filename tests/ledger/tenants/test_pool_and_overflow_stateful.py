"""Pool, policy, demand and overflow driven at random, with files that are damaged and deleted under them.

Every savepoint has a number, which fills each of its slabs, and the tests remember which tokens it was of: bytes that
come back, from memory or from disk, are right or not there. Regions are counted in the kernel's list of mappings
and files by the file system.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from pinprobe.ledger.ledger import HostPinnedLedger
from pinprobe.ledger.tenants.disk_overflow import DiskOverflow
from pinprobe.ledger.tenants.pool_entry import Hold
from pinprobe.ledger.tenants.prefill_time import PrefillTime
from pinprobe.ledger.tenants.recall import Recall
from pinprobe.ledger.tenants.retention_pool import RetentionPool
from tests.ledger.tenants.kept_savepoints import CHUNK, REGION, booked_bytes, mapped_regions, prompt
from tests.ledger.tenants.savepoint_rows import MIXED, number_in, row_at, row_of

REGIONS, FILES, CONVERSATIONS = 4, 3, 6
_PATIENCE_SECONDS = 10.0

# Shrinking would take minutes: what a drive takes differs from run to run.
QUICK = settings(
    max_examples=15,
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate],
)
LONG = settings(QUICK, derandomize=False, max_examples=400, stateful_step_count=150)


def machine_over(ledger: HostPinnedLedger, parent: Path) -> type[RuleBasedStateMachine]:
    """The state machine, closed over what its examples share."""

    class PoolMachine(RuleBasedStateMachine):
        @initialize(policy=st.sampled_from(["gittins", "lru", "chain", "gdsf"]), is_sized=st.booleans())
        def begin(self, policy: str, is_sized: bool) -> None:
            self.now = 0.0
            self.folder = Path(tempfile.mkdtemp(dir=parent))
            file_bytes = REGION  # a page for the header, as a region has one for what it says of itself
            self.store = DiskOverflow(self.folder / "overflow", MIXED, FILES * file_bytes)
            self.pool = RetentionPool(
                ledger, MIXED, bound_regions=REGIONS, policy=policy, is_sized_by_demand=is_sized, chunk_tokens=CHUNK,
                shared=True, overflow=self.store, prefill_time=PrefillTime(1.0), clock=lambda: self.now,
            )  # fmt: skip
            self.pool.measure_overflow()
            self.tokens: dict[int, list[int]] = {}
            self.turns = [7] * CONVERSATIONS
            self.held: list[tuple[Hold, list[int]]] = []
            self.recalls: list[tuple[Recall, list[int]]] = []
            self.came_back = self.forgotten = 0

        # -- what an engine does

        @rule(
            conversations=st.lists(st.integers(0, CONVERSATIONS - 1), min_size=1, max_size=12),
            wait=st.sampled_from([0.0, 1.0, 10.0]), is_idle=st.sampled_from([True, True, False]),
        )  # fmt: skip
        def serve(self, conversations: list[int], wait: float, is_idle: bool) -> None:
            for conversation in conversations:
                self.now += wait
                self._turn(conversation, is_held=False, is_lost=False)
                if is_idle:
                    self.pool.settle()

        @rule(conversation=st.integers(0, CONVERSATIONS - 1), is_held=st.booleans(), is_lost=st.booleans())
        def serve_one(self, conversation: int, is_held: bool, is_lost: bool) -> None:
            self._turn(conversation, is_held, is_lost)

        def _turn(self, conversation: int, is_held: bool, is_lost: bool) -> None:
            """A turn of a conversation: it reads what there is, and offers its own savepoint."""
            asked = prompt(conversation, self.turns[conversation])
            self._read(asked, conversation, is_held)
            if self.pool.offer(len(asked)):
                place = self.pool.take_place(asked, f"c{conversation}")
                if place is not None:
                    number = len(self.tokens) + 1
                    self.tokens[number] = asked
                    place.region.begin()
                    for offset, slab in zip(MIXED.offsets, row_of(MIXED, number), strict=True):
                        ctypes.memmove(place.region.address + offset, slab, len(slab))
                    if is_lost:
                        self.pool.give_back(place, lost_the_race=True)
                    else:
                        self.pool.publish(place)
            self.turns[conversation] += 2

        @rule(conversation=st.integers(0, CONVERSATIONS - 1))
        def ask_for_an_old_turn(self, conversation: int) -> None:
            self._read(prompt(conversation, max(7, self.turns[conversation] - 4)), conversation, is_held=False)

        @rule(conversation=st.integers(0, CONVERSATIONS - 1))
        def end(self, conversation: int) -> None:
            self.pool.end(f"c{conversation}")
            self.turns[conversation] = 7

        @rule(conversation=st.integers(0, CONVERSATIONS - 1))
        def forget(self, conversation: int) -> None:
            self.forgotten += self.pool.forget(prompt(conversation, self.turns[conversation] - 2))

        @rule()
        def let_go(self) -> None:
            for hold, asked in self.held:
                self._check(hold, asked)
                hold.release()
            self.held.clear()

        @rule(times=st.integers(1, 4), wait=st.sampled_from([0.0, 5.0, 100.0]))
        def be_idle(self, times: int, wait: float) -> None:
            for _ in range(times):
                self.now += wait
                self.pool.settle()

        @rule(to_regions=st.integers(0, REGIONS))
        def trim(self, to_regions: int) -> None:
            self.pool.trim(to_regions)

        @rule(is_cancelled=st.booleans())
        def collect(self, is_cancelled: bool) -> None:
            for recall, asked in self.recalls:
                if is_cancelled:
                    recall.cancel()
                self._collect(recall, asked)
            self.recalls.clear()

        # -- what a disk does

        @rule(where=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
        def flip_a_bit(self, where: float, bit: int) -> None:
            for path in self._files()[:1]:
                with path.open("r+b") as file:
                    file.seek(int(where * path.stat().st_size))
                    (byte,) = file.read(1)
                    file.seek(-1, os.SEEK_CUR)
                    file.write(bytes([byte ^ 1 << bit]))

        @rule(to=st.sampled_from(["nothing", "half", "gone"]))
        def damage_a_file(self, to: str) -> None:
            for path in self._files()[-1:]:
                if to == "gone":
                    path.unlink()
                else:
                    os.truncate(path, 0 if to == "nothing" else path.stat().st_size // 2)

        # -- what has to hold

        @invariant()
        def the_bounds_hold(self) -> None:
            if not hasattr(self, "pool"):
                return
            assert mapped_regions() <= REGIONS
            assert booked_bytes(ledger) <= REGIONS * REGION
            assert sum(path.stat().st_blocks * 512 for path in self._files()) <= self.store.bound_bytes

        @invariant()
        def nothing_is_lost_without_being_counted(self) -> None:
            if not hasattr(self, "pool"):
                return
            stats = self.pool.stats()
            assert stats.overflow is not None
            assert stats.resident == stats.promoted + self.came_back - stats.evicted - self.forgotten
            spill, files = stats.overflow.spill, stats.overflow.files
            assert spill.spilled + spill.rejected_count == stats.evicted
            assert files.files == files.written - files.dropped - files.evicted - sum(files.lost.values())
            assert stats.overflow.flushed + 1 == files.written  # and the one by which the drive was measured
            assert stats.ended == stats.requests

        def teardown(self) -> None:
            if not hasattr(self, "pool"):
                return
            self.let_go()
            self.collect(is_cancelled=False)
            self.pool.close()
            assert mapped_regions() == booked_bytes(ledger) == 0
            assert not self._files()
            shutil.rmtree(self.folder)

        # -- parts

        def _files(self) -> list[Path]:
            return sorted(path for path in self.folder.rglob("*") if path.is_file() and path.stat().st_size > 4096)

        def _check(self, hold: Hold, asked: list[int]) -> None:
            row = row_at(MIXED, hold.address)
            number, covered = number_in(row), asked[: hold.tokens]
            assert number in self.tokens, f"{number:#x} is no savepoint"
            assert row == row_of(MIXED, number), f"savepoint {number} is not whole"
            assert self.tokens[number] == covered, f"savepoint {number} is of {self.tokens[number]}, not of {covered}"

        def _read(self, asked: list[int], conversation: int, is_held: bool) -> None:
            hold = self.pool.match(asked)
            if hold is not None:
                self._check(hold, asked)
                if is_held and len(self.held) < REGIONS - 1:
                    self.held.append((hold, asked))
                else:
                    hold.release()
            recall = self.pool.recall(asked, f"c{conversation}")
            if recall is not None:
                assert hold is None or recall.tokens > hold.tokens
                if is_held:
                    self.recalls.append((recall, asked))
                else:
                    self._collect(recall, asked)

        def _collect(self, recall: Recall, asked: list[int]) -> None:
            deadline = time.monotonic() + _PATIENCE_SECONDS
            while recall.is_pending:
                assert time.monotonic() < deadline
                time.sleep(0.0005)
            before = self.pool.stats()
            hold = recall.collect()
            assert recall.collect() is None
            after = self.pool.stats()
            self.came_back += after.resident - before.resident + after.evicted - before.evicted
            if hold is not None:
                self._check(hold, asked)
                hold.release()

    return PoolMachine


@pytest.fixture
def shared_ledger(tmp_path: Path) -> HostPinnedLedger:
    ledger = HostPinnedLedger(wait_seconds=0)
    ledger.calibrate()
    return ledger


def test_bytes_are_right_bounds_hold_and_nothing_is_lost_uncounted(
    shared_ledger: HostPinnedLedger, tmp_path: Path
) -> None:
    run_state_machine_as_test(machine_over(shared_ledger, tmp_path), settings=QUICK)


@pytest.mark.slow
def test_bytes_are_right_bounds_hold_and_nothing_is_lost_uncounted_for_longer(
    shared_ledger: HostPinnedLedger, tmp_path: Path
) -> None:
    run_state_machine_as_test(machine_over(shared_ledger, tmp_path), settings=LONG)
