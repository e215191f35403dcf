"""`pinprobe host` beside real processes that keep their books."""

from __future__ import annotations

import csv
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pinprobe.ledger.book.book_entry import BookRow
from pinprobe.ledger.book.host_book import HostBook
from pinprobe.probes.headroom import read_headroom
from pinprobe.probes.host_tree import THIS_HOST
from pinprobe.probes.reading import Reading
from tests.ledger.book_process import book_processes

if TYPE_CHECKING:
    from tests.cli.conftest import Pinprobe

_GIB = 2**30


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "book"
    folder.mkdir()
    return folder


@pytest.fixture
def two(folder: Path) -> Iterator[tuple[HostBook, HostBook]]:
    """Two processes as the book sees them, with all three kinds of rows."""
    with HostBook(folder, "vllm rank 0") as first, HostBook(folder) as second:
        first.write(
            [BookRow("cache.ring", 3 * _GIB // 2, 2 * _GIB), BookRow("cache.next", _GIB // 2, _GIB, pending=True)]
        )
        second.write([BookRow("cache.pool", _GIB, _GIB, pageable=True)])
        yield first, second


def table(text: str) -> list[list[str]]:
    return [re.split(r"\s{2,}", line.strip()) for line in text.splitlines() if line.startswith((" ", "-"))]


def test_the_book_is_a_line_for_each_row_and_its_sums(
    pinprobe: Pinprobe, folder: Path, two: tuple[HostBook, HostBook]
) -> None:
    done = pinprobe("host", "--book-dir", str(folder))
    assert (done.returncode, done.stderr) == (0, "")
    assert table(done.stdout)[0] == ["process", "pid", "owner", "booked GiB", "asked GiB", "state"]
    pid = str(os.getpid())
    assert table(done.stdout)[-3:] == [
        ["vllm rank 0", pid, "cache.ring", "2.000", "1.500", "booked"],
        ["cache.next", "1.000", "0.500", "pending"],
        ["-", pid, "cache.pool", "1.000", "1.000", "pageable"],
    ]
    text = " ".join(done.stdout.split())
    assert "Pinned 2.000 GiB, pageable 1.000 GiB, pending 1.000 GiB in 2 processes." in text
    assert f"The book reaches processes of all users and containers that see {folder}" in text
    assert "(2 live)" in text


def test_the_headroom_is_said_with_what_binds_and_less_what_is_pending(
    pinprobe: Pinprobe, folder: Path, two: tuple[HostBook, HostBook]
) -> None:
    binding = read_headroom(THIS_HOST).binding
    if not isinstance(binding.available, Reading) or binding.available.bytes < 4 * _GIB:
        pytest.skip("needs a readable headroom of 4 GiB, so that it is written in GiB")
    text = " ".join(pinprobe("host", "--book-dir", str(folder)).stdout.split())
    match = re.search(r"Headroom now: ([\d.]+) GiB \((.+?)\); less what is pending: ([\d.]+) GiB\.", text)
    assert match is not None, text
    assert match[2] == binding.name
    assert float(match[1]) == pytest.approx(binding.available.bytes / _GIB, abs=1)
    assert float(match[1]) - float(match[3]) == pytest.approx(1, abs=0.002)


def test_json_has_every_process_row_and_sum(pinprobe: Pinprobe, folder: Path, two: tuple[HostBook, HostBook]) -> None:
    document = pinprobe.json("host", "--book-dir", str(folder))
    assert (document["schema"], document["version"], document["exit_code"]) == ("pinprobe.host", 1, 0)
    assert document["command"][:2] == ["pinprobe", "host"]
    assert document["host"]["kernel"]
    assert document["folder"] == str(folder)
    assert [process["process"] for process in document["processes"]] == [book.process for book in two]
    ring = {"owner": "cache.ring", "asked_bytes": 3 * _GIB // 2, "booked_bytes": 2 * _GIB}
    assert document["processes"][0]["rows"][0] == {**ring, "pending": False, "pageable": False}
    assert document["processes"][0]["pending_bytes"] == _GIB
    assert document["sums"] == {"pinned_bytes": 2 * _GIB, "pageable_bytes": _GIB, "pending_bytes": _GIB}
    assert document["headroom"]["available"]["bytes"] > 0
    assert document["headroom"]["bound"]
    assert document["unreadable"] == document["set_aside"] == []


def test_csv_has_a_line_for_each_row_in_bytes(pinprobe: Pinprobe, folder: Path, two: tuple[HostBook, HostBook]) -> None:
    lines = pinprobe("host", "--book-dir", str(folder), "--csv").stdout.splitlines()
    assert lines[0] == "process,pid,label,owner,booked_bytes,asked_bytes,pending,pageable,unreadable"
    first, second = (f"{book.process},{os.getpid()}" for book in two)
    assert lines[1:] == [
        f"{first},vllm rank 0,cache.ring,2147483648,1610612736,false,false,",
        f"{first},vllm rank 0,cache.next,1073741824,536870912,true,false,",
        f"{second},,cache.pool,1073741824,1073741824,false,true,",
    ]


def test_markdown_and_a_file_to_write_to(
    pinprobe: Pinprobe, folder: Path, tmp_path: Path, two: tuple[HostBook, HostBook]
) -> None:
    place = tmp_path / "book.md"
    command = ("host", "--book-dir", str(folder), "--markdown", "-o", str(place))
    done = pinprobe(*command)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    text = place.read_text(encoding="utf-8")
    assert f"| vllm rank 0 | {os.getpid()} | cache.ring | 2.000 | 1.500 | booked |" in text
    assert "Pinned 2.000 GiB" in text
    assert "-f overwrites" in pinprobe.refused(*command)


@pytest.mark.parametrize("is_there", [True, False], ids=["an empty folder", "no folder"])
def test_with_nobody_in_it_that_is_said_and_all_is_well(pinprobe: Pinprobe, tmp_path: Path, is_there: bool) -> None:
    place = tmp_path / "book"
    if is_there:
        place.mkdir()
    done = pinprobe("host", "--book-dir", str(place))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Nobody is in the book")
    assert "(0 live)" in done.stdout
    assert place.exists() == is_there
    document = pinprobe.json("host", "--book-dir", str(place))
    assert document["processes"] == []
    assert document["sums"] == {"pinned_bytes": 0, "pageable_bytes": 0, "pending_bytes": 0}
    assert len(pinprobe("host", "--book-dir", str(place), "--csv").stdout.splitlines()) == 1


def test_looking_does_not_put_the_command_itself_into_the_book(
    pinprobe: Pinprobe, folder: Path, two: tuple[HostBook, HostBook]
) -> None:
    before = {path.name for path in folder.iterdir()}
    pinprobe("host", "--book-dir", str(folder))
    assert {path.name for path in folder.iterdir()} == before


def test_the_folder_can_be_given_in_the_environment(
    pinprobe: Pinprobe, folder: Path, two: tuple[HostBook, HostBook]
) -> None:
    for name in ("PINPROBE_BOOK_DIR", "PINPROBE_HOST_BOOK_DIR"):
        assert len(pinprobe.given({name: str(folder)}).json("host")["processes"]) == 2


def test_who_was_killed_is_gone_from_it(pinprobe: Pinprobe, folder: Path) -> None:
    with book_processes(2, folder) as (first, second):
        for process in (first, second):
            process.ask("write", 4096)
        listed = pinprobe.json("host", "--book-dir", str(folder))["processes"]
        assert {process["pid"] for process in listed} == {first.pid, second.pid}
        first.kill()
        listed = pinprobe.json("host", "--book-dir", str(folder))["processes"]
        assert {process["pid"] for process in listed} == {second.pid}


def test_what_can_not_be_read_is_listed_and_the_sums_are_said_not_to_be_whole(
    pinprobe: Pinprobe, folder: Path, two: tuple[HostBook, HostBook]
) -> None:
    damaged = two[1].process
    (folder / f"{damaged}.json").write_bytes(b"{")
    done = pinprobe("host", "--book-dir", str(folder))
    assert (done.returncode, done.stderr) == (3, "")
    text = " ".join(done.stdout.split())
    assert "in 1 process, beside what 1 process holds unseen." in text
    assert f"Unreadable: process {damaged}: it is no JSON." in text
    assert "Set aside: " in text
    assert f"{damaged}.json.damaged-1" in text
    # What was set aside is told once; that the process is unreadable, until it writes again.
    document = pinprobe.json("host", "--book-dir", str(folder), exit_code=3)
    assert document["exit_code"] == 3
    assert ([damaged in line for line in document["unreadable"]], document["set_aside"]) == ([True], [])
    *_, last = csv.reader(pinprobe("host", "--book-dir", str(folder), "--csv").stdout.splitlines())
    assert last[:-1] == [""] * 8
    assert last[-1].startswith(f"process {damaged}: ")
    two[1].write([])
    assert pinprobe.json("host", "--book-dir", str(folder))["unreadable"] == []


@pytest.mark.parametrize("flags", [(), ("-q",)], ids=["", "quiet"])
def test_beside_csv_what_was_set_aside_is_a_remark(
    pinprobe: Pinprobe, folder: Path, two: tuple[HostBook, HostBook], flags: tuple[str, ...]
) -> None:
    (folder / f"{two[1].process}.json").write_bytes(b"{")
    done = pinprobe("host", "--book-dir", str(folder), "--csv", *flags)
    assert len(done.stderr.splitlines()) == (0 if flags else 1)


@pytest.mark.parametrize("kind", ["a file", "a link", "no parent"])
def test_a_folder_that_can_not_be_one_is_refused(pinprobe: Pinprobe, tmp_path: Path, kind: str) -> None:
    place = tmp_path / "place"
    if kind == "a file":
        place.touch()
    elif kind == "a link":
        place.symlink_to(tmp_path)
    else:
        place = place / "below"
    assert str(tmp_path / "place") in pinprobe.refused("host", "--book-dir", str(place))


def test_without_proc_the_book_is_shown_and_the_headroom_is_unreadable(
    pinprobe: Pinprobe, folder: Path, two: tuple[HostBook, HostBook]
) -> None:
    flags = ["-m"] if os.geteuid() == 0 else ["-Urm"]
    before = ("unshare", *flags, "sh", "-c", 'mount -t tmpfs none /proc && exec "$@"', "sh")
    try:
        tried = subprocess.run([*before, "true"], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no unshare to make a mount namespace with")
    if tried.returncode:
        pytest.skip(f"no mount namespace can be made here: {tried.stderr.strip()[:200]}")
    done = pinprobe.under(*before)("host", "--book-dir", str(folder))
    assert (done.returncode, done.stderr) == (3, "")
    text = " ".join(done.stdout.split())
    assert "Pinned 2.000 GiB" in text
    assert "Headroom now: unreadable, because /proc/meminfo" in text


def test_a_lock_that_nobody_lets_go_of_does_not_hold_an_interrupt_back(pinprobe: Pinprobe, folder: Path) -> None:
    with HostBook(folder) as book, book.locked():
        process = pinprobe.start("host", "--book-dir", str(folder))
        try:
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(1)
            process.send_signal(signal.SIGTERM)
            _, said = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 3
    assert said.strip() == "pinprobe: interrupted"
