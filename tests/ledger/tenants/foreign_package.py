"""A package of somebody else's, installed into a folder: a module, and the names that it registers for it."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path

_numbers = itertools.count(1)


def install(folder: Path, source: str, registered: Mapping[str, Mapping[str, str]]) -> str:
    """Install it and return the name of its module, which no other package has.

    `registered` gives for each entry point group its names, each with what stands behind the module's name: `:Class`.
    """
    module = f"foreign_package_{next(_numbers)}"
    (folder / f"{module}.py").write_text(source, encoding="utf-8")
    metadata = folder / f"{module}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n", encoding="utf-8")
    lines = []
    for group, targets in registered.items():
        lines += [f"[{group}]", *(f"{name} = {module}{target}" for name, target in targets.items())]
    (metadata / "entry_points.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return module
