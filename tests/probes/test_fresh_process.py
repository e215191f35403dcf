"""A process of our own: what it answers, and how it ends with its parent, by a signal, or by itself."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from pinprobe.probes import fresh_process
from pinprobe.probes.errors import AllocationFailed, ChildDied, Refused
from pinprobe.probes.fresh_process import FreshProcess

_SERVER = """
import mmap, os, subprocess, sys, time
from pinprobe.probes.errors import Refused

class Server:
    def __init__(self):
        self.told = []
        self.held = []
    def tell(self, *words):
        self.told += words
        return list(self.told)
    def take(self, size_bytes):
        block = mmap.mmap(-1, size_bytes)
        block.write(b"x" * size_bytes)
        self.held.append(block)
        return os.getpid()
    def refuse(self):
        raise Refused("cache asks for 9 B", "cache", 9, 9, 4, "the limit", 4)
    def fail(self):
        raise RuntimeError("the first line\\nand the second")
    def return_what_does_not_pickle(self):
        return lambda: 0
    def say(self):
        print("on stdout", flush=True)
    def start_another(self):
        return subprocess.Popen(["sleep", "60"]).pid
    def sleep(self):
        time.sleep(60)
    def end(self, code):
        os._exit(code)

class Broken:
    def __init__(self):
        raise RuntimeError("it can't be made")
"""

Make = Callable[..., FreshProcess]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """A process with the server above, which only this process's sys.path can find."""
    (tmp_path / "served_in_tests.py").write_text(_SERVER)
    monkeypatch.syspath_prepend(str(tmp_path))
    return lambda name="Server": FreshProcess(f"served_in_tests:{name}", "trying process")


def is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE  # whoever adopts orphans may be slow to bury them
    except psutil.NoSuchProcess:
        return True


def wait_until_gone(pid: int, patience_seconds: float = 5.0) -> None:
    end = time.monotonic() + patience_seconds
    while not is_gone(pid):
        assert time.monotonic() < end, f"the process {pid} is still there"
        time.sleep(0.02)


# What it answers


def test_one_object_answers_all_calls_in_a_process_of_its_own(make: Make) -> None:
    with make() as process:
        assert process.call("tell", 1, "two") == [1, "two"]
        assert process.call("tell", 3.0) == [1, "two", 3.0]
        assert process.call("take", 4096) == process.pid != os.getpid()


def test_an_error_of_ours_arrives_as_it_was_raised(make: Make) -> None:
    with make() as process:
        with pytest.raises(Refused) as refused:
            process.call("refuse")
        assert str(refused.value) == "cache asks for 9 B"
        assert (refused.value.owner, refused.value.room_bytes, refused.value.bound) == ("cache", 4, "the limit")
        assert process.call("tell") == []


@pytest.mark.parametrize(
    ("method", "line"),
    [
        ("fail", "RuntimeError: the first line"),
        ("return_what_does_not_pickle", "pickle"),
        ("no_such_method", "AttributeError: 'Server' object has no attribute 'no_such_method'"),
    ],
)
def test_whatever_else_goes_wrong_there_is_one_line_and_it_lives_on(make: Make, method: str, line: str) -> None:
    with make() as process:
        with pytest.raises(AllocationFailed) as failed:
            process.call(method)
        assert line in str(failed.value)
        assert "\n" not in str(failed.value)
        assert process.call("tell", 1) == [1]


def test_what_it_prints_is_not_on_stdout(make: Make, capfd: pytest.CaptureFixture[str]) -> None:
    with make() as process:
        process.call("say")
    printed = capfd.readouterr()
    assert printed.out == ""
    assert "on stdout" in printed.err


def test_two_of_them_are_nothing_to_each_other(make: Make) -> None:
    with make() as first, make() as second:
        first.call("tell", 1)
        assert second.call("tell") == []
        first.kill()
        assert second.call("tell", 2) == [2]


# How it ends


def test_it_is_gone_with_all_it_took_when_the_block_ends(make: Make) -> None:
    with make() as process:
        process.call("take", 32 * 2**20)
        assert psutil.Process(process.pid).memory_info().rss > 32 * 2**20
    assert not Path(f"/proc/{process.pid}").exists()


def test_what_it_started_ends_with_it(make: Make) -> None:
    with make() as process:
        other = process.call("start_another")
        assert not is_gone(other)
    wait_until_gone(other)


def test_an_error_beside_it_ends_it_in_the_midst_of_a_call(make: Make) -> None:
    started = time.monotonic()
    with contextlib.suppress(ZeroDivisionError), make() as process:
        process._send(("sleep", ()))
        raise ZeroDivisionError
    assert is_gone(process.pid)
    assert time.monotonic() - started < 4


@pytest.mark.parametrize("method", ["sleep", "tell"])
def test_it_dies_with_a_parent_that_is_killed(make: Make, method: str) -> None:
    script = (
        f"import sys, time; sys.path[:] = {sys.path!r}\n"
        "from pinprobe.probes.fresh_process import FreshProcess\n"
        "process = FreshProcess('served_in_tests:Server', 'trying process')\n"
        "print(process.call('take', 2**20), flush=True)\n"
        f"process.call({method!r})\n"
        "time.sleep(60)"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    try:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert not is_gone(pid)
    finally:
        parent.kill()
        parent.communicate()
    wait_until_gone(pid)


def test_it_is_first_in_line_for_the_oom_killer_and_in_a_session_of_its_own(make: Make) -> None:
    with make() as process:
        process.call("tell")
        assert Path(f"/proc/{process.pid}/oom_score_adj").read_text().strip() == "1000"
        assert os.getsid(process.pid) == process.pid != os.getsid(0)


def test_ctrl_c_is_its_parents_to_answer(make: Make) -> None:
    with make() as process:
        process.call("tell")
        os.kill(process.pid, signal.SIGINT)
        assert process.call("tell", 1) == [1]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_its_death_is_told_by_its_name_and_the_signal(make: Make, number: signal.Signals) -> None:
    with make() as process:
        process.call("tell")
        os.kill(process.pid, number)
        for _ in range(2):
            with pytest.raises(ChildDied, match=rf"^the trying process was .*{number.name}") as died:
                process.call("tell")
            assert "\n" not in str(died.value)


def test_one_that_ends_by_itself_is_told_with_its_exit_code(make: Make) -> None:
    with make() as process, pytest.raises(ChildDied, match="the trying process ended by itself with exit code 7"):
        process.call("end", 7)


@pytest.mark.parametrize("name", ["Broken", "Missing"])
def test_an_object_that_can_not_be_made_ends_the_first_call(make: Make, name: str) -> None:
    with make(name) as process, pytest.raises(ChildDied, match="exit code 1; what it said is above"):
        process.call("tell")
    assert is_gone(process.pid)


def test_ten_of_them_leave_no_descriptor_and_no_process(make: Make) -> None:
    before = psutil.Process().num_fds(), len(psutil.Process().children())
    for _ in range(10):
        with make() as process:
            process.call("tell")
    assert (psutil.Process().num_fds(), len(psutil.Process().children())) == before


def test_one_whose_parent_is_gone_before_it_began_says_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    theirs, ours = os.pipe()
    os.close(ours)  # what comes from there is its end
    command = [sys.executable, "-I", "-c", fresh_process._BOOT, str(theirs), str(os.getpid()), "a:b"]
    done = subprocess.run(command, pass_fds=[theirs], capture_output=True, text=True, check=False)
    os.close(theirs)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "")
