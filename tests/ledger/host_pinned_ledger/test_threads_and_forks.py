"""Other threads that reserve at once, and forked children."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pinprobe.ledger.booking import RowState
from pinprobe.ledger.ledger import HostPinnedLedger
from pinprobe.ledger.reservation import Reservation
from pinprobe.probes.allocators.allocator import Allocator
from pinprobe.probes.errors import Refused
from pinprobe.probes.own_mapping import OwnMapping
from pinprobe.probes.reading import Unreadable
from tests.ledger.host_pinned_ledger.real_memory import (
    give_back,
    never_called,
    owners,
    prepared,
    shared,
    touched,
)
from tests.probes.allocators.kernel_word import MIB, smaps_bytes


class Slow:
    """A callable that takes its memory when it is told to, and is known to have begun."""

    def __init__(self, size_bytes: int, error: Exception | None = None) -> None:
        self.began, self.may_end = threading.Event(), threading.Event()
        self._size_bytes, self._error = size_bytes, error

    def __call__(self) -> mmap.mmap:
        self.began.set()
        assert self.may_end.wait(60)
        if self._error is not None:
            raise self._error
        return shared(self._size_bytes)


def in_a_thread(work: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    """Run it beside; what it returned or raised is in the list once the thread is joined."""
    outcome: list[object] = []

    def run() -> None:
        try:
            outcome.append(work())
        except BaseException as error:  # noqa: BLE001
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, outcome


def test_a_pending_request_is_a_row_and_counts() -> None:
    ledger, slow = HostPinnedLedger(limit_bytes=10 * MIB), Slow(8 * MIB)
    thread, outcome = in_a_thread(lambda: ledger.reserve("cache.first", 8 * MIB, slow))
    assert slow.began.wait(60)
    (row,) = [row for row in ledger.rows() if row.owner == "cache.first"]
    assert (row.state, row.booked_bytes, row.measured) == (RowState.PENDING, 8 * MIB, False)
    assert isinstance(row.resident, Unreadable)
    assert ledger.fit(MIB, 100) == 2
    slow.may_end.set()
    thread.join()
    assert owners(ledger) == {"cache.first": 8 * MIB}
    assert isinstance(outcome[0], Reservation)
    outcome[0].release()


def test_a_request_waits_for_a_pending_one_and_is_admitted_as_soon_as_that_is_withdrawn() -> None:
    ledger = HostPinnedLedger(limit_bytes=10 * MIB, wait_seconds=50)
    slow = Slow(8 * MIB, OSError("no more"))
    failing, failed = in_a_thread(lambda: ledger.reserve("cache.first", 8 * MIB, slow))
    assert slow.began.wait(60)
    waiting, admitted = in_a_thread(lambda: ledger.reserve("cache.second", 8 * MIB, lambda: shared(8 * MIB)))
    time.sleep(0.2)
    assert admitted == []
    started = time.monotonic()
    slow.may_end.set()
    for thread in (failing, waiting):
        thread.join()
    assert time.monotonic() - started < 25  # not after its patience
    assert isinstance(failed[0], OSError)
    assert isinstance(admitted[0], Reservation)
    assert owners(ledger) == {"cache.second": 8 * MIB}
    admitted[0].release()


def test_a_request_that_waited_in_vain_names_those_that_are_pending() -> None:
    ledger, slow = HostPinnedLedger(limit_bytes=10 * MIB, wait_seconds=0.3), Slow(8 * MIB)
    thread, outcome = in_a_thread(lambda: ledger.reserve("cache.first", 8 * MIB, slow))
    assert slow.began.wait(60)
    with pytest.raises(
        Refused, match=r"; waited 0\.3 s for what is still pending: cache\.first \(a thread of this process\)$"
    ) as refusal:
        ledger.reserve("cache.second", 8 * MIB, never_called)
    assert refusal.value.room_bytes == 2 * MIB
    slow.may_end.set()
    thread.join()
    # Once it is booked there is nobody to wait for.
    with pytest.raises(Refused, match=r"fits now is 2\.000 MiB$"):
        ledger.reserve("cache.second", 8 * MIB, never_called)
    assert isinstance(outcome[0], Reservation)
    outcome[0].release()


def test_threads_that_reserve_while_others_take_memory_leave_nothing_behind(torch_host: Allocator) -> None:
    ledger, stop = HostPinnedLedger(), threading.Event()
    ledger.calibrate()
    mlock = prepared("mlock")
    makers: list[Callable[[int], Any]] = [
        shared, mlock.allocate, torch_host.allocate, lambda size: touched(OwnMapping.memfd(size)),
    ]  # fmt: skip

    def work(which: int) -> int:
        make = makers[which % len(makers)]
        for turn in range(25):
            asked = (which * 37 + turn * 101) % 500 * 4096 + 1000 * (turn + 1)
            reservation = ledger.reserve(
                f"thread.{which}", asked, partial(make, asked), free=give_back, allocator=f"kind {which % len(makers)}"
            )
            assert reservation.booked_bytes >= asked
            if make is mlock.allocate:  # torch's block may still be shared with the one who is just giving it back
                assert reservation.booked_bytes >= smaps_bytes(reservation.value.address, "Rss") >= asked
            reservation.release()
        return which

    def disturb(make: Callable[[], OwnMapping]) -> bool:
        while not stop.is_set():
            with make() as memory:
                memory.write_every_page()
        return True

    workers = [in_a_thread(lambda which=index: work(which)) for index in range(8)]  # type: ignore[misc]
    others = [
        in_a_thread(lambda: disturb(lambda: OwnMapping.anonymous(3 * MIB, huge_pages=False))),
        in_a_thread(lambda: disturb(lambda: OwnMapping.memfd(2 * MIB))),
    ]
    looks = 0
    try:
        while any(thread.is_alive() for thread, _ in workers):
            account = ledger.verify()
            assert account.holds, account.shortfalls
            assert all(row.booked_bytes >= row.asked_bytes for row in account.reserved)
            looks += 1
    finally:
        for thread, _ in workers:
            thread.join()
        stop.set()
        for thread, _ in others:
            thread.join()
    assert [outcome for _, outcome in workers] == [[index] for index in range(8)]
    assert [outcome for _, outcome in others] == [[True], [True]]
    assert looks
    torch_host.empty_cache()
    assert owners(ledger) == {}
    assert ledger.resident_bytes == 0


FORKED = """
import gc, mmap, os, pathlib, sys
from pinprobe.ledger.book.host_book import HostBook
from pinprobe.ledger.ledger import HostPinnedLedger
from pinprobe.probes.errors import CouldNotMeasure

MIB = 2**20
folder = pathlib.Path(sys.argv[1])
ledger = HostPinnedLedger(book=HostBook(folder))
kept = ledger.reserve("kept", 4 * MIB, lambda: mmap.mmap(-1, 4 * MIB))
forgotten = ledger.reserve("forgotten", 2 * MIB, lambda: mmap.mmap(-1, 2 * MIB))
adopted = ledger.adopt("adopted", mmap.mmap(-1, 2 * MIB))

def say(who):
    rows = {row.owner: row.booked_bytes // MIB for row in ledger.rows() if row.owner != "unattributed"}
    print(who, rows, [entry.booked_bytes // MIB for entry in HostBook(folder).read().entries], flush=True)

say("before")
if os.fork() == 0:
    for attempt in (
        lambda: ledger.reserve("child", MIB, lambda: print("called", flush=True)),
        lambda: ledger.adopt("child", bytearray(MIB)),
        lambda: ledger.fit(MIB, 4),
    ):
        try:
            attempt()
        except CouldNotMeasure as error:
            print("refused:", error, flush=True)
    kept.release()
    del forgotten
    gc.collect()
    say("child")
    sys.exit(0)  # as a process ends that ran to its end, with all that runs at the exit
os.wait()
say("after")
assert len(kept.value) == 4 * MIB
kept.release()
say("released")
"""


def test_a_forked_child_can_t_reserve_and_leaves_the_parents_ledger_and_its_book_alone(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKED, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    rows = "{'kept': 4, 'forgotten': 2}"
    refused = "refused: this ledger is its parent's: a forked process has to make one of its own"
    lines = done.stdout.splitlines()
    # Whatever the child makes of its copies, the book has the parent's entry, and no second one of the child's.
    assert [line.rpartition("[")[2] for line in lines if line.startswith("child")] == ["6]"]
    assert [line for line in lines if not line.startswith("child")] == [
        f"before {rows} [6]", refused, refused, refused, f"after {rows} [6]", "released {'forgotten': 2} [2]",
    ]  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
