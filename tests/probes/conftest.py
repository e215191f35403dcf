"""Hosts to read: saved whole, written for one test, or rewritten for every example of a fuzz test."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from hypothesis import strategies as st

from pinprobe.probes.host_tree import HostTree

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"
# What a test may write into a host: a text, raw bytes, or None for a file that is taken away.
Texts = Mapping[str, str | bytes | None]


def _write(root: Path, texts: Texts) -> None:
    for name, text in texts.items():
        path = root / name.lstrip("/")
        if text is None:
            path.unlink()
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text)


@pytest.fixture(scope="session")
def saved_host() -> Callable[[str], HostTree]:
    """One of the folders in tests/fixtures, by its name."""

    def saved(name: str) -> HostTree:
        assert (FIXTURES / name / "proc").is_dir(), f"no saved host is called {name}"
        return HostTree(FIXTURES / name, page_size_bytes=65536 if name == "pages_64k" else 4096)

    return saved


@pytest.fixture
def written_host(tmp_path: Path) -> Callable[[Texts], HostTree]:
    """A host that has the given files and no others."""

    def written(texts: Texts) -> HostTree:
        root = Path(tempfile.mkdtemp(dir=tmp_path))
        _write(root, texts)
        return HostTree(root, page_size_bytes=4096)

    return written


@pytest.fixture
def changed_host(tmp_path: Path, saved_host: Callable[[str], HostTree]) -> Callable[[str, Texts], HostTree]:
    """A saved host with some of its files rewritten or taken away."""

    def changed(name: str, texts: Texts) -> HostTree:
        saved = saved_host(name)
        root = Path(tempfile.mkdtemp(dir=tmp_path)) / name
        shutil.copytree(saved.root, root)
        _write(root, texts)
        return HostTree(root, saved.page_size_bytes)

    return changed


@pytest.fixture(scope="module")
def fuzzed_host(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Texts], HostTree]:
    """One host that is rewritten at every call and has only the given files; a folder an example would be thousands."""
    root = tmp_path_factory.mktemp("fuzzed")
    there: dict[str, str | bytes] = {}

    def fuzzed(texts: Texts) -> HostTree:
        gone = [name for name in there if name not in texts]
        _write(root, {**dict.fromkeys(gone), **{name: text for name, text in texts.items() if there.get(name) != text}})
        there.clear()
        there.update((name, text) for name, text in texts.items() if text is not None)
        return HostTree(root, page_size_bytes=4096)

    return fuzzed


@pytest.fixture(scope="session")
def damage() -> Callable[[st.DataObject, str], str]:
    """Damage a real text in one place: a line lost, the end cut off, or the digits of a line turned into letters."""

    def damaged(data: st.DataObject, text: str) -> str:
        lines = text.splitlines(keepends=True)
        kind = data.draw(st.sampled_from(["lost line", "cut", "letters"]), label="damage")
        if kind == "cut":
            return text[: data.draw(st.integers(0, len(text) - 1), label="cut at")]
        index = data.draw(st.integers(0, len(lines) - 1), label="line")
        # "x" is no digit in any base that the kernel prints.
        lines[index] = "" if kind == "lost line" else lines[index].translate(dict.fromkeys(map(ord, "0123456789"), "x"))
        return "".join(lines)

    return damaged


@pytest.fixture
def as_nobody() -> Callable[[], AbstractContextManager[None]]:
    """Give up root's right to read everything, for a while."""

    @contextmanager
    def dropped() -> Iterator[None]:
        if os.geteuid() != 0:
            yield
            return
        os.seteuid(65534)
        try:
            yield
        finally:
            os.seteuid(0)

    return dropped


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that other users can enter, as pytest's own is not."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder


@pytest.fixture
def limited_cgroup() -> Iterator[Callable[[int], Path]]:
    """Make a memory cgroup below this process's own, with a limit; skip where that is not allowed."""
    made: list[Path] = []

    def limited(limit_bytes: int) -> Path:
        parent, limit_name = _own_memory_cgroup()
        folder = parent / f"pinprobe-test-{os.getpid()}-{len(made)}"
        try:
            folder.mkdir()
        except OSError as error:
            pytest.skip(f"no memory cgroup can be made here: {error.strerror}")
        made.append(folder)
        try:
            (folder / limit_name).write_text(str(limit_bytes))
        except OSError as error:  # v2: the parent hands no memory controller down
            pytest.skip(f"no memory limit can be set here: {error.strerror}")
        return folder

    yield limited
    for folder in made:
        for _ in range(50):  # a killed process leaves its cgroup a moment after it is reaped
            try:
                folder.rmdir()
                break
            except OSError:
                time.sleep(0.1)


def _own_memory_cgroup() -> tuple[Path, str]:
    mounts = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    memberships = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    for mount in mounts:
        if "cgroup" in mount and "memory" in mount[-1].split(","):
            own = next(path for _, controllers, path in memberships if "memory" in controllers.split(","))
            return Path(mount[4]) / own.lstrip("/"), "memory.limit_in_bytes"
    for mount in mounts:
        if "cgroup2" in mount:
            own = next(path for number, controllers, path in memberships if number == "0" and not controllers)
            return Path(mount[4]) / own.lstrip("/"), "memory.max"
    pytest.skip("no memory cgroup is mounted here")
