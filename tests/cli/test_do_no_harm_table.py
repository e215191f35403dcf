"""Drives of an endpoint as text, Markdown, CSV and JSON."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NoReturn

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from pinprobe.cli.do_no_harm_table import do_no_harm_text
from pinprobe.ledger.replay.do_no_harm import Bounds, DoNoHarmRow
from pinprobe.probes.reading import Unreadable

Change = Callable[..., DoNoHarmRow]


def row(arm: str, replicate: int, share: float, ttft: float, rate: float, uncached: float) -> DoNoHarmRow:
    exact = Bounds(share, share)
    return DoNoHarmRow(arm, replicate, exact, exact, ttft, rate, Bounds(uncached, uncached), 5849.0, 0, 88, 66, 0, ())


#: Two replicates each of a slow arm and a fast one.
ROWS = [
    row("B", 1, 0.208, 12.192, 25.0, 5689.0),
    row("B", 2, 0.212, 12.251, 25.4, 5660.0),
    row("C", 1, 0.877, 0.270, 49.6, 450.0),
    row("C", 2, 0.879, 0.275, 49.4, 448.0),
]
UNKNOWN = Unreadable("no answer says how many tokens were cached")


def lines_of(rows: list[DoNoHarmRow]) -> list[str]:
    return do_no_harm_text(rows, "text").splitlines()


def test_a_row_has_its_figures_in_the_units_of_its_header() -> None:
    lines = lines_of(ROWS)
    assert lines[0].split() == ["arm", "#", "cached", "%", "later", "%", "TTFT", "s", "tok/s", "uncached", "n", "err"]
    assert lines[2].split() == ["B", "1", "20.8", "20.8", "12.192", "25.0", "5,689", "66", "0"]
    assert lines[4].split() == ["C", "1", "87.7", "87.7", "0.270", "49.6", "450", "66", "0"]


def test_what_differs_beyond_the_spread_is_told_with_both_ranges() -> None:
    text = " ".join(do_no_harm_text(ROWS, "text").split())
    assert "C against B: cached % higher, 87.7 to 87.9 against 20.8 to 21.2." in text
    assert "C against B: TTFT s lower, 0.270 to 0.275 against 12.192 to 12.251." in text
    assert "C against B: tok/s higher, 49.4 to 49.6 against 25.0 to 25.4." in text
    assert "C against B: uncached tokens a turn lower, 448 to 450 against 5,660 to 5,689." in text


def test_no_arm_is_named_where_replicates_overlap_or_there_is_one() -> None:
    alike = [*ROWS[:2], *(replace(row, arm="D") for row in ROWS[:2])]
    text = " ".join(do_no_harm_text(alike, "text").split())
    assert "D against B: no difference beyond the replicates' own spread in cached %," in text
    single = " ".join(do_no_harm_text([ROWS[0], ROWS[2]], "text").split())
    assert "C against B: not told, since one replicate of B shows no spread; drive it again." in single
    for said in (text, single):
        assert "higher" not in said
        assert "lower" not in said


def test_one_arm_alone_is_compared_with_nothing() -> None:
    assert "against" not in do_no_harm_text(ROWS[:2], "text")


def test_an_unknown_is_a_question_mark_with_its_reason_below() -> None:
    unknown = replace(ROWS[0], cached_share=UNKNOWN, cached_share_later=UNKNOWN, uncached_tokens_a_turn=UNKNOWN)
    lines = lines_of([unknown])
    assert lines[2].split() == ["B", "1", "?", "?", "12.192", "25.0", "?", "66", "0"]
    assert f"B #1: ?: {UNKNOWN.reason}." in lines


def test_a_figure_between_bounds_has_a_star_and_a_legend() -> None:
    starred = replace(
        ROWS[0], cached_share=Bounds(0.2, 0.45), uncached_tokens_a_turn=Bounds(100.0, 900.0), silent_count=22
    )
    text = do_no_harm_text([starred], "text")
    assert text.splitlines()[2].split() == ["B", "1", "20.0*", "20.8", "12.192", "25.0", "900*", "66", "0"]
    legend = "*: 22 answers say nothing of cached tokens, as some servers do for 0; taken as 0 here."
    assert legend in " ".join(text.split())
    assert "*" not in do_no_harm_text(ROWS, "text")


def test_incidents_stand_under_the_table_and_many_are_cut_short() -> None:
    told = replace(ROWS[0], incidents=("the drafter ran out of memory\x1b[31m", *(f"fault {n}" for n in range(9))))
    text = do_no_harm_text([told], "text")
    assert "B #1: the drafter ran out of memory?[31m." in text
    assert "fault 3" in text
    assert "fault 4" not in text
    assert "B #1: 5 more incidents; --json lists all." in text
    assert len(json.loads(do_no_harm_text([told], "json"))["rows"][0]["incidents"]) == 10


def test_csv_has_shares_and_seconds_in_full_and_an_empty_cell_for_an_unknown() -> None:
    rows = [replace(ROWS[0], cached_share=Bounds(1 / 3, 2 / 3), tokens_a_second=UNKNOWN, incidents=("a", "b"))]
    (read,) = csv.DictReader(io.StringIO(do_no_harm_text(rows, "csv")))
    assert (float(read["cached_share_low"]), float(read["cached_share_high"])) == (1 / 3, 2 / 3)
    assert (read["ttft_median_seconds"], read["tokens_a_second"]) == ("12.192", "")
    assert (read["arm"], read["replicate"], read["later_count"], read["incidents"]) == ("B", "1", "66", "a; b")


def test_json_has_everything_and_is_json() -> None:
    def refuse(constant: str) -> NoReturn:
        raise AssertionError(f"{constant} is not JSON")

    rows = [replace(ROWS[0], cached_share=UNKNOWN), *ROWS[1:]]
    document: dict[str, Any] = json.loads(do_no_harm_text(rows, "json"), parse_constant=refuse)
    assert document["rows"][0]["cached_share"] == {"unreadable": UNKNOWN.reason}
    assert document["rows"][1]["cached_share"] == {"low": 0.212, "high": 0.212}
    verdicts = {d["figure"]: d["verdict"] for d in document["comparison"]["differences"]}
    assert verdicts["cached_share"] == "untold"
    assert verdicts["ttft_median_seconds"] == "lower"


def test_markdown_is_a_table_and_a_list() -> None:
    lines = do_no_harm_text(ROWS, "markdown").splitlines()
    assert lines[0] == "| arm | # | cached % | later % | TTFT s | tok/s | uncached | n | err |"
    assert lines[2] == "| B | 1 | 20.8 | 20.8 | 12.192 | 25.0 | 5,689 | 66 | 0 |"
    assert "* C against B: TTFT s lower, 0.270 to 0.275 against 12.192 to 12.251." in lines


@pytest.mark.parametrize("form", ["text", "markdown", "csv", "json"])
def test_of_no_rows_there_is_a_table_without_rows(form: str) -> None:
    assert "arm" in do_no_harm_text([], form) or form == "json"


def test_a_long_name_of_an_arm_is_broken_and_not_cut() -> None:
    name = "ring-16-auto-pool-by-demand"
    text = do_no_harm_text([replace(ROWS[0], arm=name)], "text")
    assert name in "".join(line.split(" ")[1] for line in text.splitlines()[2:6])
    assert "12.192" in text.splitlines()[2]


SHARES = st.tuples(st.floats(0, 1), st.floats(0, 1)).map(lambda pair: Bounds(min(pair), max(pair))) | st.just(UNKNOWN)
SIZES = st.tuples(st.floats(0, 1e7), st.floats(0, 1e7)).map(lambda pair: Bounds(min(pair), max(pair)))
NAMES = st.text(st.characters(max_codepoint=0x24F), max_size=60)  # letters that are one column wide
ANY_ROWS = st.builds(
    DoNoHarmRow, NAMES, st.integers(1, 100), SHARES, SHARES, st.floats(0, 604_800) | st.just(UNKNOWN),
    st.floats(0, 1e12) | st.just(UNKNOWN), SIZES | st.just(UNKNOWN), st.floats(0, 1e7), *[st.integers(0, 99_999)] * 4,
    st.lists(NAMES, max_size=2).map(tuple),
)  # fmt: skip


@settings(max_examples=40, phases=[Phase.explicit, Phase.reuse, Phase.generate])  # drawing is slow, shrinking more so
@given(st.lists(ANY_ROWS, max_size=3))
def test_any_rows_fit_a_terminal_and_no_figure_is_cut(rows: list[DoNoHarmRow]) -> None:
    text = do_no_harm_text(rows, "text")
    assert all(len(line) <= 80 for line in text.splitlines())
    assert "\u2026" not in text
    assert all(line.isprintable() for line in text.splitlines())
