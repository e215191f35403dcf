from __future__ import annotations

import csv
import io

from hypothesis import given
from hypothesis import strategies as st

from pinprobe.cli.grid import Grid

GRID = Grid(["slots", "<how known"], [["1", "measured"], ["16", "kept | block"]])
CELLS = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]))


def test_words_stand_left_and_figures_right() -> None:
    lines = GRID.text().splitlines()
    assert lines[0].split() == ["slots", "how", "known"]
    assert lines[2] == "     1   measured"
    assert lines[3] == "    16   kept | block"


def test_a_bar_in_a_cell_does_not_break_a_markdown_table() -> None:
    assert GRID.markdown().splitlines() == [
        "| slots | how known |", "| ---: | :--- |", "| 1 | measured |", "| 16 | kept \\| block |",
    ]  # fmt: skip


@given(st.lists(st.tuples(CELLS, CELLS), min_size=1, max_size=5))
def test_csv_gives_back_every_cell(rows: list[tuple[str, str]]) -> None:
    # csv writes a row of one empty cell as quotes, and reads it back the same; the trailing newline is the caller's.
    read = list(csv.reader(io.StringIO(Grid(["a", "b"], rows).csv() + "\n")))
    assert read == [["a", "b"], *(list(row) for row in rows)]
