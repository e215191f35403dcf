"""Where the book of a host lies, and which folders it may not lie in."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

from pinprobe.probes.errors import BadRequest, printable

VARIABLE = "PINPROBE_BOOK_DIR"
REMEDY = f"give another folder with --book-dir or {VARIABLE}"

# A folder in /dev/shm is what most processes of a user see, and it is gone with the host, as the book should be.
_SHARED_MEMORY = Path("/dev/shm")
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def default_book_folder() -> Path:
    """Return the folder of the book where none was given. It need not exist.

    `$PINPROBE_BOOK_DIR`, else the first of `/dev/shm/pinprobe-UID`, `$XDG_RUNTIME_DIR/pinprobe` and `pinprobe-UID` in
    the folder for temporary files that can be used. Raises `BadRequest` where none can, with the reason of each.
    """
    chosen = given_by_environment()
    if chosen is not None:
        return chosen
    own_name = f"pinprobe-{os.geteuid()}"
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    candidates = [_SHARED_MEMORY / own_name]
    candidates += [Path(runtime).absolute() / "pinprobe"] if runtime else []
    candidates.append(Path(tempfile.gettempdir()) / own_name)
    reasons = []
    for candidate in candidates:
        reason = reason_against(candidate, is_private=True)
        if reason is None:
            return candidate
        reasons.append(f"{printable(candidate)} {reason}")
    raise BadRequest(f"there is no folder for the host's book: {'; '.join(reasons)}; {REMEDY}")


def given_by_environment() -> Path | None:
    """Return `$PINPROBE_BOOK_DIR`. Processes that were told to share it never fall back to another in silence."""
    chosen = os.environ.get(VARIABLE)
    return Path(chosen).absolute() if chosen else None


def make_folder(folder: Path, is_private: bool) -> None:
    """Make the folder where it is missing, but not its parents. Raises `BadRequest` where it can't be written to."""
    reason = reason_against(folder, is_private)
    if reason is None and not folder.exists():
        try:
            folder.mkdir(mode=0o700 if is_private else 0o777, exist_ok=True)
        except OSError as error:
            reason = f"can't be made: {error.strerror or error}"
        else:
            reason = reason_against(folder, is_private)  # another may have been quicker
    if reason is not None:
        raise BadRequest(f"the host's book can't be kept: {printable(folder)} {reason}; {REMEDY}")


def reason_against(folder: Path, is_private: bool, to_write: bool = True) -> str | None:
    """Say why the book can't lie there, or return None where it can.

    A private one belongs to this user. One to write to has to be open to this user by its own mode: that root may write
    into a user's own folder makes it no place that two share.
    """
    try:
        found = folder.lstat()
    except FileNotFoundError:
        if not folder.parent.is_dir():
            return f"can't be made: {printable(folder.parent)} does not exist"
        writable = not to_write or os.access(folder.parent, os.W_OK | os.X_OK)
        return None if writable else f"can't be made: {printable(folder.parent)} can't be written to"
    except OSError as error:
        return f"can't be used: {error.strerror or error}"
    if stat.S_ISLNK(found.st_mode):
        return "is a symbolic link; name the folder itself"
    if not stat.S_ISDIR(found.st_mode):
        return "is not a folder"
    is_own = found.st_uid == os.geteuid()
    if is_private and not is_own:
        return f"belongs to user {found.st_uid}"
    if to_write and not is_own and not found.st_mode & _OTHERS_WRITE:
        return f"belongs to user {found.st_uid} alone; mode 1777 makes it one to share"
    wanted = os.R_OK | os.X_OK | (os.W_OK if to_write else 0)
    return None if os.access(folder, wanted) else f"can't be {'written to' if to_write else 'read'} by this user"
