"""Long names in tables: broken over lines, so that the figures beside them fit a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence

from pinprobe.cli.grid import WIDTH, Grid

#: What a drawn table takes beside its columns and the gaps between them.
_EDGES = 2
_GAP = 3
_LEAST_ROOM = 6
#: So many columns of words are read side by side.
_SIDE_BY_SIDE = 4


def with_narrow_names(grid: Grid) -> Grid:
    """Break the words of the first column where the figures would not fit beside them: they would be cut off."""
    widths = [max(map(_width, column)) for column in zip(grid.header, *grid.rows, strict=True)]
    room = WIDTH - _EDGES - sum(width + _GAP for width in widths[1:])
    if widths[0] <= room:
        return grid
    rows = [[broken(row[0], max(_LEAST_ROOM, room)), *row[1:]] for row in grid.rows]
    return Grid(grid.header, rows, grid.title, grid.legend)


def side_by_side(
    title: str, names: Sequence[str], rows: Mapping[str, Sequence[str]], legend: str = "", *, is_narrow: bool
) -> list[Grid]:
    """Put a column for each name beside the words of the rows. With `is_narrow` as many tables as a terminal needs."""
    if not is_narrow:
        return [Grid(["<", *names], [[word, *cells] for word, cells in rows.items()], title, legend)]
    grids = []
    width = max(map(len, rows), default=0)
    for first in range(0, len(names), _SIDE_BY_SIDE):
        shown = slice(first, first + _SIDE_BY_SIDE)
        some = names[shown]
        room = max(_LEAST_ROOM, (WIDTH - width - _EDGES) // len(some) - _GAP)
        header = ["<", *(broken(name, room) for name in some)]
        cells = [[word, *(broken(cell, room) for cell in row[shown])] for word, row in rows.items()]
        is_last = first + _SIDE_BY_SIDE >= len(names)
        grids.append(Grid(header, cells, title if first == 0 else f"{title}, continued", legend if is_last else ""))
    return grids


def broken(text: str, room: int) -> str:
    """Break a text that is longer than the room into lines: after its first colon, at spaces and at hyphens."""
    head, colon, tail = text.partition(":")
    if len(text) > room and colon and tail:
        return f"{broken(head + colon, room)}\n{broken(tail.strip(), room)}"
    return "\n".join(textwrap.wrap(text, room)) or text


def _width(cell: str) -> int:
    return max(map(len, cell.lstrip("<").split("\n")))


def wrapped(text: str) -> str:
    """Break a sentence into a terminal's lines."""
    return textwrap.fill(text, WIDTH, subsequent_indent="  ", break_on_hyphens=False)
