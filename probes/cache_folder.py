"""The folder that compiled libraries and measured maps are kept in, and emptying it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import platformdirs

from pinprobe.probes.errors import CouldNotMeasure

#: Below it: the blocks of allocators as this host measured them.
MAPS_FOLDER = "maps"
_OWN_FOLDERS = ("torch_host", MAPS_FOLDER)


def cache_folder() -> Path:
    """Return `$PINPROBE_CACHE_DIR`, else `pinprobe` in the user's cache folder. It need not exist."""
    chosen = os.environ.get("PINPROBE_CACHE_DIR")
    return Path(chosen) if chosen else platformdirs.user_cache_path("pinprobe")


def clear_cache() -> int:
    """Remove what was compiled and what was measured, and return how many bytes that freed.

    Removes only the folders that pinprobe makes there, so that a cache folder pointed at the wrong place loses nothing
    else.
    """
    return sum(_cleared(cache_folder() / name) for name in _OWN_FOLDERS)


def _cleared(folder: Path) -> int:
    if not folder.is_dir():
        return 0
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file() and not file.is_symlink())
    try:
        shutil.rmtree(folder)
    except OSError as error:
        raise CouldNotMeasure(f"{folder} can't be removed: {error.strerror or error}") from None
    return size
