"""The torch that is installed beside this Python, found without importing it (an import takes seconds)."""

from __future__ import annotations

import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path

from pinprobe.probes.reading import Unreadable

_VERSION = re.compile(r"^__version__ *= *['\"]([^'\"]+)['\"]", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class InstalledTorch:
    """A torch by its own version file and the folder it lies in."""

    version: str
    folder: Path

    @property
    def release(self) -> tuple[int, int]:
        """The leading two numbers of the version."""
        major, minor = re.match(r"(\d+)\.(\d+)", self.version).groups()  # type: ignore[union-attr]  # as it was found
        return int(major), int(minor)


def find_installed_torch() -> InstalledTorch | Unreadable:
    """Return the torch that `import torch` would take, or why there is none."""
    try:
        spec = importlib.util.find_spec("torch")
    except (ImportError, ValueError) as error:
        return Unreadable(f"torch: {error}")
    if spec is None or spec.origin is None:
        return Unreadable("torch is not installed")
    folder = Path(spec.origin).parent
    try:
        match = _VERSION.search((folder / "version.py").read_text(encoding="utf-8", errors="replace"))
    except OSError as error:
        return Unreadable(f"torch/version.py: {error.strerror or error}")
    if match is None or not re.match(r"\d+\.\d+", match[1]):
        return Unreadable("torch/version.py names no version")
    return InstalledTorch(match[1], folder)
