"""`pinprobe probe`, run for real: its three rows, its forms, its exit codes."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.cli.conftest import Pinprobe

Need = Callable[[int], None]

SLOT = ("--slot-bytes", "154927104", "--slots", "16")
_ROWS = ("control", "pinned", "again")
# What is read from the kernel, and so may be unreadable: never a bare number, never null.
_AMOUNTS = {"resident", "second", "block", "block_resident", "block_locked", "memory_total", "available", "free"}


# -- what is measured


def test_torch_host_costs_a_power_of_two_and_the_same_again_costs_nothing(torch_host: Pinprobe) -> None:
    trial = torch_host.json("probe", "--bytes", "5MiB", "--allocator", "torch-host")
    assert trial["control"]["ratio"] == pytest.approx(1, abs=0.002)
    assert trial["pinned"]["ratio"] == 1.6
    assert trial["again"]["ratio"] == 0.0
    assert trial["pinned"]["address"] == trial["again"]["address"]
    assert trial["verdict"]["exit_code"] == 0
    assert "costs nothing" in trial["verdict"]["sentence"]


def test_16_slots_on_torch_host_read_1_000_then_1_733_then_nothing(torch_host: Pinprobe, need_room: Need) -> None:
    need_room(4 * 2**30 + 2**28)
    trial = torch_host.json("probe", *SLOT, "--allocator", "torch-host")
    assert [round(trial[row]["ratio"], 3) for row in _ROWS] == [1.0, 1.733, 0.0]
    assert trial["pinned"]["block"]["bytes"] == 4 * 2**30


def test_16_slots_on_mlock_read_1_000_each_time(pinprobe: Pinprobe, need_room: Need, need_lock: Need) -> None:
    need_room(2**31 + 2**29)
    need_lock(2_478_833_664)
    trial = pinprobe.json("probe", *SLOT, "--allocator", "mlock")
    assert [round(trial[row]["ratio"], 3) for row in _ROWS] == [1.0, 1.0, 1.0]
    assert trial["pinned"]["block_locked"]["bytes"] == 2_478_833_664


def test_the_control_against_itself_is_exact_and_kept_by_nobody(pinprobe: Pinprobe) -> None:
    trial = pinprobe.json("probe", "--bytes", "16MiB", "--allocator", "pageable")
    assert [trial[row]["ratio"] for row in _ROWS] == [1.0, 1.0, 1.0]
    assert "to the page" in trial["verdict"]["sentence"]


def test_slots_and_bytes_ask_for_the_same(pinprobe: Pinprobe) -> None:
    by_slots = pinprobe.json("probe", "--slot-bytes", "1 MiB", "--slots", "3", "--allocator", "pageable")
    by_bytes = pinprobe.json("probe", "--bytes", "3145728", "--allocator", "pageable")
    assert by_slots["asked_bytes"] == by_bytes["asked_bytes"] == 3 * 2**20


def test_settings_in_force_and_those_not_reproduced_are_named(torch_host: Pinprobe) -> None:
    settings = {"PYTORCH_CUDA_ALLOC_CONF": "pinned_num_register_threads:4,pinned_max_cached_size_mb:64"}
    done = torch_host.given(settings)("probe", "--bytes", "5MiB", "--allocator", "torch-host")
    assert done.returncode == 0, done.stderr or done.stdout
    text = " ".join(done.stdout.split())
    assert "not reproduced here: pinned_num_register_threads:4" in text
    assert "setting in force: pinned_max_cached_size_mb:64" in text


def test_a_thread_that_the_allocator_starts_does_not_void_the_probe(torch_host: Pinprobe) -> None:
    # Its stack is resident too: 18 pages that a counter of the whole process sees, and the block's own class does not.
    settings = {"PYTORCH_CUDA_ALLOC_CONF": "pinned_use_background_threads:True"}
    trial = torch_host.given(settings).json("probe", "--bytes", "5MiB", "--allocator", "torch-host")
    assert [trial[row]["ratio"] for row in _ROWS] == [1.0, 1.6, 0.0]


def test_the_bound_that_is_given_is_kept_to(pinprobe: Pinprobe) -> None:
    line = pinprobe.refused("probe", "--bytes", "8MiB", "--at-most", "4MiB", "--allocator", "pageable", exit_code=3)
    assert "8.000 MiB" in line
    assert "4.000 MiB may be taken (--at-most); ask for less, or raise --at-most" in line


def test_a_block_beyond_the_bound_ends_the_probe_with_the_control_kept(torch_host: Pinprobe) -> None:
    # The ask fits and its block, a power of two, does not: the kernel refuses it before a page is taken.
    trial = torch_host.json("probe", "--bytes", "70MiB", "--at-most", "80MiB", "--allocator", "torch-host", exit_code=3)
    assert trial["control"]["ratio"] == pytest.approx(1, abs=0.002)
    assert trial["pinned"] is None
    assert "134217728" in trial["ended"].replace(",", "")


# -- its forms


def test_the_text_has_three_rows_and_a_closing_sentence_in_80_columns(torch_host: Pinprobe) -> None:
    done = torch_host("probe", "--bytes", "5MiB", "--allocator", "torch-host")
    assert done.stderr == ""
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert "…" not in done.stdout
    for row in ("control  ", "pinned  ", "pinned again  "):
        assert any(line.strip().startswith(row) for line in done.stdout.splitlines())
    assert done.stdout.rstrip().endswith(".")


def test_the_json_carries_schema_version_host_and_every_reading(torch_host: Pinprobe) -> None:
    trial = torch_host.json("probe", "--bytes", "5MiB", "--allocator", "torch-host")
    assert (trial["schema"], trial["version"]) == ("pinprobe.probe", 1)
    assert trial["command"][:2] == ["pinprobe", "probe"]
    assert trial["host"]["page_size_bytes"] == trial["page_size_bytes"]
    for row in _ROWS:
        for name in ("VmRSS", "RssAnon", "RssFile", "RssShmem", "VmLck", "VmPin", "HugetlbPages", "VmPTE", "statm"):
            assert name in trial[row]["counters"]
    amounts = list(amounts_in(trial))
    assert len(amounts) > 30
    for amount in amounts:
        assert_is_amount(amount)


def amounts_in(value: Any) -> Iterator[Any]:
    """Every amount of a document, found by its key or, among the counters, by its place."""
    if isinstance(value, list):
        for item in value:
            yield from amounts_in(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            if key in _AMOUNTS:
                yield item
            elif key == "counters" and "VmRSS" in item:
                yield from item.values()
            else:
                yield from amounts_in(item)


def assert_is_amount(value: Any) -> None:
    if set(value) == {"unreadable"}:
        assert value["unreadable"]
    else:
        assert set(value) == {"bytes", "source", "error_bytes"}
        assert type(value["bytes"]) is int
        assert type(value["error_bytes"]) is int
        assert value["source"]


def test_the_csv_has_whole_bytes(pinprobe: Pinprobe) -> None:
    rows = list(
        csv.DictReader(io.StringIO(pinprobe("probe", "--bytes", "5MiB", "--allocator", "pageable", "--csv").stdout))
    )
    assert [row["row"] for row in rows] == ["control", "pinned", "pinned again"]
    for row in rows:
        assert [int(row[name]) for name in ("asked_bytes", "resident_bytes", "block_bytes")] == [5 * 2**20] * 3
        assert row["error_bytes"].isdecimal()
        assert row["ratio"] == "1.000"


def test_the_markdown_is_one_table_and_the_sentence(pinprobe: Pinprobe) -> None:
    lines = pinprobe("probe", "--bytes", "5MiB", "--allocator", "pageable", "--markdown").stdout.splitlines()
    table = [line for line in lines if line.startswith("|")]
    assert table == lines[:5]
    assert len({line.count("|") for line in table}) == 1
    assert "to the page" in lines[-1]


def test_a_file_gets_what_stdout_would(pinprobe: Pinprobe, tmp_path: Path) -> None:
    done = pinprobe("probe", "--bytes", "1MiB", "--allocator", "pageable", "--csv", "-o", str(tmp_path / "out.csv"))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert (tmp_path / "out.csv").read_text(encoding="utf-8").startswith("row,asked_bytes,")


def test_a_terminal_that_has_only_ascii_will_do(pinprobe: Pinprobe) -> None:
    done = pinprobe.given({"PYTHONIOENCODING": "ascii"})("probe", "--bytes", "1MiB", "--allocator", "pageable")
    assert (done.returncode, done.stderr) == (0, "")


# -- the environment's options


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("BYTES", "3MiB"),
        ("ALLOCATOR", "pageable"),
        ("AT_MOST", "1MiB"),
        ("JSON", "1"),
        ("QUIET", "1"),
        ("SHARE", "0.5"),
    ],
)
def test_every_option_can_be_set_in_the_environment(pinprobe: Pinprobe, option: str, value: str) -> None:
    typed = {"BYTES": "2MiB", "ALLOCATOR": "pageable"}
    typed.pop(option, None)
    arguments = [word for name, given in typed.items() for word in (f"--{name.lower()}", given)]
    flags = {"JSON", "QUIET"}
    as_option = [f"--{option.lower().replace('_', '-')}", *([] if option in flags else [value])]
    by_option = pinprobe("probe", *arguments, *as_option)
    by_environment = pinprobe.given({f"PINPROBE_PROBE_{option}": value})("probe", *arguments)
    assert by_environment.returncode == by_option.returncode, by_environment.stderr
    assert by_environment.stderr == by_option.stderr
    assert by_environment.stdout[:20] == by_option.stdout[:20]


def test_a_bad_size_in_the_environment_is_refused_like_one_that_was_typed(pinprobe: Pinprobe) -> None:
    assert "ambiguous" in pinprobe.given({"PINPROBE_PROBE_AT_MOST": "64g"}).refused("probe")
