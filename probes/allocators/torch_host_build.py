"""Compiles `torch_host.cpp` once against the installed torch, and keeps the library in the user's cache folder.

The name of a kept library holds two digests: of all that went into it (torch's version, folder and headers, the source,
the compiler) and of the library itself. So a stale one is not found, a cut or altered one is not loaded, and one rename
puts a whole library in place: two processes that compile at once each put the same thing there.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import os
import shlex
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pinprobe.probes.cache_folder import cache_folder
from pinprobe.probes.errors import AllocatorUnavailable
from pinprobe.probes.installed_torch import InstalledTorch, find_installed_torch
from pinprobe.probes.reading import Unreadable

#: The template takes the four overrides that the source gives it from this release on.
OLDEST_RELEASE = (2, 9)
#: Releases that the tests of this allocator were run with. Others are accepted once their build has run, and say so.
TRIED_RELEASES = ((2, 9), (2, 13), (2, 14))

HEADERS = ("ATen/core/CachingHostAllocator.h", "c10/core/AllocatorConfig.h")
_SOURCE = Path(__file__).with_name("torch_host.cpp")
_FLAGS = ("-std=c++20", "-O1", "-shared", "-fPIC", "-Wno-interference-size")
_COMPILER_TIMEOUT_SECONDS = 600.0
_VERSION_TIMEOUT_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class _Plan:
    torch: InstalledTorch
    compiler: list[str]
    key: str


def find_or_build(must_run: Callable[[Path], None]) -> Path:
    """Return a library that fits the installed torch, compiling it where none is kept.

    A fresh library is handed to `must_run` before it is kept; what that raises ends the build, and nothing is kept.
    Raises `AllocatorUnavailable` where torch or a compiler is missing, torch is too old, or the compiler fails.
    """
    torch = _usable_torch()
    compiler = shlex.split(os.environ.get("CXX") or "g++")  # CXX may hold words of its own, such as "ccache g++"
    folder = cache_folder() / "torch_host"
    if not compiler or shutil.which(compiler[0]) is None:
        raise AllocatorUnavailable(
            f"no {' '.join(compiler) or 'compiler'} was found to compile PyTorch's allocator with",
            "`apt install g++`, or name one in CXX",
        )
    plan = _Plan(torch, compiler, _key(torch, compiler))
    return _kept(folder, plan) or _build(folder, plan, must_run)


def _usable_torch() -> InstalledTorch:
    torch = find_installed_torch()
    if isinstance(torch, Unreadable):
        raise AllocatorUnavailable(
            torch.reason, "`pip install torch` into this environment brings PyTorch's own allocator"
        )
    if torch.release < OLDEST_RELEASE:
        oldest = ".".join(map(str, OLDEST_RELEASE))
        raise AllocatorUnavailable(
            f"torch {torch.version} is too old: its pinned allocator can be brought up without a GPU from {oldest} on",
            f"`pip install 'torch>={oldest}'`",
        )
    missing = [name for name in HEADERS if not (torch.folder / "include" / name).is_file()]
    if missing:
        raise AllocatorUnavailable(f"torch {torch.version} comes without its header {missing[0]}", "install its wheel")
    return torch


def _key(torch: InstalledTorch, compiler: list[str]) -> str:
    version, output = _run([*compiler, "--version"], _VERSION_TIMEOUT_SECONDS)
    if not version.startswith("exit "):  # one that runs and fails will say more of it when it compiles
        raise AllocatorUnavailable(
            f"{' '.join(compiler)} --version does not work ({version}): {_first_line(output)}", "name another in CXX"
        )
    digest = hashlib.sha256()
    parts = [torch.version, str(torch.folder), *compiler, *_FLAGS, output]
    contents = [_SOURCE.read_bytes(), *((torch.folder / "include" / name).read_bytes() for name in HEADERS)]
    for content in [*(part.encode("utf-8", "surrogateescape") for part in parts), *contents]:
        digest.update(len(content).to_bytes(8, "big") + content)
    return digest.hexdigest()[:24]


def _run(command: list[str], timeout_seconds: float) -> tuple[str, str]:
    """Run a compiler, in a group of its own since g++ has others work; return (how it ended, what it printed)."""
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            errors="replace", env={**os.environ, "LC_ALL": "C"}, start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        return "not started", error.strerror or str(error)
    try:
        output, _ = process.communicate(timeout=timeout_seconds)
        return f"exit {process.returncode}", output
    except BaseException as error:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        if isinstance(error, subprocess.TimeoutExpired):
            return f"timed out after {timeout_seconds:g} s", "it printed nothing more"
        raise


def _first_line(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower()] or lines
    if not errors:
        return "it printed nothing"
    # The folder in front of it may be longer than all that there is room for.
    folder, slash, rest = errors[0].partition(": ")[0].rpartition("/")
    return errors[0].removeprefix(folder + slash)[:160] if rest else errors[0][:160]


def _kept(folder: Path, plan: _Plan) -> Path | None:
    for library in sorted(folder.glob(f"{plan.key}-*.so")):
        with contextlib.suppress(OSError):
            # A library is code that runs with our rights: only our own file is loaded, which matters under sudo.
            if library.stat().st_uid == os.geteuid() and library.stem.endswith(f"-{_digest(library)}"):
                return library
    return None


def _digest(library: Path) -> str:
    return hashlib.sha256(library.read_bytes()).hexdigest()[:24]


def _build(folder: Path, plan: _Plan, must_run: Callable[[Path], None]) -> Path:
    workshop = _workshop(folder)
    keep = workshop.parent == folder
    try:
        library = workshop / "torch_host.so"
        _compile(plan, library, folder if keep else None)
        must_run(library)
        if not keep:
            return library
        final = folder / f"{plan.key}-{_digest(library)}.so"
        try:
            library.replace(final)
        except OSError as error:
            raise AllocatorUnavailable(
                f"{final} can't be written: {error.strerror}", "`pinprobe cache clear`"
            ) from None
        return final
    finally:
        if keep:
            shutil.rmtree(workshop, ignore_errors=True)


def _workshop(folder: Path) -> Path:
    """Make a folder to build in: in the cache where that can be written, else one that goes with this process."""
    with contextlib.suppress(OSError):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix="building-", dir=folder))
    workshop = Path(tempfile.mkdtemp(prefix="pinprobe-"))
    atexit.register(shutil.rmtree, workshop, ignore_errors=True)
    return workshop


def _compile(plan: _Plan, library: Path, log_folder: Path | None) -> None:
    include, lib = plan.torch.folder / "include", plan.torch.folder / "lib"
    places = [f"-I{include}", f"-L{lib}", "-lc10", f"-Wl,-rpath,{lib}"]
    command = [*plan.compiler, *_FLAGS, str(_SOURCE), "-o", str(library), *places]
    status, output = _run(command, _COMPILER_TIMEOUT_SECONDS)
    if status != "exit 0" or not library.is_file():
        raise AllocatorUnavailable(*_compiler_failed(plan, command, output, status, log_folder))


def _compiler_failed(
    plan: _Plan, command: list[str], output: str, status: str, log_folder: Path | None
) -> tuple[str, str]:
    what = f"PyTorch's allocator of torch {plan.torch.version}"
    reason = f"{Path(plan.compiler[0]).name} could not compile {what} ({status}): {_first_line(output)}"
    if log_folder is None:
        return reason, "the cache folder can't be written, so no log was kept; PINPROBE_CACHE_DIR names another"
    log = log_folder / "build.log"
    log.write_text(" ".join(command) + "\n\n" + output, encoding="utf-8", errors="replace")
    return reason, f"the whole log is in {log}"
