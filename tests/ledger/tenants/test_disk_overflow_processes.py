"""Several real processes on one folder: one bound, nobody's files touched by another, and nothing left of the dead."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from pinprobe.ledger.tenants.disk_overflow import DiskOverflow
from tests.ledger.tenants.overflow_bench import (
    LARGE_FILE_BYTES,
    SMALL,
    SMALL_FILE_BYTES,
    files,
    on_disk_bytes,
    used_bytes_while_it_changes,
)
from tests.ledger.tenants.overflow_process import overflow_processes

ROOM = 6 * SMALL_FILE_BYTES


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "overflow"


def places(folder: Path) -> set[str]:
    """The sub-folders of processes."""
    return {path.name for path in folder.iterdir() if path.name.startswith("savepoints-")}


def test_a_process_killed_while_it_writes_leaves_nothing_after_the_next_start(folder: Path) -> None:
    with overflow_processes(2) as (first, second):
        first.ask("open", folder, 2**30, "large")
        first.ask("write", 1)
        first.ask("hang_halfway")
        assert first.ask("write", 2) == "halfway"
        first.kill()
        assert {file.suffix for file in files(folder)} == {".row", ".new"}
        assert on_disk_bytes(folder) == 2 * LARGE_FILE_BYTES
        second.ask("open", folder, 2**30)
        assert files(folder) == []
        assert len(places(folder)) == 1


@pytest.mark.parametrize("moment_ms", [0, 20])
def test_a_process_killed_at_any_moment_leaves_nothing_after_the_next_start(folder: Path, moment_ms: int) -> None:
    with overflow_processes(1) as (process,):
        process.ask("open", folder, ROOM)
        process.tell("hammer", 1, 10_000)
        time.sleep(0.05 + moment_ms / 1000)
        process.kill()
    assert len(places(folder)) == 1
    overflow = DiskOverflow(folder, SMALL, ROOM)
    assert files(folder) == []
    assert len(places(folder)) == 1
    assert overflow.close()
    assert [path.name for path in folder.iterdir()] == ["overflow.lock"]


def test_a_program_that_ends_without_closing_leaves_nothing(folder: Path) -> None:
    with overflow_processes(1) as (process,):
        process.ask("open", folder, ROOM)
        process.ask("write", 1)
        assert process.end() == 0
        assert [path.name for path in folder.iterdir()] == ["overflow.lock"]


def test_what_is_not_ours_stays_wherever_it_lies(folder: Path) -> None:
    with overflow_processes(2) as (first, second):
        first.ask("open", folder, ROOM)
        first.ask("write", 1)
        first.ask("write", 2)
        (place,) = folder.glob("savepoints-*")
        foreign = [folder / "notes", folder / "savepoints-mine" / "notes", place / "notes", place / f"{0:032x}-1.txt"]
        foreign[1].parent.mkdir()
        for path in foreign:
            path.write_text("somebody's own")
        (place / f"{0:032x}-77.row").mkdir()
        (place / f"{0:032x}-78.row").symlink_to(foreign[0])
        first.kill()
        second.ask("open", folder, ROOM)
        assert all(path.read_text() == "somebody's own" for path in foreign)
        assert sorted(path.name for path in place.iterdir()) == [
            f"{0:032x}-1.txt", f"{0:032x}-77.row", f"{0:032x}-78.row", "notes",
        ]  # fmt: skip


def test_the_start_of_one_leaves_the_other_its_files_and_each_reads_its_own(folder: Path) -> None:
    with overflow_processes(2) as (first, second):
        first.ask("open", folder, ROOM)
        assert first.ask("write", 1)[0] == "written"
        second.ask("open", folder, ROOM)
        assert second.ask("write", 2)[0] == "written"
        assert len(places(folder)) == 2
        assert [first.ask("restore", number) for number in (1, 2)] == ["ready", "not there"]
        assert [second.ask("restore", number) for number in (1, 2)] == ["not there", "ready"]
        assert second.ask("close") is True
        assert len(files(folder)) == 1
        assert first.ask("restore", 1) == "ready"


def test_the_bound_holds_for_both_together_and_each_makes_room_of_its_own_alone(folder: Path) -> None:
    with overflow_processes(2) as (first, second):
        for process in (first, second):
            process.ask("open", folder, ROOM)
        for number in range(4):
            assert first.ask("write", number, 1)[0] == "written"
        assert [second.ask("write", number, 9)[0] for number in (10, 11)] == ["written", "written"]
        assert on_disk_bytes(folder) == ROOM
        assert second.ask("write", 12, 9)[0] == "not_worth_it"  # the first's are worth less, and are the first's
        assert second.ask("write", 12, 10)[0] == "written"
        assert first.ask("write", 20, 2)[0] == "written"
        assert on_disk_bytes(folder) == ROOM == first.ask("held_bytes") + second.ask("held_bytes")
        assert first.ask("held_bytes") == 4 * SMALL_FILE_BYTES


def test_the_bound_holds_at_every_moment_while_two_write_as_fast_as_they_can(folder: Path) -> None:
    with overflow_processes(2) as (first, second):
        for process in (first, second):
            process.ask("open", folder, ROOM)
        first.tell("hammer", 0, 120)
        second.tell("hammer", 1000, 120)
        most = 0
        for _ in range(150):
            most = max(most, used_bytes_while_it_changes(folder))
            assert most <= ROOM
            time.sleep(0.001)
        ends = [*first.answer(), *second.answer()]
        assert set(ends) <= {"written", "not_worth_it"}
        assert ends.count("written") > 20
        assert most > ROOM // 2
        assert on_disk_bytes(folder) <= ROOM


def test_who_needs_the_room_of_the_dead_clears_it_without_a_new_start(folder: Path) -> None:
    with overflow_processes(2) as (first, second):
        for process in (first, second):
            process.ask("open", folder, ROOM)
        for number in range(6):
            assert first.ask("write", number, 5)[0] == "written"
        assert second.ask("write", 10, 1)[0] == "not_worth_it"
        first.kill()
        assert second.ask("write", 10, 1)[0] == "written"
        assert on_disk_bytes(folder) == SMALL_FILE_BYTES
        assert len(places(folder)) == 1


def test_a_forked_child_has_no_overflow_and_leaves_its_parents_alone(folder: Path) -> None:
    with overflow_processes(1) as (process,):
        process.ask("open", folder, ROOM)
        assert process.ask("write", 1)[0] == "written"
        assert process.ask("fork") == ["closed", True, 0, True]
        assert process.ask("restore", 1) == "ready"
        assert process.ask("write", 2)[0] == "written"
        assert len(files(folder)) == 2


def test_a_forked_child_that_outlives_its_parent_keeps_nothing_alive(folder: Path) -> None:
    with overflow_processes(2) as (first, second):
        first.ask("open", folder, ROOM)
        first.ask("write", 1)
        child = first.ask("fork_sleeper")
        try:
            first.kill()
            assert Path(f"/proc/{child}").exists()
            second.ask("open", folder, ROOM)
            assert files(folder) == []
        finally:
            os.kill(child, signal.SIGKILL)


def test_two_overflows_of_one_process_are_two_to_the_folder(folder: Path) -> None:
    first, second = DiskOverflow(folder, SMALL, ROOM), DiskOverflow(folder, SMALL, ROOM)
    assert len(places(folder)) == 2
    third = DiskOverflow(folder, SMALL, ROOM)
    assert len(places(folder)) == 3
    for overflow in (first, second, third):
        assert overflow.close()
    assert places(folder) == set()
