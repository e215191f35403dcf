"""The real command in a process of its own, and what the machine at hand allows these tests to do with it."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn

import pytest

import pinprobe as package
from pinprobe.probes.headroom import read_headroom
from pinprobe.probes.host_tree import THIS_HOST
from pinprobe.probes.reading import Reading

SOURCE_FOLDER = Path(package.__file__).resolve().parent.parent

Done = subprocess.CompletedProcess[str]


@dataclass(frozen=True)
class Pinprobe:
    """The command. `before` is what starts it: a wrapper that changes user, namespace or cgroup."""

    cache_folder: Path
    before: tuple[str, ...] = ()
    interpreter: str = sys.executable
    settings: Mapping[str, str] = field(default_factory=dict)

    def under(self, *before: str) -> Pinprobe:
        """The same command behind a wrapper."""
        return replace(self, before=(*self.before, *before))

    def given(self, settings: Mapping[str, str]) -> Pinprobe:
        """The same command with these environment variables."""
        return replace(self, settings={**self.settings, **settings})

    def finding_first(self, folder: Path) -> Pinprobe:
        """The same command with a folder before all others on its path."""
        return self.given({"PYTHONPATH": os.pathsep.join([str(folder), self.environment["PYTHONPATH"]])})

    @property
    def environment(self) -> dict[str, str]:
        """What the command sees: nothing of the caller's that would change a result."""
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("PINPROBE_", "PYTORCH_"))}
        libraries = [str(SOURCE_FOLDER), *filter(None, [os.environ.get("PYTHONPATH")])]
        ours = {"PINPROBE_CACHE_DIR": str(self.cache_folder), "PYTHONPATH": os.pathsep.join(libraries)}
        return {**kept, **ours, **self.settings}

    def command(self, arguments: Sequence[str]) -> list[str]:
        return [*self.before, self.interpreter, "-m", "pinprobe", *arguments]

    def __call__(self, *arguments: str) -> Done:
        """Run it to its end."""
        return subprocess.run(
            self.command(arguments), env=self.environment, stdin=subprocess.DEVNULL, capture_output=True,
            text=True, timeout=120, check=False,
        )  # fmt: skip

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start it and return at once."""
        return subprocess.Popen(
            self.command(arguments), env=self.environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def json(self, *arguments: str, exit_code: int = 0) -> dict[str, Any]:
        """Run it with --json and return the document."""
        done = self(*arguments, "--json")
        assert done.returncode == exit_code, done.stderr or done.stdout
        return self.parsed(done.stdout)

    @staticmethod
    def parsed(text: str) -> dict[str, Any]:
        """Read JSON as a strict reader does: NaN and Infinity are none."""

        def refuse(constant: str) -> NoReturn:
            raise AssertionError(f"{constant} is not JSON")

        document: dict[str, Any] = json.loads(text, parse_constant=refuse)
        return document

    def refused(self, *arguments: str, exit_code: int = 2) -> str:
        """Run what has to be refused, and return the one line that says why.

        Nothing else may be on stderr but click's usage, nothing on stdout, and never a traceback.
        """
        done = self(*arguments)
        lines = done.stderr.splitlines()
        if lines and lines[0].startswith("Usage: "):
            assert lines[1].startswith("Try ")
            assert lines[2] == ""
            lines = lines[3:]
        assert len(lines) == 1, done.stderr or f"said nothing, printed {done.stdout}"
        assert lines[0].startswith(("pinprobe: ", "Error: "))
        assert "fault of pinprobe itself" not in lines[0], lines[0]
        assert (done.returncode, done.stdout) == (exit_code, ""), lines[0]
        return lines[0]


@pytest.fixture(autouse=True)
def _signals_that_reach_what_is_started() -> Iterator[None]:
    """Undo, for what a test starts, that a script's background job or nohup has signals ignored: that is inherited."""
    ignored = [number for number in (signal.SIGINT, signal.SIGHUP) if signal.getsignal(number) is signal.SIG_IGN]
    for number in ignored:
        signal.signal(number, signal.SIG_DFL)
    yield
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)


@pytest.fixture(scope="session")
def pinprobe(tmp_path_factory: pytest.TempPathFactory) -> Pinprobe:
    """The command, with a cache of its own, so that the allocator is compiled once for the session."""
    return Pinprobe(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="session")
def torch_host(pinprobe: Pinprobe) -> Pinprobe:
    """The command with `torch-host` compiled, so that no later time or memory is the compiler's."""
    compiler = os.environ.get("CXX") or "g++"
    if importlib.util.find_spec("torch") is None:
        pytest.skip("no torch is installed, so there is no torch-host")
    if shutil.which(compiler) is None:
        pytest.skip(f"there is no {compiler}, so there is no torch-host")
    done = pinprobe("probe", "--bytes", "1MiB", "--allocator", "torch-host")
    if done.returncode == 3 and "too old" in done.stderr:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr
    return pinprobe


@pytest.fixture
def need_room() -> Callable[[int], None]:
    """What skips a test where two thirds of the headroom, which a command may take, are less than it needs."""

    def check(size_bytes: int) -> None:
        available = read_headroom(THIS_HOST).available
        if not isinstance(available, Reading) or available.bytes * 2 // 3 < size_bytes:
            pytest.skip(f"needs {size_bytes * 3 // 2 / 2**30:.1f} GiB of headroom")

    return check


@pytest.fixture
def need_lock(pinprobe: Pinprobe) -> Callable[[int], None]:
    """What skips a test where RLIMIT_MEMLOCK forbids what it needs to lock."""

    def check(size_bytes: int) -> None:
        if re.search(
            "^mlock .*RLIMIT_MEMLOCK", pinprobe("allocators", "--bytes", str(size_bytes)).stdout, re.MULTILINE
        ):
            pytest.skip(f"RLIMIT_MEMLOCK forbids {size_bytes:,} B here")

    return check


@pytest.fixture
def compiler_spy(tmp_path: Path) -> tuple[dict[str, str], Path]:
    """Settings under which any measuring would call a compiler first, and the file by which that shows."""
    trace = tmp_path / "compiler-was-called"
    spy = tmp_path / "spy-compiler"
    spy.write_text(f"#!/bin/sh\n: >'{trace}'\nexit 1\n", encoding="utf-8")
    spy.chmod(0o755)
    return {"CXX": str(spy), "PINPROBE_CACHE_DIR": str(tmp_path / "empty-cache")}, trace


# pytest in a child. The plugin is named with -p, and pytest told to load none by itself: so these tests run the same
# whether or not the environment has pinprobe installed. That the entry point is in what is installed, the packaging
# tests see to.

Run = Callable[..., pytest.RunResult]

PLUGIN = "pinprobe.cli.pytest_plugin"

#: Reserves `asked` and takes `taken`, as an allocator does that rounds up.
_TAKING = """
import mmap

MIB = 2**20

def take(size_bytes):
    block = mmap.mmap(-1, size_bytes)
    for offset in range(0, size_bytes, mmap.PAGESIZE):
        block[offset] = 1
    return block

def reserve(ledger, owner="kv.store", asked=3 * MIB, taken=4 * MIB, **options):
    return ledger.reserve(owner, asked, lambda: take(taken), **options)
"""


@pytest.fixture
def run_plain(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Run:
    """pytest in a child, without the plugin."""
    monkeypatch.setenv("PYTHONPATH", str(SOURCE_FOLDER))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    pytester.makepyfile(taking=_TAKING)
    return pytester.runpytest_subprocess


@pytest.fixture
def run_with_plugin(run_plain: Run) -> Run:
    """pytest in a child, with the plugin."""
    return lambda *arguments: run_plain("-p", PLUGIN, *arguments)
