"""The picture stands alone: well-formed, read out in words, with axes and legend, and nothing to fetch or run."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pinprobe.cli.hit_rate_svg import hit_rate_svg
from pinprobe.ledger.replay.replay_run import ReplayRun, Source
from pinprobe.ledger.replay.sweep_slots import SlotSweep, sweep_slots
from tests.ledger.replay.made_runs import drive, whole_run

NAMESPACE = "{http://www.w3.org/2000/svg}"
ROW_BYTES = 154_927_104
SLOTS = (1, 2, 4, 8, 16)
SWEEP = sweep_slots(drive("agentic"), ["lru", "chain", "gittins"], SLOTS)
SOURCE = Source(None, "agentic", None, 9, 5)


def drawn(sweep: SlotSweep = SWEEP, source: Source = SOURCE, row_bytes: int = ROW_BYTES) -> str:
    return hit_rate_svg(ReplayRun(source, None, row_bytes, sweep=sweep), "9.9")


def arms() -> ReplayRun:
    return replace(whole_run(), sweep=None, rows=None)


def texts(svg: str) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(svg).iter(f"{NAMESPACE}text")]


def way(svg: str, number: int) -> list[tuple[float, float]]:
    """The places of one line's points."""
    lines = re.findall(r'<polyline points="([^"]*)"', svg)
    return [(float(x), float(y)) for x, y in (pair.split(",") for pair in lines[number].split())]


def test_it_names_what_it_shows_and_that_nothing_was_measured() -> None:
    said = texts(drawn())
    assert "Tokens spared by slots of 154,927,104 B: agentic" in said
    assert {"lru", "chain", "gittins", "everything kept", "tokens spared, %"} <= set(said)
    assert "replayed by pinprobe 9.9; hit rates are modelled from metadata, and not measured" in said
    assert {"256 MiB", "1 GiB"} <= set(said)


def test_it_asks_for_nothing_and_runs_nothing() -> None:
    for svg in (drawn(), hit_rate_svg(arms(), "9.9")):
        assert not re.search(r"<script|<image|@import|@font-face|href|url\(|javascript:", svg)
        assert "prefers-color-scheme: dark" in svg


def test_it_is_read_out_in_words() -> None:
    root = ElementTree.fromstring(drawn())
    assert (root.get("role"), root.get("aria-labelledby")) == ("img", "title desc")
    described = root.find(f"{NAMESPACE}desc")
    assert described is not None
    point = SWEEP.at("lru", 4)
    assert point is not None
    assert f"{point.token_hit_rate * 100:.1f} % at 0.577 GiB" in (described.text or "")


def test_twice_the_bytes_are_the_same_step_to_the_right_wherever_they_are() -> None:
    places = way(drawn(), 0)
    steps = {round(right[0] - left[0], 0) for left, right in itertools.pairwise(places)}
    assert len(places) == len(SLOTS)
    assert len(steps) == 1
    assert steps.pop() > 50


def test_a_point_stands_as_high_as_its_share() -> None:
    svg = drawn()
    grid = re.findall(r'<line x1="[\d.]+" y1="([\d.]+)" x2="[\d.]+" y2="\1" class="(?:axis|grid)"/>', svg)
    base, top = max(map(float, grid)), min(map(float, grid))
    for number, policy in enumerate(SWEEP.policies):
        for slots, (_, y) in zip(SLOTS, way(svg, number), strict=True):
            point = SWEEP.at(policy, slots)
            assert point is not None
            assert (base - y) / (base - top) == pytest.approx(point.token_hit_rate, abs=0.001)


def test_many_policies_are_told_apart_by_more_than_their_colour() -> None:
    points = [replace(point, policy=f"policy {number}") for number in range(20) for point in SWEEP.points[:2]]
    sweep = replace(SWEEP, policies=tuple(f"policy {number}" for number in range(20)), points=tuple(points))
    svg = drawn(sweep)
    styles = re.findall(r'<polyline points="[^"]*" (class="[^"]*"(?: stroke-dasharray="[^"]*")?)/>', svg)
    assert len(styles) == len(set(styles)) == 20
    root = ElementTree.fromstring(svg)
    legend = [text for text in root.iter(f"{NAMESPACE}text") if (text.text or "").startswith("policy ")]
    assert len({(text.get("x"), text.get("y")) for text in legend}) == 20
    assert max(float(text.get("x") or 0) for text in legend) < 860


def test_arms_are_points_over_all_their_bytes_with_their_spread() -> None:
    svg = hit_rate_svg(arms(), "9.9")
    said = texts(svg)
    assert {"ring", "split"} <= set(said)
    assert "everything kept" not in said
    assert "<polyline" not in svg
    assert any("with real bytes" in text for text in said)


def test_one_point_alone_is_a_picture_too() -> None:
    alone = sweep_slots(drive(), ["lru"], [1])
    svg = drawn(alone, row_bytes=1)
    ElementTree.fromstring(svg)
    assert "lru" in texts(svg)


@settings(derandomize=True, deadline=None, max_examples=60)
@given(st.text(min_size=1, max_size=40))
def test_no_name_can_break_out_of_its_place(name: str) -> None:
    sweep = replace(SWEEP, policies=(name,), points=tuple(replace(each, policy=name) for each in SWEEP.points[:3]))
    svg = drawn(sweep, replace(SOURCE, trace=name, scenario=None))
    assert "<script" not in svg
    ElementTree.fromstring(svg)
