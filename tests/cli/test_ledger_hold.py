"""`pinprobe ledger --hold`, seen by the kernel and in the host's book, and every way in which it can end."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.cli.ledger_process import (
    MIB,
    ONE_BYTES,
    TWO,
    book_files,
    ended,
    ended_by,
    holding,
    mappings,
    started,
    status_bytes,
    wait_until_it_holds,
    wait_until_it_sleeps,
    with_book,
)

if TYPE_CHECKING:
    from tests.cli.conftest import Pinprobe

_ROW_BYTES = 154_927_104
_BLOCK_BYTES = 256 * MIB
_ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

# Takes what it is asked for, says so by a file, and goes on taking its time.
_SLOW_ENGINE = """
import mmap, pathlib, time

def take(size):
    memory = mmap.mmap(-1, size)
    for at in range(0, size, mmap.PAGESIZE):
        memory[at] = 1
    pathlib.Path(__file__).with_name("taken").touch()
    time.sleep(60)
    return memory
"""
_SLOW = """\
engine: {name: slow, allocator: pageable}
tenants:
  a.first: {kind: buffer, bytes: 32 MiB}
  b.slow: {kind: external, bytes: 16 MiB, callable: "slow_engine:take"}
"""


@pytest.fixture
def command(pinprobe: Pinprobe, tmp_path: Path) -> Pinprobe:
    return with_book(pinprobe, tmp_path / "book")


@pytest.fixture
def two(tmp_path: Path) -> str:
    """A config of two tenants, 32 MiB each."""
    path = tmp_path / "two.yaml"
    path.write_text(TWO, encoding="utf-8")
    return str(path)


@pytest.fixture
def slow(tmp_path: Path) -> tuple[str, Path]:
    """A config whose second tenant takes a minute, and the file that says that it has begun."""
    folder = tmp_path / "engine"
    folder.mkdir()
    (folder / "slow_engine.py").write_text(_SLOW_ENGINE, encoding="utf-8")
    path = tmp_path / "slow.yaml"
    path.write_text(_SLOW, encoding="utf-8")
    return str(path), folder / "taken"


def in_the_book(command: Pinprobe) -> dict[int, dict[str, Any]]:
    """The rows of each live process by its pid, as `pinprobe host` tells them."""
    processes = command.json("host")["processes"]
    return {process["pid"]: {row["owner"]: row for row in process["rows"]} for process in processes}


# -- what is held


def test_what_the_ledger_prints_is_what_the_kernel_says_of_its_process(
    torch_host: Pinprobe, tmp_path: Path, need_room: Callable[[int], None]
) -> None:
    need_room(700 * MIB)
    command = with_book(torch_host, tmp_path / "book")
    config = tmp_path / "c.yaml"
    config.write_text(
        "engine: {name: mine, allocator: torch-host}\n"
        "tenants:\n"
        f"  cache.ring: {{kind: buffer, bytes: {_ROW_BYTES}}}\n"
        f"  cache.pool: {{kind: buffer, bytes: {_ROW_BYTES}, allocator: pageable}}\n",
        encoding="utf-8",
    )
    with holding(command, str(config), "--json") as process:
        assert process.stdout is not None
        document = command.parsed(process.stdout.readline())
        mapped = [(found.name, found.size_bytes, found.resident_bytes) for found in mappings(process.pid)]
        resident = status_bytes(process.pid, "VmRSS")
        shared = status_bytes(process.pid, "RssShmem")
        book = in_the_book(command)[process.pid]
        code, said = ended_by(process, signal.SIGINT)
    ring, pool = (row for row in document["rows"] if row["state"] == "reserved")
    assert (ring["asked_bytes"], ring["booked_bytes"], ring["resident"]["bytes"]) == (
        _ROW_BYTES, _BLOCK_BYTES, _BLOCK_BYTES,
    )  # fmt: skip
    assert (pool["asked_bytes"], pool["booked_bytes"], pool["resident"]["bytes"]) == (
        _ROW_BYTES, _ROW_BYTES, _ROW_BYTES,
    )  # fmt: skip
    assert ("/dev/zero (deleted)", _BLOCK_BYTES, _BLOCK_BYTES) in mapped
    assert ("", _ROW_BYTES, _ROW_BYTES) in mapped
    assert shared >= _BLOCK_BYTES
    assert document["process_resident"]["bytes"] == pytest.approx(resident, abs=4 * MIB)
    assert document["working_set_floor"]["bytes"] == pytest.approx(resident - _BLOCK_BYTES - _ROW_BYTES, abs=4 * MIB)
    assert {owner: (row["booked_bytes"], row["pageable"]) for owner, row in book.items()} == {
        "cache.ring": (_BLOCK_BYTES, False),
        "cache.pool": (_ROW_BYTES, True),
    }
    assert (code, said) == (0, "pinprobe: giving it back\n")
    assert book_files(command) == []


@pytest.mark.parametrize("number", _ENDINGS)
def test_a_signal_gives_all_of_it_back_and_it_ends_with_0(command: Pinprobe, two: str, number: signal.Signals) -> None:
    with holding(command, two) as process:
        assert status_bytes(process.pid, "RssAnon") > 2 * ONE_BYTES
        assert len(book_files(command)) == 2
        assert ended_by(process, number) == (0, "pinprobe: giving it back\n")
        assert process.stdout is not None
        assert process.stdout.read().startswith("pinprobe ledger: 64.000 MiB booked")
    assert book_files(command) == []


@pytest.mark.parametrize("number", _ENDINGS)
def test_a_signal_at_the_very_moment_at_which_it_says_that_it_holds_is_heard_too(
    command: Pinprobe, two: str, number: signal.Signals
) -> None:
    # A script waits for the line, and acts on it at once.
    with started(command, two, "--hold") as process:
        wait_until_it_holds(process)
        assert ended_by(process, number) == (0, "pinprobe: giving it back\n")


def test_told_to_be_quiet_it_holds_all_the_same(command: Pinprobe, two: str) -> None:
    with started(command, two, "--hold", "-q", "--csv") as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("owner,")
        wait_until_it_sleeps(process)
        assert len(in_the_book(command)) == 1
        assert ended_by(process, signal.SIGTERM) == (0, "")


def test_under_nohup_it_goes_on_after_the_terminal_is_gone(command: Pinprobe, two: str) -> None:
    with holding(command.under("nohup"), two) as process:
        process.send_signal(signal.SIGHUP)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)
        assert ended_by(process, signal.SIGTERM)[0] == 0


def test_a_reader_who_has_seen_enough_does_not_end_it(command: Pinprobe, two: str) -> None:
    with started(command, two, "--hold", "--csv") as process:
        assert process.stdout is not None
        process.stdout.close()
        wait_until_it_holds(process)
        wait_until_it_sleeps(process)
        assert ended_by(process, signal.SIGTERM) == (0, "pinprobe: giving it back\n")


def test_without_hold_all_is_given_back_at_once(command: Pinprobe, two: str) -> None:
    done = command("ledger", two)
    assert (done.returncode, done.stderr) == (0, "")
    assert book_files(command) == []


# -- several at once


def test_two_commands_share_the_book_and_each_is_seen_beside_the_other(command: Pinprobe, two: str) -> None:
    with holding(command, two) as first, holding(command, two, "--scale", "1/2") as second:
        book = in_the_book(command)
        assert set(book) == {first.pid, second.pid}
        for process, booked_bytes in ((first, ONE_BYTES), (second, ONE_BYTES // 2)):
            rows = book[process.pid]
            assert {owner: row["booked_bytes"] for owner, row in rows.items()} == {
                "a.first": booked_bytes,
                "b.second": booked_bytes,
            }
            assert status_bytes(process.pid, "RssAnon") > 2 * booked_bytes
        assert command.json("host")["sums"]["pageable_bytes"] == 3 * ONE_BYTES
        account = command.json("ledger", two, "--scale", "1/2")
        assert "(3 live)" in account["book_reach"]
        assert account["sums"]["booked_bytes"] == ONE_BYTES


def test_a_limit_counts_what_the_others_hold(command: Pinprobe, two: str) -> None:
    with holding(command, two):
        line = command.refused("ledger", two, "--limit", "80MiB", exit_code=1)
        assert "a.first asks for 32.000 MiB" in line
        assert "the limit is 80.000 MiB and 64.000 MiB are booked by 2 processes" in line
        assert "the largest request that fits now is 16.000 MiB" in line
    assert command("ledger", two, "--limit", "80MiB", "-q").returncode == 0


def test_of_several_that_begin_at_once_a_limit_lets_one_in(command: Pinprobe, tmp_path: Path) -> None:
    config = tmp_path / "one.yaml"
    config.write_text(TWO.rpartition("  b.second")[0].replace("16 MiB", "30 MiB"), encoding="utf-8")
    processes = [command.start("ledger", str(config), "--limit", "100MiB", "--hold") for _ in range(3)]
    try:
        refused: list[subprocess.Popen[str]] = []
        deadline = time.monotonic() + 60
        while len(refused) < 2 and time.monotonic() < deadline:
            refused = [process for process in processes if process.poll() is not None]
            time.sleep(0.02)
        (held,) = (process for process in processes if process not in refused)
        for process in refused:
            code, said = ended(process)
            assert code == 1
            assert "the limit is 100.000 MiB" in said
        wait_until_it_holds(held)
        assert set(in_the_book(command)) == {held.pid}
    finally:
        for process in processes:
            with process:
                process.kill()


def test_who_is_killed_is_gone_from_the_book_at_the_next_look(command: Pinprobe, two: str) -> None:
    with holding(command, two) as first, holding(command, two) as second:
        first.kill()
        first.wait()
        assert set(in_the_book(command)) == {second.pid}
        second.kill()
        second.wait()
        # What it left is cleared by whoever looks next, and counts for nothing.
        assert command("ledger", two, "--limit", "64MiB", "-q").returncode == 0
    assert book_files(command) == []


# -- in the middle of booting


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    while not path.exists():
        assert process.poll() is None, ended(process)
        time.sleep(0.01)


def test_what_is_being_taken_is_pending_in_the_book_and_who_is_killed_leaves_nothing(
    command: Pinprobe, slow: tuple[str, Path], tmp_path: Path
) -> None:
    config, taken = slow
    places = ("--receipt", str(tmp_path / "receipt.json"), "-o", str(tmp_path / "out.json"), "--json")
    before = {path.name for path in tmp_path.iterdir()}
    with started(command.finding_first(taken.parent), config, *places) as process:
        wait_for(taken, process)
        rows = in_the_book(command)[process.pid]
        assert {owner: (row["pending"], row["booked_bytes"]) for owner, row in rows.items()} == {
            "a.first": (False, 32 * MIB),
            "b.slow": (True, 16 * MIB),
        }
        process.kill()
        process.wait()
    assert in_the_book(command) == {}
    assert book_files(command) == []
    assert {path.name for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("number", _ENDINGS)
def test_a_signal_in_the_middle_gives_back_what_was_taken_and_nothing_is_printed(
    command: Pinprobe, slow: tuple[str, Path], tmp_path: Path, number: signal.Signals
) -> None:
    config, taken = slow
    receipt = tmp_path / "receipt.json"
    with started(command.finding_first(taken.parent), config, "--json", "--receipt", str(receipt)) as process:
        wait_for(taken, process)
        code, said = ended_by(process, number)
        assert (code, said.strip()) == (3, "pinprobe: interrupted")
        assert process.stdout is not None
        assert process.stdout.read() == ""
    assert book_files(command) == []
    assert not receipt.exists()


@pytest.mark.slow
def test_others_wait_for_what_is_pending_and_say_for_whom_they_waited(
    command: Pinprobe, slow: tuple[str, Path], two: str
) -> None:
    config, taken = slow
    with started(command.finding_first(taken.parent), config) as process:
        wait_for(taken, process)
        began = time.monotonic()
        line = command.refused("ledger", two, "--limit", "70MiB", exit_code=1)
        assert 5 < time.monotonic() - began < 30
        assert f"b.slow (slow {process.pid})" in line


def test_an_account_that_was_held_is_whole(command: Pinprobe, two: str, tmp_path: Path) -> None:
    receipt = tmp_path / "receipt.json"
    with holding(command, two, "--receipt", str(receipt)) as process:
        # It is there while it holds: whoever reads it then need not wait.
        written = json.loads(receipt.read_text(encoding="utf-8"))
        assert {row["owner"] for row in written["rows"]} >= {"a.first", "b.second"}
        assert ended_by(process, signal.SIGTERM)[0] == 0
    assert json.loads(receipt.read_text(encoding="utf-8")) == written
