"""The book of a host as a table and the sentences around it. Nothing here looks into the book."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from pinprobe.cli.grid import WIDTH, Grid
from pinprobe.ledger.book.book_entry import BookEntry, BookReading, BookRow
from pinprobe.ledger.book.host_receipt import BookSums, book_sums
from pinprobe.probes.headroom import Headroom
from pinprobe.probes.reading import Unreadable
from pinprobe.probes.units import format_bytes, unit_for


def host_text(reading: BookReading, reach: str, headroom: Headroom, form: str) -> str:
    """Write one look at the book in one of the forms `text`, `csv` and `markdown`."""
    if form == "csv":
        return host_rows(reading).csv()
    sentences = "\n".join(_wrapped(sentence) for sentence in host_sentences(reading, reach, headroom))
    if not any(entry.rows for entry in reading.entries):
        return sentences
    grid = host_grid(reading)
    return "\n\n".join([grid.markdown() if form == "markdown" else grid.text(), sentences])


def host_grid(reading: BookReading) -> Grid:
    """A line for each row of each live process, sizes in one unit. A process is named in its first line."""
    rows = list(_rows(reading))
    unit = unit_for(max((max(row.booked_bytes, row.asked_bytes) for _, row, _ in rows), default=0))
    header = ["<process", "pid", "<owner", f"booked {unit.name}", f"asked {unit.name}", "<state"]
    lines = []
    for entry, row, is_first in rows:
        name = [entry.label or "-", str(entry.pid)] if is_first else ["", ""]
        lines.append([*name, row.owner, unit.of(row.booked_bytes), unit.of(row.asked_bytes), state(row)])
    return Grid(header, lines)


def host_rows(reading: BookReading) -> Grid:
    """The same for a machine, in bytes; a process whose rows can't be read is a line without amounts."""
    header = ["process", "pid", "label", "owner", "booked_bytes", "asked_bytes", "pending", "pageable", "unreadable"]
    lines = []
    for entry, row, _ in _rows(reading):
        flags = [str(flag).lower() for flag in (row.pending, row.pageable)]
        figures = [str(row.booked_bytes), str(row.asked_bytes)]
        lines.append([entry.process, str(entry.pid), entry.label, row.owner, *figures, *flags, ""])
    return Grid(header, lines + [[""] * (len(header) - 1) + [line] for line in reading.unreadable])


def host_sentences(reading: BookReading, reach: str, headroom: Headroom) -> list[str]:
    """Say what it comes to, what is missing in it, what the host can still give, and how far the book reaches."""
    sums = book_sums(reading.entries)
    count = len(reading.entries) + len(reading.unreadable)
    if count == 0:
        lines = ["Nobody is in the book: no live process has reserved anything through it."]
    else:
        beside = f", beside what {_processes(len(reading.unreadable))} holds unseen" if reading.unreadable else ""
        lines = [f"{_sums(sums)} in {_processes(len(reading.entries))}{beside}."]
    lines += [f"Unreadable: {line}." for line in reading.unreadable]
    lines += [f"Set aside: {line}." for line in reading.set_aside]
    return [*lines, _headroom(headroom, sums.pending_bytes), f"The book reaches {reach}."]


def state(row: BookRow) -> str:
    """Say in a word what a row stands for."""
    if row.pending:
        return "pending"
    return "pageable" if row.pageable else "booked"


def _rows(reading: BookReading) -> Iterator[tuple[BookEntry, BookRow, bool]]:
    for entry in reading.entries:
        for number, row in enumerate(entry.rows):
            yield entry, row, number == 0


def _sums(sums: BookSums) -> str:
    parts = {"Pinned": sums.pinned_bytes, "pageable": sums.pageable_bytes, "pending": sums.pending_bytes}
    return ", ".join(f"{name} {format_bytes(size_bytes)}" for name, size_bytes in parts.items())


def _headroom(headroom: Headroom, pending_bytes: int) -> str:
    binding = headroom.binding
    if isinstance(binding.available, Unreadable):
        return f"Headroom now: {binding.available}."
    line = f"Headroom now: {format_bytes(binding.available.bytes)} ({binding.name})"
    if pending_bytes:
        line += f"; less what is pending: {format_bytes(max(0, binding.available.bytes - pending_bytes))}"
    return f"{line}."


def _processes(count: int) -> str:
    return f"{count} process" if count == 1 else f"{count} processes"


def _wrapped(text: str) -> str:
    return textwrap.fill(text, WIDTH, break_on_hyphens=False, break_long_words=False)
