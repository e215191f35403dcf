"""The configs that come with pinprobe, found by their bare names."""

from __future__ import annotations

import os
from importlib.resources import files
from pathlib import Path

from pinprobe.ledger.config.marked import near
from pinprobe.probes.errors import BadRequest, printable

_SUFFIX = ".yaml"


def shipped_names() -> list[str]:
    """Return the names of the configs that come along, sorted."""
    return sorted(path.stem for path in _folder().glob(f"*{_SUFFIX}"))


def find_config(name_or_path: str) -> Path:
    """Return the path of a config: a file that exists, or one that comes along by its bare name.

    Raises `BadRequest` where there is neither, with the nearest name that is known.
    """
    path = Path(name_or_path)
    if name_or_path and "\0" not in name_or_path and os.path.lexists(path):
        return path
    names = shipped_names()
    if name_or_path in names:
        return _folder() / f"{name_or_path}{_SUFFIX}"
    hint = near(path.name.removesuffix(_SUFFIX), names, "those that come along are")
    raise BadRequest(
        f"there is no config {printable(name_or_path)[:200]!r}, neither a file nor one by that name; {hint}"
    )


def _folder() -> Path:
    # Never inside of a zip: the package is installed unpacked (`zip_safe = false`).
    return Path(str(files("pinprobe"))) / "configs"
