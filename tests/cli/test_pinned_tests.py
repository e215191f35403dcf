"""The lines that sum up tests: within 80 columns, in order, and nothing unknown written as a number."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from pinprobe.cli.pinned_tests import PinnedTest, summary_lines
from pinprobe.probes.reading import Amount, Reading, Unreadable

GIB, MIB = 2**30, 2**20
UNREAD = Unreadable("smaps: no such file")


def pinned(
    name: str = "t", asked: int = MIB, booked: int = MIB, resident: Amount = UNREAD, held: bool | Unreadable = True
) -> PinnedTest:
    return PinnedTest(name, asked, booked, resident, booked, held)


_SIZES = st.integers(0, 2**42)
_TESTS = st.builds(
    PinnedTest,
    st.text(max_size=200),
    _SIZES,
    _SIZES,
    st.just(UNREAD) | _SIZES.map(lambda size: Reading(size, "smaps, pagemap")),
    _SIZES,
    st.booleans() | st.just(UNREAD),
)


@given(st.lists(_TESTS, max_size=20))
def test_no_line_is_wider_than_80_columns_or_more_than_one_line(tests: list[PinnedTest]) -> None:
    lines = summary_lines(tests)
    assert max(map(len, lines)) <= 80
    assert all(line.isprintable() for line in lines)
    if tests:
        assert len(lines) == 1 + len(tests) + 1 + 3


@given(_TESTS)
def test_figures_come_back_from_a_report_as_they_went_in(test: PinnedTest) -> None:
    properties = dict(json.loads(json.dumps(test.properties())))
    assert PinnedTest.from_properties(test.name, properties) == test


def test_a_report_of_a_test_without_a_ledger_has_no_figures() -> None:
    assert PinnedTest.from_properties("t", {"record_property": 1}) is None


def test_a_long_name_keeps_its_end() -> None:
    name = f"tests/{'deep/' * 20}test_engine.py::test_ring[64-slots]"
    line = summary_lines([pinned(name)])[1]
    assert line.startswith("...")
    assert "test_ring[64-slots] " in line


def test_the_worst_ratio_comes_first_and_what_asked_nothing_last() -> None:
    tests = [pinned("exact"), pinned("idle", asked=0, booked=0), pinned("double", booked=2 * MIB)]
    assert [line.split()[0] for line in summary_lines(tests)[1:4]] == ["double", "exact", "idle"]


def test_one_test_that_did_not_hold_or_could_not_be_read_shows_in_the_sums() -> None:
    held, unknown, below = pinned(), pinned(held=UNREAD), pinned(held=False)
    for tests, word in (([held], "yes"), ([held, unknown], "?"), ([held, unknown, below], "NO")):
        assert summary_lines(tests)[1 + len(tests)].split()[-1] == word


def test_a_sum_with_an_unknown_in_it_is_unknown() -> None:
    tests = [pinned(resident=Reading(MIB, "smaps, pagemap")), pinned(resident=UNREAD)]
    assert [line.split()[3] for line in summary_lines(tests)[1:3]] == ["1.000", "?"]
    assert summary_lines(tests)[3].split()[4] == "?"


def test_a_few_bytes_beside_gibibytes_are_not_written_as_nothing() -> None:
    line = summary_lines([pinned("large", asked=4 * GIB, booked=4 * GIB), pinned("small", asked=1, booked=1)])[2]
    assert line.split()[:3] == ["small", "<0.001", "<0.001"]
