"""The installed torch is found by its files, and never imported."""

from __future__ import annotations

import importlib.metadata
import sys
import types
from collections.abc import Callable
from pathlib import Path

import pytest

from pinprobe.probes.installed_torch import InstalledTorch, find_installed_torch
from pinprobe.probes.reading import Unreadable

# As a wheel writes it.
VERSION_PY = """from typing import Optional

__all__ = ['__version__', 'debug', 'cuda', 'git_version', 'hip', 'rocm', 'xpu']
__version__ = '{version}'
debug = False
cuda: Optional[str] = None
git_version = '0fabc3ba44823f257e70ce397d989c8de5e362c1'
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, str]], Path]:
    """Put a torch with the given files, and no other, before everything that is installed."""

    def install(files: dict[str, str]) -> Path:
        monkeypatch.delitem(sys.modules, "torch", raising=False)
        monkeypatch.setattr(sys, "path", [str(tmp_path)])
        (tmp_path / "torch").mkdir()
        for name, text in files.items():
            (tmp_path / "torch" / name).write_text(text)
        return tmp_path / "torch"

    return install


@pytest.mark.parametrize(
    ("version", "release"),
    [
        ("2.13.0+cpu", (2, 13)),
        ("2.11.0+cu130", (2, 11)),
        ("2.9.1", (2, 9)),
        ("2.15.0a0+git0fabc3b", (2, 15)),
        ("10.0", (10, 0)),
    ],
)
def test_a_torch_is_found_by_its_version_file(
    version: str, release: tuple[int, int], installed: Callable[[dict[str, str]], Path]
) -> None:
    folder = installed(
        {"__init__.py": "raise SystemExit('imported')", "version.py": VERSION_PY.format(version=version)}
    )
    found = find_installed_torch()
    assert found == InstalledTorch(version, folder)
    assert isinstance(found, InstalledTorch)
    assert found.release == release
    assert "torch" not in sys.modules


@pytest.mark.parametrize(
    "text", ["", "__version__ = version\n", "__version__ = ''\n", "__version__ = 'main'\n", "old__version__ = '2.9'\n"]
)
def test_a_version_file_without_a_version_is_unreadable(text: str, installed: Callable[[dict[str, str]], Path]) -> None:
    installed({"__init__.py": "", "version.py": text})
    assert find_installed_torch() == Unreadable("torch/version.py names no version")


def test_a_torch_without_a_version_file_is_unreadable(installed: Callable[[dict[str, str]], Path]) -> None:
    installed({"__init__.py": ""})
    assert find_installed_torch() == Unreadable("torch/version.py: No such file or directory")


def test_a_folder_called_torch_is_no_torch(installed: Callable[[dict[str, str]], Path]) -> None:
    installed({})
    assert find_installed_torch() == Unreadable("torch is not installed")


def test_where_there_is_none_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert find_installed_torch() == Unreadable("torch is not installed")


def test_a_module_that_somebody_put_in_its_place_is_unreadable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", types.ModuleType("torch"))  # has no spec
    found = find_installed_torch()
    assert isinstance(found, Unreadable)
    assert found.reason.startswith("torch: ")


def test_the_version_agrees_with_the_packages_own_metadata() -> None:
    found = find_installed_torch()
    if isinstance(found, Unreadable):
        pytest.skip(found.reason)
    # A wheel from an index may name its build, as in +cu130, in the one and not in the other.
    assert found.version.partition("+")[0] == importlib.metadata.version("torch").partition("+")[0]
    assert (found.folder / "__init__.py").is_file()
