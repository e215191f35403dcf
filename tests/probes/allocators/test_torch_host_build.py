"""Compiling torch's allocator: once, safely, and with an error that says what is missing.

Most tests put a script in the compiler's place. It counts its runs and hands out the library that the shared fixture
compiled for real.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from pinprobe.probes.allocators import torch_host_build
from pinprobe.probes.allocators.allocator import Allocator
from pinprobe.probes.allocators.registry import prepare_allocator
from pinprobe.probes.allocators.torch_host_build import HEADERS, find_or_build
from pinprobe.probes.errors import AllocatorUnavailable, CouldNotMeasure
from pinprobe.probes.installed_torch import InstalledTorch
from pinprobe.probes.reading import Unreadable

_BUILD_IN_A_PROCESS = """
from pinprobe.probes.allocators.registry import prepare_allocator
allocator = prepare_allocator("torch-host", 4096).allocator
allocator.allocate(4096).release()
print(allocator._path)
"""


def _anything_goes(library: Path) -> None:
    """Stands where a fresh library is tried."""


@dataclass(frozen=True)
class _Compiler:
    """A script in the compiler's place, and the file in which it counts."""

    path: Path
    counts: Path

    def runs(self) -> int:
        return len(self.counts.read_text().splitlines()) if self.counts.exists() else 0

    def does(self, lines: str, version: str = "echo script 1.0") -> None:
        """Give the script other lines for a compilation; `$out` is where the library is wanted."""
        self.path.write_text(
            f"#!/bin/sh\n"
            f'if [ "$1" = --version ]; then {version}; exit; fi\n'
            f"echo run >> '{self.counts}'\n"
            f'while [ "$1" != -o ]; do shift; done; out="$2"\n'
            f"{lines}\n"
        )
        self.path.chmod(0o755)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of this test's own; what is compiled lies in a folder below it."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("PINPROBE_CACHE_DIR", str(folder))
    return folder / "torch_host"


@pytest.fixture
def compiled(torch_host: Allocator) -> Path:
    """The library that was compiled for real."""
    path: Path = vars(torch_host)["_path"]
    return path


@pytest.fixture
def compiler(compiled: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> _Compiler:
    script = _Compiler(tmp_path / "scripted-g++", tmp_path / "runs")
    script.does(f"cp '{compiled}' \"$out\"")
    monkeypatch.setenv("CXX", str(script.path))
    return script


def _unavailable() -> str:
    """What the failing build says, held to one line."""
    with pytest.raises(AllocatorUnavailable) as caught:
        find_or_build(_anything_goes)
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 500, message
    return message


def _files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


# Once, and whole.


def test_it_is_compiled_once_and_then_found(compiler: _Compiler, cache: Path) -> None:
    first = prepare_allocator("torch-host", 4096).allocator
    second = prepare_allocator("torch-host", 4096).allocator
    assert vars(first) == vars(second)
    assert compiler.runs() == 1
    assert len(_files(cache)) == 1


def test_the_second_time_nothing_is_run_to_prove_the_library(compiler: _Compiler) -> None:
    proved: list[Path] = []
    library = find_or_build(proved.append)
    assert find_or_build(proved.append) == library
    assert len(proved) == 1


def test_two_processes_that_compile_at_once_leave_one_whole_library(compiled: Path, cache: Path) -> None:
    assert compiled.parent != cache, "there is something to compile"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", _BUILD_IN_A_PROCESS]
    builders = [
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    endings = [(*builder.communicate(timeout=90), builder.returncode) for builder in builders]
    assert [code for _, _, code in endings] == [0, 0], endings
    assert len(_files(cache)) == 1
    assert {said.strip() for said, _, _ in endings} == {str(cache / _files(cache)[0])}


@pytest.mark.parametrize("damage", ["cut", "one byte flipped", "empty"])
def test_a_damaged_library_is_never_loaded_and_is_compiled_anew(compiler: _Compiler, damage: str) -> None:
    library = find_or_build(_anything_goes)
    whole = library.read_bytes()
    middle = len(whole) // 2
    if damage == "cut":
        library.write_bytes(whole[:middle])
    elif damage == "one byte flipped":
        library.write_bytes(whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :])
    else:
        library.write_bytes(b"")
    again = find_or_build(_anything_goes)
    assert again.read_bytes() == whole
    assert compiler.runs() == 2


def test_a_library_of_another_compiler_is_not_used(compiler: _Compiler, compiled: Path) -> None:
    old = find_or_build(_anything_goes)
    compiler.does(f"cp '{compiled}' \"$out\"", version="echo script 2.0")
    assert find_or_build(_anything_goes) != old
    assert compiler.runs() == 2


def test_a_library_of_another_torch_is_not_used(
    compiler: _Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = _torch_with_headers(tmp_path)
    found = [InstalledTorch("2.13.0", folder)]
    monkeypatch.setattr(torch_host_build, "find_installed_torch", lambda: found[-1])
    libraries = [find_or_build(_anything_goes)]
    found.append(InstalledTorch("2.13.1", folder))
    libraries.append(find_or_build(_anything_goes))
    (folder / "include" / HEADERS[0]).write_text("// another allocator\n")
    libraries.append(find_or_build(_anything_goes))
    assert len(set(libraries)) == 3
    assert compiler.runs() == 3


def test_a_library_that_another_user_put_there_is_not_loaded(compiler: _Compiler) -> None:
    library = find_or_build(_anything_goes)
    try:
        os.chown(library, 65534, 65534)
    except OSError:
        pytest.skip("only root can give a file away")
    again = find_or_build(_anything_goes)
    assert compiler.runs() == 2
    assert again.stat().st_uid == os.geteuid()


def test_a_build_that_compiles_but_does_not_run_is_not_kept(compiler: _Compiler, cache: Path) -> None:
    def does_not_run(library: Path) -> None:
        assert library.is_file()
        raise AllocatorUnavailable("it gave no memory")

    for _ in range(2):
        with pytest.raises(AllocatorUnavailable, match="it gave no memory"):
            find_or_build(does_not_run)
    assert compiler.runs() == 2
    assert _files(cache) == []


def test_a_library_that_is_no_library_is_not_kept_and_said_in_one_line(compiler: _Compiler, cache: Path) -> None:
    compiler.does('echo "not a library" > "$out"')
    with pytest.raises(CouldNotMeasure) as caught:
        prepare_allocator("torch-host", 4096)
    assert "\n" not in str(caught.value)
    assert _files(cache) == []


def test_a_library_that_kills_its_process_is_not_to_be_had_and_is_not_kept(
    compiler: _Compiler, cache: Path, tmp_path: Path
) -> None:
    source = tmp_path / "kills.cpp"
    source.write_text("#include <csignal>\nstatic const int killed = raise(SIGSEGV);\n")
    compiler.does(f"exec g++ -shared -fPIC '{source}' -o \"$out\"")
    with pytest.raises(AllocatorUnavailable, match="SIGSEGV"):
        prepare_allocator("torch-host", 4096)
    assert _files(cache) == []


# A cache that can't be written.


@pytest.fixture
def unwritable_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Below a regular file, where not even root can make a folder."""
    (tmp_path / "file").write_text("")
    folder = tmp_path / "file" / "cache"
    monkeypatch.setenv("PINPROBE_CACHE_DIR", str(folder))
    return folder


def test_a_cache_that_can_not_be_written_costs_a_build_each_time_and_nothing_else(
    compiler: _Compiler, unwritable_cache: Path, tmp_path: Path
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(temporary)}
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", _BUILD_IN_A_PROCESS],
            env=environment, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith(str(temporary))
    assert compiler.runs() == 2
    assert _files(temporary) == [], "what was built outlives the process that used it"


def test_without_a_cache_a_failing_compiler_has_no_log_to_point_to(compiler: _Compiler, unwritable_cache: Path) -> None:
    compiler.does("echo 'x.cpp:1: error: no such thing' >&2; exit 1")
    message = _unavailable()
    assert "no such thing" in message
    assert "no log was kept; PINPROBE_CACHE_DIR names another" in message
    assert "build.log" not in message


# A compiler that does not do its work.


def test_a_compiler_that_fails_is_quoted_in_one_line_and_its_whole_log_kept(compiler: _Compiler, cache: Path) -> None:
    compiler.does(
        "echo 'In file included from here:' >&2; echo 'x.cpp:1:2: error: no such thing' >&2\n"
        "echo 'x.cpp:3:4: error: nor this' >&2; printf '\\377 not UTF-8' >&2; exit 7"
    )
    message = _unavailable()
    assert "scripted-g++ could not compile" in message
    assert "(exit 7): x.cpp:1:2: error: no such thing" in message
    log = Path(message.rpartition("the whole log is in ")[2])
    assert log.read_text().startswith(str(compiler.path))
    assert "nor this" in log.read_text()
    assert _files(cache) == [log.name]


@pytest.mark.parametrize("code", [0, 1])
def test_a_compiler_that_prints_nothing_and_makes_nothing_is_said_to(compiler: _Compiler, code: int) -> None:
    compiler.does(f"exit {code}")
    assert f"(exit {code}): it printed nothing" in _unavailable()


def test_the_next_build_after_a_failed_one_succeeds(compiler: _Compiler, compiled: Path) -> None:
    compiler.does("exit 1")
    _unavailable()
    compiler.does(f"cp '{compiled}' \"$out\"")
    assert find_or_build(_anything_goes).is_file()


def test_a_compiler_that_is_not_there_is_named_with_what_brings_one(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _pretend_torch(tmp_path, monkeypatch)
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert _unavailable().startswith("no g++ was found")
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert _unavailable() == (
        "no no-such-compiler was found to compile PyTorch's allocator with; `apt install g++`, or name one in CXX"
    )


def test_a_compiler_that_hangs_is_given_up_and_said_to_have_hung(
    compiler: _Compiler, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_host_build, "_COMPILER_TIMEOUT_SECONDS", 0.3)
    compiler.does("exec sleep 20")
    message = _unavailable()
    assert "timed out" in message
    assert _files(cache) == ["build.log"]


def test_a_compiler_that_hangs_at_its_version_is_given_up_too(
    compiler: _Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_host_build, "_VERSION_TIMEOUT_SECONDS", 0.3)
    compiler.does("exit 1", version="exec sleep 4")
    started = time.monotonic()
    _unavailable()
    assert time.monotonic() - started < 3


def test_a_compiler_that_can_not_be_executed_is_one_line(compiler: _Compiler) -> None:
    compiler.path.write_bytes(b"\0 neither a program nor a script")
    assert compiler.path.name in _unavailable()


def test_a_compiler_with_words_after_its_name_is_understood(
    compiler: _Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As make does it: CXX="ccache g++", CXX="g++ -m64".
    monkeypatch.setenv("CXX", f"{compiler.path} -pipe")
    assert find_or_build(_anything_goes).is_file()


# A torch that does not serve.


def _torch_with_headers(tmp_path: Path) -> Path:
    folder = tmp_path / "torch"
    for name in HEADERS:
        (folder / "include" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "include" / name).write_text("// the allocator\n")
    return folder


def _pretend_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str = "2.13.0") -> Path:
    folder = _torch_with_headers(tmp_path)
    monkeypatch.setattr(torch_host_build, "find_installed_torch", lambda: InstalledTorch(version, folder))
    return folder


def test_without_torch_what_brings_it_is_named(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_host_build, "find_installed_torch", lambda: Unreadable("torch is not installed"))
    assert _unavailable() == (
        "torch is not installed; `pip install torch` into this environment brings PyTorch's own allocator"
    )


@pytest.mark.parametrize("version", ["1.13.1", "2.8.0", "2.8.0+cu126"])
def test_a_torch_that_is_too_old_is_named_with_the_oldest_that_serves(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    _pretend_torch(tmp_path, monkeypatch, version)
    message = _unavailable()
    assert message.startswith(f"torch {version} is too old")
    assert message.endswith("`pip install 'torch>=2.9'`")


@pytest.mark.parametrize("header", HEADERS)
def test_a_torch_without_headers_is_named_with_the_missing_one(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, header: str
) -> None:
    folder = _pretend_torch(tmp_path, monkeypatch)
    (folder / "include" / header).unlink()
    assert _unavailable() == f"torch 2.13.0 comes without its header {header}; install its wheel"


@pytest.mark.parametrize("version", ["2.9.0", "2.13.0a0+git1a2b3c4", "2.15.0.dev20261101+cpu", "3.0.0"])
def test_a_newer_or_a_home_made_torch_is_given_a_try(
    compiler: _Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    _pretend_torch(tmp_path, monkeypatch, version)
    assert find_or_build(_anything_goes).is_file()


def test_headers_that_a_real_compiler_can_not_read_are_one_line(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shutil.which(os.environ.get("CXX") or "g++") is None:
        pytest.skip("no g++ here")
    _pretend_torch(tmp_path, monkeypatch)
    message = _unavailable()
    assert "could not compile PyTorch's allocator of torch 2.13.0 (exit 1): " in message
    assert "error" in message


def test_clearing_the_cache_makes_the_next_one_compile(compiler: _Compiler, cache: Path) -> None:
    find_or_build(_anything_goes)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-m", "pinprobe", "cache", "clear"], env=environment, check=True, timeout=60)
    assert _files(cache) == []
    find_or_build(_anything_goes)
    assert compiler.runs() == 2
