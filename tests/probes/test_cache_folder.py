"""The cache folder: where it is, and that emptying it takes nothing but what pinprobe made."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from pinprobe.probes.cache_folder import cache_folder, clear_cache
from pinprobe.probes.errors import CouldNotMeasure


@pytest.fixture
def chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PINPROBE_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def written(path: Path, size_bytes: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes(size_bytes))
    return path


def test_the_folder_can_be_chosen_and_need_not_exist(chosen: Path) -> None:
    assert cache_folder() == chosen
    assert not chosen.exists()


@pytest.mark.parametrize("unset", [None, ""])
def test_else_it_lies_in_the_users_cache_folder(
    unset: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("PINPROBE_CACHE_DIR", raising=False)
    if unset is not None:
        monkeypatch.setenv("PINPROBE_CACHE_DIR", unset)
    assert cache_folder() == tmp_path / "pinprobe"


def test_clearing_removes_what_was_compiled_and_says_how_much(chosen: Path) -> None:
    written(chosen / "torch_host/2.13.0/library.so", 4096)
    written(chosen / "torch_host/2.14.1/library.so", 100)
    assert clear_cache() == 4196
    assert not (chosen / "torch_host").exists()
    assert clear_cache() == 0


def test_clearing_a_folder_pointed_at_the_wrong_place_takes_nothing_else(chosen: Path) -> None:
    mine = [written(chosen / "thesis.tex", 10), written(chosen / "torch/hub/weights.bin", 10)]
    written(chosen / "torch_host/library.so", 1)
    clear_cache()
    assert all(file.exists() for file in mine)


def test_a_cache_that_is_not_there_frees_nothing(chosen: Path) -> None:
    assert clear_cache() == 0
    written(chosen / "torch_host", 10)  # a file of that name is none of ours
    assert clear_cache() == 0
    assert (chosen / "torch_host").is_file()


def test_what_a_link_points_to_is_neither_removed_nor_counted(chosen: Path, tmp_path: Path) -> None:
    outside = written(tmp_path / "outside.so", 5000)
    written(chosen / "torch_host/library.so", 100)
    (chosen / "torch_host/link.so").symlink_to(outside)
    assert clear_cache() == 100
    assert outside.stat().st_size == 5000


def test_a_linked_cache_is_refused_and_kept(chosen: Path, tmp_path: Path) -> None:
    library = written(tmp_path / "elsewhere/library.so", 100)
    chosen.mkdir()
    (chosen / "torch_host").symlink_to(library.parent)
    with pytest.raises(CouldNotMeasure, match="can't be removed"):
        clear_cache()
    assert library.exists()


def test_a_cache_that_may_not_be_removed_is_named(
    open_folder: Path, as_nobody: Callable[[], AbstractContextManager[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PINPROBE_CACHE_DIR", str(open_folder))
    library = written(open_folder / "torch_host/library.so", 100)
    library.parent.chmod(0o555)
    try:
        with as_nobody(), pytest.raises(CouldNotMeasure, match=r"torch_host can't be removed: Permission denied"):
            clear_cache()
    finally:
        library.parent.chmod(0o755)
    assert library.exists()
