"""The measuring process, seen from its parent: how it lives, how it ends, and what foreign code may do in it."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from pinprobe.probes.allocators.allocator import Allocator
from pinprobe.probes.allocators.mlock import Mlock
from pinprobe.probes.allocators.pageable import Pageable
from pinprobe.probes.errors import AllocationFailed, ChildDied, CouldNotMeasure
from pinprobe.probes.measuring_child import MeasuringChild
from pinprobe.probes.reading import Reading

MIB = 2**20

# An allocator as others write them: whatever its name says, it does when it is asked for memory, or before.
_FOREIGN = """
import ctypes, os, signal, sys, time
from pinprobe.probes.allocators.pageable import Pageable
from pinprobe.probes.errors import AllocationFailed

class Foreign:
    name = "foreign"
    counter = "RssAnon"
    def __init__(self, behaviour, when="allocate"):
        self.behaviour, self.when = behaviour, when
    def notes(self):
        if self.when == "notes":
            getattr(self, self.behaviour)()
        return ("a note",)
    def allocated_bytes(self):
        return None
    def allocate(self, asked_bytes):
        if self.when == "allocate":
            getattr(self, self.behaviour)()
        return Pageable().allocate(asked_bytes)
    def empty_cache(self):
        if self.when == "empty_cache":
            getattr(self, self.behaviour)()

    def raises_several_lines(self): raise RuntimeError("the driver said no\\nand went on\\nfor long")
    def raises_nothing_to_read(self): raise ValueError
    def raises_far_too_much(self): raise RuntimeError("x" * 100_000)
    def raises_memory_error(self): raise MemoryError
    def raises_a_class_of_its_own(self): raise OwnError("a", "b")
    def raises_what_does_not_pickle(self): raise AllocationFailed(lambda: 0)
    def prints(self):
        print("from python", flush=True)
        print("buffered")
        os.write(1, b"from a library\\n")
        ctypes.CDLL(None).puts(b"from C")
        ctypes.CDLL(None).fflush(None)
    def exits(self): sys.exit(7)
    def ends_at_once(self): os._exit(5)
    def crashes(self): os.kill(os.getpid(), signal.SIGSEGV)
    def sleeps(self): time.sleep(60)

class OwnError(Exception):
    def __init__(self, first, second):
        super().__init__(f"{first} and {second}")

class Unpicklable(Foreign):
    def __init__(self):
        super().__init__("prints")
        self.handle = lambda: 0

class BreaksOnArrival(Foreign):
    def __setstate__(self, state):
        raise RuntimeError("no driver in this process")
"""


@pytest.fixture
def foreign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module above, which only this process's sys.path can find."""
    name = f"foreign_{os.getpid()}_{tmp_path.name}".replace("-", "_")
    (tmp_path / f"{name}.py").write_text(_FOREIGN)
    monkeypatch.syspath_prepend(str(tmp_path))
    return importlib.import_module(name)


def _status(pid: int, field: str) -> str:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return line.split()[1]
    raise AssertionError(f"status has no {field}")


def _is_gone(pid: int) -> bool:
    try:
        return _status(pid, "State") in ("Z", "X")  # whoever adopts orphans here may be slow to bury them
    except (FileNotFoundError, ProcessLookupError):
        return True


def _wait_until_gone(pid: int, patience_seconds: float = 5) -> None:
    end = time.monotonic() + patience_seconds
    while not _is_gone(pid):
        assert time.monotonic() < end, f"the process {pid} is still there"
        time.sleep(0.02)


# Life and death


def test_it_measures_in_a_process_of_its_own_and_ends_with_the_block() -> None:
    with MeasuringChild(Pageable()) as child:
        cost = child.measure(3 * MIB)
        assert isinstance(cost.resident, Reading)
        assert cost.resident.within(3 * MIB)
        assert child.pid != os.getpid()
        assert not _is_gone(child.pid)
    assert not Path(f"/proc/{child.pid}").exists()


def test_it_dies_with_its_parent(tmp_path: Path) -> None:
    script = (
        "import time; from pinprobe.probes.measuring_child import MeasuringChild;"
        "from pinprobe.probes.allocators.pageable import Pageable;"
        "child = MeasuringChild(Pageable()); child.measure(4096); print(child.pid, flush=True); time.sleep(60)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    middle = subprocess.Popen([sys.executable, "-c", script], env=environment, stdout=subprocess.PIPE, text=True)
    try:
        assert middle.stdout is not None
        pid = int(middle.stdout.readline())
        assert not _is_gone(pid)
    finally:
        middle.kill()
        middle.communicate()
    _wait_until_gone(pid)


def test_it_dies_with_its_parent_in_the_middle_of_an_allocation(foreign: Any, tmp_path: Path) -> None:
    script = (
        f"import sys; sys.path[:] = {sys.path!r}\n"
        "from pinprobe.probes.measuring_child import MeasuringChild\n"
        f"from {foreign.__name__} import Foreign\n"
        "child = MeasuringChild(Foreign('sleeps')); print(child.pid, flush=True); child.measure(4096)"
    )
    middle = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    try:
        assert middle.stdout is not None
        pid = int(middle.stdout.readline())
        time.sleep(0.2)
    finally:
        middle.kill()
        middle.communicate()
    _wait_until_gone(pid)


def test_it_is_first_in_line_for_the_oom_killer() -> None:
    with MeasuringChild(Pageable()) as child:
        assert Path(f"/proc/{child.pid}/oom_score_adj").read_text().strip() == "1000"


def test_ctrl_c_is_its_parents_to_answer() -> None:
    with MeasuringChild(Pageable()) as child:
        os.kill(child.pid, signal.SIGINT)
        assert child.measure(4096).asked_bytes == 4096


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_a_killed_child_is_named_with_its_signal(number: signal.Signals) -> None:
    with MeasuringChild(Pageable()) as child:
        os.kill(child.pid, number)
        with pytest.raises(ChildDied, match=number.name) as caught:
            child.measure(4096)
    assert "\n" not in str(caught.value)


def test_a_child_killed_by_a_signal_without_a_name_is_named_too() -> None:
    with MeasuringChild(Pageable()) as child:
        os.kill(child.pid, signal.SIGRTMIN + 3)
        with pytest.raises(ChildDied, match=str(signal.SIGRTMIN + 3)):
            child.measure(4096)


def test_a_kill_that_no_counter_explains_is_not_blamed_on_the_oom_killer() -> None:
    with MeasuringChild(Pageable()) as child:
        os.kill(child.pid, signal.SIGKILL)
        with pytest.raises(ChildDied, match="by whom no counter tells"):
            child.measure(4096)


def test_after_its_death_every_call_says_so() -> None:
    with MeasuringChild(Pageable()) as child:
        os.kill(child.pid, signal.SIGKILL)
        for call in (child.release, child.empty_cache, lambda: child.measure(4096)):
            with pytest.raises(ChildDied, match="SIGKILL"):
                call()


def test_an_error_in_the_parent_ends_it_at_once(foreign: Any) -> None:
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt), MeasuringChild(foreign.Foreign("sleeps")) as child:
        raise KeyboardInterrupt
    assert time.monotonic() - started < 3
    assert _is_gone(child.pid)


def test_ten_of_them_leave_no_descriptor_and_no_process() -> None:
    before = _descriptors()
    for _ in range(10):
        with MeasuringChild(Pageable()) as child:
            child.measure(4096)
        assert _is_gone(child.pid)
    assert _descriptors() == before


def test_one_that_does_not_start_leaves_no_descriptor_and_no_process(foreign: Any) -> None:
    before = _descriptors()
    children = _children()
    with pytest.raises(AllocationFailed):
        MeasuringChild(foreign.Foreign("raises_several_lines", when="notes"))
    assert _descriptors() == before
    assert _children() == children


def _descriptors() -> set[str]:
    return {entry.name for entry in Path("/proc/self/fd").iterdir()}


def _children() -> set[int]:
    return {child.pid for child in psutil.Process().children()}


# What it measures


def test_it_tells_the_allocators_notes(foreign: Any) -> None:
    with MeasuringChild(foreign.Foreign("prints", when="never")) as child:
        assert child.notes == ("a note",)


def test_the_control_is_measured_beside_the_allocator() -> None:
    with MeasuringChild(Mlock()) as child:
        assert child.measure(1 * MIB, control=True).note == "touched"


def test_a_new_measurement_gives_the_held_one_back() -> None:
    with MeasuringChild(Pageable()) as child:
        before = int(_status(child.pid, "VmRSS"))
        for _ in range(5):
            child.measure(16 * MIB)
        assert int(_status(child.pid, "VmRSS")) - before < 18 * 1024
        child.release()
        child.release()
        assert int(_status(child.pid, "VmRSS")) - before < 1024


# The limit


@pytest.mark.parametrize("allocator", [Pageable(), Mlock()], ids=lambda allocator: str(allocator.name))
def test_the_kernel_refuses_a_request_beyond_the_limit_before_a_page_is_taken(allocator: Allocator) -> None:
    with MeasuringChild(allocator) as child:
        child.measure(4096)
        before = int(_status(child.pid, "VmRSS"))
        with pytest.raises(
            AllocationFailed, match=r"mmap of .* failed: Cannot allocate memory|pass the limit"
        ) as caught:
            child.measure(64 * MIB, 16 * MIB)
        assert caught.value.no_address_space
        assert int(_status(child.pid, "VmRSS")) - before < 512


def test_the_limit_holds_for_the_control_too() -> None:
    with MeasuringChild(Pageable()) as child, pytest.raises(AllocationFailed) as caught:
        child.measure(64 * MIB, 16 * MIB, control=True)
    assert caught.value.no_address_space


def test_a_limit_can_be_lowered_and_raised_again() -> None:
    with MeasuringChild(Pageable()) as child:
        assert child.measure(8 * MIB, 16 * MIB).asked_bytes == 8 * MIB
        with pytest.raises(AllocationFailed):
            child.measure(8 * MIB, 4 * MIB)
        assert child.measure(32 * MIB, 64 * MIB).asked_bytes == 32 * MIB


def test_a_request_of_exactly_the_limit_is_measured() -> None:
    # What an allowance permits has to be measurable, the guards and the reading of smaps included.
    with MeasuringChild(Pageable()) as child:
        cost = child.measure(16 * MIB, 16 * MIB)
    assert cost.asked_bytes == 16 * MIB


# Foreign code


def test_this_processs_sys_path_reaches_the_child(foreign: Any) -> None:
    # The module lies in a folder that is on no path but this process's own.
    with MeasuringChild(foreign.Foreign("prints", when="never")) as child:
        assert child.measure(4096).asked_bytes == 4096


@pytest.mark.parametrize(
    ("behaviour", "message"),
    [
        ("raises_several_lines", "RuntimeError: the driver said no"),
        ("raises_nothing_to_read", "ValueError"),
        ("raises_far_too_much", f"RuntimeError: {'x' * 200}"),
        ("raises_memory_error", "MemoryError"),
        ("raises_a_class_of_its_own", "OwnError: a and b"),
    ],
)
def test_whatever_an_allocator_raises_becomes_one_line(foreign: Any, behaviour: str, message: str) -> None:
    with MeasuringChild(foreign.Foreign(behaviour)) as child:
        for _ in range(2):
            with pytest.raises(AllocationFailed) as caught:
                child.measure(4096)
            assert str(caught.value) == message
            assert not caught.value.no_address_space
        # It lives on.
        assert child.measure(4096, control=True).asked_bytes == 4096


def test_an_error_that_does_not_pickle_ends_in_an_error_of_ours(foreign: Any) -> None:
    with MeasuringChild(foreign.Foreign("raises_what_does_not_pickle")) as child, pytest.raises(CouldNotMeasure):
        child.measure(4096)


@pytest.mark.parametrize("when", ["notes", "empty_cache"])
def test_the_other_calls_are_guarded_too(foreign: Any, when: str) -> None:
    with (
        pytest.raises(AllocationFailed, match=r"RuntimeError: the driver said no$"),
        MeasuringChild(foreign.Foreign("raises_several_lines", when=when)) as child,
    ):
        child.empty_cache()


@pytest.mark.parametrize(
    ("behaviour", "message"), [("exits", "exit code 7"), ("ends_at_once", "exit code 5"), ("crashes", "SIGSEGV")]
)
@pytest.mark.parametrize("when", ["allocate", "notes"])
def test_an_allocator_that_ends_its_process_is_told_from_one_that_says_no(
    foreign: Any, behaviour: str, message: str, when: str
) -> None:
    with (
        pytest.raises(ChildDied, match=message),
        MeasuringChild(foreign.Foreign(behaviour, when=when)) as child,
    ):
        child.measure(4096)


@pytest.mark.parametrize("when", ["notes", "allocate"])
def test_what_an_allocator_prints_never_reaches_stdout(
    foreign: Any, when: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with MeasuringChild(foreign.Foreign("prints", when=when)) as child:
        child.measure(4096)
    printed = capfd.readouterr()
    assert printed.out == ""
    assert {"from python", "from a library", "from C"} <= set(printed.err.splitlines())


def test_an_allocator_that_does_not_pickle_is_an_error_of_ours_and_leaves_no_process(foreign: Any) -> None:
    children = _children()
    with pytest.raises(CouldNotMeasure):
        MeasuringChild(foreign.Unpicklable())
    assert _children() == children


def test_an_allocator_that_breaks_on_arrival_ends_in_one_line_and_no_traceback(
    foreign: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(CouldNotMeasure):
        MeasuringChild(foreign.BreaksOnArrival("prints"))
    assert "Traceback" not in capfd.readouterr().err
