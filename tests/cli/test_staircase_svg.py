"""The picture stands alone: well-formed, with title, axes, legend and caption, and nothing to fetch or run."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pinprobe.cli.staircase_svg import staircase_svg
from pinprobe.probes.allowance import Allowance
from pinprobe.probes.host_facts import HostFacts, read_host_facts
from pinprobe.probes.reading import Unreadable
from pinprobe.probes.sweep import Sweep
from pinprobe.probes.walk import walk
from tests.probes.simulated import PAGE, SimulatedBench, exact, power_of_two

SLOT = 154_927_104
NAMESPACE = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def host() -> HostFacts:
    return read_host_facts()


def swept(bench: SimulatedBench, name: str = "rounded", last: int = 64, allowed: int = 2**50) -> Sweep:
    return walk(lambda: bench, name, SLOT, range(1, last + 1), Allowance(allowed, "the test"), PAGE)


def texts(svg: str) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(svg).iter(f"{NAMESPACE}text")]


def heights(svg: str, style: str) -> list[float]:
    lines = re.findall(rf'<polyline points="([^"]*)" class="{style}"/>', svg)
    return [float(pair.split(",")[1]) for line in lines for pair in line.split()]


def test_it_names_what_it_shows_and_where_that_was_measured(host: HostFacts) -> None:
    both = [swept(SimulatedBench(power_of_two)), swept(SimulatedBench(exact, caches=False), "exact")]
    said = texts(staircase_svg(both, host))
    assert "What slots of 154,927,104 B take: rounded, exact" in said
    assert {"asked", "rounded", "exact", "slots", "block, GiB"} <= set(said)
    assert any(str(host.kernel) in text and f"{host.cpu_count} CPUs" in text for text in said)
    assert any("rounded cliffs at 2, 4, 7, 14, 28, 56" in text for text in said)


def test_it_asks_for_nothing_and_runs_nothing(host: HostFacts) -> None:
    svg = staircase_svg([swept(SimulatedBench(power_of_two))], host)
    assert not re.search(r"<script|<image|@import|@font-face|href|url\(|javascript:", svg)
    assert "prefers-color-scheme: dark" in svg


def test_a_block_twice_as_large_is_drawn_twice_as_high(host: HostFacts) -> None:
    svg = staircase_svg([swept(SimulatedBench(power_of_two))], host)
    steps = sorted(set(heights(svg, "line c0")), reverse=True)
    floor = float(re.findall(r'y1="([\d.]+)" [^>]*class="axis"', svg)[0])
    up = [floor - step for step in steps]
    assert len(up) == 7
    for lower, higher in itertools.pairwise(up):
        assert higher == pytest.approx(2 * lower, abs=0.2)  # coordinates have one decimal


def test_what_was_predicted_is_drawn_apart_and_explained(host: HostFacts) -> None:
    svg = staircase_svg([swept(SimulatedBench(power_of_two), allowed=2**34 - 1)], host)
    assert 'class="line c0 predicted"' in svg
    assert any("cliffs at 2, 4, 7, 14, 28, 56*; dashed and *: predicted" in text for text in texts(svg))


@given(st.text(min_size=1, max_size=40))
@settings(max_examples=20, deadline=None)
def test_no_name_can_break_out_of_its_place(name: str) -> None:
    host = read_host_facts()
    hostile = replace(host, kernel=name, torch=name, driver=name, machine=name)
    svg = staircase_svg([swept(SimulatedBench(power_of_two), name, last=3)], hostile)
    assert "<script" not in svg
    ElementTree.fromstring(svg)


def test_unreadable_facts_leave_a_picture_all_the_same(host: HostFacts) -> None:
    blind = replace(host, kernel=Unreadable("x"), torch=Unreadable("x"), driver=Unreadable("x"))
    assert any("no GPU driver" in text for text in texts(staircase_svg([swept(SimulatedBench(exact), last=1)], blind)))
