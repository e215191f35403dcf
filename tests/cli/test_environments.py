"""Run for real as root, as an ordinary user, in memory cgroups and in a user namespace, where the machine allows it."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pinprobe.probes.host_tree import THIS_HOST
from pinprobe.probes.oom_kills import read_oom_kills

if TYPE_CHECKING:
    from tests.cli.conftest import Pinprobe

_NOBODY = 65534
_MEMLOCK_BYTES = 8 * 2**20
_SLOT = ("--slot-bytes", "154927104")
_CAP_IPC_LOCK = 14


def has_capability(number: int) -> bool:
    """Say whether this process has it in the host's own user namespace, the only place where it lifts a limit."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    effective = re.search(r"^CapEff:\s+(\w+)$", status, re.MULTILINE)
    whole_range = Path("/proc/self/uid_map").read_text(encoding="utf-8").split() == ["0", "0", "4294967295"]
    return effective is not None and bool(int(effective[1], 16) >> number & 1) and whole_range


def need_tools(*names: str) -> None:
    for name in names:
        if shutil.which(name) is None:
            pytest.skip(f"there is no {name} here")


# -- as root


def test_root_may_lock_more_than_the_limit(pinprobe: Pinprobe) -> None:
    need_tools("prlimit")
    if os.geteuid() or not has_capability(_CAP_IPC_LOCK):
        pytest.skip("not root with CAP_IPC_LOCK")
    limited = pinprobe.under("prlimit", f"--memlock={_MEMLOCK_BYTES}:{_MEMLOCK_BYTES}")
    trial = limited.json("probe", "--bytes", "64MiB", "--allocator", "mlock")
    assert trial["pinned"]["block_locked"]["bytes"] == 64 * 2**20
    assert trial["host"]["memlock_limit"] == f"soft {_MEMLOCK_BYTES}, hard {_MEMLOCK_BYTES}"


# -- as an ordinary user


@pytest.fixture(scope="module")
def unprivileged(pinprobe: Pinprobe) -> Iterator[Pinprobe]:
    """The command as a user without any right, who may lock 8 MiB, with a cache folder of his own."""
    need_tools("prlimit", "setpriv")
    before = ["prlimit", f"--memlock={_MEMLOCK_BYTES}:{_MEMLOCK_BYTES}"]
    if os.geteuid() == 0:
        before += ["setpriv", f"--reuid={_NOBODY}", f"--regid={_NOBODY}", "--clear-groups"]
    # Not below pytest's own folder, which is its user's alone.
    folder = Path(tempfile.mkdtemp(prefix="pinprobe-unprivileged-"))
    try:
        if os.geteuid() == 0:
            os.chown(folder, _NOBODY, _NOBODY)
        libraries = [path for path in sys.path if path.endswith("-packages")]
        settings = {"PYTHONPATH": os.pathsep.join([pinprobe.environment["PYTHONPATH"], *libraries])}
        settings |= {"HOME": "/nonexistent", "PYTHONDONTWRITEBYTECODE": "1"}
        command = replace(pinprobe, cache_folder=folder, before=tuple(before), settings=settings)
        yield replace(command, interpreter=interpreter_for(command))
    finally:
        shutil.rmtree(folder)


def interpreter_for(command: Pinprobe) -> str:
    """Find an interpreter of this version that this user may run, and that finds pinprobe and what it stands on.

    The one that runs the tests may lie in a folder that is closed to others.
    """
    # What setpriv can start, its user may not be able to start again, and the command starts itself for each child.
    code = (
        "import os, sys, click, platformdirs, psutil, rich, pinprobe.cli.main;"
        "sys.stdout.write('%d.%d' % sys.version_info[:2] if os.access(sys.executable, os.X_OK) else 'closed')"
    )
    mine = f"{sys.version_info[0]}.{sys.version_info[1]}"
    said = ""
    for candidate in (sys.executable, f"/usr/bin/python{mine}", f"/usr/local/bin/python{mine}", "/usr/bin/python3"):
        done = subprocess.run(
            [*command.before, candidate, "-c", code],
            env=command.environment, cwd="/", capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode == 0 and done.stdout == mine:
            return candidate
        said = said or done.stderr.strip() or f"{candidate} is {done.stdout}"
    pytest.skip(f"no other user can run pinprobe here: {said.splitlines()[-1] if said else 'no reason given'}")


def test_mlock_over_the_limit_names_the_limit_its_value_and_a_remedy(unprivileged: Pinprobe) -> None:
    line = unprivileged.refused("probe", "--bytes", "64MiB", "--allocator", "mlock", exit_code=3)
    assert "64.000 MiB is over RLIMIT_MEMLOCK, which is 8.000 MiB" in line
    assert re.search(r"`(prlimit|ulimit) .*`", line)


def test_a_sweep_of_mlock_measures_up_to_the_limit_and_then_names_it(unprivileged: Pinprobe) -> None:
    done = unprivileged("sweep", "--slot-bytes", "4MiB", "--slots", "1..3", "--allocator", "mlock", "--json")
    assert done.returncode == 3
    (sweep,) = unprivileged.parsed(done.stdout)["sweeps"]
    assert [point["state"] for point in sweep["points"]] == ["measured", "measured", "failed"]
    assert "12.000 MiB is over RLIMIT_MEMLOCK, which is 8.000 MiB" in sweep["points"][2]["reason"]
    assert "RLIMIT_MEMLOCK" in done.stderr


def test_mlock_within_the_limit_works_for_anyone(unprivileged: Pinprobe) -> None:
    trial = unprivileged.json("probe", "--bytes", "4MiB", "--allocator", "mlock")
    assert trial["pinned"]["ratio"] == pytest.approx(1, abs=0.002)
    assert trial["pinned"]["block_locked"]["bytes"] == 4 * 2**20


def test_a_soft_limit_that_the_user_can_raise_himself_has_the_remedy_that_does(unprivileged: Pinprobe) -> None:
    # The remedy is tried: said first, then done in a shell, then measured.
    soft = replace(unprivileged, before=tuple(word.replace("=8388608:", "=4194304:") for word in unprivileged.before))
    line = soft.refused("probe", "--bytes", "6MiB", "--allocator", "mlock", exit_code=3)
    remedy = re.search(r"`(ulimit -l \d+)` in this shell", line)
    assert remedy is not None, line
    raised = soft.under("bash" if shutil.which("bash") else "sh", "-c", f'{remedy[1]} && exec "$@"', "sh")
    trial = raised.json("probe", "--bytes", "6MiB", "--allocator", "mlock")
    assert trial["pinned"]["ratio"] == pytest.approx(1, abs=0.002)


def test_torch_host_touches_where_it_may_not_lock_and_says_so(torch_host: Pinprobe, unprivileged: Pinprobe) -> None:
    done = unprivileged("probe", "--bytes", "70MiB", "--allocator", "torch-host")
    assert done.returncode == 0, done.stderr
    assert "pinned touched, since mlock was refused" in " ".join(done.stdout.split())
    trial = unprivileged.json("probe", "--bytes", "70MiB", "--allocator", "torch-host")
    assert round(trial["pinned"]["ratio"], 3) == 1.829
    assert trial["pinned"]["block_locked"]["bytes"] == 0
    assert trial["again"]["ratio"] == 0.0


def test_torch_host_locks_what_the_limit_lets_it(torch_host: Pinprobe, unprivileged: Pinprobe) -> None:
    trial = unprivileged.json("probe", "--bytes", "3MiB", "--allocator", "torch-host")
    assert trial["pinned"]["note"] == "locked"
    assert trial["pinned"]["block_locked"]["bytes"] == 4 * 2**20


def test_a_library_that_another_user_left_is_not_loaded(torch_host: Pinprobe, unprivileged: Pinprobe) -> None:
    # A library is code. Where the cache folder is another's, this user compiles his own or says what is missing.
    if os.geteuid():
        pytest.skip("not root, so no file can be another's")
    theirs = unprivileged.cache_folder / "another" / "torch_host"
    shutil.copytree(torch_host.cache_folder / "torch_host", theirs)
    for path in (theirs.parent, theirs, *theirs.iterdir()):
        path.chmod(0o755)
    listed = sorted(theirs.iterdir())
    trial = unprivileged.given({"PINPROBE_CACHE_DIR": str(theirs.parent)}).json(
        "probe", "--bytes", "3MiB", "--allocator", "torch-host"
    )
    assert trial["pinned"]["block"]["bytes"] == 4 * 2**20
    assert sorted(theirs.iterdir()) == listed


# -- in a user namespace


@pytest.fixture
def in_user_namespace(pinprobe: Pinprobe) -> Pinprobe:
    """The command as the root of a user namespace: all capabilities by the look of it, and none over memory."""
    need_tools("unshare", "prlimit")
    before = ("prlimit", f"--memlock={_MEMLOCK_BYTES}:{_MEMLOCK_BYTES}", "unshare", "-Ur")
    tried = subprocess.run([*before, "true"], capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"no user namespace can be made here: {tried.stderr.strip()[:200]}")
    return pinprobe.under(*before)


def test_the_root_of_a_user_namespace_is_refused_mlock_like_anyone(in_user_namespace: Pinprobe) -> None:
    line = in_user_namespace.refused("probe", "--bytes", "64MiB", "--allocator", "mlock", exit_code=3)
    assert "64.000 MiB is over RLIMIT_MEMLOCK, which is 8.000 MiB" in line


def test_the_root_of_a_user_namespace_measures_torch_host_touched(
    torch_host: Pinprobe, in_user_namespace: Pinprobe
) -> None:
    trial = in_user_namespace.json("probe", "--bytes", "70MiB", "--allocator", "torch-host")
    assert trial["pinned"]["note"].startswith("touched")
    assert round(trial["pinned"]["ratio"], 3) == 1.829


# -- in a memory cgroup


@dataclass(frozen=True)
class MemoryCgroup:
    """A memory cgroup made for one test."""

    folder: Path
    version: int

    def holding(self, pinprobe: Pinprobe) -> Pinprobe:
        """The command inside of it."""
        return pinprobe.under(*self.entrance)

    @property
    def entrance(self) -> tuple[str, ...]:
        return ("sh", "-c", 'echo $$ >"$0" && exec "$@"', str(self.folder / "cgroup.procs"))

    def oom_kill_count(self) -> int:
        name = "memory.oom_control" if self.version == 1 else "memory.events"
        counted = re.search(r"^oom_kill (\d+)$", (self.folder / name).read_text(encoding="utf-8"), re.MULTILINE)
        if counted is None:
            pytest.skip("this kernel counts no OOM kills in a cgroup")
        return int(counted[1])

    def remove(self) -> None:
        """End what is still in it, which is ours alone, and remove it."""
        for _ in range(100):
            for pid in (self.folder / "cgroup.procs").read_text(encoding="utf-8").split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            with contextlib.suppress(OSError):
                self.folder.rmdir()
                return
            time.sleep(0.05)
        raise AssertionError(f"{self.folder} can't be removed")


@pytest.fixture
def make_cgroup() -> Iterator[Callable[[int], MemoryCgroup]]:
    """Make memory cgroups with a limit; they go at the test's end."""
    made: list[MemoryCgroup] = []
    names = (f"pinprobe-test-{os.getpid()}-{number}" for number in itertools.count())

    def make(limit_bytes: int) -> MemoryCgroup:
        top, version = memory_hierarchy()
        folder = top / next(names)
        try:
            folder.mkdir()
        except OSError as error:
            pytest.skip(f"no memory cgroup can be made in {top}: {error.strerror}")
        made.append(MemoryCgroup(folder, version))
        limit = folder / ("memory.limit_in_bytes" if version == 1 else "memory.max")
        if not limit.exists():
            pytest.skip(f"{top} does not hand its memory controller on")
        limit.write_text(str(limit_bytes), encoding="utf-8")
        if (folder / "memory.swap.max").exists():
            (folder / "memory.swap.max").write_text("0", encoding="utf-8")
        return made[-1]

    yield make
    for cgroup in made:
        cgroup.remove()


def memory_hierarchy() -> tuple[Path, int]:
    """Return where memory cgroups can be made, and of which version they are."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines()]
    for _, folder, kind, options, *_ in mounts:
        if kind == "cgroup" and "memory" in options.split(","):
            return Path(folder), 1
    for _, folder, kind, *_ in mounts:
        if kind == "cgroup2":
            return Path(folder), 2
    pytest.skip("no memory cgroup is mounted here")


def test_under_a_limit_of_2_gib_the_small_cliffs_are_measured_and_nothing_is_killed(
    torch_host: Pinprobe, make_cgroup: Callable[[int], MemoryCgroup], need_room: Callable[[int], None]
) -> None:
    need_room(3 * 2**30)
    cgroup = make_cgroup(2 * 2**30)
    arguments = ("sweep", *_SLOT, "--slots", "1..16", "--allocator", "torch-host")
    document = cgroup.holding(torch_host).json(*arguments)
    (sweep,) = document["sweeps"]
    cliffs = {cliff["slots"]: cliff["measured"] for cliff in sweep["cliffs"]}
    assert cliffs == {2: True, 4: True, 7: False, 14: False}
    assert str(cgroup.folder) in sweep["allowance"]["origin"]
    assert sweep["peak_bytes"] <= sweep["allowance"]["bytes"] < 2 * 2**30
    assert cgroup.oom_kill_count() == 0


def test_a_limit_too_small_for_one_slot_is_told_before_memory_is_taken(
    torch_host: Pinprobe, make_cgroup: Callable[[int], MemoryCgroup]
) -> None:
    cgroup = make_cgroup(128 * 2**20)
    done = cgroup.holding(torch_host)("sweep", *_SLOT, "--slots", "1..4", "--allocator", "torch-host")
    assert done.returncode == 3
    assert str(cgroup.folder) in "".join((done.stdout + done.stderr).split())
    assert cgroup.oom_kill_count() == 0


@pytest.mark.parametrize("allocator", ["pageable", "mlock", "torch-host"])
def test_a_bound_larger_than_the_cgroup_does_not_lift_the_cgroups(
    torch_host: Pinprobe, make_cgroup: Callable[[int], MemoryCgroup], allocator: str
) -> None:
    cgroup = make_cgroup(256 * 2**20)
    arguments = ("sweep", "--slot-bytes", "20MiB", "--slots", "1..64", "--allocator", allocator, "--at-most", "1GiB")
    (sweep,) = cgroup.holding(torch_host).json(*arguments)["sweeps"]
    assert sweep["points"][0]["state"] == "measured"
    assert sweep["points"][-1]["state"] in ("predicted", "not measured")
    assert cgroup.oom_kill_count() == 0


# The one way past the allowance: a child that is told no limit.
_TOO_MUCH = """
from pinprobe.probes.allocators.pageable import Pageable
from pinprobe.probes.errors import ChildDied
from pinprobe.probes.measuring_child import MeasuringChild
try:
    with MeasuringChild(Pageable()) as child:
        child.measure(2**30)
except ChildDied as death:
    print(death)
"""


def test_an_oom_kill_is_told_as_one_with_its_proof(
    pinprobe: Pinprobe, make_cgroup: Callable[[int], MemoryCgroup], need_room: Callable[[int], None]
) -> None:
    need_room(2**30)
    cgroup = make_cgroup(256 * 2**20)
    command = [*cgroup.entrance, sys.executable, "-c", _TOO_MUCH]
    done = subprocess.run(command, env=pinprobe.environment, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "the OOM killer ended the measuring process" in done.stdout
    assert f"{cgroup.folder}/" in done.stdout
    assert "oom_kill 0 -> 1" in done.stdout
    assert cgroup.oom_kill_count() == 1


def test_the_room_of_a_cgroup_is_named_in_the_refusal(
    pinprobe: Pinprobe, make_cgroup: Callable[[int], MemoryCgroup]
) -> None:
    cgroup = make_cgroup(256 * 2**20)
    line = cgroup.holding(pinprobe).refused("probe", "--bytes", "1GiB", "--allocator", "pageable", exit_code=3)
    assert str(cgroup.folder) in line


def test_an_oom_kill_elsewhere_on_the_host_proves_nothing_of_our_own(
    pinprobe: Pinprobe, make_cgroup: Callable[[int], MemoryCgroup], need_room: Callable[[int], None]
) -> None:
    # /proc/vmstat counts for the whole host. Where the own cgroup's count can be read, it did not move here.
    need_room(2**30)
    before = read_oom_kills(THIS_HOST)
    if list(before.by_source)[:1] in ([], ["/proc/vmstat"]):
        pytest.skip("this process's own cgroup counts no OOM kills")
    cgroup = make_cgroup(64 * 2**20)
    eat = [*cgroup.entrance, sys.executable, "-c", "print(len(b'x' * 2**28))"]
    assert subprocess.run(eat, capture_output=True, check=False).returncode == -signal.SIGKILL
    assert cgroup.oom_kill_count() == 1
    assert read_oom_kills(THIS_HOST).proof_since(before) is None


# -- a ledger in all of these


@pytest.fixture
def config() -> Iterator[Callable[[str], str]]:
    """Write a config where other users can read it too."""
    with tempfile.TemporaryDirectory(prefix="pinprobe-config-") as name:
        folder = Path(name)
        folder.chmod(0o755)

        def write(tenants: str) -> str:
            (folder / "c.yaml").write_text(f"engine: {{name: mine}}\ntenants: {{{tenants}}}\n", encoding="utf-8")
            return str(folder / "c.yaml")

        yield write


def test_a_ledger_holds_each_tenant_against_the_cgroup_and_nothing_is_killed(
    pinprobe: Pinprobe, make_cgroup: Callable[[int], MemoryCgroup], config: Callable[[str], str], tmp_path: Path
) -> None:
    cgroup = make_cgroup(256 * 2**20)
    path = config(
        "a.first: {kind: buffer, bytes: 64 MiB, allocator: pageable},"
        " b.second: {kind: buffer, bytes: 400 MiB, allocator: pageable}"
    )
    line = cgroup.holding(pinprobe).refused("ledger", path, "--book-dir", str(tmp_path), exit_code=1)
    assert "b.second asks for 0.391 GiB" in line
    assert f"{cgroup.folder} leaves 0.1" in line
    assert "the largest request that fits now is 0.1" in line
    assert cgroup.oom_kill_count() == 0


def test_a_ledger_takes_no_block_that_the_cgroup_does_not_hold_though_the_ask_would_fit(
    torch_host: Pinprobe, make_cgroup: Callable[[int], MemoryCgroup], config: Callable[[str], str], tmp_path: Path
) -> None:
    # 148 MiB are asked and there; the block is 256 MiB and is not. This is what the tool exists for.
    cgroup = make_cgroup(256 * 2**20)
    path = config("cache.ring: {kind: buffer, bytes: 154_927_104, allocator: torch-host}")
    line = cgroup.holding(torch_host).refused("ledger", path, "--book-dir", str(tmp_path), exit_code=1)
    assert "cache.ring asks for 0.144 GiB" in line
    assert str(cgroup.folder) in line
    assert cgroup.oom_kill_count() == 0


def test_a_ledger_books_what_an_ordinary_user_may_only_touch(
    torch_host: Pinprobe, unprivileged: Pinprobe, config: Callable[[str], str]
) -> None:
    path = config("cache.ring: {kind: buffer, bytes: 70 MiB, allocator: torch-host}")
    book = str(unprivileged.cache_folder / "book")
    document = unprivileged.json("ledger", path, "--book-dir", book, "-q")
    (ring,) = (row for row in document["rows"] if row["state"] == "reserved")
    assert (ring["asked_bytes"], ring["booked_bytes"]) == (70 * 2**20, 128 * 2**20)
    assert (ring["resident"]["bytes"], ring["measured"], ring["holds"]) == (128 * 2**20, True, True)
    assert document["host"]["memlock_limit"].startswith(f"soft {_MEMLOCK_BYTES}")


def test_a_ledger_of_an_ordinary_user_gives_the_first_back_where_the_second_may_not_be_locked(
    unprivileged: Pinprobe, config: Callable[[str], str]
) -> None:
    # Each is within RLIMIT_MEMLOCK, and both together are not.
    tenants = "a.first: {kind: buffer, bytes: 5 MiB, allocator: mlock}, b.second: {kind: buffer, bytes: 6 MiB"
    book = unprivileged.cache_folder / "book"
    line = unprivileged.refused(
        "ledger", config(f"{tenants}, allocator: mlock}}"), "--book-dir", str(book), exit_code=3
    )
    assert "mlock of 6.000 MiB is over RLIMIT_MEMLOCK, which is 8.000 MiB" in line
    assert {path.name for path in book.iterdir()} == {"book.lock"}


def test_a_ledgers_book_that_is_another_users_alone_is_refused(
    unprivileged: Pinprobe, config: Callable[[str], str]
) -> None:
    if os.geteuid():
        pytest.skip("not root, so no folder can be another's")
    path = config("a.first: {kind: buffer, bytes: 1 MiB, allocator: pageable}")
    theirs = Path(path).parent
    line = unprivileged.refused("ledger", path, "--book-dir", str(theirs))
    assert f"{theirs} belongs to user 0 alone" in line
