"""Every way to end a run early gives all memory back, leaves no process behind and tells what was measured so far."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

if TYPE_CHECKING:
    from tests.cli.conftest import Pinprobe

# Of the second, 1.8 GiB or a block of 2 GiB, the first 700 MiB are soon there, and a signal can arrive before the rest.
_SLOW = ("sweep", "--slot-bytes", "300MiB", "--slots", "1,6", "--allocator")
_SECOND_BEGAN_BYTES = 700 * 2**20
_MEMORY_BYTES = 3 * 2**30


@pytest.fixture
def started(pinprobe: Pinprobe, need_room: Callable[[int], None]) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start commands that are killed, with what they started, however the test ends."""
    need_room(_MEMORY_BYTES)
    running: list[subprocess.Popen[str]] = []

    def start(*arguments: str) -> subprocess.Popen[str]:
        running.append(pinprobe.start(*arguments))
        return running[-1]

    yield start
    for process in running:
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in psutil.Process(process.pid).children():
                child.kill()
        process.kill()
        process.communicate()


def measuring_child(process: subprocess.Popen[str]) -> psutil.Process:
    """Wait until the command's measuring child is at its second, big block, and return the child."""
    parent = psutil.Process(process.pid)
    for _ in until(60):
        assert process.poll() is None, process.communicate()
        for child in parent.children():
            with contextlib.suppress(psutil.NoSuchProcess):
                if child.memory_info().rss > _SECOND_BEGAN_BYTES:
                    return child
    raise AssertionError("the command never came to its second block")


def until(seconds: float) -> Iterator[None]:
    """Poll until a time has passed."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        yield
        time.sleep(0.01)


def is_gone(process: psutil.Process) -> bool:
    """Say whether it has ended; one that nobody has waited for yet holds no memory."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    return True


def free_or_elsewhere_bytes() -> int:
    """Memory that can be had, and what processes hold that are none of ours: others work on this machine too.

    MemAvailable does not see the free pages in the per-CPU lists, where much lies for seconds after it was given back.
    """
    counts = re.findall(r"^\s+count:\s+(\d+)$", Path("/proc/zoneinfo").read_text(encoding="utf-8"), re.MULTILINE)
    listed = sum(map(int, counts)) * os.sysconf("SC_PAGESIZE")
    held = [process.info["memory_info"] for process in psutil.process_iter(["memory_info"])]
    elsewhere = sum(info.rss for info in held if info)
    return int(psutil.virtual_memory().available) + listed + int(elsewhere)


def assert_given_back(before_bytes: int) -> None:
    # What was taken is more than the tolerance.
    for _ in until(20):
        if free_or_elsewhere_bytes() > before_bytes - 400 * 2**20:
            return
    raise AssertionError(f"{before_bytes:,} B before, and now {free_or_elsewhere_bytes():,} B")


@pytest.mark.parametrize(
    ("number", "allocator"),
    [
        (signal.SIGINT, "torch-host"),
        (signal.SIGTERM, "torch-host"),
        (signal.SIGINT, "pageable"),
        (signal.SIGHUP, "mlock"),
    ],
)
def test_a_signal_ends_a_sweep_with_what_was_measured_so_far(
    pinprobe: Pinprobe,
    started: Callable[..., subprocess.Popen[str]],
    request: pytest.FixtureRequest,
    number: signal.Signals,
    allocator: str,
) -> None:
    if allocator == "torch-host":
        request.getfixturevalue("torch_host")
    if allocator == "mlock":
        request.getfixturevalue("need_lock")(1800 * 2**20)
    before = free_or_elsewhere_bytes()
    process = started(*_SLOW, allocator, "--json")
    child = measuring_child(process)
    process.send_signal(number)
    stdout, stderr = process.communicate(timeout=10)
    assert process.returncode == 3
    assert stderr.startswith("pinprobe: ended early: ")
    assert stderr.count("\n") == 1
    (sweep,) = pinprobe.parsed(stdout)["sweeps"]
    assert [point["state"] for point in sweep["points"]] == ["measured", "not measured"]
    assert sweep["ended"] == ("interrupted" if number == signal.SIGINT else f"ended by {number.name}")
    assert is_gone(child)
    assert_given_back(before)


def test_a_signal_ends_a_probe_with_what_was_measured_so_far(
    pinprobe: Pinprobe, started: Callable[..., subprocess.Popen[str]]
) -> None:
    process = started("probe", "--bytes", "1800MiB", "--allocator", "pageable", "--json")
    child = measuring_child(process)
    process.send_signal(signal.SIGTERM)
    stdout, _ = process.communicate(timeout=10)
    assert process.returncode == 3
    assert "SIGTERM" in pinprobe.parsed(stdout)["ended"]
    assert is_gone(child)


def test_an_interrupted_sweep_still_writes_its_file(
    pinprobe: Pinprobe, started: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    process = started(*_SLOW, "pageable", "--json", "-o", str(tmp_path / "out.json"))
    measuring_child(process)
    process.send_signal(signal.SIGINT)
    stdout, _ = process.communicate(timeout=10)
    assert (process.returncode, stdout) == (3, "")
    document = pinprobe.parsed((tmp_path / "out.json").read_text(encoding="utf-8"))
    assert document["sweeps"][0]["ended"] == "interrupted"
    assert [path.name for path in tmp_path.iterdir()] == ["out.json"]


def test_an_impatient_second_signal_leaves_no_process_behind(
    pinprobe: Pinprobe, started: Callable[..., subprocess.Popen[str]]
) -> None:
    process = started(*_SLOW, "pageable", "--json")
    child = measuring_child(process)
    process.send_signal(signal.SIGINT)
    time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=10)
    # The second may come while the result is written; then the interpreter may end by the signal itself.
    assert process.returncode in (3, -signal.SIGINT)
    assert "Traceback" not in stderr
    assert is_gone(child)


def test_the_measuring_child_dies_with_a_parent_that_is_killed(
    pinprobe: Pinprobe, started: Callable[..., subprocess.Popen[str]]
) -> None:
    process = started(*_SLOW, "pageable")
    child = measuring_child(process)
    process.kill()
    process.wait(10)
    # A second, and what the kernel takes to free the pages of the one that is dying.
    for _ in until(3):
        if is_gone(child):
            return
    raise AssertionError("the measuring child outlived its parent")


def test_a_child_that_is_killed_is_told_as_the_result(
    pinprobe: Pinprobe, started: Callable[..., subprocess.Popen[str]]
) -> None:
    process = started(*_SLOW, "pageable", "--json")
    child = measuring_child(process)
    child.kill()
    stdout, stderr = process.communicate(timeout=20)
    assert process.returncode == 3
    assert stderr.startswith("pinprobe: ended early: ")
    assert stderr.count("\n") == 1
    (sweep,) = pinprobe.parsed(stdout)["sweeps"]
    assert sweep["points"][0]["state"] == "measured"
    assert "bytes" not in sweep["points"][1]["block"]
    assert "was killed (SIGKILL)" in sweep["ended"]
    assert sweep["points"][1]["reason"] == sweep["ended"]


def test_the_measuring_child_is_first_in_line_for_the_oom_killer_and_its_parent_is_not(
    pinprobe: Pinprobe, started: Callable[..., subprocess.Popen[str]]
) -> None:
    process = started(*_SLOW, "pageable")
    child = measuring_child(process)
    assert Path(f"/proc/{child.pid}/oom_score_adj").read_text(encoding="utf-8").strip() == "1000"
    assert Path(f"/proc/{process.pid}/oom_score_adj").read_text(encoding="utf-8").strip() != "1000"


def test_a_child_that_is_just_starting_has_no_ear_for_the_terminals_ctrl_c(
    pinprobe: Pinprobe, started: Callable[..., subprocess.Popen[str]]
) -> None:
    # Ctrl-C goes to the whole foreground group. A child that is still importing would answer it with a traceback, so it
    # is born into a session of its own.
    process = started(*_SLOW, "pageable")
    parent = psutil.Process(process.pid)
    for _ in until(20):
        for child in parent.children():
            with contextlib.suppress(psutil.NoSuchProcess, OSError):
                if "measuring_server" in "".join(child.cmdline()):
                    assert os.getsid(child.pid) != os.getsid(process.pid)
                    return
    raise AssertionError("the command never started a child")


@pytest.mark.parametrize("where", ["raise KeyboardInterrupt", "exec('raise KeyboardInterrupt')"])
def test_an_interrupt_ends_with_the_same_code_also_where_it_comes_within_an_exec(
    pinprobe: Pinprobe, tmp_path: Path, where: str
) -> None:
    # Dataclasses are made by an exec, so it often does while modules are loaded. CPython then ends by the signal,
    # although it was caught and told.
    lines = ["from pinprobe import __main__", "from pinprobe.cli import main", "def stand_in(**_):", f"    {where}"]
    lines += ["main.main.main = stand_in", "__main__.main()"]
    (tmp_path / "interrupted_command.py").write_text("\n".join(lines), encoding="utf-8")
    ended = subprocess.run(
        [sys.executable, "-m", "interrupted_command"], env=pinprobe.finding_first(tmp_path).environment,
        capture_output=True, text=True, timeout=20, check=False,
    )  # fmt: skip
    assert (ended.returncode, ended.stdout, ended.stderr) == (3, "", "pinprobe: interrupted\n")
