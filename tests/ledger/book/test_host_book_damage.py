"""What can't be read in a book is moved out of the way, told, and never in the way of anybody."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pinprobe.ledger.book.book_entry import TEXT_LIMIT_BYTES, BookEntry, BookReading, BookRow, entry_text, parse_entry
from pinprobe.ledger.book.host_book import DAMAGED_KEPT, HostBook

ROWS = (
    BookRow("cache.ring", 154_927_104, 2**28),
    BookRow("cache.next", 1000, 4096, pending=True),
    BookRow("cache.pool", 2**20, 2**20, pageable=True),
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "book"
    folder.mkdir()
    return folder


@pytest.fixture
def mine(folder: Path) -> Iterator[HostBook]:
    with HostBook(folder, "mine") as book:
        yield book


@pytest.fixture
def theirs(folder: Path) -> Iterator[HostBook]:
    with HostBook(folder, "theirs") as book:
        yield book


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def rows_file(book: HostBook) -> Path:
    return book.folder / f"{book.process}.json"


def life_file(book: HostBook) -> Path:
    return book.folder / f"{book.process}.alive"


def others(book: HostBook) -> BookReading:
    with book.locked() as reading:
        return reading


def document(process: str, **changed: object) -> dict[str, Any]:
    whole: dict[str, Any] = json.loads(entry_text(BookEntry(process, 5, "theirs", ROWS)))
    return {**whole, **changed}


def with_row(process: str, **changed: object) -> bytes:
    whole = document(process)
    whole["rows"][0] |= changed
    return json.dumps(whole).encode()


DAMAGED: dict[str, Callable[[str], bytes]] = {
    "empty": lambda process: b"",
    "truncated": lambda process: json.dumps(document(process)).encode()[:-20],
    "not UTF-8": lambda process: b"\xff\xfe\x00",
    "zeros": lambda process: b"\0" * 4096,
    "brackets alone": lambda process: b"[" * 200_000,
    "a number of many digits": lambda process: b"9" * 10_000,
    "another's document": lambda process: b'{"schema": "pinprobe.sweep", "version": 1}',
    "a list": lambda process: b"[]",
    "another process's entry": lambda process: json.dumps(document("0123456789abcdef-01234567")).encode(),
    "an older version": lambda process: json.dumps(document(process, version=0)).encode(),
    "a version that is a flag": lambda process: json.dumps(document(process, version=True)).encode(),
    "no rows": lambda process: json.dumps(document(process, rows=None)).encode(),
    "rows that are a text": lambda process: json.dumps(document(process, rows="rows")).encode(),
    "rows that are an object": lambda process: json.dumps(document(process, rows={"owner": 1})).encode(),
    "a row that is none": lambda process: json.dumps(document(process, rows=[5])).encode(),
    "a row without an owner": lambda process: json.dumps(document(process, rows=[{}])).encode(),
    "a label that is a number": lambda process: json.dumps(document(process, label=5)).encode(),
    "a pid that is a text": lambda process: json.dumps(document(process, pid="5")).encode(),
    "a negative amount": lambda process: with_row(process, booked_bytes=-1),
    "an amount beyond all memory": lambda process: with_row(process, asked_bytes=2**56 + 1),
    "an amount that is true": lambda process: with_row(process, booked_bytes=True),
    "an amount that is not a number": lambda process: with_row(process, booked_bytes=float("nan")),
    "half a byte": lambda process: with_row(process, booked_bytes=0.5),
    "a flag that is 1": lambda process: with_row(process, pending=1),
    "an owner that is none": lambda process: with_row(process, owner=None),
    "larger than any entry": lambda process: json.dumps(document(process)).encode() + b" " * TEXT_LIMIT_BYTES,
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_a_damaged_entry_is_set_aside_with_a_warning_and_its_process_is_unreadable_until_it_writes(
    kind: str, mine: HostBook, theirs: HostBook, caplog: pytest.LogCaptureFixture
) -> None:
    theirs.write(ROWS)
    text = DAMAGED[kind](theirs.process)
    rows_file(theirs).write_bytes(text)
    first = others(mine)
    kept = mine.folder / f"{theirs.process}.json.damaged-1"
    assert kept.read_bytes() == text
    assert not rows_file(theirs).exists()
    assert first.entries == ()
    assert [theirs.process in line for line in first.unreadable] == [True]
    assert [kept.name in line for line in first.set_aside] == [True]
    assert [(record.levelno, record.name) for record in caplog.records] == [(logging.WARNING, "pinprobe")]
    second = others(mine)
    assert (second.entries, second.set_aside) == ((), ())
    assert [theirs.process in line for line in second.unreadable] == [True]
    theirs.write(ROWS)
    assert others(mine) == BookReading((BookEntry(theirs.process, os.getpid(), "theirs", ROWS),))


@pytest.mark.parametrize("kind", ["link", "pipe", "a silent pipe", "folder"])
def test_what_is_no_file_in_an_entrys_place_is_moved_away_unopened(kind: str, mine: HostBook, theirs: HostBook) -> None:
    theirs.write(ROWS)
    place = rows_file(theirs)
    if kind == "link":
        place.rename(mine.folder / "whole")
        place.symlink_to("whole")
    else:
        place.unlink()
        os.mkfifo(place) if kind.endswith("pipe") else place.mkdir()
    # Opening a pipe would wait for a writer for ever, and reading it for what the writer says.
    writer = os.open(place, os.O_RDWR) if kind == "a silent pipe" else None
    try:
        assert len(others(mine).unreadable) == 1
    finally:
        if writer is not None:
            os.close(writer)
    assert names(mine.folder) >= {f"{place.name}.damaged-1"}
    theirs.write(ROWS)
    assert len(others(mine).entries) == 1


def test_a_damaged_entry_of_a_dead_process_is_kept_too_and_nobody_is_unreadable(folder: Path, mine: HostBook) -> None:
    (folder / "0123456789abcdef-01234567.json").write_bytes(b"{")
    reading = others(mine)
    assert (reading.entries, reading.unreadable, len(reading.set_aside)) == ((), (), 1)
    assert (folder / "0123456789abcdef-01234567.json.damaged-1").read_bytes() == b"{"


def test_an_entry_of_a_newer_version_is_unreadable_and_left_to_those_who_understand_it(
    mine: HostBook, theirs: HostBook
) -> None:
    theirs.write(ROWS)
    text = json.dumps(document(theirs.process, version=2, rows="in another form")).encode()
    rows_file(theirs).write_bytes(text)
    reading = others(mine)
    assert (reading.entries, reading.set_aside) == ((), ())
    assert ["later version" in line for line in reading.unreadable] == [True]
    assert rows_file(theirs).read_bytes() == text


def test_a_key_that_a_later_pinprobe_adds_is_passed_over(mine: HostBook, theirs: HostBook) -> None:
    theirs.write(ROWS)
    rows_file(theirs).write_bytes(json.dumps(document(theirs.process, mood="calm")).encode())
    assert others(mine).entries[0].rows == ROWS


def test_only_the_newest_damaged_entries_are_kept(mine: HostBook, theirs: HostBook) -> None:
    for number in range(1, 30):
        theirs.write(ROWS)
        rows_file(theirs).write_text(f"damage {number}", encoding="ascii")
        others(mine)
        kept = {path.read_text(encoding="ascii") for path in mine.folder.glob("*.damaged-*")}
        assert kept == {f"damage {n}" for n in range(max(1, number + 1 - DAMAGED_KEPT), number + 1)}


# -- fuzz


@st.composite
def damaged_texts(draw: st.DrawFn) -> bytes:
    """A real entry with bytes changed, dropped, doubled, put in or cut off."""
    text = bytearray(entry_text(BookEntry("0123456789abcdef-01234567", 5, "theirs", ROWS)))
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, len(text)))
        end = min(len(text), place + draw(st.integers(0, 12)))
        kind = draw(st.sampled_from(["change", "drop", "double", "put in", "cut"]))
        if kind == "change":
            text[place:end] = draw(st.binary(min_size=end - place, max_size=end - place))
        elif kind == "drop":
            del text[place:end]
        elif kind == "double":
            text[place:place] = text[place:end] * draw(st.integers(1, 20))
        elif kind == "put in":
            text[place:place] = draw(st.sampled_from([b"-", b"9" * 30, b"null", b"[", b"{", b'"', b"\\ud800", b"1e9"]))
        else:
            del text[place:]
    return bytes(text)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=6,
)


@st.composite
def misshapen_texts(draw: st.DrawFn) -> bytes:
    """A document with the right keys and any values."""
    whole = document("0123456789abcdef-01234567")
    target = draw(st.sampled_from([whole, whole["rows"][0]]))
    target[draw(st.sampled_from(sorted(target)))] = draw(values)
    return json.dumps(whole).encode()


texts = st.binary(max_size=300) | damaged_texts() | misshapen_texts()
fuzzed = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


def check_any_text(mine: HostBook, theirs: HostBook, text: bytes) -> None:
    """Put a text in a live process's place: it is its entry or is not, and the book goes on either way."""
    text = text.replace(b"0123456789abcdef-01234567", theirs.process.encode())
    rows_file(theirs).write_bytes(text)
    reading = others(mine)
    assert len(reading.entries) + len(reading.unreadable) == 1
    for entry in reading.entries:
        # Whatever got through is what any reader of JSON finds there, within bounds.
        rows = json.loads(text)["rows"]
        assert [row.booked_bytes for row in entry.rows] == [row["booked_bytes"] for row in rows]
        assert all(type(row.asked_bytes) is int and 0 <= row.booked_bytes <= 2**56 for row in entry.rows)
        assert entry.booked_bytes + entry.pending_bytes == sum(row["booked_bytes"] for row in rows)
        assert all(row.owner.isprintable() or not row.owner for row in entry.rows)
    for line in (*reading.unreadable, *reading.set_aside):
        assert line.isprintable()
        assert len(line) < 500
    assert len(list(mine.folder.glob("*.damaged-*"))) <= DAMAGED_KEPT
    theirs.write(ROWS)
    assert others(mine).entries[0].rows == ROWS


@settings(fuzzed, max_examples=120)
@given(text=texts)
def test_no_text_stops_the_book(mine: HostBook, theirs: HostBook, text: bytes) -> None:
    theirs.write(ROWS)
    check_any_text(mine, theirs, text)


@pytest.mark.slow
@settings(fuzzed, derandomize=False, max_examples=10_000)
@given(text=texts)
def test_none_of_ten_thousand_texts_stops_the_book(mine: HostBook, theirs: HostBook, text: bytes) -> None:
    theirs.write(ROWS)
    check_any_text(mine, theirs, text)


@settings(fuzzed, max_examples=100)
@given(
    rows=st.lists(
        st.builds(BookRow, st.text(), st.integers(0, 2**56), st.integers(0, 2**56), st.booleans(), st.booleans())
    ),
    label=st.text(),
)
def test_what_was_written_is_read_back(rows: list[BookRow], label: str) -> None:
    entry = BookEntry("0123456789abcdef-01234567", 5, label, tuple(rows))
    assert parse_entry(entry_text(entry), entry.process) == entry
