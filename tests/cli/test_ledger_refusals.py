"""What `pinprobe ledger` refuses, and what it does where a book, a stream or a disk is not to be had."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

import click
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pinprobe.cli.options import Scale
from tests.cli.ledger_process import MIB, TWO, book_files, with_book
from tests.cli.test_bad_input import failing_compiler, in_mount_namespace

if TYPE_CHECKING:
    from tests.cli.conftest import Pinprobe


@pytest.fixture
def command(pinprobe: Pinprobe, tmp_path: Path) -> Pinprobe:
    return with_book(pinprobe, tmp_path / "book")


@pytest.fixture
def two(tmp_path: Path) -> str:
    """A config of two tenants, 32 MiB each."""
    path = tmp_path / "two.yaml"
    path.write_text(TWO, encoding="utf-8")
    return str(path)


# -- what does not fit


def test_a_limit_refuses_by_name_and_says_what_would_fit(command: Pinprobe, two: str) -> None:
    line = command.refused("ledger", two, "--limit", "20MiB", exit_code=1)
    assert line == (
        "pinprobe: a.first asks for 32.000 MiB; the limit is 20.000 MiB and 0 B are booked;"
        " the largest request that fits now is 20.000 MiB"
    )
    assert book_files(command) == []


def test_where_the_second_does_not_fit_the_first_is_given_back(command: Pinprobe, two: str, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    line = command.refused("ledger", two, "--limit", "40MiB", "--json", "-o", str(out), "--hold", exit_code=1)
    assert "b.second asks for 32.000 MiB; the limit is 40.000 MiB and 32.000 MiB are booked" in line
    assert "the largest request that fits now is 8.000 MiB" in line
    assert book_files(command) == []
    assert not out.exists()
    # Whoever comes next has all of the limit.
    assert command("ledger", two, "--limit", "64MiB").returncode == 0


def test_what_is_to_be_kept_free_is_kept_free(command: Pinprobe, two: str) -> None:
    line = command.refused("ledger", two, "--keep-free", "1024TiB", exit_code=1)
    assert "a.first asks for 32.000 MiB; " in line
    assert "leaves" in line
    assert "of which 1,048,576.000 GiB are kept free; nothing fits now" in line
    assert book_files(command) == []


def test_more_than_the_host_has_is_refused_with_what_binds_and_what_would_fit(command: Pinprobe, two: str) -> None:
    text = TWO.replace("b.second: {kind: buffer, count: 2, bytes: 16 MiB}", "b.second: {kind: buffer, bytes: 1024 TiB}")
    Path(two).write_text(text, encoding="utf-8")
    line = command.refused("ledger", two, exit_code=1)
    assert line.startswith("pinprobe: b.second asks for 1,048,576.000 GiB; ")
    assert "leaves" in line
    assert "the largest request that fits now is " in line
    assert book_files(command) == []


def test_more_than_any_address_space_holds_is_a_config_that_can_not_be_used(command: Pinprobe, two: str) -> None:
    Path(two).write_text(TWO.replace("count: 2, bytes: 16 MiB", "count: 2, bytes: 65536 TiB", 1), encoding="utf-8")
    line = command.refused("ledger", two)
    assert f"{two}:3:3: `tenants.a.first` asks for 144,115,188,075,855,872 B, more than any address space" in line


# -- what is asked in the wrong way


_NO_SCALES = ("0", "0/5", "-1", "2", "65/64", "nan", "inf", "1/0", "text", "", "1/16\n\x1b[31m", "0x1", "1/2/3", "1/-2")
_ENDLESS = ("9" * 100_000, "0." + "1" * 100_000, "1/" + "9" * 100_000)


@pytest.mark.parametrize("scale", ["0", "-1", "2", "nan", "1/0", "text", "9" * 100_000], ids=lambda scale: scale[:9])
def test_a_scale_that_is_none_is_refused_in_a_short_line(command: Pinprobe, two: str, scale: str) -> None:
    line = command.refused("ledger", two, "--scale", scale)
    assert f"'--scale': '{scale[:9]}" in line
    assert len(line) < 200


@pytest.mark.parametrize("scale", [*_NO_SCALES, *_ENDLESS], ids=lambda scale: repr(scale[:9]))
def test_a_scale_that_is_none_is_told_what_would_be_one(scale: str) -> None:
    with pytest.raises(click.BadParameter) as refused:
        Scale().convert(scale, None, None)
    assert re.search(r"not in the range 0<x<=1|write 1/16 or 0\.25", refused.value.message)
    assert len(refused.value.message) < 100
    assert refused.value.message.isprintable()


def test_a_scale_with_an_endless_exponent_takes_no_endless_time(command: Pinprobe, two: str) -> None:
    # As a fraction it has thirty million digits.
    done = command.under("timeout", "--signal=KILL", "10")("ledger", two, "--scale", "1e-30000000")
    assert done.returncode in (0, 2)
    assert "Traceback" not in done.stderr


@given(st.text() | st.from_regex(r"\s?-?[0-9_]{0,9}([./][0-9_]{0,9})?(e-?[0-9]{1,2})?\s?", fullmatch=True))
@example("\u0661/\u0662")
@example("1\x00")
@example("1e-3")
def test_any_text_is_a_scale_or_told_in_one_line(text: str) -> None:
    with contextlib.suppress(click.BadParameter):
        scale = Scale().convert(text, None, None)
        assert isinstance(scale, Fraction)
        assert 0 < scale <= 1


@pytest.mark.parametrize(
    ("arguments", "because"),
    [
        (("no-such-config",), "there is no config 'no-such-config'"),
        (("savepoint-slpit",), "did you mean savepoint-split?"),
        (("savepoint-split", "--set", "regions=0"), "a count is whole, and 1 or more"),
        (("savepoint-split", "--limit", "64g"), "ambiguous"),
        (("savepoint-split", "--keep-free", "many"), "not a size"),
        (("savepoint-split", "--receipt", "/no/such/folder/r.json"), "no folder that can be written to"),
        (("savepoint-split", "--receipt", "/same", "-o", "/same"), "named twice"),
        ((), "CONFIG"),
    ],
    ids=["unknown", "near", "no regions", "limit", "keep free", "receipt", "one file for two", "nothing"],
)
def test_what_can_not_be_used_is_refused_before_anything_is_made_ready(
    pinprobe: Pinprobe, compiler_spy: tuple[dict[str, str], Path], arguments: tuple[str, ...], because: str
) -> None:
    environment, trace = compiler_spy
    assert because in pinprobe.given(environment).refused("ledger", *arguments)
    assert not trace.exists()


def test_an_allocator_that_is_not_to_be_had_is_told_with_what_would_bring_it(
    torch_host: Pinprobe, two: str, tmp_path: Path
) -> None:
    command = with_book(torch_host, tmp_path / "book")
    Path(two).write_text(TWO.replace("pageable", "torch-host"), encoding="utf-8")
    places = {"CXX": failing_compiler(tmp_path), "PINPROBE_CACHE_DIR": str(tmp_path / "cache")}
    line = command.given(places).refused("ledger", two, exit_code=3)
    assert "broken-g++ could not compile" in line
    assert book_files(command) == []


# -- the book


@pytest.mark.parametrize("by", ["option", "environment"])
@pytest.mark.parametrize("kind", ["a file", "a link", "below what is not there", "below a file"])
def test_a_book_that_was_asked_for_and_can_not_be_kept_is_refused(
    pinprobe: Pinprobe, two: str, tmp_path: Path, kind: str, by: str
) -> None:
    place = tmp_path / "place"
    if kind in ("a file", "below a file"):
        place.touch()
    if kind == "a link":
        place.symlink_to(tmp_path)
    if kind.startswith("below"):
        place = place / "book"
    if by == "option":
        line = pinprobe.refused("ledger", two, "--book-dir", str(place))
    else:
        line = pinprobe.given({"PINPROBE_BOOK_DIR": str(place)}).refused("ledger", two)
    assert str(place) in line
    assert "--book-dir" in line


def test_where_there_is_no_place_for_a_book_it_goes_on_without_and_says_so(
    pinprobe: Pinprobe, two: str, tmp_path: Path
) -> None:
    # Both places that are tried by themselves are taken by files.
    name = f"pinprobe-{os.geteuid()}"
    (tmp_path / name).touch()
    without = in_mount_namespace(pinprobe, f"mount -t tmpfs none /dev/shm\ntouch /dev/shm/{name}")
    without = without.given({"TMPDIR": str(tmp_path), "XDG_RUNTIME_DIR": ""})
    done = without("ledger", two, "--json")
    assert done.returncode == 0, done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("pinprobe: no book of the host is kept: ")
    assert f"{tmp_path / name} is not a folder" in done.stderr
    assert "--book-dir" in done.stderr
    document = without.parsed(done.stdout)
    assert (document["book_reach"], document["sums"]["booked_bytes"]) == ("", 64 * MIB)
    assert without("ledger", two, "-q", "--csv").stderr == ""


# -- streams, disks and folders


def redirected(command: Pinprobe, redirection: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", "-c", f'"$@" {redirection}', "sh", *command.command(("ledger", *arguments))],
        env=command.environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip


def test_a_closed_stdout_is_told_before_anything_is_taken_unless_a_file_is_given(
    command: Pinprobe, two: str, tmp_path: Path
) -> None:
    done = redirected(command, ">&-", two)
    assert (done.returncode, done.stderr) == (2, "pinprobe: stdout is closed; give a file with -o\n")
    out = tmp_path / "out.txt"
    done = redirected(command, ">&-", two, "-o", str(out))
    assert (done.returncode, done.stderr) == (0, "")
    assert out.read_text(encoding="utf-8").startswith("pinprobe ledger: 64.000 MiB booked")


@pytest.mark.parametrize("closed", ["2>&-", "<&-"])
def test_a_stream_that_is_closed_and_not_needed_changes_nothing(command: Pinprobe, two: str, closed: str) -> None:
    done = redirected(command, closed, two, "--json")
    assert done.returncode == 0, done.stderr
    assert command.parsed(done.stdout)["sums"]["booked_bytes"] == 64 * MIB


def test_a_reader_who_has_seen_enough_is_not_told_that_anything_failed(command: Pinprobe, two: str) -> None:
    with command.start("ledger", two, "--json") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(60) == 0


def test_a_full_disk_under_stdout_is_told_in_one_line(command: Pinprobe, two: str) -> None:
    done = redirected(command, ">/dev/full", two)
    assert (done.returncode, len(done.stderr.splitlines())) == (3, 1)
    assert "No space left" in done.stderr
    assert book_files(command) == []


def test_a_disk_that_is_full_by_now_leaves_no_half_of_a_receipt_and_it_is_printed_instead(
    command: Pinprobe, two: str, tmp_path: Path
) -> None:
    place = tmp_path / "disk"
    place.mkdir()
    # A page is less than a receipt takes. What lies there afterwards is listed from inside, where it is seen.
    mount = f"mount -t tmpfs -o size=4k none '{place}'"
    after = f'"$@"; code=$?; ls -A \'{place}\' >&2; exit "$code"'
    full = in_mount_namespace(command, mount).under("sh", "-c", after, "sh")
    done = full("ledger", two, "--receipt", str(place / "receipt.json"), "-o", str(tmp_path / "out.txt"))
    assert done.returncode in (2, 3)
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"pinprobe: {place / 'receipt.json'} can't be written: No space left")
    assert full.parsed(done.stdout)["schema"] == "pinprobe.ledger"
    assert book_files(command) == []


def test_a_current_folder_that_is_gone_changes_nothing(command: Pinprobe, two: str, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    done = command.under("sh", "-c", 'cd "$0" && rmdir "$0" && exec "$@"', str(gone))("ledger", two, "--csv")
    assert (done.returncode, done.stderr) == (0, "")


def test_without_proc_nothing_is_taken_unless_a_limit_bounds_it(command: Pinprobe, two: str) -> None:
    without_proc = in_mount_namespace(command, "mount -t tmpfs none /proc")
    done = without_proc("ledger", two)
    assert (done.returncode, done.stdout) == (3, "")
    assert "/proc/meminfo" in done.stderr.splitlines()[-1]
    assert "limit" in done.stderr.splitlines()[-1]
    # Within one it goes on, and no figure that could not be read is one.
    document = without_proc.json("ledger", two, "--limit", "64MiB")
    for row in document["rows"][:2]:
        assert (row["booked_bytes"], row["measured"]) == (32 * MIB, False)
        assert "unreadable" in row["resident"]
    assert "unreadable" in document["working_set_floor"]
    assert "unreadable" in document["headroom"]["available"]


def test_a_config_whose_check_fails_is_not_opened_unless_that_is_asked_for(command: Pinprobe, tmp_path: Path) -> None:
    config = tmp_path / "failing.yaml"
    config.write_text(
        "engine: {name: two, allocator: mlock}\nnumbers: {most: 1 MiB}\n"
        "tenants:\n  a.b: {kind: buffer, count: 2, bytes: 1 MiB}\nchecks:\n  room: most >= 2 MiB\n"
    )
    line = command.refused("ledger", str(config), exit_code=1)
    assert "the check room fails" in line
    assert "--ignore-checks" in line
    assert command("ledger", str(config), "--ignore-checks").returncode == 0
