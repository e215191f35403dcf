"""Restores: pending until the last byte is checked, ended by whoever wants them no more, and never wrong.

Where two threads have to meet in the middle of a transfer, the transfer is stepped between its pieces.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from pinprobe.ledger.tenants.disk_overflow import DiskOverflow
from pinprobe.ledger.tenants.overflow_file import Loss
from pinprobe.ledger.tenants.restore import Restore, Stage
from pinprobe.ledger.tenants.row_transfer import RowFile
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
    key,
    our_threads,
    row,
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


def test_a_cancelled_restore_touches_no_memory_once_it_has_ended(
    large: DiskOverflow, large_pages: Pages, stepped: Stepped
) -> None:
    assert large.write(key(1), 1, large_pages.holding(1, LARGE), 1.0).is_written
    large_pages.content = b"\xaa" * large_pages.size_bytes
    stepped.holds = True
    restore = large.begin_restore(key(1), large_pages.address)
    assert restore is not None
    stepped.wait_until_held()
    restore.cancel()
    assert restore.collect().stage is Stage.PENDING  # the reader may yet write the piece that it is at
    assert not restore.wait(0.01)
    stepped.let_on()
    assert ended(restore).collect().stage is Stage.CANCELLED
    # It stopped after that piece.
    quarter = LARGE.row_bytes // 4
    assert large_pages.content[2 * quarter :] == b"\xaa" * (2 * quarter)
    restore.cancel()
    assert restore.collect().stage is Stage.CANCELLED
    assert large.stats().cancelled == 1
    assert ended(large.begin_restore(key(1), large_pages.address)).collect().stage is Stage.READY
    assert large_pages.content == row(1, LARGE)


def test_a_restore_is_pending_until_the_last_byte_is_checked_and_asking_does_not_wait(
    large: DiskOverflow, large_pages: Pages, stepped: Stepped
) -> None:
    assert large.write(key(1), 1, large_pages.holding(1, LARGE), 1.0).is_written
    large_pages.content = bytes(large_pages.size_bytes)
    stepped.holds = True
    restore = large.begin_restore(key(1), large_pages.address)
    assert restore is not None
    assert restore.tokens == 1
    stepped.wait_until_held()
    assert restore.collect().stage is Stage.PENDING
    assert large_pages.content != row(1, LARGE)
    stepped.let_on()
    assert ended(restore).collect().stage is Stage.READY
    assert large_pages.content == row(1, LARGE)
    restore.cancel()
    assert restore.collect().stage is Stage.READY


def test_what_changes_in_memory_while_it_is_restored_is_not_served(
    large: DiskOverflow, large_pages: Pages, stepped: Stepped
) -> None:
    # The checksum is of the bytes as they lie in the memory, not of those that were read.
    assert large.write(key(1), 1, large_pages.holding(1, LARGE), 1.0).is_written
    read = RowFile.read

    def read_and_disturb(file: RowFile, view: memoryview, offset: int) -> None:
        read(file, view, offset)
        if offset > LARGE.row_bytes // 2:
            view[77] ^= 1

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RowFile, "read", read_and_disturb)
        assert ended(large.begin_restore(key(1), large_pages.address)).collect().lost is Loss.CHECKSUM


def test_a_file_that_is_dropped_while_it_is_read_is_read_to_its_end(
    large: DiskOverflow, large_pages: Pages, stepped: Stepped, folder: Path
) -> None:
    other = Pages(LARGE)
    assert large.write(key(1), 1, large_pages.holding(1, LARGE), 1.0).is_written
    stepped.holds = True
    restore = large.begin_restore(key(1), other.address)
    stepped.wait_until_held()
    assert large.drop(key(1))
    assert files(folder) == []
    stepped.let_on()
    assert ended(restore).collect().stage is Stage.READY
    assert other.content == row(1, LARGE)
    other.unmap()


def test_a_file_that_is_dropped_before_its_reader_opened_it_is_cancelled_and_not_lost(
    overflow: DiskOverflow, pages: Pages, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(overflow, pages, 1)
    run, go_on = Restore._run, threading.Event()

    def run_late(restore: Restore) -> None:
        assert go_on.wait(PATIENCE_SECONDS)
        run(restore)

    monkeypatch.setattr(Restore, "_run", run_late)
    restore = overflow.begin_restore(key(1), pages.address)
    assert overflow.drop(key(1))
    go_on.set()
    assert ended(restore).collect().stage is Stage.CANCELLED
    stats = overflow.stats()
    assert (stats.cancelled, sum(stats.lost.values())) == (1, 0)


def test_several_restores_of_one_file_run_beside_each_other(
    large: DiskOverflow, large_pages: Pages, stepped: Stepped
) -> None:
    assert large.write(key(1), 1, large_pages.holding(1, LARGE), 1.0).is_written
    targets = [Pages(LARGE) for _ in range(3)]
    stepped.holds = True
    restores = [large.begin_restore(key(1), target.address) for target in targets]
    stepped.wait_until_held(3)
    assert restores[1] is not None
    restores[1].cancel()
    stepped.let_on()
    assert [ended(restore).collect().stage for restore in restores] == [Stage.READY, Stage.CANCELLED, Stage.READY]
    for target in (targets[0], targets[2]):
        assert target.content == row(1, LARGE)
    for target in targets:
        target.unmap()
