"""`pinprobe plan`: what it prints, with which exit code, and that the ledger then books what was planned."""

from __future__ import annotations

import csv
import io
import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.cli.ledger_process import with_book
from tests.cli.loaded_modules import RUN, loaded_by

if TYPE_CHECKING:
    from tests.cli.conftest import Pinprobe

MIB, GIB = 2**20, 2**30
RECEIPTS = Path(__file__).parents[2] / "docs" / "receipts"
CPU_MAP, H200_MAP = (str(RECEIPTS / f"{name}.json") for name in ("cpu-sweep-torch-host", "h200-sweep"))
_LEDGER = str(RECEIPTS / "h200-ledger-ring-64.json")

CONFIG = """\
engine: {name: mine, ranks: 4, allocator: torch}
numbers: {pool: 40_000_000_000, prints: 37.5 GiB}
tenants:
  experts.pool: {kind: buffer, bytes: pool, printed: prints}
  cache.kept: {kind: buffer, per: host, bytes: 1 GiB, allocator: pageable, transient: 512 MiB}
"""


@pytest.fixture
def command(pinprobe: Pinprobe, tmp_path: Path) -> Pinprobe:
    """The command with a cache of its own, so that no map is known."""
    return pinprobe.given({"PINPROBE_CACHE_DIR": str(tmp_path / "cache")})


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "mine.yaml"
    path.write_text(CONFIG, encoding="utf-8")
    return str(path)


def flat(text: str) -> str:
    return " ".join(text.split())


def assert_fits_a_terminal(text: str) -> None:
    assert [line for line in text.splitlines() if len(line) > 80 or line != line.rstrip()] == []


# -- what is printed


@pytest.mark.parametrize(
    ("name", "floor"),
    [
        ("expert-tiered-2x200k", "148,920"),
        pytest.param("expert-tiered-4x200k", "161,848", marks=pytest.mark.slow),
    ],
)
def test_the_floors_of_the_expert_configs_are_printed(command: Pinprobe, name: str, floor: str) -> None:
    done = command("plan", name, "--headroom", "200GiB")
    assert (done.returncode, done.stderr) == (0, "")
    assert_fits_a_terminal(done.stdout)
    text = flat(done.stdout)
    assert f"({floor} MiB) at what is asked" in text
    assert f"= {floor} MiB" in text.partition("Formulas")[2]
    assert f"`pinprobe plan {name} --measure` makes one" in text


def test_a_plan_that_does_not_fit_says_by_how_much_and_how_large_a_rank_may_be(command: Pinprobe, config: str) -> None:
    done = command("plan", config, "--map", H200_MAP, "--headroom", "238GiB", "--set", "prints=1 GiB")
    assert (done.returncode, done.stderr) == (1, "")
    assert_fits_a_terminal(done.stdout)
    text = flat(done.stdout)
    assert "mine does not fit: it needs 257.500 GiB (263,680 MiB), predicted, 19.500 GiB more than there is" in text
    assert "--headroom leaves 238.000 GiB" in text
    assert "experts.pool: the largest size a rank that fits, all else as it is, is 32.000 GiB" in text
    assert "= for a while beside 0.500" in text
    assert (
        command("plan", config, "--map", H200_MAP, "--headroom", "238GiB", "--set", "pool=30_000_000_000").returncode
        == 0
    )


def test_a_command_to_copy_is_about_the_numbers_that_were_set(command: Pinprobe) -> None:
    name, room = "expert-tiered-4x200k", ("--headroom", "200GiB")
    done = command("plan", name, *room, "--set", "slots=5", "--set", "prefix_cache=4 GiB", "--fit", "host_pool")
    text = flat(done.stdout)
    check = f"pinprobe check {name} --set slots=5 --set 'prefix_cache=4 GiB'"
    assert f"these fail: rows_fit; `{check}` says why" in text
    assert "rows_fit" in command(*shlex.split(check)[1:]).stdout
    (copied,) = re.findall(rf"`pinprobe (plan {name} --set [^`]*host_pool=[^`]*)`", text)
    needed = re.search(r"which needs ([0-9.]+ GiB)", text)
    assert needed is not None
    assert f"it needs {needed[1]}" in flat(command(*shlex.split(copied), *room).stdout)


def test_what_the_engine_prints_is_compared(command: Pinprobe, config: str) -> None:
    text = flat(command("plan", config, "--headroom", "238GiB").stdout)
    assert "experts.pool: the engine prints 37.500 GiB a rank, 253.03 MiB more than what is asked" in text
    assert "short by 253.03 MiB a rank, 1,012.11 MiB on the host" in text


def test_alternatives_stand_side_by_side(command: Pinprobe) -> None:
    alternatives = ("slots=32", "slots=27, allocator=torch", "slots=27, allocator=registered")
    arguments = [word for each in alternatives for word in ("--what-if", each)]
    done = command("plan", "savepoint-ring-64", "--map", H200_MAP, *arguments, "--headroom", "12GiB")
    assert done.returncode == 1  # as it is: 16 GiB
    assert_fits_a_terminal(done.stdout)
    lines = [line.split() for line in done.stdout.splitlines()]
    assert ["cache.savepoint_ring", "16.000", "8.000", "4.000", "3.896*"] in lines
    assert ["fits", "NO", "yes", "yes", "yes"] in lines
    document = command.json(
        "plan", "savepoint-ring-64", "--map", H200_MAP, *arguments, "--headroom", "12GiB", exit_code=1
    )
    assert [plan["name"] for plan in document["plans"]] == ["as it is", *alternatives]
    assert [plan["rows"][0]["known"] for plan in document["plans"]] == ["measured"] * 3 + ["predicted"]
    assert document["plans"][3]["overrides"] == {"slots": "27"}


def test_the_largest_value_that_fits_is_named_with_what_binds(command: Pinprobe) -> None:
    done = command("plan", "savepoint-ring-64", "--map", CPU_MAP, "--fit", "slots", "--headroom", "9GiB")
    assert done.returncode == 0  # though as it is it does not fit
    text = flat(done.stdout)
    assert "does not fit" in text
    assert "The largest slots that fits is 55, which needs 8.000 GiB" in text
    assert "Beyond it: the next needs 16.000 GiB (16,384 MiB), and --headroom leaves 9.000 GiB." in text


@pytest.mark.slow
def test_where_no_value_fits_that_is_said(command: Pinprobe) -> None:
    done = command("plan", "savepoint-ring-64", "--fit", "slots", "--headroom", "1MiB")
    assert done.returncode == 1
    assert "No value of slots fits" in done.stdout


def test_csv_and_markdown_have_a_row_a_tenant_and_json_every_figure(
    command: Pinprobe, config: str, tmp_path: Path
) -> None:
    arguments = ("plan", config, "--headroom", "300GiB")
    done = command(*arguments, "--csv")
    assert "no map of torch is known here" in done.stderr
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    assert [(row["owner"], row["copies"], row["asked_bytes"], row["known"]) for row in rows] == [
        ("experts.pool", "4", "40000000000", "the ask"),
        ("cache.kept", "1", str(GIB), "the ask"),
    ]
    done = command(*arguments, "--markdown", "-o", str(tmp_path / "plan.md"))
    assert (done.returncode, done.stdout) == (0, "")
    assert "| experts.pool | 4 |" in (tmp_path / "plan.md").read_text(encoding="utf-8")
    document = command.json(*arguments)
    (plan,) = document["plans"]
    assert plan["host_sums"]["asked_pinned_bytes"] == 160 * 10**9
    assert plan["host_sums"]["transient_bytes"] == 512 * MIB
    assert plan["fits"] is True
    assert "host" in document


def test_nothing_of_the_engines_is_run_and_no_library_is_loaded_for_it(command: Pinprobe, tmp_path: Path) -> None:
    (tmp_path / "engine_of_a_test.py").write_text("raise SystemExit(9)\n", encoding="utf-8")
    tenant = "{kind: external, bytes: 1 MiB, callable: 'engine_of_a_test:take'}"
    (tmp_path / "c.yaml").write_text(f"engine: {{name: e}}\ntenants: {{t: {tenant}}}\n", encoding="utf-8")
    finding = command.finding_first(tmp_path)
    assert finding("plan", str(tmp_path / "c.yaml")).returncode == 0
    assert (
        "torch"
        not in loaded_by(finding, f"import sys\n{RUN}", "plan", "savepoint-ring-64", "--headroom", "1TiB").split()
    )


def test_its_help_loads_no_heavy_library(command: Pinprobe) -> None:
    assert loaded_by(command, RUN, "plan", "--help") == ""


@pytest.mark.parametrize(
    ("arguments", "because"),
    [
        (("savepoint-ring-64", "--map", _LEDGER), "where a map has 'pinprobe.sweep'"),
        (("savepoint-ring-64", "--what-if", "slots=8"), "fewer than one turn hands out"),
        (("savepoint-ring-64", *["--what-if", "slots=32"] * 33), "32 alternatives are the most"),
        (("savepoint-ring-64", "--fit", "slotz"), "did you mean slots?"),
    ],
)  # fmt: skip
def test_what_can_not_be_planned_is_refused_in_one_line(
    command: Pinprobe, arguments: tuple[str, ...], because: str
) -> None:
    assert because in command.refused("plan", *arguments)


# -- measured maps


def test_a_map_is_measured_once_kept_and_set_aside_where_it_is_damaged(command: Pinprobe, tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(
        "engine: {name: e, allocator: mlock}\ntenants: {t: {kind: buffer, bytes: 5 GiB + 1}}\n", encoding="utf-8"
    )
    arguments = ("plan", str(path), "--headroom", "1TiB")
    assert command.json(*arguments)["plans"][0]["rows"][0]["known"] == "the ask"
    for more in (("--measure",), ()):
        document = command.json(*arguments, *more)
        (row,) = document["plans"][0]["rows"]
        assert (row["cost_bytes"], row["known"]) == (5 * GIB + 4096, "predicted")
        assert [known["allocator"] for known in document["maps"]] == ["mlock"]
    (kept,) = (tmp_path / "cache" / "maps").iterdir()
    assert json.loads(kept.read_text(encoding="utf-8"))["schema"] == "pinprobe.sweep"
    kept.write_text("{", encoding="utf-8")
    document = command.json(*arguments)
    assert document["plans"][0]["rows"][0]["known"] == "the ask"
    assert "was set aside" in document["remarks"][0]
    assert "removed from" in command("cache", "clear").stdout


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("savepoint-ring-64", marks=pytest.mark.slow),
        pytest.param("savepoint-ring-32", marks=pytest.mark.slow),
        pytest.param("savepoint-split", marks=pytest.mark.slow),
        "savepoint-split-demand",
    ],
)  # fmt: skip
def test_the_ledger_books_within_a_hundredth_what_was_planned(
    torch_host: Pinprobe, tmp_path: Path, need_room: Callable[[int], None], name: str
) -> None:
    need_room(700 * MIB)
    command = with_book(torch_host, tmp_path / "book")
    (plan,) = command.json("plan", name, "--scale", "1/64", "--measure")["plans"]
    booked = command.json("ledger", name, "--scale", "1/64", "-q")
    rows = {row["owner"]: row for row in booked["rows"] if row["state"] == "reserved"}
    assert rows.keys() == {row["owner"] for row in plan["rows"]}
    for row in plan["rows"]:
        assert row["known"] != "the ask" or row["pageable"]
        assert row["cost_bytes"] == pytest.approx(rows[row["owner"]]["booked_bytes"], rel=0.01)
    for kind in ("pinned_bytes", "pageable_bytes"):
        assert plan["host_sums"][kind] == pytest.approx(booked["sums"][kind], rel=0.01)


def test_a_measured_point_of_a_map_is_what_the_ledger_books(
    torch_host: Pinprobe, tmp_path: Path, need_room: Callable[[int], None]
) -> None:
    need_room(700 * MIB)
    command = with_book(torch_host, tmp_path / "book")
    swept = tmp_path / "map.json"
    done = command(
        "sweep", "--slot-bytes", "5000000", "--slots", "1..8", "--allocator", "torch-host", "--receipt", str(swept)
    )
    assert done.returncode == 0, done.stderr
    path = tmp_path / "c.yaml"
    path.write_text(
        "engine: {name: e, ranks: 2, allocator: torch-host}\n"
        "tenants:\n"
        "  a: {kind: buffer, count: 7, bytes: 5_000_000}\n"
        "  b: {kind: buffer, bytes: 3 MiB, allocator: pageable}\n",
        encoding="utf-8",
    )
    (plan,) = command.json("plan", str(path), "--map", str(swept))["plans"]
    assert [(row["cost_bytes"], row["known"]) for row in plan["rows"]] == [(64 * MIB, "measured"), (3 * MIB, "the ask")]
    booked = command.json("ledger", str(path), "-q")
    assert plan["host_sums"]["pinned_bytes"] == booked["sums"]["pinned_bytes"] == 128 * MIB
    assert plan["host_sums"]["pageable_bytes"] == booked["sums"]["pageable_bytes"] == 6 * MIB
