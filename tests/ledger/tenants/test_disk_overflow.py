"""The overflow as its caller sees it, with the bytes that lie in the folder by the file system's word.

Where two threads have to meet in the middle of a transfer, the transfer is stepped between its pieces.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pinprobe.ledger.book import book_lock
from pinprobe.ledger.book.book_lock import BookLock
from pinprobe.ledger.tenants.disk_overflow import DiskOverflow
from pinprobe.ledger.tenants.overflow_file import OverflowHeader, parse_header
from pinprobe.ledger.tenants.overflow_outcome import WriteEnd
from pinprobe.ledger.tenants.restore import Stage
from pinprobe.probes.errors import BadRequest, BookBusy
from tests.ledger.tenants.open_files import open_files
from tests.ledger.tenants.overflow_bench import (
    LARGE,
    LARGE_FILE_BYTES,
    PATIENCE_SECONDS,
    SMALL,
    SMALL_FILE_BYTES,
    Pages,
    Stepped,
    ended,
    files,
    is_read_back,
    key,
    on_disk_bytes,
    our_threads,
    row,
    used_bytes_while_it_changes,
    wait_for,
    written,
)


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    """No descriptor and no thread of ours outlives a test."""
    files = open_files()
    yield
    wait_for(lambda: not our_threads())
    assert open_files() == files


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "overflow"


@pytest.fixture
def overflow(folder: Path) -> Iterator[DiskOverflow]:
    overflow = DiskOverflow(folder, SMALL, 4 * SMALL_FILE_BYTES)
    yield overflow
    assert overflow.close()
    assert [path.name for path in folder.iterdir()] == ["overflow.lock"]


@pytest.fixture
def stepped(monkeypatch: pytest.MonkeyPatch) -> Stepped:
    return Stepped(monkeypatch)


@pytest.fixture
def large(folder: Path, stepped: Stepped) -> Iterator[DiskOverflow]:
    """One whose transfers can be held halfway."""
    overflow = DiskOverflow(folder, LARGE, 2 * LARGE_FILE_BYTES)
    yield overflow
    assert overflow.close()


@pytest.fixture
def pages() -> Iterator[Pages]:
    pages = Pages()
    yield pages
    pages.unmap()


@pytest.fixture
def large_pages() -> Iterator[Pages]:
    pages = Pages(LARGE)
    yield pages
    pages.unmap()


# -- one savepoint


def test_a_file_has_a_header_of_its_savepoint_and_the_rows_pages_to_the_byte(
    overflow: DiskOverflow, folder: Path, pages: Pages
) -> None:
    outcome = overflow.write(key(7), 6_343, pages.holding(7), 1.0)
    assert (outcome.end, outcome.is_written, outcome.written_bytes) == (WriteEnd.WRITTEN, True, SMALL_FILE_BYTES)
    assert outcome.seconds > 0
    (file,) = files(folder)
    content = file.read_bytes()
    header = parse_header(content[:4096])
    assert isinstance(header, OverflowHeader)
    assert (header.key, header.tokens, header.row_bytes) == (key(7), 6_343, SMALL.row_bytes)
    assert content[4096:] == row(7)
    assert len(content) == overflow.file_bytes == SMALL_FILE_BYTES
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == folder.stat().st_mode & 0o777 == 0o700
    assert file.name.endswith(".row")


def test_it_is_read_back_to_the_bit_into_any_memory(overflow: DiskOverflow, pages: Pages) -> None:
    written(overflow, pages, 1, 2)
    assert is_read_back(overflow, pages, 1)
    assert is_read_back(overflow, pages, 2)
    assert is_read_back(overflow, pages, 1)
    stats = overflow.stats()
    assert (stats.restored, stats.restored_bytes) == (3, 3 * SMALL.row_bytes)
    assert stats.read_bytes_per_second is not None


def test_a_row_of_many_pieces_is_moved_whole(large: DiskOverflow, large_pages: Pages, folder: Path) -> None:
    assert large.write(key(1), 1, large_pages.holding(1, LARGE), 1.0).is_written
    (file,) = files(folder)
    assert file.read_bytes()[4096:] == row(1, LARGE)
    large_pages.content = bytes(large_pages.size_bytes)
    restore = ended(large.begin_restore(key(1), large_pages.address))
    assert restore.collect().stage is Stage.READY
    assert large_pages.content == row(1, LARGE)


def test_what_is_there_can_be_asked(overflow: DiskOverflow, pages: Pages) -> None:
    assert key(1) not in overflow
    assert overflow.tokens_of(key(1)) is None
    assert overflow.begin_restore(key(1), pages.address) is None
    written(overflow, pages, 1)
    assert key(1) in overflow
    assert len(overflow) == 1
    assert overflow.tokens_of(key(1)) == 1


def test_a_savepoint_that_is_there_is_not_written_again_and_takes_the_new_value(
    overflow: DiskOverflow, pages: Pages, folder: Path
) -> None:
    written(overflow, pages, 1)
    before = files(folder)[0].stat()
    assert overflow.write(key(1), 1, pages.address, 5.0).end is WriteEnd.ALREADY_THERE
    assert files(folder)[0].stat() == before
    written(overflow, pages, 2, 3, 4, value=2.0)
    written(overflow, pages, 5, value=3.0)
    assert key(1) in overflow


def test_a_dropped_file_is_gone_at_once_and_can_be_written_again(
    overflow: DiskOverflow, pages: Pages, folder: Path
) -> None:
    written(overflow, pages, 1, 2)
    assert overflow.drop(key(1))
    assert [file.name[:32] for file in files(folder)] == [key(2).hex()]
    assert not overflow.drop(key(1))
    written(overflow, pages, 1)
    assert is_read_back(overflow, pages, 1)
    assert overflow.stats().dropped == 1


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ((b"short", 1, 0, 1.0), "16 B"),
        ((bytes(16), -1, 0, 1.0), "tokens"),
        ((bytes(16), 2**64, 0, 1.0), "tokens"),
        ((bytes(16), 1, 8, 1.0), "pages"),
        ((bytes(16), 1, 0, math.nan), "NaN"),
    ],
)
def test_arguments_that_are_none_are_refused(
    overflow: DiskOverflow, arguments: tuple[bytes, int, int, float], word: str
) -> None:
    with pytest.raises(BadRequest, match=word):
        overflow.write(*arguments)
    assert overflow.stats().not_written == {}


# -- room


def test_the_bound_is_held_to_the_byte_and_the_least_valued_go_first(
    overflow: DiskOverflow, pages: Pages, folder: Path
) -> None:
    for number, value in ((1, 3.0), (2, 1.0), (3, 4.0), (4, 2.0)):
        written(overflow, pages, number, value=value)
    assert on_disk_bytes(folder) == overflow.held_bytes == 4 * SMALL_FILE_BYTES
    written(overflow, pages, 5, value=2.5)
    written(overflow, pages, 6, value=2.5)
    assert on_disk_bytes(folder) == 4 * SMALL_FILE_BYTES
    assert {number for number in range(1, 7) if key(number) in overflow} == {1, 3, 5, 6}
    assert overflow.stats().evicted == 2
    assert all(is_read_back(overflow, pages, number) for number in (1, 3, 5, 6))


def test_where_nothing_is_worth_less_nothing_goes(overflow: DiskOverflow, pages: Pages, folder: Path) -> None:
    written(overflow, pages, 1, 2, 3, 4, value=2.0)
    before = files(folder)
    for value in (2.0, 1.0, -math.inf):
        outcome = overflow.write(key(5), 5, pages.holding(5), value)
        assert outcome.end is WriteEnd.NOT_WORTH_IT
        assert outcome.text
        assert outcome.written_bytes == 0
    assert files(folder) == before
    assert overflow.stats().not_written == {"not_worth_it": 3}


def test_a_new_value_decides_who_goes(overflow: DiskOverflow, pages: Pages) -> None:
    written(overflow, pages, 1, 2, 3, 4, value=2.0)
    assert overflow.revalue(key(3), 1.0)
    assert overflow.revalue(key(1), 9.0)
    assert not overflow.revalue(key(99), 1.0)
    written(overflow, pages, 5, value=1.5)
    assert {number for number in range(1, 6) if key(number) in overflow} == {1, 2, 4, 5}


def test_where_all_that_is_worth_less_would_not_be_enough_nothing_goes(folder: Path, pages: Pages) -> None:
    # Two stores are two processes to the folder, and each brings its own bound.
    mine = DiskOverflow(folder, SMALL, 4 * SMALL_FILE_BYTES)
    other = DiskOverflow(folder, SMALL, 10 * SMALL_FILE_BYTES)
    written(mine, pages, 1, 2)
    written(other, pages, 1, 2, 3, 4, 5, 6)
    assert mine.write(key(3), 3, pages.holding(3), 99.0).end is WriteEnd.NOT_WORTH_IT
    assert len(mine) == 2
    assert on_disk_bytes(folder) == 8 * SMALL_FILE_BYTES
    assert other.close()
    written(mine, pages, 3, 4)
    assert mine.close()


def test_a_file_that_is_being_read_does_not_go(large: DiskOverflow, large_pages: Pages, stepped: Stepped) -> None:
    other = Pages(LARGE)
    for number in (1, 2):
        assert large.write(key(number), number, large_pages.holding(number, LARGE), float(number)).is_written
    stepped.holds = True
    restore = large.begin_restore(key(1), other.address)
    stepped.wait_until_held()
    stepped.holds = False
    assert large.write(key(3), 3, large_pages.holding(3, LARGE), 3.0).is_written
    assert key(1) in large
    assert key(2) not in large
    assert large.write(key(4), 4, large_pages.address, 2.5).end is WriteEnd.NOT_WORTH_IT
    stepped.let_on()
    assert ended(restore).collect().stage is Stage.READY
    assert other.content == row(1, LARGE)
    other.unmap()


@pytest.mark.parametrize("bound_bytes", [0, -1, SMALL_FILE_BYTES - 1])
def test_a_bound_below_one_file_is_refused(folder: Path, bound_bytes: int) -> None:
    with pytest.raises(BadRequest, match=f"{SMALL_FILE_BYTES:,}"):
        DiskOverflow(folder, SMALL, bound_bytes)
    assert not folder.exists()


# -- two at once


class Writing:
    """A thread that writes savepoint `number` and is held halfway."""

    def __init__(self, overflow: DiskOverflow, pages: Pages, number: int, stepped: Stepped) -> None:
        self.ends: list[WriteEnd] = []
        address = pages.holding(number, LARGE)
        self._stepped = stepped
        self._thread = threading.Thread(
            target=lambda: self.ends.append(overflow.write(key(number), number, address, 1.0).end)
        )
        stepped.holds = True
        self._thread.start()
        stepped.wait_until_held()

    def end(self) -> WriteEnd:
        self._stepped.let_on()
        self._thread.join()
        return self.ends[0]


def test_one_savepoint_is_written_by_one_thread_alone(
    large: DiskOverflow, large_pages: Pages, stepped: Stepped, folder: Path
) -> None:
    writing = Writing(large, large_pages, 1, stepped)
    assert large.write(key(1), 1, large_pages.address, 1.0).end is WriteEnd.IN_PROGRESS
    assert key(1) not in large
    assert large.begin_restore(key(1), large_pages.address) is None
    assert large.held_bytes == on_disk_bytes(folder) == LARGE_FILE_BYTES
    assert large.revalue(key(1), 7.0)
    assert writing.end() is WriteEnd.WRITTEN
    assert large.held_bytes == on_disk_bytes(folder) == LARGE_FILE_BYTES
    # The new value is the one that counts.
    assert large.write(key(2), 2, large_pages.address, 8.0).is_written
    assert large.write(key(3), 3, large_pages.address, 7.0).end is WriteEnd.NOT_WORTH_IT


def test_what_is_dropped_while_it_is_written_leaves_nothing(
    large: DiskOverflow, large_pages: Pages, stepped: Stepped, folder: Path
) -> None:
    writing = Writing(large, large_pages, 1, stepped)
    assert large.drop(key(1))
    assert not large.drop(key(1))
    # Another write of it may begin at once, and is another file.
    stepped.holds = False
    assert large.write(key(1), 1, large_pages.address, 1.0).is_written
    assert writing.end() is WriteEnd.DROPPED
    assert [file.suffix for file in files(folder)] == [".row"]
    assert ended(large.begin_restore(key(1), large_pages.address)).collect().stage is Stage.READY


def test_closing_ends_writers_and_readers_and_leaves_nothing(
    folder: Path, large_pages: Pages, stepped: Stepped
) -> None:
    large = DiskOverflow(folder, LARGE, 2 * LARGE_FILE_BYTES)
    other = Pages(LARGE)
    assert large.write(key(1), 1, large_pages.holding(1, LARGE), 1.0).is_written
    writing = Writing(large, large_pages, 2, stepped)
    restore = large.begin_restore(key(1), other.address)
    assert restore is not None
    stepped.wait_until_held()
    # Both hang, as on a drive that does not answer: that is said in time, and the memory has to stay.
    started = time.monotonic()
    assert not large.close(patience_seconds=0.05)
    assert time.monotonic() - started < PATIENCE_SECONDS / 10
    assert restore.collect().stage is Stage.PENDING
    assert files(folder) == []
    assert writing.end() is WriteEnd.CLOSED
    assert ended(restore).collect().stage is Stage.CANCELLED
    assert large.close()
    assert [path.name for path in folder.iterdir()] == ["overflow.lock"]
    other.unmap()


def test_once_closed_it_takes_nothing_and_gives_nothing(folder: Path, pages: Pages) -> None:
    overflow = DiskOverflow(folder, SMALL, SMALL_FILE_BYTES)
    written(overflow, pages, 1)
    assert overflow.close()
    assert overflow.close()
    assert key(1) not in overflow
    assert overflow.begin_restore(key(1), pages.address) is None
    assert overflow.write(key(2), 2, pages.address, 1.0).end is WriteEnd.CLOSED
    assert overflow.held_bytes == 0
    assert [path.name for path in folder.iterdir()] == ["overflow.lock"]


def test_many_threads_share_it_and_never_read_anothers_bytes(overflow: DiskOverflow, folder: Path) -> None:
    failures: list[object] = []

    def use(first: int) -> None:
        pages = Pages()
        try:
            for number in range(first, first + 30):
                outcome = overflow.write(key(number), number, pages.holding(number), float(number % 7))
                assert outcome.end in (WriteEnd.WRITTEN, WriteEnd.NOT_WORTH_IT), outcome
                is_read_back(overflow, pages, number)
                if number % 3 == 0:
                    overflow.drop(key(number))
        except BaseException as failure:
            failures.append(failure)
            raise
        finally:
            pages.unmap()

    threads = [threading.Thread(target=use, args=(100 * number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        assert used_bytes_while_it_changes(folder) <= overflow.bound_bytes
        time.sleep(0.002)
    assert not failures
    assert on_disk_bytes(folder) == overflow.held_bytes == len(overflow) * SMALL_FILE_BYTES


# -- the folder


def test_a_folder_that_is_there_is_used_and_what_is_in_it_stays(folder: Path, pages: Pages) -> None:
    folder.mkdir()
    (folder / "notes").write_text("mine")
    overflow = DiskOverflow(folder, SMALL, SMALL_FILE_BYTES)
    written(overflow, pages, 1)
    assert overflow.close()
    assert (folder / "notes").read_text() == "mine"


BAD_FOLDERS: dict[str, tuple[Callable[[Path], object], str]] = {
    "no parent": (lambda folder: folder / "a" / "b", "does not exist"),
    "a file": (lambda folder: folder.write_text(""), "is not a folder"),
    "a link": (lambda folder: folder.symlink_to(folder.parent), "is a symbolic link"),
}


@pytest.mark.parametrize("kind", BAD_FOLDERS)
def test_a_folder_that_can_not_be_used_is_refused_by_name(folder: Path, kind: str) -> None:
    make, reason = BAD_FOLDERS[kind]
    made = make(folder)
    given_folder = made if isinstance(made, Path) else folder
    with pytest.raises(BadRequest, match=reason) as refused:
        DiskOverflow(given_folder, SMALL, SMALL_FILE_BYTES)
    assert str(given_folder) in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["x" * 300, "nul\0"])
def test_a_name_that_no_folder_can_have_is_refused_in_one_line(tmp_path: Path, name: str) -> None:
    with pytest.raises(BadRequest, match="can't lie in") as refused:
        DiskOverflow(tmp_path / name, SMALL, SMALL_FILE_BYTES)
    assert str(refused.value).isprintable()


def test_a_folder_of_another_user_is_refused(folder: Path) -> None:
    if os.geteuid():
        pytest.skip("needs root, to make another user's folder")
    folder.mkdir()
    os.chown(folder, 65534, 65534)
    with pytest.raises(BadRequest, match="belongs to user 65534"):
        DiskOverflow(folder, SMALL, SMALL_FILE_BYTES)
    assert list(folder.iterdir()) == []


def test_whoever_does_not_let_go_of_the_folders_lock_costs_a_write_and_no_more(
    overflow: DiskOverflow, folder: Path, pages: Pages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(book_lock, "PATIENCE_SECONDS", 0.05)
    with BookLock(folder / "overflow.lock").held():
        outcome = overflow.write(key(1), 1, pages.holding(1), 1.0)
        assert outcome.end is WriteEnd.BUSY
        assert "lslocks" in outcome.text
        with pytest.raises(BookBusy):
            DiskOverflow(folder, SMALL, SMALL_FILE_BYTES)
    written(overflow, pages, 1)


# -- what it says


def test_the_counters_add_up_and_are_said_in_one_line(overflow: DiskOverflow, pages: Pages) -> None:
    stats = overflow.stats()
    assert (stats.write_bytes_per_second, stats.read_bytes_per_second, stats.is_direct) == (None, None, None)
    assert "not written: none; lost: none" in stats.line()
    written(overflow, pages, 1, 2, 3, 4)
    written(overflow, pages, 5, value=2.0)
    overflow.write(key(6), 6, pages.address, 0.0)
    overflow.drop(key(5))
    assert is_read_back(overflow, pages, 4)
    stats = overflow.stats()
    assert (stats.files, stats.written, stats.evicted, stats.dropped) == (3, 5, 1, 1)
    assert stats.files == stats.written - stats.evicted - stats.dropped - sum(stats.lost.values())
    assert stats.held_bytes == 3 * SMALL_FILE_BYTES
    assert stats.written_bytes == 5 * SMALL_FILE_BYTES
    assert set(stats.lost) == {"checksum", "cut", "foreign", "version", "gone", "unreadable"}
    assert stats.write_bytes_per_second is not None
    for said in (stats.line(), overflow.describe()):
        assert said.isprintable()
    assert "not written: not_worth_it 1; lost: none" in stats.line()
    assert str(overflow.folder) in overflow.describe()
    assert f"{SMALL_FILE_BYTES:,} B" in overflow.describe()
