"""A folder of one real replay's own in the overflow folder of its arm, so that a serving process's files stay apart.

It goes with the replay. What a replay left that was killed is removed by the next one there: as long as a replay lives
it holds the folder's flock, which the kernel lets go of with the process.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from pinprobe.ledger.book.book_lock import HeldFile
from pinprobe.probes.errors import BadRequest, printable

_PREFIX = "pinprobe-replay-"
_NAME = re.compile(rf"{_PREFIX}[a-z0-9_]{{8}}")


@contextlib.contextmanager
def replay_folder(overflow_folder: Path | None) -> Iterator[Path | None]:
    """Make a folder in the overflow's, which is made too where it is missing; None where there is no overflow.

    Both are gone afterwards, but for an overflow folder that was there before. Raises `BadRequest` where none can be
    made.
    """
    if overflow_folder is None:
        yield None
        return
    with contextlib.ExitStack() as undo:
        try:
            if not overflow_folder.exists():
                overflow_folder.mkdir(mode=0o700)
                undo.callback(_remove_if_empty, overflow_folder)
            _clear_dead(overflow_folder)
            own = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=overflow_folder))
            undo.callback(shutil.rmtree, own, ignore_errors=True)
            alive = HeldFile(own, os.O_RDONLY | os.O_DIRECTORY)
            undo.callback(alive.close)
            alive.try_lock(fcntl.LOCK_EX)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise BadRequest(
                f"the replay's overflow can't lie in {printable(overflow_folder)}: {printable(reason or error)}; name a"
                " folder that can be written to, on a local disk, or leave the overflow out"
            ) from None
        yield own


def _clear_dead(overflow_folder: Path) -> None:
    with os.scandir(overflow_folder) as found:
        others = [Path(entry.path) for entry in found if _NAME.fullmatch(entry.name)]
    for other in others:
        with contextlib.suppress(OSError):
            file = HeldFile(other, os.O_RDONLY | os.O_DIRECTORY)
            try:
                if file.try_lock(fcntl.LOCK_EX):
                    shutil.rmtree(other, ignore_errors=True)
            finally:
                file.close()


def _remove_if_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):
        folder.rmdir()
