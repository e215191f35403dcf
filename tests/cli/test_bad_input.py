"""What can't be carried out is refused in one line, with the right exit code, before anything is measured."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pinprobe.cli.options import MOST_POINTS, parse_slot_counts
from pinprobe.probes.errors import BadRequest
from pinprobe.probes.installed_torch import InstalledTorch, find_installed_torch
from pinprobe.probes.units import LARGEST_SIZE_BYTES, parse_size

if TYPE_CHECKING:
    from tests.cli.conftest import Pinprobe

# More digits than int() reads at one time.
_ENDLESS = "9" * 5000

# -- sizes and ranges


@pytest.mark.parametrize(
    ("size", "word"),
    [
        ("0", "1 byte or more"),
        ("-1", "not a size"),
        ("9223372036854775808", "any address space"),
        ("64g", "ambiguous"),
        ("64GB", "write 64GiB"),
        ("many", "not a size"),
        ("1e9", "not a size"),
        ("nan", "not a size"),
        ("1.5", "whole number of bytes"),
        ("", "not a size"),
        (_ENDLESS, "99999"),
    ],
    ids=["zero", "negative", "huge", "64g", "GB", "word", "1e9", "nan", "half a byte", "empty", "endless"],
)
@pytest.mark.parametrize("option", ["--bytes", "--at-most"])
def test_a_size_that_is_none_is_refused(pinprobe: Pinprobe, option: str, size: str, word: str) -> None:
    arguments = [option, size] if option == "--bytes" else ["--bytes", "1MiB", option, size]
    line = pinprobe.refused("probe", *arguments, "--allocator", "pageable")
    assert word in line
    assert option in line


@pytest.mark.parametrize(
    ("slots", "word"),
    [
        ("", "write 1..64"),
        (",", "write 1..64"),
        ("1..", "write 1..64"),
        ("8..1", "write 1..8"),
        ("0..4", "begin at 1"),
        ("0", "begin at 1"),
        ("-4", "write 1..64"),
        ("1.5", "write 1..64"),
        ("many", "write 1..64"),
        ("1..1000000", "more than 4096 points"),
        ("9223372036854775808", "write 1..64"),
        (_ENDLESS, "write 1..64"),
    ],
    ids=[
        "empty", "comma", "open", "reversed", "from zero", "zero", "negative", "half", "word", "endless range", "huge",
        "endless",
    ],
)  # fmt: skip
def test_a_slot_range_that_is_none_is_refused(pinprobe: Pinprobe, slots: str, word: str) -> None:
    line = pinprobe.refused("sweep", "--slot-bytes", "1000", "--allocator", "pageable", "--slots", slots)
    assert word in line
    assert len(line) < 500 or slots == _ENDLESS


@pytest.mark.parametrize("arguments", [("sweep",), ("probe", "--slots", "64")], ids=["sweep", "probe"])
def test_slots_beyond_any_address_space_are_refused(pinprobe: Pinprobe, arguments: tuple[str, ...]) -> None:
    line = pinprobe.refused(*arguments, "--slot-bytes", "65536TiB", "--allocator", "pageable")
    assert "any address space" in line


@pytest.mark.parametrize("share", ["0", "-0.5", "1.5", "nan", "half"])
def test_a_share_that_is_none_is_refused(pinprobe: Pinprobe, share: str) -> None:
    assert "--share" in pinprobe.refused("sweep", "--slot-bytes", "1MiB", "--share", share)


@pytest.mark.parametrize(
    "arguments",
    [(), ("--slots", "4"), ("--slot-bytes", "1MiB"), ("--bytes", "1MiB", "--slots", "4")],
    ids=["nothing", "no slot size", "no slots", "both"],
)
def test_a_probe_of_no_one_size_is_refused(pinprobe: Pinprobe, arguments: tuple[str, ...]) -> None:
    assert "either --bytes SIZE, or --slot-bytes SIZE with --slots" in pinprobe.refused("probe", *arguments)


def test_a_sweep_without_a_slot_size_is_refused(pinprobe: Pinprobe) -> None:
    assert "--slot-bytes" in pinprobe.refused("sweep")


def test_more_than_the_host_can_give_is_refused_with_the_bound_named(pinprobe: Pinprobe) -> None:
    line = pinprobe.refused("probe", "--bytes", "60000TiB", "--allocator", "pageable", exit_code=3)
    assert "may be taken" in line
    assert "leaves" in line


@given(st.text() | st.from_regex(r"\s?-?[0-9]{0,25}(\.[0-9]{1,5})?\s?[KMGTkmgt]?i?[Bb]?\s?", fullmatch=True))
@example(_ENDLESS)
@example("0." + _ENDLESS)
@example("٣ MiB")
@example("1\x00")
def test_any_text_is_a_size_or_a_bad_request(text: str) -> None:
    try:
        size = parse_size(text)
    except BadRequest:
        return
    assert isinstance(size, int)
    assert 1 <= size <= LARGEST_SIZE_BYTES


@given(st.text() | st.from_regex(r"-?[0-9]{0,20}(\.\.[0-9]{0,20})?(,[0-9]{1,5}(\.\.[0-9]{1,5})?){0,4}", fullmatch=True))
@example(_ENDLESS)
@example("1..4096,5000")
@example("²..³")
def test_any_text_is_a_slot_range_or_a_bad_request(text: str) -> None:
    try:
        counts = parse_slot_counts(text)
    except BadRequest:
        return
    assert counts == tuple(sorted(set(counts)))
    assert 1 <= len(counts) <= MOST_POINTS
    assert counts[0] >= 1


def test_what_is_refused_is_told_in_one_line_whatever_was_typed(pinprobe: Pinprobe) -> None:
    for option, text in (("--slots", "1\n2"), ("--slot-bytes", "4\nMiB\x1b[31m"), ("--allocator", "ml\nock")):
        typed = {"--slot-bytes": "1MiB", "--slots": "1", "--allocator": "pageable", option: text}
        pinprobe.refused("sweep", *(word for pair in typed.items() for word in pair))


# -- names


@pytest.mark.parametrize(
    ("name", "near"),
    [("torch-hots", "torch-host"), ("mlok", "mlock"), ("Pageable", "pageable")],
)
@pytest.mark.parametrize("command", ["sweep", "probe"])
def test_an_unknown_allocator_is_refused_with_the_near_one(
    pinprobe: Pinprobe, command: str, name: str, near: str
) -> None:
    size = "--slot-bytes" if command == "sweep" else "--bytes"
    assert f"did you mean {near}?" in pinprobe.refused(command, size, "1MiB", "--allocator", name)


def test_an_allocator_near_to_none_is_refused_with_all_that_are_known(pinprobe: Pinprobe) -> None:
    line = pinprobe.refused("probe", "--bytes", "1MiB", "--allocator", "xyz")
    for known in ("auto", "pageable", "mlock", "torch-host"):
        assert known in line


def test_a_second_allocator_that_is_unknown_is_refused_before_the_first_is_measured(
    pinprobe: Pinprobe, compiler_spy: tuple[dict[str, str], Path]
) -> None:
    environment, trace = compiler_spy
    arguments = ["--allocator", "torch-host", "--allocator", "mlok"]
    pinprobe.given(environment).refused("sweep", "--slot-bytes", "1MiB", *arguments)
    assert not trace.exists()


def test_an_unknown_command_or_option_is_refused(pinprobe: Pinprobe) -> None:
    assert "sweeep" in pinprobe.refused("sweeep")
    assert "--slot-byte" in pinprobe.refused("sweep", "--slot-byte", "1MiB", "--no-such-option")


# -- the output file

_MEASURED = ("probe", "--bytes", "1MiB", "--allocator", "pageable", "--json")


@pytest.mark.parametrize("command", [("probe", "--bytes", "1MiB"), ("sweep", "--slot-bytes", "1MiB", "--slots", "1")])
def test_an_output_file_that_exists_is_refused_before_anything_is_done(
    pinprobe: Pinprobe, tmp_path: Path, compiler_spy: tuple[dict[str, str], Path], command: tuple[str, ...]
) -> None:
    environment, trace = compiler_spy
    kept = tmp_path / "kept.json"
    kept.write_text("precious", encoding="utf-8")
    line = pinprobe.given(environment).refused(*command, "--allocator", "torch-host", "-o", str(kept))
    assert str(kept) in line
    assert "-f" in line
    assert kept.read_text(encoding="utf-8") == "precious"
    assert not trace.exists()


def test_an_output_file_that_exists_is_overwritten_with_f(pinprobe: Pinprobe, tmp_path: Path) -> None:
    kept = tmp_path / "kept.json"
    kept.write_text("old", encoding="utf-8")
    done = pinprobe(*_MEASURED, "-f", "-o", str(kept))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert pinprobe.parsed(kept.read_text(encoding="utf-8"))["schema"] == "pinprobe.probe"
    assert list(tmp_path.iterdir()) == [kept]


@pytest.mark.parametrize(
    "place", ["", "no/such/folder/out.json", "file/out.json", "x" * 300], ids=lambda place: place[:9]
)
def test_an_output_that_can_not_be_written_is_refused_before_anything_is_done(
    pinprobe: Pinprobe, tmp_path: Path, compiler_spy: tuple[dict[str, str], Path], place: str
) -> None:
    environment, trace = compiler_spy
    (tmp_path / "file").touch()
    arguments = ["--bytes", "1MiB", "--allocator", "torch-host", "-o", str(tmp_path / place)]
    pinprobe.given(environment).refused("probe", *arguments)
    assert not trace.exists()


def test_an_output_name_as_long_as_the_file_system_takes_is_written(pinprobe: Pinprobe, tmp_path: Path) -> None:
    # The file it is written to first must not have a longer name than the one that was asked for.
    longest = tmp_path / ("x" * 255)
    assert pinprobe(*_MEASURED, "-o", str(longest)).returncode == 0
    assert longest.is_file()


def test_overwriting_follows_a_link_or_refuses_it(pinprobe: Pinprobe, tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("old", encoding="utf-8")
    link.symlink_to(target)
    pinprobe(*_MEASURED, "-f", "-o", str(link))
    assert link.is_symlink()


def test_overwriting_does_not_put_a_file_in_a_devices_place(pinprobe: Pinprobe, tmp_path: Path) -> None:
    # With -o /dev/null -f as root, a rename over it would break the whole machine. A pipe stands for the device.
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    # Opened for reading and writing, so that no writer waits for a reader.
    reader = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)
    try:
        pinprobe("sweep", "--slot-bytes", "1MiB", "--slots", "1", "--allocator", "pageable", "--csv", "-fo", str(pipe))
    finally:
        os.close(reader)
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_refused_request_leaves_no_output_file(pinprobe: Pinprobe, tmp_path: Path) -> None:
    pinprobe.refused("probe", "--bytes", "1TiB", "--at-most", "1MiB", "-o", str(tmp_path / "out"), exit_code=3)
    assert list(tmp_path.iterdir()) == []


# -- streams that take nothing


def test_a_reader_who_has_seen_enough_is_not_told_that_a_check_failed(pinprobe: Pinprobe) -> None:
    process = pinprobe.start("sweep", "--slot-bytes", "1MiB", "--slots", "1..64", "--allocator", "pageable", "--json")
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    said = process.stderr.read()
    process.stderr.close()
    assert process.wait(60) in (0, 3)
    assert said == ""


def test_a_full_disk_is_told_in_one_line(pinprobe: Pinprobe) -> None:
    done = subprocess.run(
        ["sh", "-c", '"$@" >/dev/full', "sh", *pinprobe.command(_MEASURED)],
        env=pinprobe.environment, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert (done.returncode, len(done.stderr.splitlines())) == (3, 1)
    assert "No space left" in done.stderr


@pytest.mark.parametrize("closed", ["2>&-", "<&-"])
def test_a_stream_that_is_closed_and_not_needed_changes_nothing(pinprobe: Pinprobe, closed: str) -> None:
    command = ["sweep", "--slot-bytes", "1MiB", "--slots", "1..2", "--allocator", "pageable", "--json"]
    done = subprocess.run(
        ["sh", "-c", f'"$@" {closed}', "sh", *pinprobe.command(command)],
        env=pinprobe.environment, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert pinprobe.parsed(done.stdout)["schema"] == "pinprobe.sweep"


# -- what the machine lacks


def test_a_cache_folder_that_can_not_be_written_costs_a_compile_and_nothing_else(
    torch_host: Pinprobe, tmp_path: Path
) -> None:
    # Below a regular file not even root can make a folder.
    (tmp_path / "file").touch()
    (tmp_path / "scratch").mkdir()
    places = {"PINPROBE_CACHE_DIR": str(tmp_path / "file" / "cache"), "TMPDIR": str(tmp_path / "scratch")}
    trial = torch_host.given(places).json("probe", "--bytes", "3MiB", "--allocator", "torch-host")
    assert trial["pinned"]["block"]["bytes"] == 4 * 2**20
    assert list((tmp_path / "scratch").iterdir()) == []


def test_a_cache_folder_that_can_not_be_written_is_named_where_a_log_would_go(
    torch_host: Pinprobe, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    places = {"PINPROBE_CACHE_DIR": str(tmp_path / "file" / "cache"), "CXX": failing_compiler(tmp_path)}
    line = torch_host.given(places).refused("probe", "--bytes", "3MiB", "--allocator", "torch-host", exit_code=3)
    assert "PINPROBE_CACHE_DIR" in line


def failing_compiler(folder: Path) -> str:
    """Make a compiler that says much and fails."""
    script = folder / "broken-g++"
    script.write_text(
        "#!/bin/sh\nfor i in $(seq 200); do echo \"note $i: $(seq -s ' ' 400)\" >&2; done\n"
        "echo 'x.h:1: error: the include is on fire' >&2\necho 'last words' >&2\nexit 1\n",
        encoding="utf-8",
    )
    script.chmod(0o755)
    return str(script)


def test_a_compiler_that_fails_is_told_shortly_and_the_log_is_whole(torch_host: Pinprobe, tmp_path: Path) -> None:
    places = {"PINPROBE_CACHE_DIR": str(tmp_path / "cache"), "CXX": failing_compiler(tmp_path)}
    line = torch_host.given(places).refused("probe", "--bytes", "3MiB", "--allocator", "torch-host", exit_code=3)
    assert "broken-g++ could not compile" in line
    assert "the include is on fire" in line
    assert len(line) < 500
    log = Path(line.rpartition(" ")[2])
    assert log.is_relative_to(tmp_path / "cache")
    text = log.read_text(encoding="utf-8")
    assert "note 1:" in text
    assert "last words" in text
    # No half-built folder stays behind beside the log.
    assert [path.name for path in log.parent.iterdir()] == [log.name]


def test_where_auto_can_not_compile_it_says_so_and_measures_the_next(torch_host: Pinprobe, tmp_path: Path) -> None:
    places = {"PINPROBE_CACHE_DIR": str(tmp_path / "cache"), "CXX": failing_compiler(tmp_path)}
    done = torch_host.given(places)("probe", "--bytes", "1MiB", "--json")
    assert done.returncode == 0
    measured = torch_host.parsed(done.stdout)["allocator"]
    assert measured in ("mlock", "pageable")
    assert "measuring mlock, since these are not to be had: torch-host: broken-g++" in done.stderr
    assert f"measuring {measured}, since" in done.stderr
    assert torch_host.given(places)("probe", "--bytes", "1MiB", "-q").stderr == ""


def test_a_compiler_that_is_missing_is_named_with_what_brings_one(torch_host: Pinprobe) -> None:
    line = torch_host.given({"CXX": "no-such-g++"}).refused(
        "probe", "--bytes", "1MiB", "--allocator", "torch-host", exit_code=3
    )
    assert "no-such-g++" in line
    assert "apt install g++" in line


def with_torch(pinprobe: Pinprobe, folder: Path, version: str) -> Pinprobe:
    """The command with a torch of that version before the installed one on its path."""
    (folder / "torch").mkdir(parents=True)
    (folder / "torch" / "__init__.py").write_text("raise RuntimeError('imported')\n", encoding="utf-8")
    (folder / "torch" / "version.py").write_text(f"__version__ = '{version}'\n", encoding="utf-8")
    return pinprobe.finding_first(folder)


def installed_torch() -> InstalledTorch:
    torch = find_installed_torch()
    assert isinstance(torch, InstalledTorch)
    return torch


_TORCH_HOST = ("probe", "--bytes", "3MiB", "--allocator", "torch-host")


def test_a_torch_too_old_is_named_with_what_brings_a_newer(pinprobe: Pinprobe, tmp_path: Path) -> None:
    line = with_torch(pinprobe, tmp_path, "2.8.0").refused(*_TORCH_HOST, exit_code=3)
    assert "torch 2.8.0 is too old" in line
    assert "pip install" in line


def test_a_torch_without_headers_is_named(pinprobe: Pinprobe, tmp_path: Path) -> None:
    line = with_torch(pinprobe, tmp_path, "2.99.0").refused(*_TORCH_HOST, exit_code=3)
    assert "torch 2.99.0" in line
    assert "CachingHostAllocator.h" in line


@pytest.mark.parametrize("version", ["", "unknown", "two.nine"])
def test_a_torch_of_no_version_is_told(pinprobe: Pinprobe, tmp_path: Path, version: str) -> None:
    line = with_torch(pinprobe, tmp_path, version).refused(*_TORCH_HOST, exit_code=3)
    assert "version" in line


def test_a_torch_never_tried_is_used_and_said_to_be_so(torch_host: Pinprobe, tmp_path: Path) -> None:
    newer = with_torch(torch_host, tmp_path, "2.99.0")
    for name in ("include", "lib"):
        (tmp_path / "torch" / name).symlink_to(installed_torch().folder / name)
    trial = newer.json(*_TORCH_HOST)
    assert trial["pinned"]["block"]["bytes"] == 4 * 2**20
    assert [note for note in trial["notes"] if "2.99.0" in note and "not one pinprobe was tested with" in note]


def test_a_torch_whose_template_changed_is_told_with_the_place_of_the_log(torch_host: Pinprobe, tmp_path: Path) -> None:
    newer = with_torch(torch_host, tmp_path, "2.99.0")
    for name in ("ATen/core/CachingHostAllocator.h", "c10/core/AllocatorConfig.h"):
        header = tmp_path / "torch" / "include" / name
        header.parent.mkdir(parents=True)
        header.write_text("#error no such template any more\n", encoding="utf-8")
    cache = str(tmp_path / "cache")
    line = newer.given({"PINPROBE_CACHE_DIR": cache}).refused(*_TORCH_HOST, exit_code=3)
    assert "torch 2.99.0" in line
    assert "no such template any more" in line
    assert cache in line


# -- /proc


@pytest.fixture
def without_proc(pinprobe: Pinprobe) -> Pinprobe:
    """The command in a mount namespace whose /proc is empty."""
    return in_mount_namespace(pinprobe, "mount -t tmpfs none /proc")


@pytest.fixture
def without_status(pinprobe: Pinprobe, tmp_path: Path) -> Pinprobe:
    """The command in a mount namespace where only /proc/self/status is missing, as some sandboxes hide it.

    The real /proc is mounted elsewhere, and links lead there; through `self` each process still sees its own files.
    """
    script = f"""
        real='{tmp_path}'
        mount --rbind /proc "$real"
        mount -t tmpfs none /proc
        mkdir /proc/self
        for file in "$real"/[a-z]* "$real"/self/*; do
            name=${{file#"$real"/}}
            case $name in self|self/status) ;; *) ln -s "$file" "/proc/$name" ;; esac
        done
    """
    return in_mount_namespace(pinprobe, script)


def in_mount_namespace(pinprobe: Pinprobe, script: str) -> Pinprobe:
    if shutil.which("unshare") is None:
        pytest.skip("there is no unshare to make a mount namespace with")
    flags = "-m" if os.geteuid() == 0 else "-Urm"
    tried = subprocess.run(["unshare", flags, "true"], capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"no mount namespace can be made here: {tried.stderr.strip()[:200]}")
    before = ("unshare", flags, "sh", "-c", f'set -e\n{script}\nexec "$@"', "sh")
    subprocess.run([*before, "true"], check=True)
    return pinprobe.under(*before)


_SMALL = (("probe", "--bytes", "1MiB"), ("sweep", "--slot-bytes", "1MiB", "--slots", "1..4"))


@pytest.mark.parametrize("command", _SMALL, ids=["probe", "sweep"])
def test_without_proc_the_headroom_is_missing_and_named(without_proc: Pinprobe, command: tuple[str, ...]) -> None:
    line = without_proc.refused(*command, "--allocator", "pageable", exit_code=3)
    assert "/proc/meminfo" in line
    assert "--at-most" in line


@pytest.mark.parametrize("command", _SMALL, ids=["probe", "sweep"])
def test_without_proc_and_within_a_bound_nothing_can_be_read_and_that_is_said(
    without_proc: Pinprobe, command: tuple[str, ...]
) -> None:
    line = without_proc.refused(*command, "--allocator", "pageable", "--at-most", "64MiB", exit_code=3)
    assert "/proc/self/" in line


@pytest.mark.parametrize("command", _SMALL, ids=["probe", "sweep"])
def test_with_status_hidden_it_measures_by_another_source_or_says_what_is_missing(
    without_status: Pinprobe, command: tuple[str, ...]
) -> None:
    arguments = (*command, "--allocator", "pageable")
    done = without_status(*arguments, "--json")
    if done.returncode == 0:
        document = json.loads(done.stdout)
        control = (document["sweeps"][0] if "sweeps" in document else document)["control"]
        assert control["counter"] in ("statm", "smaps_rollup")
        assert control["ratio"] == pytest.approx(1, abs=0.002)
    else:
        assert "/proc/self/status" in without_status.refused(*arguments, exit_code=3)
