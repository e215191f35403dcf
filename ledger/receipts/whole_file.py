"""Reads a saved run whole, within a bound, and says in one line where that can't be."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from pinprobe.probes.errors import BadRequest

#: Above what any saved run takes; a hostile file costs no more.
LARGEST_FILE_BYTES = 64 * 2**20


def read_whole(path: Path, source: str, what: str, remedy: str) -> bytes:
    """Return the bytes of a file that is to be `what`, a receipt or a map; `source` is what messages call it.

    Raises `BadRequest`, with what to do about it, where it can't be read or is larger than 64 MiB.
    """
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            # Of what is no regular file, such as a pipe of the shell's, the size is known once it is read.
            is_too_large = stat.S_ISREG(status.st_mode) and status.st_size > LARGEST_FILE_BYTES
            content = b"" if is_too_large else file.read(LARGEST_FILE_BYTES + 1)
    except FileNotFoundError:
        raise BadRequest(f"{source}: there is no such file; {remedy}") from None
    except IsADirectoryError:
        raise BadRequest(f"{source} is a folder; name a {what} in it, or {remedy}") from None
    except (OSError, ValueError) as error:  # the second for a name that no file can have
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        raise BadRequest(f"{source} can't be read: {reason}; {remedy}") from None
    if is_too_large or len(content) > LARGEST_FILE_BYTES:
        raise BadRequest(f"{source} is larger than 64 MiB, and a {what} is some pages; {remedy}")
    return content
