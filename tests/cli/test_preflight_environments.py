"""What preflight says, tried by taking the memory for real: as root, as nobody, in a user namespace, in a cgroup."""

from __future__ import annotations

import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.cli.test_environments import (
    MemoryCgroup,
    has_capability,
    in_user_namespace,
    make_cgroup,
    need_tools,
    unprivileged,
)

if TYPE_CHECKING:
    from tests.cli.conftest import Pinprobe

#: pytest finds them in this module by their names.
FIXTURES = (in_user_namespace, make_cgroup, unprivileged)

_MEMLOCK_BYTES = 8 * 2**20
_CAP_IPC_LOCK = 14
# Takes its bytes as the tenants' allocator does, by the C library alone; ends with 1 where the kernel says no.
_LOCK = """
import ctypes, mmap, sys
size = int(sys.argv[1])
memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
sys.exit(1 if ctypes.CDLL(None).mlock(ctypes.c_void_p(address), ctypes.c_size_t(size)) else 0)
"""
_TOUCH = "import sys; memory = b'x' * int(sys.argv[1])"

Asking = Callable[[str, str, int], str]


@pytest.fixture
def asking() -> Iterator[Asking]:
    """Write a config of one tenant where other users can read it: its name, its allocator, its bytes."""
    with tempfile.TemporaryDirectory(prefix="pinprobe-preflight-") as name:
        folder = Path(name)
        folder.chmod(0o755)

        def write(owner: str, allocator: str, size_bytes: int) -> str:
            path = folder / f"{owner}-{size_bytes}.yaml"
            tenant = f"{owner}: {{kind: buffer, bytes: {size_bytes}, allocator: {allocator}}}"
            path.write_text(f"engine: {{name: mine}}\ntenants: {{{tenant}}}\n", encoding="utf-8")
            return str(path)

        yield write


def taken(command: Pinprobe, code: str, size_bytes: int) -> int:
    """Take so much where the command would run; return how that process ended."""
    words = [*command.before, command.interpreter, "-c", code, str(size_bytes)]
    return subprocess.run(words, env=command.environment, capture_output=True, check=False, timeout=60).returncode


def said(command: Pinprobe, config: str, check: str) -> tuple[int, dict[str, Any]]:
    """Return what preflight ends with, and its record of a check."""
    done = command("preflight", config, "--json")
    assert done.stderr == ""
    document = command.parsed(done.stdout)
    assert document["exit_code"] == done.returncode
    return done.returncode, next(each for each in document["checks"] if each["name"].startswith(check))


def tried(command: Pinprobe, asking: Asking, size_bytes: int) -> tuple[int, int]:
    """Ask and then lock: both end with 0 where so much may be locked, and with 1 where it may not."""
    exit_code, memlock = said(command, asking("cache.ring", "mlock", size_bytes), "RLIMIT_MEMLOCK")
    assert memlock["tenants"] == ["cache.ring"]
    assert memlock["state"] == ("error" if exit_code else "ok")
    assert "a real mlock" in memlock["reason"]
    assert "not what a GPU driver pins" in memlock["reason"]
    return exit_code, taken(command, _LOCK, size_bytes)


def test_root_may_lock_what_the_limit_forbids_and_is_told_so(pinprobe: Pinprobe, asking: Asking) -> None:
    need_tools("prlimit")
    limited = pinprobe.under("prlimit", f"--memlock={_MEMLOCK_BYTES}:{_MEMLOCK_BYTES}")
    expected = (0, 0) if has_capability(_CAP_IPC_LOCK) else (1, 1)
    assert tried(limited, asking, 3 * _MEMLOCK_BYTES) == expected


def test_an_ordinary_user_may_lock_up_to_the_limit_and_not_a_page_more(
    request: pytest.FixtureRequest, asking: Asking
) -> None:
    command: Pinprobe = request.getfixturevalue("unprivileged")
    assert tried(command, asking, _MEMLOCK_BYTES) == (0, 0)
    assert tried(command, asking, _MEMLOCK_BYTES + 4096) == (1, 1)


def test_the_root_of_a_user_namespace_is_held_to_the_limit_like_anyone(
    request: pytest.FixtureRequest, asking: Asking
) -> None:
    command: Pinprobe = request.getfixturevalue("in_user_namespace")
    assert tried(command, asking, _MEMLOCK_BYTES) == (0, 0)
    assert tried(command, asking, _MEMLOCK_BYTES + 4096) == (1, 1)


def test_the_command_for_a_short_limit_is_tried_and_mends_it(request: pytest.FixtureRequest, asking: Asking) -> None:
    command: Pinprobe = request.getfixturevalue("unprivileged")
    size = 6 * 2**20
    soft = replace(command, before=tuple(word.replace("=8388608:", "=4194304:") for word in command.before))
    exit_code, memlock = said(soft, asking("cache.ring", "mlock", size), "RLIMIT_MEMLOCK")
    assert (exit_code, taken(soft, _LOCK, size)) == (1, 1)
    assert memlock["remedy"] == "ulimit -l 6144"
    shell = "bash" if shutil.which("bash") else "sh"
    assert tried(soft.under(shell, "-c", f'{memlock["remedy"]} && exec "$@"', "sh"), asking, size) == (0, 0)


@pytest.mark.parametrize("who", ["root", pytest.param("nobody", marks=pytest.mark.slow)])
def test_what_a_cgroup_leaves_can_be_taken_and_more_of_it_is_killed(
    pinprobe: Pinprobe, request: pytest.FixtureRequest, asking: Asking, who: str
) -> None:
    made: Callable[[int], MemoryCgroup] = request.getfixturevalue("make_cgroup")
    inside: Pinprobe = pinprobe if who == "root" else request.getfixturevalue("unprivileged")
    cgroup = made(256 * 2**20)
    inside = replace(inside, before=(*cgroup.entrance, *inside.before))
    little, much = 128 * 2**20, 384 * 2**20
    exit_code, check = said(inside, asking("cache.pool", "pageable", little), "cgroup")
    assert (exit_code, check["state"], taken(inside, _TOUCH, little)) == (0, "ok", 0)
    exit_code, check = said(inside, asking("cache.pool", "pageable", much), "cgroup")
    assert (exit_code, check["state"], taken(inside, _TOUCH, much)) == (1, "error", -signal.SIGKILL)
    assert str(cgroup.folder) in check["source"]
    assert cgroup.oom_kill_count() == 1


def test_the_command_for_a_cgroup_is_tried_and_mends_it(
    pinprobe: Pinprobe, request: pytest.FixtureRequest, asking: Asking
) -> None:
    made: Callable[[int], MemoryCgroup] = request.getfixturevalue("make_cgroup")
    cgroup = made(128 * 2**20)
    inside = cgroup.holding(pinprobe)
    size = 192 * 2**20
    exit_code, check = said(inside, asking("cache.pool", "pageable", size), "cgroup")
    assert exit_code == 1
    number, _, file = check["remedy"].removeprefix("echo ").partition(" | sudo tee ")
    assert Path(file).parent == cgroup.folder
    Path(file).write_text(number, encoding="utf-8")
    # What the command itself takes while it looks, some 30 MiB, is not there for the tenant.
    assert said(inside, asking("cache.pool", "pageable", size - 16 * 2**20), "cgroup")[0] == 0
    assert taken(inside, _TOUCH, size) == 0
    assert cgroup.oom_kill_count() == 0
