"""What the README and the guides say in figures was measured: each figure stands in a receipt."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
RECEIPTS = sorted((ROOT / "docs" / "receipts").glob("*.json"))
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
GIB, MIB = 2**30, 2**20
FIGURE = re.compile(r"(?<![\d.,])\d[\d,]*\.\d{3}(?![\d.])")


def load(name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((ROOT / "docs" / "receipts" / f"{name}.json").read_text(encoding="utf-8"))
    return document


def numbers(value: Any) -> set[float]:
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return set()
    if isinstance(value, (int, float)):
        return {float(value)}
    parts = value.values() if isinstance(value, dict) else value
    return set().union(*(numbers(part) for part in parts))


@pytest.fixture(scope="module")
def known() -> set[str]:
    """Every number of every receipt as a person would read it."""
    found: set[str] = set()
    for path in RECEIPTS:
        found |= set(FIGURE.findall(path.read_text(encoding="utf-8")))  # also in what it says in words
        for number in numbers(json.loads(path.read_text(encoding="utf-8"))):
            found |= {f"{number:,.3f}", f"{number / GIB:,.3f}", f"{number / MIB:,.3f}"}
    return found


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.name))
def test_every_figure_with_three_decimals_is_in_a_receipt(path: Path, known: set[str]) -> None:
    figures = FIGURE.findall(path.read_text(encoding="utf-8"))
    assert [figure for figure in figures if figure not in known] == []


def test_the_listing_names_every_receipt_and_no_other() -> None:
    listed = set(re.findall(r"`([a-z0-9-]+\.json)`", (ROOT / "docs" / "receipts" / "README.md").read_text()))
    assert listed == {path.name for path in RECEIPTS}


@pytest.mark.parametrize("path", RECEIPTS, ids=lambda path: str(path.stem))
def test_each_receipt_says_what_made_it_and_where(path: Path) -> None:
    document = json.loads(path.read_text(encoding="utf-8"))
    name, _, kind = document["schema"].partition(".")
    assert (name, kind in ("probe", "sweep", "ledger", "lossless", "replay", "budget")) == ("pinprobe", True)
    if kind != "budget":  # which is worked out, on any machine
        assert document["command"][0] == "pinprobe"
        assert document["host"]["kernel"]
    assert not re.search(r"/work|/home|/tmp/(?!r/)", path.read_text(encoding="utf-8"))


def test_on_a_gpu_torch_rounds_and_registered_memory_does_not() -> None:
    torch, registered = (load(f"h200-probe-{name}") for name in ("torch", "registered"))
    for trial in (torch, registered):
        assert round(trial["control"]["ratio"], 3) == 1.000
    assert [round(torch[row]["ratio"], 3) for row in ("pinned", "again")] == [1.733, 0.000]
    assert round(registered["pinned"]["ratio"], 3) == 1.000
    assert torch["pinned"]["block_by_allocator"]["bytes"] == torch["pinned"]["block"]["bytes"] == 4 * GIB


def test_on_a_gpu_the_cliffs_of_torch_are_all_measured() -> None:
    sweep = load("h200-sweep")["sweeps"][0]
    assert sweep["allocator"] == "torch"
    assert [cliff["slots"] for cliff in sweep["cliffs"]] == [2, 4, 7, 14, 28, 56]
    assert {point["state"] for point in sweep["points"]} == {"measured"}


@pytest.mark.parametrize(
    ("name", "counter"),
    [
        ("torch", "RssShmem"),
        ("registered", "RssAnon"),
        ("registered-memfd", "RssShmem"),
        ("registered-hugetlb", "HugetlbPages"),
    ],
)
def test_each_kind_of_pinned_memory_shows_in_its_own_counter_alone(name: str, counter: str) -> None:
    pinned = load(f"h200-probe-{name}")["pinned"]
    assert pinned["counter"] == counter
    for moved in ("RssAnon", "RssShmem", "HugetlbPages", "VmLck", "VmPin"):
        bytes_ = pinned["counters"][moved]["bytes"]
        assert abs(bytes_ - (pinned["resident"]["bytes"] if moved == counter else 0)) < MIB


@pytest.mark.parametrize("name", ["registered", "registered-memfd", "registered-hugetlb"])
def test_registering_costs_the_host_some_12_mib_a_gib_beside_the_pages(name: str) -> None:
    pinned = load(f"h200-probe-{name}")["pinned"]
    page_tables = pinned["counters"]["VmPTE"]["bytes"]
    extra = (pinned["overhead"]["bytes"] - page_tables) / (pinned["resident"]["bytes"] / GIB)
    assert 8 * MIB <= extra <= 16 * MIB


def test_without_a_gpu_the_same_allocator_gives_the_same_blocks() -> None:
    points = {point["slots"]: point for point in load("cpu-sweep-torch-host")["sweeps"][0]["points"]}
    gpu = {point["slots"]: point for point in load("h200-sweep")["sweeps"][0]["points"]}
    for slots, point in points.items():
        assert point["block"]["bytes"] == gpu[slots]["block"]["bytes"], slots


def test_on_a_gpu_a_ring_of_16_slots_is_booked_at_what_its_allocator_takes() -> None:
    torch, registered = (load(f"h200-ledger-{name}") for name in ("torch", "registered"))
    for document, expected in ((torch, 4 * GIB), (registered, 16 * 154_927_104)):
        (row,) = (row for row in document["rows"] if row["state"] == "reserved")
        assert row["booked_bytes"] == row["resident"]["bytes"] == expected
        assert row["measured"]
        assert document["holds"]


def test_two_rings_of_one_engine_leave_one_working_set_floor() -> None:
    names = ("ring-32", "ring-64", "ring-64-quarter", "split", "split-demand")
    floors = [load(f"h200-ledger-{name}")["working_set_floor"]["bytes"] for name in names]
    assert max(floors) - min(floors) <= 16 * MIB


def test_pinned_and_pageable_of_the_four_arms_are_what_the_installed_allocator_makes_of_them() -> None:
    sums = {name: load(f"h200-ledger-{name}")["sums"] for name in ("ring-32", "ring-64", "split", "split-demand")}
    region = 154_927_104 + 4096
    assert [sums[name]["pinned_bytes"] / GIB for name in sums] == [8.0, 16.0, 4.0, 4.0]
    assert [sums[name]["pageable_bytes"] for name in sums] == [0, 0, 64 * region, 31 * region]


@pytest.mark.parametrize("name", ["torch", "registered"])
def test_a_thousand_savepoints_came_back_bit_by_bit(name: str) -> None:
    document = load(f"h200-lossless-{name}")
    assert document["holds"]
    assert document["device"] == "cuda"
    assert (document["savepoints"], document["row_bytes"], document["slab_count"]) == (1000, 154_927_104, 96)
    assert document["mismatched"] == []
    assert document["pool"]["promoted"] == 1000
    speed = {leg["name"]: leg["gigabytes_a_second"] for leg in document["legs"]}
    for leg in ("device to slot", "slot to device"):
        assert speed[leg] >= 0.75 * speed[f"plain: {leg}"]
