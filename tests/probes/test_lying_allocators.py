"""Whatever a foreign allocator does: nothing is called measured that is not, and no more taken than was allowed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import pytest

from pinprobe.probes.allocators.registry import prepare_allocator
from pinprobe.probes.allowance import Allowance
from pinprobe.probes.errors import AllocationFailed, AllocatorUnavailable, ChildDied
from pinprobe.probes.measuring_child import MeasuringChild
from pinprobe.probes.reading import Reading
from pinprobe.probes.sweep import PointState, Sweep
from pinprobe.probes.trial import Trial, run_trial
from pinprobe.probes.walk import walk
from tests.probes import lying
from tests.probes.lying import MIB, PAGE, Lying

SLOT = 4_000_000


def swept(kind: type[Lying], *, allowed: int = 256 * MIB, last: int = 6, slot: int = SLOT) -> Sweep:
    allowance = Allowance(allowed, "the test")
    return walk(lambda: MeasuringChild(kind()), "lying", slot, range(1, last + 1), allowance, PAGE)


def tried(kind: type[Lying], asked: int = SLOT, allowed: int = 256 * MIB) -> Trial:
    with MeasuringChild(kind()) as child:
        return run_trial(child, "lying", asked, Allowance(allowed, "the test"), PAGE)


@pytest.mark.parametrize("kind", [lying.Nowhere, lying.Freed])
def test_an_address_with_nothing_behind_it_is_a_broken_promise(kind: type[Lying]) -> None:
    assert {point.state for point in swept(kind).points} == {PointState.BROKEN}
    assert tried(kind).verdict.exit_code == 1


@pytest.mark.parametrize("kind", [lying.ResidentBefore, lying.WrongCounter, lying.Untouched])
def test_growth_that_does_not_cover_the_ask_is_no_measured_cost(kind: type[Lying]) -> None:
    sweep = swept(kind)
    assert {point.state for point in sweep.points} == {PointState.DISPUTED}
    assert sweep.exit_code == 3
    assert tried(kind).verdict.exit_code == 3


def test_an_arena_s_growth_is_not_taken_for_the_cost_of_what_lies_in_it() -> None:
    sweep = swept(lying.TouchedAsNeeded)
    assert [point.state for point in sweep.points[1:]] == [PointState.DISPUTED] * 5


def test_a_second_copy_that_rides_along_is_told() -> None:
    verdict = tried(lying.SecondCopy).verdict
    assert (verdict.exit_code, "8,003,584 B" in verdict.sentence) == (3, True)
    assert {point.state for point in swept(lying.SecondCopy).points} == {PointState.DISPUTED}


def test_one_object_in_several_mappings_is_no_broken_promise() -> None:
    sweep = swept(lying.LockedInPart)
    assert not sweep.broken_promises
    assert {point.state for point in sweep.points} <= {PointState.MEASURED, PointState.PREDICTED}


@contextmanager
def peak_of_children() -> Iterator[list[int]]:
    """Sample what this process's children hold, from psutil, while the block runs."""
    import threading

    peak, done = [0], threading.Event()

    def sample() -> None:
        while not done.wait(0.01):
            held = 0
            for child in psutil.Process().children(recursive=True):
                try:
                    held += child.memory_info().rss
                except psutil.NoSuchProcess:
                    continue
            peak[0] = max(peak[0], held)

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield peak
    finally:
        done.set()
        thread.join()


def test_what_is_never_given_back_counts_against_the_allowance() -> None:
    with peak_of_children() as peak:
        sweep = swept(lying.Leaking, allowed=100 * MIB, last=40, slot=8 * MIB)
    assert peak[0] <= 100 * MIB + 64 * MIB  # the interpreter itself is some 30 MiB
    assert PointState.MEASURED in {point.state for point in sweep.points}


def test_memory_that_was_mapped_before_ends_the_walk_as_soon_as_it_passes_the_allowance() -> None:
    with peak_of_children() as peak:
        sweep = swept(lying.MappedBefore, allowed=50 * MIB, last=40)
    assert PointState.NOT_MEASURED in {point.state for point in sweep.points}
    assert peak[0] <= 50 * MIB + 4 * 12 * SLOT + 64 * MIB  # one request beyond it, which nothing could foresee


def test_a_grandchild_that_holds_the_pipe_does_not_hold_the_parent() -> None:
    started = time.monotonic()
    with MeasuringChild(lying.Forking()) as child, pytest.raises(ChildDied, match="SIGSEGV"):
        child.measure(SLOT)
    assert time.monotonic() - started < 20
    deadline = time.monotonic() + 5
    while left := [process for process in psutil.process_iter() if _is_of_group(process, child.pid)]:
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


def _is_of_group(process: psutil.Process, group: int) -> bool:
    import os

    try:
        return os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE
    except (ProcessLookupError, psutil.NoSuchProcess):
        return False


def test_what_it_says_is_one_line_that_a_terminal_can_show(capfd: pytest.CaptureFixture[str]) -> None:
    with MeasuringChild(lying.Talking()) as child, pytest.raises(AllocationFailed) as said:
        child.measure(SLOT)
    assert str(said.value) == "RuntimeError: first?[31m"
    assert capfd.readouterr().out == ""


def test_what_is_honest_is_still_measured() -> None:
    with MeasuringChild(lying.LockedInPart()) as child:
        cost = child.measure(SLOT)
    assert cost.fault is None
    assert isinstance(cost.block, Reading)


def test_a_kept_block_is_served_beside_which_nothing_new_would_fit() -> None:
    # The real child and the real cache: 128 MiB kept of 150 that may be taken, and 110 asked of it.
    try:
        allocator = prepare_allocator("torch-host", MIB).allocator
    except AllocatorUnavailable as error:
        pytest.skip(str(error))
    with MeasuringChild(allocator) as child:
        first = child.measure(100 * MIB, 150 * MIB)
        child.release()
        again = child.measure(110 * MIB, 150 * MIB)
    assert again.address == first.address
    assert isinstance(again.resident, Reading)
    assert again.resident.within(0)
