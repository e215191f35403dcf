"""The worker between ring and pool: every outcome, what it waits for and what not, and what is left of it.

Where two threads have to meet in the middle of a copy, the copy itself is stepped: its memmove is ours.
"""

from __future__ import annotations

import ctypes
import logging
import mmap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from pinprobe.ledger.booking import RowState
from pinprobe.ledger.ledger import HostPinnedLedger
from pinprobe.ledger.tenants import copy_out, retention_pool
from pinprobe.ledger.tenants.copy_out import CopyOut
from pinprobe.ledger.tenants.pool_stats import PoolStats
from pinprobe.ledger.tenants.retention_pool import RetentionPool
from pinprobe.ledger.tenants.savepoint_ring import SavepointRing, Ticket
from pinprobe.probes.errors import BadRequest
from pinprobe.probes.own_mapping import OwnMapping
from tests.ledger.tenants.held_fences import HeldFences, a_stream
from tests.ledger.tenants.kept_savepoints import CHUNK, REGION, found, mapped_regions, prompt
from tests.ledger.tenants.open_files import open_files
from tests.ledger.tenants.prepared_allocators import prepared
from tests.ledger.tenants.savepoint_rows import MIXED, row_of, stamped
from tests.probes.allocators.fresh_process import run_to_its_end
from tests.probes.allocators.kernel_word import whole_pages

WORKER = "pinprobe-copy-out"
_PATIENCE_SECONDS = 8.0
_MANY_LAPS = 2


class Bench:
    """A ring of three slots whose copies can be held back, a pool of four regions, and the worker between them."""

    def __init__(self, ledger: HostPinnedLedger, bound_regions: int = 4, *, is_sized_by_demand: bool = False) -> None:
        self.fences = HeldFences()
        self.fences.are_held = False
        self.ring = SavepointRing(ledger, MIXED, 3, prepared("pageable"), fence_for=self.fences)
        self.pool = RetentionPool(
            ledger, MIXED, bound_regions=bound_regions, policy="lru", chunk_tokens=CHUNK, shared=True,
            is_sized_by_demand=is_sized_by_demand,
        )  # fmt: skip
        self.worker = CopyOut(self.ring, self.pool)

    def stage(self, number: int) -> Ticket:
        return self.ring.stage(stamped(MIXED, number), a_stream())

    def stage_held(self, number: int) -> Ticket:
        """Stage one whose fence is not done until it is let go."""
        self.fences.are_held = True
        ticket = self.stage(number)
        self.fences.are_held = False
        return ticket

    def submit(self, number: int, tokens: int = 9) -> Ticket:
        """Stage savepoint `number` of a conversation of its own, and have it kept."""
        ticket = self.stage(number)
        self.worker.submit(ticket, prompt(number, tokens), f"conversation {number}")
        return ticket

    def drain(self) -> None:
        assert self.worker.drain(_PATIENCE_SECONDS), "the worker does not come to its end"

    def kept(self, *numbers: int) -> list[int | None]:
        """What is found for these conversations."""
        return [found(self.pool, prompt(number, 20)) for number in numbers]

    def close(self) -> None:
        self.worker.close()
        self.pool.close()
        self.ring.close()


@pytest.fixture
def bench(ledger: HostPinnedLedger) -> Iterator[Bench]:
    """Nothing is left of it in the end: no memory, no row, no descriptor, no thread."""
    files, regions = open_files(), mapped_regions()
    bench = Bench(ledger)
    yield bench
    bench.close()
    assert [row for row in ledger.rows() if row.state is not RowState.UNATTRIBUTED] == []
    assert bench.pool.stats().held_regions == 0
    assert (open_files(), mapped_regions()) == (files, regions)
    assert not workers()


def workers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == WORKER]


def outcomes(stats: PoolStats) -> dict[str, int]:
    """The outcomes that are not zero."""
    names = (
        "promoted", "lost_the_race", "failed", "no_region", "refused", "declined", "already_here", "below_floor",
    )  # fmt: skip
    return {name: getattr(stats, name) for name in names if getattr(stats, name)}


class SteppedCopy:
    """Stands in for the worker's memmove: at each copy it stops until it is let on, or does something meanwhile."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[], object] | None = None) -> None:
        self.entered, self.go_on = threading.Event(), threading.Event()
        self._meanwhile = meanwhile or self._stop
        monkeypatch.setattr(copy_out, "ctypes", SimpleNamespace(memmove=self._memmove))

    def _memmove(self, target: int, source: int, size_bytes: int) -> None:
        half = size_bytes // 2
        ctypes.memmove(target, source, half)
        self._meanwhile()
        ctypes.memmove(target + half, source + half, size_bytes - half)

    def _stop(self) -> None:
        self.entered.set()
        assert self.go_on.wait(_PATIENCE_SECONDS)


# -- every outcome


def test_what_is_staged_is_kept_and_outlives_its_slot(bench: Bench) -> None:
    first = bench.submit(1)
    bench.drain()
    for number in range(10, 16):
        bench.stage(number)
    assert not bench.ring.is_live(first)
    assert bench.kept(1) == [1]
    stats = bench.pool.stats()
    assert (stats.requests, outcomes(stats), stats.cold) == (1, {"promoted": 1}, 1)


def test_what_covers_less_than_a_chunk_is_not_even_queued(bench: Bench) -> None:
    bench.fences.are_held = True
    bench.submit(1, CHUNK - 1)
    assert bench.worker.drain(0)
    stats = bench.pool.stats()
    assert (stats.requests, outcomes(stats), stats.held_regions) == (1, {"below_floor": 1}, 0)


def test_a_slot_that_is_handed_out_before_its_copy_loses_the_race_and_takes_no_region(bench: Bench) -> None:
    ticket = bench.stage_held(1)
    bench.worker.submit(ticket, prompt(1, 9), "c")
    for number in range(2, 5):
        bench.stage(number)
    bench.drain()
    assert not bench.fences.made[0].is_let_go
    stats = bench.pool.stats()
    assert (outcomes(stats), stats.held_regions, bench.kept(1)) == ({"lost_the_race": 1}, 0, [None])


def test_a_slot_that_is_handed_out_during_the_copy_loses_the_race_and_its_bytes_are_thrown_away(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = SteppedCopy(monkeypatch)
    bench.submit(1)
    assert step.entered.wait(_PATIENCE_SECONDS)
    for number in range(2, 5):
        bench.stage(number)
    step.go_on.set()
    bench.drain()
    assert outcomes(bench.pool.stats()) == {"lost_the_race": 1}
    assert bench.kept(1) == [None]
    # The region is free for the next one, and nothing was published from it so far.
    bench.submit(5)
    bench.drain()
    stats = bench.pool.stats()
    assert (bench.kept(5), stats.cold, stats.held_regions) == ([5], 1, 1)


def test_the_last_copy_but_one_of_a_ring_that_is_overrun_is_kept(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    step = SteppedCopy(monkeypatch)
    bench.submit(1)
    assert step.entered.wait(_PATIENCE_SECONDS)
    for number in (2, 3):  # all slots but its own
        bench.stage(number)
    step.go_on.set()
    bench.drain()
    assert outcomes(bench.pool.stats()) == {"promoted": 1}
    assert bench.kept(1) == [1]


def test_where_every_region_is_being_read_there_is_none(ledger: HostPinnedLedger) -> None:
    bench = Bench(ledger, bound_regions=1)
    bench.submit(1)
    bench.drain()
    with bench.pool.match(prompt(1, 9)) or pytest.fail("nothing is found"):
        bench.submit(2)
        bench.drain()
    assert outcomes(bench.pool.stats()) == {"promoted": 1, "no_region": 1}
    assert bench.kept(1, 2) == [1, None]
    bench.submit(3)
    bench.drain()
    assert bench.kept(1, 3) == [None, 3]
    bench.close()


def test_where_the_ledger_refuses_a_region_that_is_counted_and_the_next_is_tried_anew() -> None:
    ring_bytes = whole_pages(3 * MIXED.row_bytes)
    with HostPinnedLedger(limit_bytes=ring_bytes + REGION, wait_seconds=0) as ledger:
        bench = Bench(ledger)
        with ledger.reserve("other", REGION, lambda: mmap.mmap(-1, REGION)):
            bench.submit(1)
            bench.drain()
            assert outcomes(bench.pool.stats()) == {"refused": 1}
        for number in (2, 3):
            bench.submit(number)
            bench.drain()
        assert bench.kept(1, 2, 3) == [None, None, 3]
        assert outcomes(bench.pool.stats()) == {"promoted": 2, "refused": 1}
        bench.close()


def test_one_savepoint_may_be_kept_for_two_prompts_or_twice(bench: Bench) -> None:
    ticket = bench.stage(7)
    for conversation in (1, 2, 2):
        bench.worker.submit(ticket, prompt(conversation, 9), "c")
    bench.drain()
    assert [found(bench.pool, prompt(conversation, 9)) for conversation in (1, 2)] == [7, 7]
    assert outcomes(bench.pool.stats()) == {"promoted": 2, "already_here": 1}


# -- fences


def test_a_savepoint_is_not_copied_before_its_fence_is_done(bench: Bench) -> None:
    # A device that is late: the slot holds other bytes until the fence is done.
    ticket = bench.stage_held(99)
    bench.worker.submit(ticket, prompt(1, 9), "c")
    assert not bench.worker.drain(0.05)
    assert bench.pool.stats().held_regions == 0
    address = bench.ring.address(ticket)
    for offset, slab in zip(MIXED.offsets, row_of(MIXED, 1), strict=True):
        ctypes.memmove(address + offset, slab, len(slab))
    bench.fences.let_go()
    bench.drain()
    assert bench.kept(1) == [1]


def test_nothing_waits_for_a_fence_but_streams_that_stage(bench: Bench) -> None:
    # The double's waiting methods raise, and the worker holds no stream back.
    for number in range(1, 4):
        ticket = bench.stage_held(number)
        bench.worker.submit(ticket, prompt(number, 9), "c")
    assert not bench.worker.drain(0.05)
    assert all(fence.asked for fence in bench.fences.made)
    bench.fences.let_go()
    bench.drain()
    for number in range(4, 7):
        bench.submit(number)
    bench.drain()
    assert {name for fence in bench.fences.made for name, _ in fence.held_back} == {"MainThread"}
    assert outcomes(bench.pool.stats()) == {"promoted": 6}


def test_while_a_fence_is_not_done_the_worker_sleeps_between_two_looks(bench: Bench) -> None:
    (worker,) = workers()
    bench.worker.submit(bench.stage_held(1), prompt(1, 9), "c")
    started, cpu_before = time.monotonic(), cpu_seconds(worker)
    time.sleep(1)
    cpu, wall = cpu_seconds(worker) - cpu_before, time.monotonic() - started
    assert cpu < 0.05 * wall
    assert 1 < bench.fences.made[0].asked < 1000
    bench.fences.let_go()
    bench.drain()
    assert bench.kept(1) == [1]


def test_an_idle_worker_does_not_run(bench: Bench) -> None:
    bench.submit(1)
    bench.drain()
    (worker,) = workers()
    time.sleep(0.05)
    cpu_before = cpu_seconds(worker)
    time.sleep(0.3)
    assert cpu_seconds(worker) - cpu_before < 0.001


def cpu_seconds(thread: threading.Thread) -> float:
    """How long the kernel has run a thread."""
    text = Path(f"/proc/self/task/{thread.native_id}/schedstat").read_text(encoding="utf-8")
    return int(text.split()[0]) / 1e9


def test_a_savepoint_that_is_late_does_not_keep_the_next_ones_waiting(bench: Bench) -> None:
    bench.worker.submit(bench.stage_held(1), prompt(1, 9), "c")
    bench.submit(2)
    bench.submit(3)
    assert not bench.worker.drain(0.2)
    assert bench.kept(1, 2, 3) == [None, 2, 3]
    bench.fences.let_go()
    bench.drain()
    assert bench.kept(1, 2, 3) == [1, 2, 3]


# -- submitting


def test_submitting_does_not_wait_for_the_copy_that_is_going_on(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    step = SteppedCopy(monkeypatch)
    bench.submit(1)
    assert step.entered.wait(_PATIENCE_SECONDS)
    bench.submit(2)
    bench.submit(3)
    assert not bench.worker.drain(0)
    assert not step.go_on.is_set()
    step.go_on.set()
    bench.drain()
    assert bench.kept(1, 2, 3) == [1, 2, 3]


def test_what_a_caller_does_to_its_tokens_later_changes_nothing(bench: Bench) -> None:
    # An engine goes on to append what it generates: the savepoint covers what was submitted, and no more.
    tokens = prompt(1, 9)
    bench.worker.submit(bench.stage_held(1), tokens, "c")
    tokens += prompt(1, 12)[9:]
    bench.fences.let_go()
    bench.drain()
    with bench.pool.match(prompt(1, 12)) or pytest.fail("nothing is found") as hold:
        assert hold.tokens == 9
    assert found(bench.pool, prompt(1, 9)) == 1


def test_threads_may_submit_at_once(bench: Bench) -> None:
    def submit(first: int) -> None:
        for number in range(first, first + 30):
            bench.submit(number)

    threads = [threading.Thread(target=submit, args=(1000 * index,), daemon=True) for index in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(_PATIENCE_SECONDS)
    bench.drain()
    stats = bench.pool.stats()
    assert stats.requests == 120 == stats.promoted + stats.lost_the_race
    assert stats.promoted


# -- its end


def test_draining_waits_as_long_as_it_may_and_says_whether_all_came_to_its_end(bench: Bench) -> None:
    bench.worker.submit(bench.stage_held(1), prompt(1, 9), "c")
    started = time.monotonic()
    assert not bench.worker.drain(0.2)
    assert 0.2 <= time.monotonic() - started < 2
    threading.Timer(0.1, bench.fences.let_go).start()
    assert bench.worker.drain(_PATIENCE_SECONDS)
    assert bench.kept(1) == [1]


@pytest.mark.parametrize("drain_seconds", [0, 0.2])
def test_close_drops_what_is_not_ready_in_time_also_where_a_fence_is_never_done(
    bench: Bench, drain_seconds: float
) -> None:
    for number in range(1, 4):
        bench.worker.submit(bench.stage_held(number), prompt(number, 9), "c")
    started = time.monotonic()
    bench.worker.close(drain_seconds)
    assert drain_seconds <= time.monotonic() - started < drain_seconds + 2
    assert outcomes(bench.pool.stats()) == {"lost_the_race": 3}
    assert not workers()
    bench.worker.close(drain_seconds)
    bench.submit(5)
    assert outcomes(bench.pool.stats()) == {"lost_the_race": 4}
    assert bench.worker.drain(0)


def test_close_keeps_what_is_ready_within_its_time(bench: Bench) -> None:
    bench.worker.submit(bench.stage_held(1), prompt(1, 9), "c")
    bench.submit(2)
    threading.Timer(0.1, bench.fences.let_go).start()
    bench.worker.close(_PATIENCE_SECONDS)
    assert bench.kept(1, 2) == [1, 2]


def test_close_lets_the_copy_that_is_going_on_come_to_its_end(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    step = SteppedCopy(monkeypatch)
    bench.submit(1)
    bench.submit(2)
    assert step.entered.wait(_PATIENCE_SECONDS)
    closer = threading.Thread(target=bench.worker.close, daemon=True)
    closer.start()
    closer.join(0.1)
    assert closer.is_alive()
    step.go_on.set()
    closer.join(_PATIENCE_SECONDS)
    assert not closer.is_alive()
    assert bench.kept(1, 2) == [1, None]
    assert outcomes(bench.pool.stats()) == {"promoted": 1, "lost_the_race": 1}


def test_what_is_queued_when_the_ring_or_the_pool_closes_is_lost_or_has_no_region(bench: Bench) -> None:
    bench.worker.submit(bench.stage_held(1), prompt(1, 9), "c")
    bench.pool.close()
    bench.fences.let_go()
    bench.drain()
    assert outcomes(bench.pool.stats()) == {"no_region": 1}
    bench.worker.submit(bench.stage_held(2), prompt(2, 9), "c")
    bench.ring.close()
    bench.drain()
    assert outcomes(bench.pool.stats()) == {"no_region": 1, "lost_the_race": 1}


def close_the_ring_during_a_copy() -> str:
    """Have the ring closed before the worker, as whoever closes tenants in the order of their opening would."""
    with HostPinnedLedger() as ledger, pytest.MonkeyPatch.context() as patch:
        bench = Bench(ledger)
        step = SteppedCopy(patch)
        bench.submit(1)
        assert step.entered.wait(_PATIENCE_SECONDS)
        closer = threading.Thread(target=bench.ring.close, daemon=True)  # it may wait for the copy
        closer.start()
        closer.join(0.2)
        step.go_on.set()
        closer.join(_PATIENCE_SECONDS)
        bench.drain()
        bench.close()
    return "it came to its end"


def test_a_ring_that_is_closed_during_a_copy_takes_no_memory_from_under_it() -> None:
    ended = run_to_its_end(close_the_ring_during_a_copy)
    assert ended.code == 0, f"the process ended with {ended.code}: {ended.stderr}"
    assert b"it came to its end" in ended.pickled


# -- errors in one copy


def fail_in_the_copy(bench: Bench, patch: pytest.MonkeyPatch) -> None:
    def broken(target: int, source: int, size_bytes: int) -> None:
        raise OSError("the copy failed\nin two lines")

    patch.setattr(copy_out, "ctypes", SimpleNamespace(memmove=broken))
    bench.submit(1)


def fail_in_mapping(bench: Bench, patch: pytest.MonkeyPatch) -> None:
    def broken(self: OwnMapping, offset: int, size_bytes: int) -> None:
        raise MemoryError("no memory\nat all")

    patch.setattr(OwnMapping, "populate", broken)
    bench.submit(1)


def fail_in_the_tokens(bench: Bench, patch: pytest.MonkeyPatch) -> None:
    bench.worker.submit(bench.stage(1), [*prompt(1, 9), 2**64], "c")


def fail_in_the_fence(bench: Bench, patch: pytest.MonkeyPatch) -> None:
    ticket = bench.stage_held(1)

    def broken() -> bool:
        raise RuntimeError("the device is gone\nfor good")

    patch.setattr(bench.fences.made[-1], "is_done", broken)
    bench.worker.submit(ticket, prompt(1, 9), "c")


@pytest.mark.parametrize("fail", [fail_in_the_copy, fail_in_mapping, fail_in_the_tokens, fail_in_the_fence])
def test_an_error_in_one_copy_is_logged_counted_and_not_the_end_of_the_worker(
    bench: Bench, caplog: pytest.LogCaptureFixture, fail: Callable[[Bench, pytest.MonkeyPatch], None]
) -> None:
    told = 1
    with pytest.MonkeyPatch.context() as patch, caplog.at_level(logging.ERROR, "pinprobe"):
        try:
            fail(bench, patch)
        except (BadRequest, OverflowError):  # tokens may as well be refused where they are given
            told = 0
        bench.drain()
    assert workers(), "the worker has died"
    assert len(caplog.messages) == told
    assert not [message for message in caplog.messages if "\n" in message]
    for number in range(2, 9):
        bench.submit(number)
        bench.drain()
    assert bench.kept(5, 6, 7, 8) == [5, 6, 7, 8]
    stats = bench.pool.stats()
    assert stats.promoted == 7
    assert sum(outcomes(stats).values()) == stats.requests, "a savepoint came to no end that is counted"
    assert stats.held_regions == 4 == stats.resident, "a region was lost"


# -- idle moments


@pytest.mark.parametrize("way", ["savepoints that come one after the other", "a fence that is never done"])
def test_work_that_never_ends_does_not_keep_the_pool_from_being_settled(
    ledger: HostPinnedLedger, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    monkeypatch.setattr(retention_pool, "_SETTLED_EVERY_SECONDS", 0.2)
    bench = Bench(ledger, is_sized_by_demand=True)
    try:
        assert bench.pool.map_ahead(4) == mapped_regions() == 4
        if way == "a fence that is never done":
            bench.worker.submit(bench.stage_held(1), prompt(1, 9), "c")
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while mapped_regions() > 1:  # one conversation goes on, so one region is wanted
            assert time.monotonic() < deadline, "what is wanted no more was never given back"
            if way == "savepoints that come one after the other":
                bench.submit(2)
            time.sleep(0.02)
    finally:
        bench.close()
    assert not workers()


# -- counting


def test_every_offer_ends_in_one_counter(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.submit(1)
    bench.drain()
    bench.submit(2, CHUNK - 1)
    bench.worker.submit(bench.stage_held(3), prompt(3, 9), "c")
    for number in range(4, 4 + 3 * _MANY_LAPS):
        bench.stage(number)
    bench.drain()
    holds = [bench.pool.match(prompt(1, 9))]
    for number in (20, 21, 22):
        bench.submit(number)
        bench.drain()
        holds.append(bench.pool.match(prompt(number, 9)))
    bench.submit(23)
    bench.drain()
    stats = bench.pool.stats()
    assert outcomes(stats) == {"promoted": 4, "below_floor": 1, "lost_the_race": 1, "no_region": 1}
    assert stats.requests == 7
    for hold in holds:
        assert hold is not None
        hold.release()
