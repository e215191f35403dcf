"""Ring, pool and copy-out driven at random, with readers on other threads that look at every byte they are given.

Every savepoint has a number, which fills each of its slabs. So a reader can tell whether what he sees is one savepoint
and no other, whether it is whole, and whether it is of the very tokens that he asked for. The copies out of the ring
are made in pieces with pauses between them, and a device is late as often as not: its bytes come when its fence is
done, and other bytes lie there before.
"""

from __future__ import annotations

import ctypes
import random
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from pinprobe.ledger.booking import RowState
from pinprobe.ledger.ledger import HostPinnedLedger
from pinprobe.ledger.tenants import copy_out
from pinprobe.ledger.tenants.copy_out import CopyOut
from pinprobe.ledger.tenants.pool_entry import Hold
from pinprobe.ledger.tenants.retention_pool import RetentionPool
from pinprobe.ledger.tenants.savepoint_ring import SavepointRing, StaleTicket, Ticket
from tests.ledger.tenants.held_fences import HeldFence, HeldFences, a_stream
from tests.ledger.tenants.kept_savepoints import CHUNK, REGION, booked_bytes, mapped_regions, prompt
from tests.ledger.tenants.open_files import open_files
from tests.ledger.tenants.prepared_allocators import prepared
from tests.ledger.tenants.savepoint_rows import MIXED, number_in, row_at, row_of, stamped

SLOTS, REGIONS, CONVERSATIONS, READERS = 3, 4, 4, 2
#: What lies in a slot while a device is late. It is no savepoint.
NOT_THERE_YET = 0xFFFFFF
#: Shorter ones than a chunk among them, and some that end in, at and across blocks.
LENGTHS = st.integers(CHUNK - 1, 14)
_PATIENCE_SECONDS = 20.0

# Shrinking would take minutes with threads that never run twice alike.
QUICK = settings(
    max_examples=40,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate],
)
LONG = settings(QUICK, derandomize=False, max_examples=600, stateful_step_count=120)


class Judge:
    """Knows which tokens every savepoint is of, and remembers the first thing that was wrong.

    Threads never run twice alike: where hypothesis tries a failure again it may see none, and tells of that alone.
    """

    def __init__(self) -> None:
        self.wrong: list[str] = []
        self._tokens: dict[int, list[int]] = {}

    def new(self, tokens: list[int]) -> int:
        """The number of a savepoint that is going to be staged."""
        number = len(self._tokens) + 1
        self._tokens[number] = tokens
        return number

    def must(self, holds: bool, words: str) -> None:
        if not holds:
            self.wrong.append(words)
            raise AssertionError(words)

    def check(self, hold: Hold, asked: list[int]) -> int:
        """Hold what lies under a reader's hold against what he asked for; return which savepoint it is."""
        row = row_at(MIXED, hold.address)
        number, covered = number_in(row), asked[: hold.tokens]
        self.must(number in self._tokens, f"{number:#x} is no savepoint: its bytes were not there yet")
        self.must(row == row_of(MIXED, number), f"a row that begins as savepoint {number} is not whole")
        self.must(self._tokens[number] == covered, f"savepoint {number} is of {self._tokens[number]}, not of {covered}")
        return number


class Reader:
    """A thread that asks for prompts, and looks at what it is given as long as it holds it."""

    def __init__(self, pool: RetentionPool, judge: Judge, seed: int) -> None:
        self.errors: list[BaseException] = []
        self.read = 0
        self._pool, self._judge, self._dice = pool, judge, random.Random(seed)
        self._is_ending = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._is_ending:
                asked = prompt(self._dice.randrange(CONVERSATIONS), self._dice.randrange(16))
                hold = self._pool.match(asked)
                if hold is not None:
                    with hold:
                        first = self._judge.check(hold, asked)
                        for _ in range(self._dice.randrange(4)):
                            time.sleep(0.0005)
                            self._judge.must(self._judge.check(hold, asked) == first, "a row changed under its reader")
                    self.read += 1
                time.sleep(0.0002)
        except BaseException as error:  # noqa: BLE001  # the machine raises it, on the thread of the test
            self.errors.append(error)

    def end(self) -> None:
        self._is_ending = True
        self._thread.join(_PATIENCE_SECONDS)
        assert not self._thread.is_alive()


def copy_in_pieces(target: int, source: int, size_bytes: int) -> None:
    """What the worker's memmove is here: slow enough that a slot is handed out in the middle of it."""
    piece = size_bytes // 4 + 1
    for start in range(0, size_bytes, piece):
        ctypes.memmove(target + start, source + start, min(piece, size_bytes - start))
        time.sleep(random.choice((0, 0, 0.0003, 0.001)))


def machine_over(ledger: HostPinnedLedger, judge: Judge) -> type[RuleBasedStateMachine]:
    """The state machine, closed over the ledger and the judge that its examples share."""

    class RingAndPoolMachine(RuleBasedStateMachine):
        @initialize(seed=st.integers(0, 2**32))
        def begin(self, seed: int) -> None:
            random.seed(seed)
            self.files = open_files()
            self.fences = HeldFences()
            self.ring = SavepointRing(ledger, MIXED, SLOTS, prepared("pageable"), fence_for=self.fences)
            self.pool = RetentionPool(ledger, MIXED, bound_regions=REGIONS, chunk_tokens=CHUNK, shared=True)
            self.worker = CopyOut(self.ring, self.pool)
            self.readers = [Reader(self.pool, judge, seed + number) for number in range(READERS)]
            #: By slot, what a device has still to write: the ticket, the savepoint's number, its fence.
            self.late: dict[int, tuple[Ticket, int, HeldFence]] = {}
            self.live: dict[int, tuple[Ticket, int]] = {}
            self.held: list[tuple[Hold, list[int]]] = []
            self.staged = self.submitted = self.short = 0
            for conversation in range(CONVERSATIONS):
                self.keep(conversation, 9, is_late=False)

        # -- what an engine does

        @rule(conversation=st.integers(0, CONVERSATIONS - 1), tokens=LENGTHS, is_late=st.booleans())
        def keep(self, conversation: int, tokens: int, is_late: bool) -> None:
            covered = prompt(conversation, tokens)
            ticket = self._stage(covered, is_late)
            self.worker.submit(ticket, covered, f"conversation {conversation}")
            self.submitted += 1
            self.short += tokens < CHUNK

        @rule(conversation=st.integers(0, CONVERSATIONS - 1), count=st.integers(1, 3 * SLOTS), is_late=st.booleans())
        def keep_many(self, conversation: int, count: int, is_late: bool) -> None:
            """More than the worker can copy in that time, and more than there are slots."""
            for tokens in range(14, 14 - count, -1):
                self.keep(conversation, tokens, is_late)

        @rule(is_late=st.booleans())
        def stage_for_nobody(self, is_late: bool) -> None:
            self._stage(prompt(0, 9), is_late)

        @rule(seconds=st.sampled_from([0, 0.001, 0.004]))
        def compute(self, seconds: float) -> None:
            time.sleep(seconds)

        # -- what a device does

        @rule()
        def a_late_copy_ends(self) -> None:
            if self.late:
                self._end_late(next(iter(self.late)))

        @rule()
        def all_late_copies_end(self) -> None:
            for slot in list(self.late):
                self._end_late(slot)

        # -- what readers do, beside those on their own threads

        @rule(conversation=st.integers(0, CONVERSATIONS - 1))
        def take_hold(self, conversation: int) -> None:
            asked = prompt(conversation, 20)
            hold = self.pool.match(asked)
            if hold is not None:
                self.held.append((hold, asked))

        @rule(which=st.integers(0, 9))
        def let_go(self, which: int) -> None:
            # What is held depends on other threads, and what hypothesis draws must not.
            if self.held:
                hold, asked = self.held.pop(which % len(self.held))
                judge.check(hold, asked)
                hold.release()

        @rule()
        def read_the_ring(self) -> None:
            for ticket, number in self.live.values():
                try:
                    row = row_at(MIXED, self.ring.address(ticket))
                except StaleTicket:
                    raise AssertionError("a slot was handed out that nobody handed out") from None
                if self.ring.is_staged(ticket):
                    judge.must(row == row_of(MIXED, number), f"slot {ticket.slot} does not hold savepoint {number}")

        # -- what an operator does

        @rule(to_regions=st.integers(0, REGIONS))
        def trim(self, to_regions: int) -> None:
            self.pool.trim(to_regions)

        @rule(conversation=st.integers(0, CONVERSATIONS - 1), tokens=LENGTHS)
        def forget(self, conversation: int, tokens: int) -> None:
            self.pool.forget(prompt(conversation, tokens))

        @rule(regions=st.integers(1, REGIONS))
        def map_ahead(self, regions: int) -> None:
            self.pool.map_ahead(regions)

        @rule()
        def drain(self) -> None:
            self.all_late_copies_end()
            assert self.worker.drain(_PATIENCE_SECONDS)
            self._all_offers_came_to_their_end()

        # -- the judge

        @invariant()
        def nobody_saw_what_he_did_not_ask_for(self) -> None:
            for reader in self.readers:
                if reader.errors:
                    raise reader.errors[0]
            for hold, asked in self.held:
                judge.check(hold, asked)

        @invariant()
        def the_bound_holds(self) -> None:
            judge.must(mapped_regions() <= REGIONS, "more regions are mapped than the bound allows")
            judge.must(booked_bytes(ledger) <= REGIONS * REGION, "more is booked than the bound allows")
            stats = self.pool.stats()  # asserts that its counters add up
            assert (stats.requests, stats.below_floor) == (self.submitted, self.short)
            assert self.ring.stats().hand_outs == self.staged

        def teardown(self) -> None:
            try:
                self._end()
            finally:
                self.worker.close()
                for reader in self.readers:
                    reader.end()
                self.pool.close()
                self.ring.close()

        def _end(self) -> None:
            self.all_late_copies_end()
            assert self.worker.drain(_PATIENCE_SECONDS)
            for reader in self.readers:
                reader.end()
            self.nobody_saw_what_he_did_not_ask_for()
            for hold, _ in self.held:
                hold.release()
            self._all_offers_came_to_their_end()
            stats = self.pool.stats()
            assert (stats.being_read, stats.refused) == (0, 0)
            assert mapped_regions() == stats.held_regions
            self.worker.close()
            self.pool.close()
            self.ring.close()
            assert mapped_regions() == self.pool.stats().held_regions == 0
            assert [row for row in ledger.rows() if row.state is not RowState.UNATTRIBUTED] == []
            assert open_files() == self.files

        # -- the steps

        def _stage(self, tokens: list[int], is_late: bool) -> Ticket:
            number = judge.new(tokens)
            slot = self.staged % SLOTS
            before = self.late.pop(slot, None)
            self.fences.are_held = is_late
            ticket = self.ring.stage(stamped(MIXED, NOT_THERE_YET if is_late else number), a_stream())
            assert ticket.slot == slot
            if before is not None:  # a stream keeps its order: what was to be written before is over
                before[2].is_let_go = True
            if is_late:
                self.late[slot] = (ticket, number, self.fences.made[-1])
            self.live[slot] = (ticket, number)
            self.staged += 1
            return ticket

        def _end_late(self, slot: int) -> None:
            ticket, number, fence = self.late.pop(slot)
            address = self.ring.address(ticket)
            for offset, slab in zip(MIXED.offsets, row_of(MIXED, number), strict=True):
                ctypes.memmove(address + offset, slab, len(slab))
            fence.is_let_go = True

        def _all_offers_came_to_their_end(self) -> None:
            stats = self.pool.stats()
            judge.must(
                stats.ended == stats.requests == self.submitted, f"{stats.ended} of {self.submitted} offers are counted"
            )

    return RingAndPoolMachine


@pytest.fixture
def ledger(monkeypatch: pytest.MonkeyPatch) -> Iterator[HostPinnedLedger]:
    monkeypatch.setattr(copy_out, "ctypes", SimpleNamespace(memmove=copy_in_pieces))
    with HostPinnedLedger(wait_seconds=0) as ledger:
        ledger.calibrate()
        yield ledger


def drive(ledger: HostPinnedLedger, how: settings) -> None:
    judge = Judge()
    try:
        run_state_machine_as_test(machine_over(ledger, judge), settings=how)
    except Exception as error:
        if judge.wrong:
            raise AssertionError(judge.wrong[0]) from error
        raise


def test_no_reader_ever_sees_another_savepoint_or_a_torn_one(ledger: HostPinnedLedger) -> None:
    drive(ledger, QUICK)


@pytest.mark.slow
def test_no_reader_ever_sees_another_savepoint_or_a_torn_one_for_a_long_time(ledger: HostPinnedLedger) -> None:
    drive(ledger, LONG)
