"""A table as plain values, and its three forms: for a person's terminal, Markdown and CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass

#: Wide enough for every table here, and what a terminal has when nobody made it wider.
WIDTH = 80
_GAP = 3


@dataclass(frozen=True)
class Grid:
    """A header and rows of the same length. A column whose header begins with `<` stands left, the rest right."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""
    legend: str = ""

    @property
    def width(self) -> int:
        """How many columns of a terminal it takes."""
        cells = zip(*([name.lstrip("<") for name in self.header], *self.rows), strict=True)
        return sum(max(map(len, column)) for column in cells) + _GAP * (len(self.header) - 1)

    def text(self) -> str:
        """Draw it for a terminal."""
        from rich import box
        from rich.table import Table

        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
        for name in self.header:
            is_words = name.startswith("<")
            table.add_column(name.lstrip("<"), justify="left" if is_words else "right", no_wrap=not is_words)
        for row in self.rows:
            table.add_row(*row)
        return "\n".join(part for part in (self.title, as_text(table), self.legend) if part)

    def markdown(self) -> str:
        """Write it as a Markdown table."""
        lines = [f"**{self.title}**\n"] if self.title else []
        lines.append(self._line([name.lstrip("<") for name in self.header]))
        lines.append(self._line([":---" if name.startswith("<") else "---:" for name in self.header]))
        lines += [self._line(row) for row in self.rows]
        return "\n".join([*lines, "", self.legend] if self.legend else lines)

    def csv(self) -> str:
        """Write it as CSV, lines ending as in every Unix file."""
        buffer = io.StringIO()
        writer = csv.writer(buffer, lineterminator="\n")
        writer.writerow([name.lstrip("<") for name in self.header])
        writer.writerows(self.rows)
        return buffer.getvalue().rstrip("\n")

    @staticmethod
    def _line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def as_text(renderable: object) -> str:
    """Let rich lay something out in 80 columns, as plain text: a result reads the same on a terminal and in a file."""
    from rich.console import Console

    buffer = io.StringIO()
    Console(file=buffer, width=WIDTH, color_system=None, highlight=False, markup=False, emoji=False).print(renderable)
    return "\n".join(line.rstrip() for line in buffer.getvalue().split("\n")).strip("\n")
