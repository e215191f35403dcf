"""The folder of a replay: made, gone, and swept where another was killed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from pathlib import Path

import pytest

from pinprobe.ledger.replay.replay_folder import replay_folder
from pinprobe.probes.errors import BadRequest


def test_without_an_overflow_there_is_none() -> None:
    with replay_folder(None) as folder:
        assert folder is None


@pytest.mark.parametrize("is_there", [False, True])
def test_it_is_this_users_alone_and_gone_afterwards(tmp_path: Path, is_there: bool) -> None:
    overflow = tmp_path / "overflow"
    if is_there:
        overflow.mkdir()
        (overflow / "savepoints-of-a-server").mkdir()
    with contextlib.suppress(KeyboardInterrupt), replay_folder(overflow) as folder:
        assert folder is not None
        assert folder.parent == overflow
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        (folder / "savepoints").mkdir()
        (folder / "savepoints" / "one.row").write_bytes(b"x")
        raise KeyboardInterrupt
    assert [path.name for path in tmp_path.rglob("*")] == (["overflow", "savepoints-of-a-server"] if is_there else [])


def test_what_a_killed_replay_left_goes_and_what_lives_stays(tmp_path: Path) -> None:
    dead, alive, foreign = (
        tmp_path / name for name in ("pinprobe-replay-abcd1234", "pinprobe-replay-zz_z9999", "mine")
    )
    for folder in (dead, alive, foreign):
        folder.mkdir()
        (folder / "file").write_bytes(b"x")
    descriptor = os.open(alive, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        with replay_folder(tmp_path) as first, replay_folder(tmp_path) as second:
            assert first is not None
            assert second is not None
            assert {path.name for path in tmp_path.iterdir()} == {alive.name, foreign.name, first.name, second.name}
    finally:
        os.close(descriptor)
    assert {path.name for path in tmp_path.iterdir()} == {alive.name, foreign.name}


def test_a_folder_that_can_not_be_made_is_a_bad_request(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for folder in (tmp_path / "file", tmp_path / "no" / "such", Path("/proc/overflow")):
        with pytest.raises(BadRequest, match="the replay's overflow can't lie in"), replay_folder(folder):
            pass
