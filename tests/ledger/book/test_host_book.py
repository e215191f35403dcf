"""The book seen by two of its users in one process, and by the file system."""

from __future__ import annotations

import fcntl
import json
import os
import re
import stat
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pinprobe.ledger.book.book_entry import BookEntry, BookReading, BookRow, entry_text
from pinprobe.ledger.book.host_book import HostBook
from pinprobe.probes.errors import BadRequest, BookBusy, CouldNotMeasure, PinprobeError

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


# -- what is written and read


def test_what_one_writes_another_reads(mine: HostBook, theirs: HostBook) -> None:
    theirs.write(ROWS)
    entry = BookEntry(theirs.process, os.getpid(), "theirs", ROWS)
    assert others(mine) == BookReading((entry,))
    assert (entry.booked_bytes, entry.pending_bytes) == (2**28 + 2**20, 4096)
    # And by another reader than ours.
    document = json.loads(rows_file(theirs).read_bytes())
    assert [row["booked_bytes"] for row in document["rows"]] == [2**28, 4096, 2**20]


def test_a_new_entry_takes_the_place_of_the_old_one_whole(mine: HostBook, theirs: HostBook) -> None:
    theirs.write(ROWS)
    theirs.write(ROWS[:1])
    assert others(mine).entries[0].rows == ROWS[:1]
    assert names(mine.folder) == {
        "book.lock",
        *(f"{book.process}{ending}" for book in (mine, theirs) for ending in (".alive", ".json")),
    }


def test_ones_own_entry_is_among_all_and_not_among_the_others(mine: HostBook, theirs: HostBook) -> None:
    for book in (mine, theirs):
        book.write(ROWS)
    assert [entry.label for entry in mine.read().entries] == ["mine", "theirs"]
    assert [entry.label for entry in others(mine).entries] == ["theirs"]
    assert [entry.label for entry in others(theirs).entries] == ["mine"]


def test_the_order_is_that_in_which_they_began(folder: Path) -> None:
    books = [HostBook(folder, str(number)) for number in range(12)]
    for book in reversed(books):
        book.write(ROWS)
    assert [entry.label for entry in books[0].read().entries] == [str(number) for number in range(12)]
    for book in books:
        book.close()


def test_a_row_can_be_written_within_the_lock(mine: HostBook, theirs: HostBook) -> None:
    with mine.locked() as reading:
        assert reading.entries == ()
        mine.write(ROWS[1:2])
    assert others(theirs).entries[0].pending_bytes == 4096


def test_looking_leaves_no_trace(folder: Path, theirs: HostBook) -> None:
    theirs.write(ROWS)
    before = names(folder)
    looking = HostBook(folder)
    assert len(looking.read().entries) == 1
    assert "(1 live)" in looking.reach
    looking.close()
    assert names(folder) == before


def test_looking_into_a_book_that_nobody_has_begun_makes_none(tmp_path: Path) -> None:
    book = HostBook(tmp_path / "book")
    assert book.read() == BookReading()
    assert "(0 live)" in book.reach
    assert names(tmp_path) == set()


def test_what_a_terminal_can_not_show_is_replaced_in_labels_and_owners(folder: Path, mine: HostBook) -> None:
    with HostBook(folder, "rank\x1b[31m\n0") as book:
        book.write([BookRow("pool\udcff\ttwo" + "x" * 1000, 1, 1)])
        (entry,) = others(mine).entries
    assert entry.label == "rank?[31m?0"
    assert entry.rows[0].owner == "pool??two" + "x" * 191


@pytest.mark.parametrize("amount", [-1, 2**56 + 1, True, 1.0, "1", None, float("nan")])
@pytest.mark.parametrize("key", ["asked_bytes", "booked_bytes"])
def test_a_row_with_what_is_no_amount_can_not_be_made(key: str, amount: Any) -> None:
    with pytest.raises(BadRequest, match=key):
        BookRow("cache.ring", **{"asked_bytes": 1, "booked_bytes": 1, key: amount})


def test_more_rows_than_a_reader_would_take_are_refused_and_the_entry_stays(mine: HostBook) -> None:
    mine.write(ROWS)
    kept = rows_file(mine).read_bytes()
    with pytest.raises(BadRequest, match="rows are more than"):
        mine.write([BookRow("x" * 200, 1, 1)] * 4000)
    assert rows_file(mine).read_bytes() == kept
    mine.write([BookRow("x" * 200, 1, 1)] * 3000)
    assert len(mine.read().entries[0].rows) == 3000


# -- life


def test_closing_removes_the_entry_and_twice_is_fine(folder: Path, mine: HostBook, theirs: HostBook) -> None:
    theirs.write(ROWS)
    mine.write(ROWS)
    mine.close()
    mine.close()
    assert names(folder) == {"book.lock", life_file(theirs).name, rows_file(theirs).name}


def test_a_book_that_is_used_after_it_was_closed_begins_anew(mine: HostBook, theirs: HostBook) -> None:
    mine.write(ROWS)
    before = mine.process
    mine.close()
    assert others(mine) == BookReading()
    assert mine.process != before
    (entry,) = others(theirs).entries
    assert (entry.process, entry.rows) == (mine.process, ())


def test_what_the_dead_left_is_removed_at_the_next_look(folder: Path, mine: HostBook) -> None:
    dead = "0123456789abcdef-01234567"
    text = entry_text(BookEntry(dead, 1, "dead", ROWS))
    for ending in ("alive", "json", "new-7"):
        (folder / f"{dead}.{ending}").write_bytes(text)
    # Rows without a sign of life: whoever clears up may die in the midst of it.
    (folder / "0123456789abcdef-89abcdef.json").write_bytes(text.replace(b"-01234567", b"-89abcdef"))
    assert others(mine) == BookReading()
    assert names(folder) == {"book.lock", life_file(mine).name, rows_file(mine).name}


def test_who_lives_is_never_cleared_up_whatever_lies_beside(folder: Path, mine: HostBook, theirs: HostBook) -> None:
    theirs.write(ROWS)
    half_written = folder / f"{theirs.process}.new-99"
    half_written.touch()
    assert len(others(mine).entries) == 1
    assert half_written.exists()


def test_a_sign_of_life_that_can_not_be_looked_at_is_not_taken_for_death(folder: Path, mine: HostBook) -> None:
    # A link is not followed, and so not opened.
    process = "0123456789abcdef-01234567"
    (folder / "plain").touch()
    (folder / f"{process}.alive").symlink_to("plain")
    (folder / f"{process}.json").write_bytes(entry_text(BookEntry(process, 1, "odd", ROWS)))
    assert [entry.label for entry in others(mine).entries] == ["odd"]


def test_a_pipe_in_a_files_place_is_not_waited_for(folder: Path, mine: HostBook) -> None:
    for name in ("0123456789abcdef-01234567.alive", "book.lock"):
        os.mkfifo(folder / name)
    assert others(mine) == BookReading()
    assert not (folder / "0123456789abcdef-01234567.alive").exists()


@pytest.mark.parametrize("gone", [life_file, rows_file, None], ids=["life", "rows", "both"])
def test_files_that_somebody_removed_are_made_anew_at_the_owners_next_look(
    gone: Callable[[HostBook], Path] | None, mine: HostBook, theirs: HostBook
) -> None:
    # As systemd-logind removes what a user who logs out has in /dev/shm.
    theirs.write(ROWS)
    for file in (life_file, rows_file) if gone is None else (gone,):
        file(theirs).unlink()
    assert others(mine).entries == ()
    others(theirs)
    assert others(mine).entries[0].rows == ROWS
    theirs.close()
    assert others(mine) == BookReading()


def test_names_that_are_not_the_books_are_left_alone(folder: Path, mine: HostBook, theirs: HostBook) -> None:
    strange = ["notes.json", "x.alive", "0123456789abcdef-01234567", "0123456789abcdef-01234567.json.bak", ".json"]
    strange += ["0123456789ABCDEF-01234567.alive", "0123456789abcdef-01234567.alive.json", "é.json", "-.alive"]
    for name in strange:
        (folder / name).write_bytes(b"\xff")
    (folder / "sub").mkdir()
    theirs.write(ROWS)
    assert others(mine).set_aside == ()
    assert names(folder) >= {*strange, "sub"}


# -- the lock


def is_locked(path: Path) -> bool:
    opened = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(opened)
    return False


def test_the_lock_is_held_as_long_as_the_block_and_freed_by_an_exception_too(mine: HostBook) -> None:
    lock = mine.folder / "book.lock"
    with mine.locked():
        assert is_locked(lock)
    assert not is_locked(lock)
    with pytest.raises(ZeroDivisionError), mine.locked():
        raise ZeroDivisionError
    assert not is_locked(lock)


def test_what_the_callers_block_raises_comes_out_as_it_is(mine: HostBook) -> None:
    error = OSError(28, "the caller's own")
    with pytest.raises(OSError, match="own") as raised, mine.locked():
        raise error
    assert raised.value is error


def test_a_lock_that_another_holds_for_too_long_is_named(mine: HostBook, monkeypatch: pytest.MonkeyPatch) -> None:
    others(mine)
    monkeypatch.setattr("pinprobe.ledger.book.book_lock.PATIENCE_SECONDS", 0.2)
    holder = os.open(mine.folder / "book.lock", os.O_RDONLY)
    try:
        fcntl.flock(holder, fcntl.LOCK_EX)
        for use in (mine.read, lambda: others(mine)):
            with pytest.raises(BookBusy) as raised:
                use()
            assert str(mine.folder / "book.lock") in str(raised.value)
            assert "lslocks" in str(raised.value)
        mine.write(ROWS)  # which needs no lock
    finally:
        os.close(holder)
    assert mine.read().entries[0].rows == ROWS


@pytest.mark.parametrize("shared", [True, False], ids=["one object", "an object each"])
def test_threads_exclude_each_other(folder: Path, shared: bool) -> None:
    one = HostBook(folder)
    inside: list[int] = []
    most = 0

    def work() -> None:
        nonlocal most
        book = one if shared else HostBook(folder)
        for _ in range(20):
            with book.locked():
                inside.append(1)
                most = max(most, len(inside))
                time.sleep(0.0005)
                inside.pop()
        if not shared:
            book.close()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    one.close()
    assert most == 1
    assert names(folder) == {"book.lock"}


def test_no_descriptor_is_left_open(folder: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - iterdir would hold another one
    for _ in range(20):
        with HostBook(folder) as book:
            book.write(ROWS)
            book.read()
            others(book)
            assert "live" in book.reach
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


def test_no_descriptor_of_the_book_passes_to_a_program_that_is_started(mine: HostBook) -> None:
    with mine.locked():
        mine.write(ROWS)
        opened = [link for link in Path("/proc/self/fd").iterdir() if link.exists()]
        held = [link for link in opened if link.readlink().is_relative_to(mine.folder)]
        assert len(held) == 2  # the lock, and the sign of life
        assert not [link for link in held if os.get_inheritable(int(link.name))]


# -- folders


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda place: place.symlink_to(place.parent), "is a symbolic link"),
        (lambda place: place.touch(), "is not a folder"),
        (lambda place: None, "does not exist"),
    ],
    ids=["a link", "a file", "no parent"],
)
def test_a_folder_that_can_not_be_one_is_refused_with_the_reason(
    tmp_path: Path, make: Callable[[Path], None], reason: str
) -> None:
    place = tmp_path / "place"
    make(place)
    with pytest.raises(BadRequest, match=reason) as raised:
        HostBook(place if reason != "does not exist" else place / "below")
    assert str(place) in str(raised.value)
    assert "--book-dir" in str(raised.value)


def test_a_given_folder_is_made_at_the_first_use_and_its_parents_are_not(tmp_path: Path) -> None:
    with HostBook(tmp_path / "book") as book:
        assert names(tmp_path) == set()
        book.write(ROWS)
        assert names(tmp_path) == {"book"}


@pytest.mark.parametrize(
    ("mode", "is_refused"), [(0o755, True), (0o700, True), (0o777, False), (0o775, False), (0o1777, False)], ids=oct
)
def test_another_users_folder_is_taken_only_where_its_owner_opened_it(
    folder: Path, mode: int, is_refused: bool
) -> None:
    if os.geteuid():
        pytest.skip("needs root, to make another user's folder")
    folder.chmod(mode)
    os.chown(folder, 1, 1)
    book = HostBook(folder)  # to look is allowed
    assert book.read() == BookReading()
    if is_refused:
        with pytest.raises(BadRequest, match="belongs to user 1 alone; mode 1777"):
            book.write(ROWS)
        assert names(folder) == {"book.lock"}
    else:
        book.write(ROWS)
        book.close()


def test_files_are_readable_by_all_who_see_the_folder_and_writable_by_their_owner(mine: HostBook) -> None:
    before = os.umask(0o077)
    try:
        mine.write(ROWS)
    finally:
        os.umask(before)
    assert {stat.S_IMODE(path.stat().st_mode) for path in mine.folder.iterdir()} == {0o644}


def test_a_folder_that_vanishes_is_told_in_one_line_and_not_made_anew(folder: Path, mine: HostBook) -> None:
    # A book of one's own where a shared one is gone would let everybody take everything.
    mine.write(ROWS)
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    for use in (mine.read, lambda: others(mine), lambda: mine.write(ROWS)):
        with pytest.raises(CouldNotMeasure, match="No such file") as raised:
            use()
        assert str(folder) in str(raised.value)
        assert len(str(raised.value).splitlines()) == 1
    assert not folder.exists()
    mine.close()


def test_how_far_it_reaches_is_said(folder: Path, mine: HostBook, theirs: HostBook) -> None:
    for book in (mine, theirs):
        book.write(ROWS)
    assert mine.reach == f"processes of all users and containers that see {folder}, a shared folder (2 live)"
    with mine.locked():
        assert "(2 live)" in mine.reach  # without waiting for the lock that is held


def test_every_error_is_of_the_projects_own_kind_and_one_line(tmp_path: Path) -> None:
    # A name that can't be printed must not break the line it is told in.
    with pytest.raises(PinprobeError) as raised:
        HostBook(tmp_path / "two\nlines" / "book")
    assert re.fullmatch(r"[^\n]*two\?lines[^\n]*", str(raised.value))


def test_a_sign_of_life_that_was_put_there_from_a_copy_is_no_sign_of_life(mine: HostBook, theirs: HostBook) -> None:
    theirs.write(ROWS)
    others(theirs)
    alive = mine.folder / f"{theirs.process}.alive"
    copy = mine.folder / "copy"
    copy.write_bytes(alive.read_bytes())
    copy.rename(alive)
    others(theirs)
    assert [entry.rows for entry in others(mine).entries] == [ROWS]


def test_threads_that_write_first_at_once_register_once(
    folder: Path, mine: HostBook, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(5):
        with HostBook(folder, "new") as book:
            threads = [threading.Thread(target=book.write, args=(ROWS[:1],)) for _ in range(3)]
            with mine.locked():  # so that all of them wait for the lock
                for thread in threads:
                    thread.start()
                time.sleep(0.02)
            for thread in threads:
                thread.join()
            assert [entry.rows for entry in others(mine).entries] == [ROWS[:1]]
    assert caplog.records == []
