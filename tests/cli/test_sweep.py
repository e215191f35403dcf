"""`pinprobe sweep`, run for real with small slots: cliffs, forms, marks and exit codes."""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pinprobe.probes.installed_torch import InstalledTorch, find_installed_torch

if TYPE_CHECKING:
    from tests.cli.conftest import Pinprobe

_MEGABYTES = ("sweep", "--slot-bytes", "1000000", "--slots", "1..16")
_TORCH = (*_MEGABYTES, "--allocator", "torch-host")
# No more than the 8 MiB that anyone may lock on most machines.
_THREE = [word for name in ("torch-host", "mlock", "pageable") for word in ("--allocator", name)]
_SIDE_BY_SIDE = ("sweep", "--slot-bytes", "1000000", "--slots", "1..8", *_THREE)
# Rounding off beyond 128 MiB and the cache on: torch 2.13 then serves requests from blocks that are smaller.
_BREAKING = {"PYTORCH_ALLOC_CONF": "pinned_max_round_threshold_mb:128,pinned_max_cached_size_mb:1024"}
_BROKEN = ("sweep", "--slot-bytes", "50MiB", "--slots", "1..6", "--allocator", "torch-host")


def blocks(sweep: dict[str, Any]) -> list[int]:
    return [point["block"]["bytes"] for point in sweep["points"]]


def next_power_of_two(size: int) -> int:
    return 1 << (size - 1).bit_length()


def table_row(text: str, slots: int) -> str:
    return next(line for line in text.splitlines() if line.split()[:1] == [str(slots)] and "│" not in line)


@pytest.fixture
def side_by_side(torch_host: Pinprobe, need_lock: Callable[[int], None]) -> Pinprobe:
    """The command where all of `_SIDE_BY_SIDE` can be had."""
    need_lock(8_000_000)
    return torch_host


# -- what is measured


def test_torch_host_has_its_cliffs_where_the_ask_passes_a_power_of_two(torch_host: Pinprobe) -> None:
    document = torch_host.json(*_TORCH)
    (sweep,) = document["sweeps"]
    assert blocks(sweep) == [next_power_of_two(1_000_000 * slots) for slots in range(1, 17)]
    assert [cliff["slots"] for cliff in sweep["cliffs"]] == [2, 3, 5, 9]
    assert {point["state"] for point in sweep["points"]} == {"measured"}
    assert sweep["rule"]["fitting"][0] == "the next power of two"
    assert sweep["rule"]["supporting_count"] == 16
    assert sweep["rule"]["contradicting_asked_bytes"] == []
    # The cache is kept on the way up, so no more is touched than the blocks themselves.
    assert sweep["touched_bytes"] == sum(2**power for power in range(20, 25))
    assert sweep["peak_bytes"] == 2**24 + 2**23


def test_a_fresh_child_for_each_point_finds_the_same_blocks(torch_host: Pinprobe) -> None:
    cached, fresh = (torch_host.json(*_TORCH, *walk)["sweeps"][0] for walk in ((), ("--walk",)))
    assert blocks(fresh) == blocks(cached)
    assert fresh["cliffs"] == cached["cliffs"]
    assert {point["served_from_slots"] for point in fresh["points"]} == {None}
    assert fresh["touched_bytes"] > cached["touched_bytes"]


@pytest.mark.parametrize("allocator", ["mlock", "pageable"])
def test_an_exact_allocator_has_no_cliff_and_is_sampled(
    pinprobe: Pinprobe, need_lock: Callable[[int], None], allocator: str
) -> None:
    if allocator == "mlock":
        need_lock(1_600_000)
    arguments = ("sweep", "--slot-bytes", "100000", "--slots", "1..16", "--allocator", allocator)
    (sweep,) = pinprobe.json(*arguments)["sweeps"]
    assert blocks(sweep) == [-(-100_000 * slots // 4096) * 4096 for slots in range(1, 17)]
    states = [point["state"] for point in sweep["points"]]
    assert states[:4] == ["measured"] * 4
    assert states[-1] == "measured"
    assert "predicted" in states
    assert "no cliff" in pinprobe(*arguments).stdout


def test_listed_slots_are_measured_in_rising_order_without_repeats(pinprobe: Pinprobe) -> None:
    arguments = ("--slot-bytes", "1MiB", "--slots", "8,1..2,2", "--allocator", "pageable")
    (sweep,) = pinprobe.json("sweep", *arguments)["sweeps"]
    assert [point["slots"] for point in sweep["points"]] == [1, 2, 8]


def test_several_allocators_stand_in_one_document_and_each_only_once(side_by_side: Pinprobe) -> None:
    document = side_by_side.json(*_SIDE_BY_SIDE, "--allocator", "mlock")
    assert [sweep["allocator"] for sweep in document["sweeps"]] == ["torch-host", "mlock", "pageable"]


def test_auto_takes_the_most_telling_and_says_what_it_passed_over(torch_host: Pinprobe) -> None:
    done = torch_host("sweep", "--slot-bytes", "1MiB", "--slots", "1..2", "--json")
    taken = torch_host.parsed(done.stdout)["sweeps"][0]["allocator"]
    assert taken in ("torch", "torch-host")
    assert done.stderr == "" or f"measuring {taken}, since" in done.stderr


# -- what is beyond the bound


def test_points_beyond_the_bound_are_predicted_and_marked(torch_host: Pinprobe) -> None:
    (sweep,) = torch_host.json(*_TORCH, "--at-most", "6000000")["sweeps"]
    states = [point["state"] for point in sweep["points"]]
    assert states == ["measured"] * 4 + ["predicted"] * 12
    assert blocks(sweep) == [next_power_of_two(1_000_000 * slots) for slots in range(1, 17)]
    for point in sweep["points"][4:]:
        assert "unreadable" in point["resident"]
        assert point["block"]["source"].startswith("predicted")
        assert "may be taken" in point["reason"]
    assert [cliff["measured"] for cliff in sweep["cliffs"]] == [True, True, False, False]
    assert sweep["peak_bytes"] <= 6_000_000


def test_predicted_points_look_apart_in_every_form_for_people(torch_host: Pinprobe) -> None:
    text = torch_host(*_TORCH, "--at-most", "6000000").stdout
    assert table_row(text, 4).endswith(("measured", "kept block"))
    assert table_row(text, 5).endswith("predicted")
    assert "cliffs (first slot count of the next block; * is predicted): 2, 3, 5*, 9*" in " ".join(text.split())
    assert "·" in text
    assert "Not measured: 5..16 slots" in " ".join(text.split())
    markdown = torch_host(*_TORCH, "--at-most", "6000000", "--markdown").stdout
    assert table_row(markdown.replace("| ", " ").replace(" |", " "), 5).rstrip().endswith("predicted")
    beside = torch_host(*_TORCH, "--allocator", "pageable", "--at-most", "6000000").stdout
    assert "4.000*" not in table_row(beside, 4)
    assert "8.000*" in table_row(beside, 5)


def test_points_beyond_the_bound_without_a_rule_are_not_measured_rather_than_guessed(torch_host: Pinprobe) -> None:
    (sweep,) = torch_host.json(*_TORCH, "--at-most", "1200000")["sweeps"]
    assert [point["state"] for point in sweep["points"]] == ["measured"] + ["not measured"] * 15
    assert all("unreadable" in point["block"] for point in sweep["points"][1:])


def test_a_bound_that_barely_holds_a_block_leaves_the_interpreter_its_own_room(pinprobe: Pinprobe) -> None:
    # The kernel holds the child to its bound, and the child's interpreter needs some memory of its own to measure with.
    arguments = ("sweep", "--slot-bytes", "10MiB", "--slots", "1..4", "--allocator", "pageable")
    for spare in (0, 2**16, 2**18):
        (sweep,) = pinprobe.json(*arguments, "--at-most", str(40 * 2**20 + spare))["sweeps"]
        assert [point["state"] for point in sweep["points"][:3]] == ["measured"] * 3
        assert sweep["ended"] is None


def test_a_sweep_that_measured_no_block_claims_nothing_of_any(pinprobe: Pinprobe) -> None:
    done = pinprobe("sweep", "--slot-bytes", "1MiB", "--slots", "8..9", "--allocator", "pageable", "--at-most", "5MiB")
    assert done.returncode == 3, done.stderr
    assert "no block was measured, so nothing is known of its cliffs" in done.stdout
    assert "no cliff among" not in done.stdout


def test_not_even_one_slot_within_the_bound_is_told_as_not_measured(pinprobe: Pinprobe) -> None:
    done = pinprobe(*_MEGABYTES, "--allocator", "pageable", "--at-most", "100000", "--json")
    assert done.returncode == 3
    assert "may be taken (--at-most)" in done.stdout + done.stderr


# -- a broken promise


@pytest.fixture
def promise_breaker(torch_host: Pinprobe) -> Pinprobe:
    """The command with a torch that breaks its promise under `_BREAKING`."""
    torch = find_installed_torch()
    if not (isinstance(torch, InstalledTorch) and torch.release == (2, 13)):
        pytest.skip("torch 2.13 breaks this promise, and another one is installed")
    return torch_host


def test_a_broken_promise_is_told_first_with_exit_1(promise_breaker: Pinprobe) -> None:
    done = promise_breaker.given(_BREAKING)(*_BROKEN)
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert lines[0].startswith("MEMORY IS NOT SAFE")
    assert "at 4 slots: handed a block of 157,286,400 B" in " ".join(done.stdout.split())
    assert max(map(len, lines)) <= 80
    assert table_row(done.stdout, 4).endswith("TOO SMALL")
    markdown = promise_breaker.given(_BREAKING)(*_BROKEN, "--markdown")
    assert markdown.returncode == 1
    assert markdown.stdout.startswith("MEMORY IS NOT SAFE")


def test_a_broken_promise_stands_in_every_form_for_machines(promise_breaker: Pinprobe) -> None:
    (sweep,) = promise_breaker.given(_BREAKING).json(*_BROKEN, exit_code=1)["sweeps"]
    broken = [point["slots"] for point in sweep["points"] if point["state"] == "broken promise"]
    assert broken == [4, 5]
    assert sweep["exit_code"] == 1
    # A block that is too small follows from no rule, and none may be inferred from it.
    assert sweep["rule"]["point_count"] == 4
    done = promise_breaker.given(_BREAKING)(*_BROKEN, "--csv")
    assert done.returncode == 1
    states = [row["state"] for row in csv.DictReader(io.StringIO(done.stdout))]
    assert states.count("broken promise") == 2


def test_a_broken_promise_is_told_first_also_where_its_allocator_is_the_second(promise_breaker: Pinprobe) -> None:
    arguments = ("sweep", "--allocator", "pageable", *_BROKEN[1:])
    done = promise_breaker.given(_BREAKING)(*arguments)
    assert done.returncode == 1
    assert done.stdout.startswith("MEMORY IS NOT SAFE")
    assert "torch-host at 4 slots" in done.stdout
    assert "!" in table_row(done.stdout, 4)


def test_the_settings_in_force_and_those_not_reproduced_are_named(torch_host: Pinprobe) -> None:
    settings = {"PYTORCH_CUDA_ALLOC_CONF": "pinned_reserve_segment_size_mb:64,pinned_max_cached_size_mb:1024"}
    document = torch_host.given(settings).json(
        "sweep", "--slot-bytes", "1MiB", "--slots", "1..2", "--allocator", "torch-host"
    )
    notes = " ".join(document["sweeps"][0]["notes"])
    assert "not reproduced here: pinned_reserve_segment_size_mb:64" in notes
    assert "setting in force: pinned_max_cached_size_mb:1024" in notes
    assert document["host"]["torch_settings"] == settings


# -- its forms


@pytest.mark.parametrize(
    "arguments",
    [
        _TORCH,
        (*_TORCH, "--at-most", "6000000"),
        (*_TORCH, "--allocator", "pageable"),
        ("sweep", "--slot-bytes", "1TiB", "--slots", "1..2"),
    ],
    ids=["one", "predicted", "two", "huge"],
)
def test_the_text_fits_80_columns_and_no_figure_is_cut(torch_host: Pinprobe, arguments: tuple[str, ...]) -> None:
    text = torch_host(*arguments).stdout
    assert "…" not in text
    assert [line for line in text.splitlines() if len(line) > 80] == []


def test_three_allocators_side_by_side_fit_80_columns_too(side_by_side: Pinprobe) -> None:
    text = side_by_side(*_SIDE_BY_SIDE).stdout
    assert "…" not in text
    assert [line for line in text.splitlines() if len(line) > 80] == []


def test_the_text_shows_the_points_beside_cliffs_or_every_point(torch_host: Pinprobe) -> None:
    arguments = ("sweep", "--slot-bytes", "100000", "--slots", "1..40", "--allocator", "torch-host")
    beside = torch_host(*arguments).stdout
    with pytest.raises(StopIteration):
        table_row(beside, 30)
    for slots in (1, 10, 11, 20, 21, 40):
        assert table_row(beside, slots)
    every = torch_host(*arguments, "--every-point").stdout
    for slots in range(1, 41):
        assert table_row(every, slots)


def test_the_block_on_both_sides_of_a_cliff_and_what_more_would_fit_are_shown(torch_host: Pinprobe) -> None:
    text = torch_host(*_TORCH).stdout
    assert table_row(text, 8).split()[4:6] == ["8.000", "0"]
    assert table_row(text, 9).split()[4:6] == ["16.000", "7"]


def test_the_staircase_is_drawn_in_ascii_where_the_terminal_has_no_more(pinprobe: Pinprobe) -> None:
    done = pinprobe.given({"PYTHONIOENCODING": "ascii"})(*_MEGABYTES, "--allocator", "pageable")
    assert done.returncode == 0
    assert "# asked" in done.stdout


def test_the_json_says_what_it_is_and_where_it_was_measured(torch_host: Pinprobe) -> None:
    document = torch_host.json(*_TORCH)
    assert (document["schema"], document["version"]) == ("pinprobe.sweep", 1)
    assert document["command"] == ["pinprobe", *_TORCH, "--json"]
    host = document["host"]
    for fact in ("kernel", "cpu_count", "memory_total", "page_size_bytes", "cgroup", "driver", "torch", "headroom"):
        assert host[fact]
    assert {"error_bytes", "status", "statm"} <= set(host["counters"])


def test_every_amount_in_the_json_is_a_reading_or_says_why_not(side_by_side: Pinprobe) -> None:
    document = side_by_side.json(*_SIDE_BY_SIDE, "--at-most", "6000000")
    for sweep, key in itertools.product(document["sweeps"], ("block", "resident")):
        for point in sweep["points"]:
            amount = point[key]
            assert set(amount) in ({"bytes", "source", "error_bytes"}, {"unreadable"})
            assert amount.get("unreadable", amount.get("source"))
            assert type(amount.get("bytes", 0)) is int
            assert (point["cost"] is None) == (point["state"] in ("predicted", "not measured"))


def test_the_csv_has_every_point_of_every_allocator_in_whole_bytes(side_by_side: Pinprobe) -> None:
    done = side_by_side(*_SIDE_BY_SIDE, "--at-most", "6000000", "--csv")
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    assert [row["allocator"] for row in rows] == ["torch-host"] * 8 + ["mlock"] * 8 + ["pageable"] * 8
    for row in rows:
        assert int(row["asked_bytes"]) == 1_000_000 * int(row["slots"])
        # An unknown is an empty cell, never a zero.
        assert row["resident_bytes"] == "" or int(row["resident_bytes"]) > 0
        assert (row["resident_bytes"] == "") == (row["state"] != "measured")
        assert row["block_bytes"] == "" or int(row["block_bytes"]) >= int(row["asked_bytes"])


def test_the_markdown_is_one_table_whose_rows_are_alike(side_by_side: Pinprobe) -> None:
    text = side_by_side(*_SIDE_BY_SIDE, "--markdown").stdout
    table = [line for line in text.splitlines() if line.startswith("|")]
    assert len(table) == 2 + 8
    assert len({line.count("|") for line in table}) == 1
    assert text.startswith(table[0])


def test_a_file_gets_what_stdout_would_and_quiet_says_nothing(pinprobe: Pinprobe, tmp_path: Path) -> None:
    arguments = (*_MEGABYTES, "--allocator", "pageable", "--csv", "-q")
    done = pinprobe(*arguments, "-o", str(tmp_path / "out.csv"))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    written = list(csv.DictReader(io.StringIO((tmp_path / "out.csv").read_text(encoding="utf-8"))))
    assert [row["slots"] for row in written] == [str(slots) for slots in range(1, 17)]


# -- the environment's options


@pytest.mark.parametrize(
    ("name", "value", "typed"),
    [
        ("SLOT_BYTES", "2MiB", ("--slot-bytes", "2MiB")),
        ("SLOTS", "1,3", ("--slots", "1,3")),
        ("ALLOCATOR", "pageable", ("--allocator", "pageable")),
        ("ALLOCATOR", "pageable mlock", ("--allocator", "pageable", "--allocator", "mlock")),
        ("WALK", "1", ("--walk",)),
        ("AT_MOST", "2MiB", ("--at-most", "2MiB")),
    ],
    ids=["slot-bytes", "slots", "allocator", "allocators", "walk", "at-most"],
)
def test_every_option_can_be_set_in_the_environment(
    pinprobe: Pinprobe, need_lock: Callable[[int], None], name: str, value: str, typed: tuple[str, ...]
) -> None:
    if "mlock" in value:
        need_lock(2**21)
    base = {"--slot-bytes": "1MiB", "--slots": "1..2", "--allocator": "pageable"}
    others = [word for option, given in base.items() if option not in typed for word in (option, given)]
    by_environment = pinprobe.given({f"PINPROBE_SWEEP_{name}": value}).json("sweep", *others)
    by_option = pinprobe.json("sweep", *others, *typed)
    for one, other in zip(by_environment["sweeps"], by_option["sweeps"], strict=True):
        assert one["allocator"] == other["allocator"]
        assert one["fresh_children"] == other["fresh_children"]
        assert [point["slots"] for point in one["points"]] == [point["slots"] for point in other["points"]]
        assert [point["block"] for point in one["points"]] == [point["block"] for point in other["points"]]


@pytest.mark.parametrize("form", ["JSON", "CSV", "MARKDOWN"])
def test_the_form_can_be_set_in_the_environment(pinprobe: Pinprobe, form: str) -> None:
    arguments = ("sweep", "--slot-bytes", "1MiB", "--slots", "1", "--allocator", "pageable")
    starts = {"JSON": "{", "CSV": "allocator,", "MARKDOWN": "|"}
    assert pinprobe.given({f"PINPROBE_SWEEP_{form}": "1"})(*arguments).stdout.startswith(starts[form])


def test_points_that_fit_two_rules_are_not_said_to_follow_one(torch_host: Pinprobe) -> None:
    # Asks that are powers of two cost what was asked with either: nothing here says that the allocator is exact.
    asked = ("sweep", "--slot-bytes", "1MiB", "--slots", "1,2,4,8", "--allocator", "torch-host")
    said = " ".join(torch_host(*asked).stdout.split())
    assert "No one rule: a block may be what was asked, to the page, or the next power of two" in said
    assert "a step at every slot" not in said
