"""The lock of a book goes whatever comes: a lock that stays is everybody's."""

from __future__ import annotations

import fcntl
from pathlib import Path

import pytest

from pinprobe.ledger.book.book_lock import BookLock, HeldFile


def is_free(path: Path) -> bool:
    file = HeldFile(path)
    try:
        return file.try_lock(fcntl.LOCK_EX)
    finally:
        file.close()


def test_it_excludes_others_until_it_is_let_go(tmp_path: Path) -> None:
    path = tmp_path / "book.lock"
    with BookLock(path).held():
        assert not is_free(path)
    assert is_free(path)


def test_an_interruption_in_the_midst_of_letting_go_leaves_no_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, real, interruptions = tmp_path / "book.lock", fcntl.flock, [KeyboardInterrupt()]

    def interrupted(descriptor: int, kind: int) -> None:
        if kind == fcntl.LOCK_UN and interruptions:
            raise interruptions.pop()
        real(descriptor, kind)

    monkeypatch.setattr(fcntl, "flock", interrupted)
    with pytest.raises(KeyboardInterrupt), BookLock(path).held():
        pass
    assert interruptions == []
    assert is_free(path)
