"""`pinprobe ledger`: the shipped configs booted for real, what is printed of them, and in which forms."""

from __future__ import annotations

import csv
import io
import os
import pty
import re
import subprocess
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pinprobe.ledger.config.shipped import shipped_names
from tests.cli.ledger_process import MIB, ONE_BYTES, TWO, book_files, with_book
from tests.cli.loaded_modules import RUN, loaded_by

if TYPE_CHECKING:
    from tests.cli.conftest import Pinprobe

_ROW_BYTES = 154_927_104
_BLOCK_BYTES = 256 * MIB
_REGION_BYTES = _ROW_BYTES + 4096  # of the pool: a row, and a page of its own
# Two of them by default: each loads torch, which takes seconds.
_SAVEPOINTS = [
    pytest.param(name, marks=[] if name in ("savepoint-ring-32", "savepoint-split") else pytest.mark.slow)
    for name in shipped_names()
    if name.startswith("savepoint-")
]
_EXPERTS = [name for name in shipped_names() if name.startswith("expert-tiered-")]


@pytest.fixture
def command(pinprobe: Pinprobe, tmp_path: Path) -> Pinprobe:
    return with_book(pinprobe, tmp_path / "book")


@pytest.fixture
def with_torch_host(torch_host: Pinprobe, tmp_path: Path, need_room: Callable[[int], None]) -> Pinprobe:
    """The command where `auto` takes torch's own allocator, or the device's."""
    need_room(700 * MIB)
    return with_book(torch_host, tmp_path / "book")


@pytest.fixture
def two(tmp_path: Path) -> str:
    """A config of two tenants, 32 MiB each."""
    path = tmp_path / "two.yaml"
    path.write_text(TWO, encoding="utf-8")
    return str(path)


def by_owner(document: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["owner"]: row for row in document["rows"] if row["state"] == "reserved"}


def assert_fits_a_terminal(text: str) -> None:
    assert [line for line in text.splitlines() if len(line) > 80 or line != line.rstrip()] == []
    assert "\x1b" not in text


# -- the configs that come along


@pytest.mark.parametrize("name", _SAVEPOINTS)
def test_every_savepoint_config_boots_scaled_and_says_what_it_costs(with_torch_host: Pinprobe, name: str) -> None:
    done = with_torch_host("ledger", name, "--scale", "1/64")
    assert done.returncode == 0, done.stderr
    assert_fits_a_terminal(done.stdout)
    lines = done.stdout.splitlines()
    (ring,) = (line.split() for line in lines if line.startswith("cache.savepoint_ring "))
    assert ring[1:] == ["0.250", "GiB", "0.144", "GiB", "0.250", "GiB", "1.733"]
    pools = [line.split()[1:] for line in lines if line.startswith("cache.retention_pool ")]
    assert pools == [["0.144", "GiB", "0.144", "GiB", "0.144", "GiB", "1.000"]] * name.startswith("savepoint-split")
    text = " ".join(done.stdout.split())
    assert "control: 1.000 by its mapping and by smaps" in text
    assert "would take 0.106 GiB for free that are not there" in text
    # What its user must not miss is told on stderr too, and nothing else is.
    assert done.stderr.splitlines() == [
        "pinprobe: cache.savepoint_ring asked for 0.144 GiB and is booked at 0.250 GiB (ratio 1.733): mapping;"
        " statm agrees"
    ]
    assert book_files(with_torch_host) == []


def test_in_bytes_each_is_booked_at_what_it_takes_and_the_floor_is_the_engines_own(with_torch_host: Pinprobe) -> None:
    small, large = (
        with_torch_host.json("ledger", "savepoint-split", "--scale", scale, "-q") for scale in ("1/64", "1/32")
    )
    ring, pool = by_owner(small).values()
    assert (ring["asked_bytes"], ring["booked_bytes"], ring["pageable"]) == (_ROW_BYTES, _BLOCK_BYTES, False)
    assert (ring["block"]["bytes"], ring["resident"]["bytes"]) == (_BLOCK_BYTES, _BLOCK_BYTES)
    assert (pool["asked_bytes"], pool["booked_bytes"], pool["pageable"]) == (_REGION_BYTES, _REGION_BYTES, True)
    assert (pool["block"]["bytes"], pool["resident"]["bytes"], pool["ratio"]) == (_REGION_BYTES, _REGION_BYTES, 1.0)
    assert ring["measured"] is pool["measured"] is small["holds"] is True
    assert small["sums"]["pinned_bytes"] == _BLOCK_BYTES
    assert small["sums"]["pageable_bytes"] == _REGION_BYTES
    assert small["sums"]["overstated_bytes"] == _BLOCK_BYTES - _ROW_BYTES
    # What torch's allocator had to load was there before the ledger began.
    assert small["sums"]["unattributed_bytes"] < 4 * MIB
    # A region more changes nothing of what the process takes for itself.
    assert large["sums"]["booked_bytes"] - small["sums"]["booked_bytes"] == _REGION_BYTES
    floors = [document["working_set_floor"]["bytes"] for document in (small, large)]
    assert abs(floors[0] - floors[1]) <= 16 * MIB


@pytest.mark.parametrize("name", _EXPERTS)
def test_experts_are_held_once_a_rank_and_their_weights_once_a_host(with_torch_host: Pinprobe, name: str) -> None:
    document = with_torch_host.json("ledger", name, "--scale", "1/16384", "-q", "--limit", "700MiB")
    owners = [row["owner"] for row in document["rows"] if row["state"] == "reserved"]
    assert (owners.count("experts.host_pool"), owners.count("weights.static")) == (2, 1)
    details = [row["detail"] for row in document["rows"] if row["owner"] == "experts.host_pool"]
    assert [detail.rpartition(", ")[2] for detail in details] == ["rank 0", "rank 1"]
    assert document["holds"] is True


def test_per_rank_there_are_two_copies_and_per_host_one(command: Pinprobe, tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(
        "engine: {name: e, ranks: 2, allocator: pageable}\n"
        "tenants:\n"
        "  a.pool: {kind: buffer, per: rank, bytes: 16 MiB, detail: mine}\n"
        "  b.weights: {kind: buffer, per: host, bytes: 8 MiB}\n",
        encoding="utf-8",
    )
    document = command.json("ledger", str(path))
    assert [(row["owner"], row["booked_bytes"], row["detail"]) for row in document["rows"][:3]] == [
        ("a.pool", 16 * MIB, "1 x 16,777,216 B, rank 0, mine"),
        ("a.pool", 16 * MIB, "1 x 16,777,216 B, rank 1, mine"),
        ("b.weights", 8 * MIB, "1 x 8,388,608 B"),
    ]
    assert document["sums"]["booked_bytes"] == 40 * MIB


def test_a_config_without_tenants_has_an_account_too(command: Pinprobe, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("engine: {name: e}\n", encoding="utf-8")
    done = command("ledger", str(tmp_path / "c.yaml"))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("pinprobe ledger: 0 B booked for 0 B asked; resident 0 B\n")
    assert_fits_a_terminal(done.stdout)


# -- forms


def test_json_is_one_line_that_a_strict_reader_takes(command: Pinprobe, two: str) -> None:
    done = command("ledger", two, "--json", "--note", "a\nnote\x1b[31m", "--scale", "0.5", "--set", "ranks=1")
    assert (done.returncode, done.stderr, done.stdout.count("\n")) == (0, "", 1)
    document = command.parsed(done.stdout)
    assert (document["schema"], document["version"]) == ("pinprobe.ledger", 1)
    assert document["command"][:3] == ["pinprobe", "ledger", two]
    assert (document["note"], document["scale"], document["overrides"]) == ("a?note?[31m", "1/2", {"ranks": "1"})
    assert {owner: row["booked_bytes"] for owner, row in by_owner(document).items()} == {
        "a.first": ONE_BYTES // 2,
        "b.second": ONE_BYTES // 2,
    }
    assert document["config"]["tenants"]["a.first"] == {"kind": "buffer", "count": 2, "bytes": "16 MiB"}


def test_csv_has_a_row_for_each_in_bytes(command: Pinprobe, two: str) -> None:
    rows = list(csv.DictReader(io.StringIO(command("ledger", two, "--csv").stdout)))
    figures = ("owner", "state", "asked_bytes", "booked_bytes", "resident_bytes", "ratio", "pageable")
    assert [tuple(row[name] for name in figures) for row in rows[:2]] == [
        (owner, "reserved", "33554432", "33554432", "33554432", "1.000", "true") for owner in ("a.first", "b.second")
    ]
    assert [row["state"] for row in rows[2:]] in ([], ["unattributed"])


def test_markdown_has_a_row_for_each(command: Pinprobe, two: str) -> None:
    lines = command("ledger", two, "--markdown").stdout.splitlines()
    assert lines[1].startswith("| :--- | :--- | ---: |")
    assert lines[2].startswith("| a.first | reserved | 33554432 | 33554432 | 33554432 | 1.000 | true | mapping")
    assert {line.count("|") for line in lines} == {lines[0].count("|")}


@pytest.mark.parametrize(("form", "beginning"), [((), "pinprobe ledger: 64"), (("--json",), "{")], ids=["text", "json"])
def test_a_file_takes_the_result_and_stdout_nothing(
    command: Pinprobe, two: str, tmp_path: Path, form: tuple[str, ...], beginning: str
) -> None:
    place = tmp_path / "out"
    done = command("ledger", two, *form, "-o", str(place))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    text = place.read_text(encoding="utf-8")
    assert text.startswith(beginning)
    assert text.endswith("\n")
    assert "\x1b" not in text


def test_a_file_that_exists_is_kept_unless_it_may_be_overwritten(command: Pinprobe, two: str, tmp_path: Path) -> None:
    place = tmp_path / "out"
    place.write_text("precious", encoding="utf-8")
    assert f"{place} exists; -f overwrites it" in command.refused("ledger", two, "-o", str(place))
    assert place.read_text(encoding="utf-8") == "precious"
    assert command("ledger", two, "--csv", "-f", "-o", str(place)).returncode == 0
    assert place.read_text(encoding="utf-8").startswith("owner,")


# -- the receipt


def test_the_receipt_stands_beside_the_output_and_is_what_json_would_print(
    command: Pinprobe, two: str, tmp_path: Path
) -> None:
    receipt, out = tmp_path / "receipt.json", tmp_path / "out.json"
    done = command("ledger", two, "--receipt", str(receipt), "--json", "-o", str(out), "--scale", "1/2", "--note", "n")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    kept, printed = (command.parsed(path.read_text(encoding="utf-8")) for path in (receipt, out))
    for document in (kept, printed):
        document.pop("measured_at")
    assert kept == printed
    assert (kept["scale"], kept["note"]) == ("1/2", "n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["book", "out.json", "receipt.json", "two.yaml"]


def test_a_receipt_is_the_old_one_or_the_new_one_at_every_moment(command: Pinprobe, two: str, tmp_path: Path) -> None:
    receipt = tmp_path / "receipt.json"
    receipt.write_text('{"old": true}', encoding="utf-8")
    assert "-f overwrites it" in command.refused("ledger", two, "--receipt", str(receipt))
    seen = set()
    process = command.start("ledger", two, "-q", "-f", "--receipt", str(receipt))
    with process:
        while process.poll() is None:
            seen.add(receipt.read_text(encoding="utf-8"))
    assert process.returncode == 0
    seen.add(receipt.read_text(encoding="utf-8"))
    old, new = sorted((command.parsed(text) for text in seen), key=len)
    assert old == {"old": True}
    assert new["schema"] == "pinprobe.ledger"


def test_a_run_that_was_refused_leaves_no_receipt_and_does_not_touch_an_older_one(
    command: Pinprobe, two: str, tmp_path: Path
) -> None:
    receipt = tmp_path / "receipt.json"
    for flags in ((), ("-f",)):
        arguments = ("ledger", two, "--limit", "40MiB", "--receipt", str(receipt), *flags)
        command.refused(*arguments, exit_code=1)
        assert not receipt.exists() or receipt.read_text(encoding="utf-8") == "old"
        receipt.write_text("old", encoding="utf-8")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["book", "receipt.json", "two.yaml"]


# -- terminals


def on_a_terminal(command: Pinprobe, *arguments: str, stdout: bool, stderr: bool) -> tuple[int, str, str]:
    """Run it with these streams on a terminal and the others on pipes; return its exit code and what each got."""
    ends = [pty.openpty() if is_terminal else os.pipe() for is_terminal in (stdout, stderr)]
    # Of a terminal either end would do; of a pipe the first is for reading.
    process = subprocess.Popen(
        command.command(("ledger", *arguments)), env={**command.environment, "TERM": "xterm", "COLUMNS": "80"},
        stdin=subprocess.DEVNULL, stdout=ends[0][1], stderr=ends[1][1],
    )  # fmt: skip
    for _, written in ends:
        os.close(written)
    with ThreadPoolExecutor(2) as readers:  # at the same time: whoever is not read is held up
        stdout_text, stderr_text = readers.map(read_to_the_end, (reader for reader, _ in ends))
    return process.wait(60), stdout_text, stderr_text


def read_to_the_end(reader: int) -> str:
    pieces = []
    with suppress(OSError):  # how a terminal says that nobody is at its other end any more
        while piece := os.read(reader, 65536):
            pieces.append(piece)
    os.close(reader)
    return b"".join(pieces).decode("utf-8").replace("\r\n", "\n")


def test_on_a_terminal_what_is_dear_is_coloured_and_without_colours_it_reads_the_same(
    with_torch_host: Pinprobe, two: str
) -> None:
    # 5 MiB take a block of 8.
    Path(two).write_text(TWO.replace("16 MiB}\n  b", "2.5 MiB, allocator: torch-host}\n  b"), encoding="utf-8")
    arguments = (two,)
    code, coloured, _ = on_a_terminal(with_torch_host, *arguments, stdout=True, stderr=False)
    assert code == 0
    assert re.search(r"\x1b\[33ma\.first +8\.000 MiB", coloured)
    assert coloured.startswith("\x1b[1mpinprobe ledger: ")
    plain = re.sub(r"\x1b\[[0-9;]*m", "", coloured)
    assert_fits_a_terminal(plain)
    without = with_torch_host.given({"NO_COLOR": "1"})
    code, text, _ = on_a_terminal(without, *arguments, stdout=True, stderr=False)
    assert code == 0
    assert_fits_a_terminal(text)
    # But for figures that differ from run to run, and their units, the same words stand in the same order.
    assert re.findall(r"[a-z]{4,}", text) == re.findall(r"[a-z]{4,}", plain)


@pytest.mark.parametrize("form", ["--csv", "--json"])
def test_what_machines_read_is_never_coloured(command: Pinprobe, two: str, form: str) -> None:
    code, text, _ = on_a_terminal(command, two, form, stdout=True, stderr=False)
    assert code == 0
    assert "\x1b" not in text


@pytest.mark.parametrize("form", ["--json", "--csv"])
def test_the_result_goes_to_stdout_whole_while_progress_is_on_the_terminal(
    command: Pinprobe, two: str, form: str
) -> None:
    # `pinprobe ledger CONFIG --json > out.json`, as it is typed.
    code, text, shown = on_a_terminal(command, two, form, stdout=False, stderr=True)
    assert code == 0
    assert "a.first" not in shown
    if form == "--json":
        assert by_owner(command.parsed(text)).keys() == {"a.first", "b.second"}
    else:
        assert [row["owner"] for row in csv.DictReader(io.StringIO(text))][:2] == ["a.first", "b.second"]


def test_with_both_on_a_terminal_the_progress_is_gone_before_the_result(command: Pinprobe, two: str) -> None:
    code, text, shown = on_a_terminal(command, two, "--csv", stdout=True, stderr=True)
    assert code == 0
    assert text.splitlines()[1].startswith("a.first,reserved,33554432,33554432,33554432,1.000,true,mapping")
    assert "a.first" not in shown


# -- the environment, and what is loaded


def test_every_option_can_stand_in_the_environment(command: Pinprobe, two: str, tmp_path: Path) -> None:
    book = tmp_path / "another"
    settings = {"SCALE": "1/2", "NOTE": "from outside", "LIMIT": "1GiB", "KEEP_FREE": "1MiB", "BOOK_DIR": str(book)}
    settings |= {"SET": "ranks=2", "RECEIPT": str(tmp_path / "receipt.json")}
    given = command.given({f"PINPROBE_LEDGER_{name}": value for name, value in settings.items()})
    document = given.json("ledger", two)
    assert (document["scale"], document["note"], document["overrides"]) == ("1/2", "from outside", {"ranks": "2"})
    assert (document["limit_bytes"], document["headroom"]["keep_free_bytes"]) == (2**30, MIB)
    assert [row["owner"] for row in document["rows"]][:4] == ["a.first", "a.first", "b.second", "b.second"]
    assert str(book) in document["book_reach"]
    assert (tmp_path / "receipt.json").exists()
    # What is typed goes before.
    again = given.json("ledger", two, "--scale", "1", "--note", "typed", "-f")
    assert (again["scale"], again["note"]) == ("1", "typed")


def test_its_help_loads_no_heavy_library(pinprobe: Pinprobe) -> None:
    assert loaded_by(pinprobe, RUN, "ledger", "--help") == ""


def test_ordinary_memory_is_booked_without_torch(command: Pinprobe, two: str) -> None:
    assert "torch" not in loaded_by(command, f"import sys\n{RUN}", "ledger", two, "-q", "--csv").split()
