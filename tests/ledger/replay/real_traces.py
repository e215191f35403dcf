"""Where recorded traces lie, if they do: in a folder beside the checkout. What needs one skips by its name."""

from __future__ import annotations

from pathlib import Path

import pytest

_FOLDER = Path(__file__).resolve().parents[3].parent / "shared" / "data"


def real_trace(name: str) -> Path:
    """The path of a recorded trace; a test that asks for one that is not there is skipped."""
    path = _FOLDER / f"{name}.csv.gz"
    if not path.is_file():
        pytest.skip(f"the recorded trace {path.name} is not beside this checkout")
    return path
