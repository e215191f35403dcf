"""The ledger driven at random over torch's own allocator, with the kernel as the judge after each step.

What the judge knows he reads himself: mappings from maps, residency from smaps, the process from statm.
"""

from __future__ import annotations

import ctypes
import gc
import mmap
import random
import re
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from pinprobe.ledger.booking import RowState
from pinprobe.ledger.ledger import HostPinnedLedger
from pinprobe.ledger.reservation import Adoption
from pinprobe.probes.allocators.allocator import Allocation, Allocator
from pinprobe.probes.allocators.registry import prepare_allocator
from pinprobe.probes.errors import AllocatorUnavailable, Refused
from pinprobe.probes.own_mapping import OwnMapping

KIB, MIB = 2**10, 2**20
PAGE = mmap.PAGESIZE
SLICES, SLICE_BYTES, SHARED_BYTES = 10, 200 * KIB, 2 * MIB
# Shrinking would take minutes with memory that is really taken; the noise makes a shorter run another run anyway.
SETTINGS = settings(
    max_examples=7,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate],
)
SIZES = st.sampled_from([1, PAGE, 100_000, 3_000_000, 4 * MIB, 4 * MIB + 1, 9 * MIB])

_HEADER = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) (\S+) \S+ \S+ (\d+)", re.ASCII)


@pytest.fixture(scope="module")
def torch_host() -> Allocator:
    try:
        return prepare_allocator("torch-host", 16 * MIB).allocator
    except AllocatorUnavailable as error:
        pytest.skip(str(error))


class Opaque:
    """Memory that shows no address: what an engine's own C++ object is to Python."""

    def __init__(self, size_bytes: int) -> None:
        self._hidden = OwnMapping.anonymous(size_bytes, huge_pages=False)
        self._hidden.write_every_page()

    def close(self) -> None:
        self._hidden.unmap()


class Noise:
    """A thread that takes memory of several classes and gives it back, but for the moments in which it is judged."""

    def __init__(self, seed: int) -> None:
        self._dice = random.Random(seed)
        self._held: list[Any] = []
        self._ended = threading.Event()
        self.paused = threading.Lock()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._ended.wait(0.001):
            with self.paused:
                if len(self._held) > 3:
                    self._held.pop(0).unmap()
                size = self._dice.choice((PAGE, 64 * KIB, MIB, 5 * MIB))
                kind = self._dice.randrange(3)
                if kind == 0:
                    memory = OwnMapping.anonymous(size, huge_pages=False)
                elif kind == 1:
                    memory = OwnMapping.memfd(size)
                else:
                    memory = OwnMapping(size, PAGE, PAGE, mmap.MAP_SHARED | mmap.MAP_ANONYMOUS)
                memory.write_every_page()
                self._held.append(memory)

    def end(self) -> None:
        self._ended.set()
        self._thread.join()
        for memory in self._held:
            memory.unmap()


def maps_spans() -> dict[int, tuple[int, int]]:
    """Start -> (end, inode) of every mapping that can be written to."""
    spans = {}
    for line in Path("/proc/self/maps").read_text(errors="replace").splitlines():
        match = _HEADER.match(line)
        if match and match[3].startswith("rw"):
            spans[int(match[1], 16)] = (int(match[2], 16), int(match[4]))
    return spans


def smaps_resident_bytes(starts: set[int]) -> int:
    """The Rss of the mappings that begin at these addresses."""
    total, wanted = 0, False
    for line in Path("/proc/self/smaps").read_text(errors="replace").splitlines():
        if match := _HEADER.match(line):
            wanted = int(match[1], 16) in starts
        elif wanted and line.startswith("Rss:"):
            total += int(line.split()[1]) * KIB
    return total


def statm_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


def machine_over(torch_host: Allocator) -> type[RuleBasedStateMachine]:
    """The state machine, closed over the allocator that its examples share."""

    class LedgerMachine(RuleBasedStateMachine):
        held = Bundle("held")

        @initialize(seed=st.integers(0, 2**32))
        def begin(self, seed: int) -> None:
            torch_host.empty_cache()
            gc.collect()  # what the example before left behind must not go while this one is looked at
            self.shared = mmap.mmap(-1, SHARED_BYTES)
            self.shared[::PAGE] = b"\1" * (SHARED_BYTES // PAGE)
            self.free_slices = list(range(SLICES))
            self.slice_of: dict[int, int] = {}
            #: Where each mapping begins that an owner was ever handed a part of, and which object lay there.
            self.handed: dict[int, int] = {}
            #: How much more was asked than came, of what is held now.
            self.short: dict[int, int] = {}
            before = statm_bytes()
            self.ledger = HostPinnedLedger(allocator="torch-host", wait_seconds=0)
            self.ledger.calibrate()
            self.statm_at_start = max(before, statm_bytes())
            self.noise = Noise(seed)

        # -- what an engine does

        @rule(target=held, asked=SIZES)
        def reserve(self, asked: int) -> Adoption:
            return self._reserve(asked, [asked])

        @rule(target=held, asked=SIZES, first=SIZES)
        def reserve_two_blocks(self, asked: int, first: int) -> Adoption:
            """They may be less in all than was asked for, or more."""
            return self._reserve(asked, [first, PAGE])

        @rule(target=held)
        def reserve_a_slice(self) -> Any:
            if not self.free_slices:
                return multiple()
            index = self.free_slices.pop()
            view = memoryview(self.shared)[index * SLICE_BYTES : (index + 1) * SLICE_BYTES]
            taken = self.ledger.reserve("slice", SLICE_BYTES, lambda: view, free=lambda view: view.release())
            self.slice_of[id(taken)] = index
            self._remember(ctypes.addressof(ctypes.c_char.from_buffer(self.shared)))
            return taken

        @rule(target=held, asked=SIZES)
        def reserve_opaque(self, asked: int) -> Adoption:
            return self.ledger.reserve("opaque", asked, lambda: Opaque(asked), free=lambda opaque: opaque.close())

        @rule(target=held, asked=st.sampled_from([1, 5000, 300_000]))
        def reserve_in_the_heap(self, asked: int) -> Adoption:
            return self.ledger.reserve("heap", asked, lambda: bytearray(asked))

        @rule(asked=SIZES)
        def an_allocation_fails(self, asked: int) -> None:
            def fail() -> None:
                torch_host.allocate(asked).release()
                raise MemoryError("as an engine's allocator would")

            before = [row for row in self.ledger.rows() if row.state is RowState.RESERVED]
            with pytest.raises(MemoryError):
                self.ledger.reserve("failing", asked, fail)
            assert [row for row in self.ledger.rows() if row.state is RowState.RESERVED] == before

        @rule()
        def a_request_is_refused(self) -> None:
            with pytest.raises(Refused):
                self.ledger.reserve("refused", 2**45, lambda: pytest.fail("it was let through"))

        @rule(taken=held)
        def release(self, taken: Adoption) -> None:
            taken.release()
            self.short.pop(id(taken), None)
            if (index := self.slice_of.pop(id(taken), None)) is not None:
                self.free_slices.append(index)

        @rule()
        def empty_the_cache(self) -> None:
            torch_host.empty_cache()

        # -- the judge

        @invariant()
        def the_kernel_agrees(self) -> None:
            with self.noise.paused:
                rows, account = self.ledger.rows(), self.ledger.verify()
                spans, grown = maps_spans(), statm_bytes() - self.statm_at_start
                records = self.ledger._books._records
                own = [row for row in rows if row.state in (RowState.RESERVED, RowState.RETAINED)]
                booked = sum(row.booked_bytes for row in own)
                assert booked == records.booked_bytes, "the sums are not those of the rows"
                assert all(row.booked_bytes >= row.asked_bytes for row in rows)
                assert account.holds, account.shortfalls

                here = {start for start, inode in self.handed.items() if spans.get(start, (0, -1))[1] == inode}
                mapped = sum(spans[start][0] - start for start in here)
                elsewhere = sum(row.booked_bytes for row in own if row.owner in ("opaque", "heap"))
                elsewhere += records.kept_unseen_bytes
                assert booked - elsewhere >= smaps_resident_bytes(here), "booked is below what is resident"
                assert booked - elsewhere == mapped + sum(self.short.values()), "not every mapping is booked once"
                # The interpreter takes pages of its own between two readings.
                assert sum(row.booked_bytes for row in rows) >= grown - MIB

        def _reserve(self, asked: int, sizes: list[int]) -> Adoption:
            blocks: list[Allocation] = []

            def allocate() -> list[object]:
                blocks.extend(torch_host.allocate(size) for size in sizes)
                pairs = zip(blocks, sizes, strict=True)
                return [(ctypes.c_char * size).from_address(block.address) for block, size in pairs]

            def free(taken: list[object]) -> None:
                for block in blocks:
                    block.release()

            taken = self.ledger.reserve("cache.ring", asked, allocate, free=free)
            for block in blocks:
                self._remember(block.address)
            self.short[id(taken)] = max(0, asked - sum(sizes))
            return taken

        def _remember(self, address: int) -> None:
            start = address // PAGE * PAGE
            self.handed[start] = maps_spans()[start][1]

        def teardown(self) -> None:
            if hasattr(self, "noise"):
                self.noise.end()
                self.ledger.close()
                torch_host.empty_cache()

    return LedgerMachine


def test_booked_is_never_below_resident_whatever_happens(torch_host: Allocator) -> None:
    run_state_machine_as_test(machine_over(torch_host), settings=SETTINGS)


@pytest.mark.slow
def test_booked_is_never_below_resident_in_a_long_run(torch_host: Allocator) -> None:
    run_state_machine_as_test(
        machine_over(torch_host), settings=settings(SETTINGS, derandomize=False, max_examples=300)
    )
