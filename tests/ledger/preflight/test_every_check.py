"""Each check as it is fine, failing, unreadable and absent, on a host of whole real texts with one thing changed."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from pinprobe.ledger.preflight.check import State, exit_code_of
from pinprobe.ledger.preflight.needs import Needs
from pinprobe.ledger.preflight.preflight import check_limits
from pinprobe.probes.limits.limit import Absent, LimitKind
from pinprobe.probes.limits.read_limits import read_limits
from pinprobe.probes.limits.recorded_tree import recorded_tree
from pinprobe.probes.reading import Unreadable
from tests.ledger.preflight.made_hosts import (
    AMD,
    FIXTURES,
    GIB,
    MIB,
    NO_BOOK,
    NVIDIA,
    TTM,
    Texts,
    buffer,
    checked,
    large_host,
    made_host,
    meminfo,
    needs_from,
    saved_text,
)

_SERVICE = "/sys/fs/cgroup/a.slice/b.service"
_ENABLED = "/sys/kernel/mm/transparent_hugepage/enabled"
_MOUNTS = saved_text("/proc/self/mountinfo")
_SHM = "35 27 0:30 / /dev/shm rw,nosuid,nodev - tmpfs tmpfs rw,size=65536k\n"
_POOL = {"/proc/meminfo": saved_text("/proc/meminfo", "gpu_process")}
_GVISOR = saved_text("/proc/version", "sandbox_gvisor")
_TWO_NODES = saved_text("/proc/zoneinfo") + saved_text("/proc/zoneinfo").replace("Node 0,", "Node 1,")
# The saved process may use node 0 alone, by its Mems_allowed_list.
_ON_ONE = {"/proc/zoneinfo": _TWO_NODES}
_NVIDIA_FILE = "/proc/driver/nvidia/version"
_WSL = {"/proc/sys/kernel/osrelease": "5.15.167.4-microsoft-standard-WSL2\n"}
_STRICT = {"/proc/sys/vm/overcommit_memory": "2\n"}
_OVERFLOW = (
    "cache.pool: {kind: retention_pool, regions: 1, overflow_dir: /dev/shm/spill, overflow_bytes: 128 MiB,"
    " layout: [{name: s, shape: [4096], dtype: float32}]}"
)

_COMMANDS = {"echo", "sudo", "ulimit", "pinprobe", "ps", "numactl", "oomctl", "grep"}

OK, ADVICE, ERROR, UNREADABLE = State.OK, State.ADVICE, State.ERROR, State.UNREADABLE


@dataclass(frozen=True)
class Case:
    """The state of a check where these texts are as given and a config has these tenants."""

    check: str
    sort: str
    state: State
    tenants: str
    texts: Texts = field(default_factory=dict)
    is_bound: bool = True
    ranks: int = 1

    def __str__(self) -> str:
        return f"{self.check}-{self.sort}".replace(" ", "_")


_SMALL, _LARGE = buffer("64 MiB", "pageable"), buffer("512 MiB", "pageable")
_LOCKED, _LOCKED_MORE = buffer("4 MiB", "mlock"), buffer("12 MiB", "mlock")
_IN_POOL, _MORE_THAN_THE_POOL = buffer("256 MiB", "registered-hugetlb"), buffer("2 GiB", "registered-hugetlb")
_BY_DRIVER, _FEW = buffer("140 GiB", "torch"), buffer("1 GiB", "torch")
_REGISTERED = buffer("64 MiB", "registered")

CASES = [
    Case("MemAvailable", "ok", OK, _SMALL),
    Case("MemAvailable", "failing", ERROR, buffer("1 GiB", "pageable")),
    Case("MemAvailable", "unreadable", UNREADABLE, _SMALL, {"/proc/meminfo": "MemAvailable: lots kB\n"}),
    Case("MemFree", "absent", OK, _SMALL, {"/proc/meminfo": "MemTotal: 982976 kB\nMemFree: 738876 kB\n"}),
    Case("cgroup v2", "ok", OK, _SMALL),
    Case("cgroup v2", "failing", ERROR, _LARGE),
    Case("cgroup v2", "unreadable", UNREADABLE, _SMALL, {f"{_SERVICE}/memory.high": "?\n"}),
    Case("cgroup v2", "absent", OK, _SMALL, {"/proc/self/cgroup": "0::/\n"}, is_bound=False),
    Case("cgroup", "absent altogether", OK, _SMALL, {"/proc/self/mountinfo": "1 1 0:1 / / rw - ext4 /dev/vda rw\n"},
         is_bound=False),
    Case("cgroup", "unreadable altogether", UNREADABLE, _SMALL, {"/proc/self/cgroup": None}),
    Case("overcommit", "ok", OK, _SMALL, is_bound=False),
    Case("overcommit", "failing", ERROR, _SMALL, {**_STRICT, "/proc/meminfo": meminfo(CommitLimit=96 * MIB)}),
    Case("overcommit", "strict and enough", OK, _SMALL, {**_STRICT, "/proc/meminfo": meminfo(CommitLimit=GIB)}),
    Case("overcommit", "unreadable", UNREADABLE, _SMALL, {"/proc/sys/vm/overcommit_memory": "many\n"}),
    Case("overcommit", "absent", OK, _SMALL, {"/proc/sys/vm/overcommit_memory": "1\n"}, is_bound=False),
    Case("NUMA nodes", "ok", OK, _SMALL, _ON_ONE),
    Case("NUMA nodes", "failing", ERROR, buffer("1 GiB", "pageable"), _ON_ONE),
    Case("NUMA nodes", "unreadable", UNREADABLE, _SMALL, {"/proc/zoneinfo": "Node 0, zone Normal\n"}, is_bound=False),
    Case("NUMA nodes", "absent", OK, _SMALL, is_bound=False),
    Case("RLIMIT_MEMLOCK", "ok", OK, _LOCKED),
    Case("RLIMIT_MEMLOCK", "failing", ERROR, _LOCKED_MORE),
    Case("RLIMIT_MEMLOCK", "unreadable", UNREADABLE, _LOCKED, {"/proc/self/limits": "Max locked memory   ?   ?\n"}),
    Case("RLIMIT_MEMLOCK", "absent", OK, _LOCKED_MORE,
         {"/proc/self/limits": saved_text("/proc/self/limits", "gpu_process")}),
    Case("hugepages 2 MiB", "ok", OK, _IN_POOL, _POOL),
    Case("hugepages 2 MiB", "failing", ERROR, _MORE_THAN_THE_POOL, _POOL),
    Case("hugepages 2 MiB", "unreadable", UNREADABLE, _IN_POOL,
         {"/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages": "?\n"}),
    Case("hugepages", "absent", ERROR, _IN_POOL,
         {"/proc/meminfo": saved_text("/proc/meminfo", "sandbox_gvisor").replace("Hugepagesize", "Other")}),
    Case("ttm pages_limit", "ok", OK, _BY_DRIVER, {**AMD, TTM: "52428800\n"}),
    Case("ttm pages_limit", "failing", ERROR, _BY_DRIVER, AMD),
    Case("ttm pages_limit", "unreadable", UNREADABLE, _BY_DRIVER, {**AMD, TTM: "half\n"}),
    Case("ttm pages_limit", "absent", OK, _BY_DRIVER, is_bound=False),
    Case("ttm pages_limit", "unreadable in a tree without sys", UNREADABLE, _BY_DRIVER, {"/sys/module": None}),
    Case("amdttm pages_limit", "failing", ERROR, _BY_DRIVER,
         {"/sys/module/amdttm/parameters/pages_limit": "33554432\n", **AMD, TTM: "52428800\n"}),
    Case("ttm pages_limit", "not the one that is gone by", OK, _BY_DRIVER,
         {"/sys/module/amdttm/parameters/pages_limit": "52428800\n", **AMD}, is_bound=False),
    Case("ttm pages_limit", "there for a display only", OK, _BY_DRIVER,
         {TTM: "33554432\n", _NVIDIA_FILE: NVIDIA}, is_bound=False),
    Case("GTT card1", "ok", OK, _FEW, AMD, is_bound=False),
    Case("GTT card1", "failing", ADVICE, _BY_DRIVER, AMD, is_bound=False),
    Case("GTT card1", "unreadable", UNREADABLE, _FEW,
         {**AMD, "/sys/class/drm/card1/device/mem_info_gtt_total": "?\n"}, is_bound=False),
    Case("GTT", "absent", OK, _FEW, is_bound=False),
    Case("per-call ceiling", "ok", OK, buffer("511.96875 GiB", "registered"), {_NVIDIA_FILE: NVIDIA}),
    Case("per-call ceiling", "failing", ERROR, buffer("512.15625 GiB", "registered"), {_NVIDIA_FILE: NVIDIA}),
    Case("per-call ceiling", "failing where torch may register", ADVICE, buffer("600 GiB", "torch"),
         {_NVIDIA_FILE: NVIDIA}, is_bound=False),
    Case("per-call ceiling", "none known of an older driver", OK, buffer("600 GiB", "registered"),
         {_NVIDIA_FILE: NVIDIA.replace("580.159.04", "570.86.10")}),
    Case("per-call ceiling", "refused once by ROCm", ADVICE, buffer("531_470_745_600", "registered"), AMD,
         is_bound=False),
    Case("per-call ceiling", "unreadable", UNREADABLE, _REGISTERED, {_NVIDIA_FILE: "NVRM version: unknown\n"}),
    Case("per-call ceiling", "absent", OK, _REGISTERED),
    Case("/dev/shm", "ok", OK, _OVERFLOW, {"/proc/self/mountinfo": _MOUNTS + _SHM.replace("65536k", "1048576k")}),
    Case("/dev/shm", "failing", ERROR, _OVERFLOW, {"/proc/self/mountinfo": _MOUNTS + _SHM}),
    Case("/dev/shm", "unreadable", UNREADABLE, _OVERFLOW,
         {"/proc/self/mountinfo": _MOUNTS + _SHM.replace("tmpfs tmpfs", "ext4 /dev/vda")}),
    Case("/dev/shm", "absent", ERROR, _OVERFLOW),
    Case("/dev/shm", "absent and nobody's", OK, _SMALL, is_bound=False),
    Case("/dev/shm", "small for several ranks", ADVICE, _SMALL, {"/proc/self/mountinfo": _MOUNTS + _SHM},
         is_bound=False, ranks=2),
    Case("huge page mode", "ok", OK, _REGISTERED, is_bound=False),
    Case("huge page mode", "failing", ADVICE, _REGISTERED, {_ENABLED: "always madvise [never]\n"}, is_bound=False),
    Case("huge page mode", "unreadable", UNREADABLE, _REGISTERED, {_ENABLED: "always madvise never\n"}, is_bound=False),
    Case("huge page mode", "absent", OK, _REGISTERED, {"/sys/kernel/mm/transparent_hugepage": None}, is_bound=False),
    Case("swap", "ok", OK, _SMALL, is_bound=False),
    Case("swap", "failing", ADVICE, _SMALL, {"/proc/meminfo": meminfo(SwapTotal=GIB, SwapFree=GIB)}, is_bound=False),
    Case("swap", "of no pageable tenant", OK, _LOCKED, {"/proc/meminfo": meminfo(SwapTotal=GIB)}, is_bound=False),
    Case("swap", "unreadable", UNREADABLE, _SMALL, {"/proc/meminfo": "MemTotal: 982976 kB\n"}, is_bound=False),
    Case("OOM daemons", "failing", ADVICE, _SMALL, {"/proc/812/comm": "earlyoom\n"}, is_bound=False),
    Case("OOM daemons", "failing by pressure", ADVICE, _SMALL, {"/proc/812/comm": "systemd-oomd\n"}, is_bound=False),
    Case("OOM daemons", "unreadable", UNREADABLE, _SMALL, {"/proc/1": None}, is_bound=False),
    Case("OOM daemons", "absent", OK, _SMALL, is_bound=False),
    Case("oom_score_adj", "ok", OK, _SMALL, {"/proc/self/oom_score_adj": "-998\n"}, is_bound=False),
    Case("oom_score_adj", "failing", ADVICE, _SMALL, {"/proc/self/oom_score_adj": "1000\n"}, is_bound=False),
    Case("oom_score_adj", "unreadable", UNREADABLE, _SMALL, {"/proc/self/oom_score_adj": "low\n"}, is_bound=False),
    Case("oom_score_adj", "absent", UNREADABLE, _SMALL, {"/proc/self/oom_score_adj": None}, is_bound=False),
    Case("ranks started", "ok", OK, _SMALL, {"/proc/self/environ": "LOCAL_WORLD_SIZE=2\0"}, is_bound=False, ranks=2),
    Case("ranks started", "failing", ADVICE, _SMALL, {"/proc/self/environ": "A=1\0LOCAL_WORLD_SIZE=4\0"},
         is_bound=False, ranks=2),
    Case("ranks started", "unreadable", UNREADABLE, _SMALL, {"/proc/self/environ": "LOCAL_WORLD_SIZE=all\0"},
         is_bound=False),
    Case("ranks started", "absent", OK, _SMALL, is_bound=False),
    Case("surroundings", "absent", OK, _SMALL, is_bound=False),
    Case("surroundings", "a container", OK, _SMALL, {"/.dockerenv": ""}, is_bound=False),
    Case("surroundings", "a pod", OK, _SMALL, {"/proc/self/cgroup": "0::/kubepods.slice/pod1\n"}, is_bound=False),
    Case("surroundings", "gVisor", ADVICE, _SMALL, {"/proc/version": _GVISOR}, is_bound=False),
    Case("surroundings", "WSL and little", OK, buffer("512 MiB", "torch"), _WSL),
    Case("surroundings", "WSL and what may fail", ADVICE, buffer("1500 MiB", "torch"), _WSL),
    Case("surroundings", "failing", ERROR, buffer("3 GiB", "torch"), _WSL),
    Case("surroundings", "WSL binds no mlock", OK, buffer("3 GiB", "mlock"), _WSL),
    Case("surroundings", "unreadable", UNREADABLE, _SMALL,
         {"/proc/version": None, "/proc/sys/kernel/osrelease": None, "/proc/self/cgroup": None}, is_bound=False),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_check_is_what_the_texts_say(case: Case, tmp_path: Path) -> None:
    tree = made_host(tmp_path, case.texts)
    check = checked(tree, needs_from(tmp_path, case.tenants, case.ranks))[case.check]
    assert check.state is case.state, check
    assert check.reason or check.state is OK
    assert not check.remedy or shlex.split(check.remedy)[0] in _COMMANDS, "a remedy is a command to copy"
    assert check.remedy or check.state is not ERROR or isinstance(check.value, Absent)
    assert isinstance(check.value, Unreadable) == (case.state is UNREADABLE)
    assert not (case.is_bound and not check.tenants and check.state in (ERROR, UNREADABLE))
    assert bool(check.tenants) or check.state is not ERROR, "only what binds a tenant may fail"
    assert case.is_bound or not check.tenants, "it binds nobody"
    without = checked(tree, Needs())[case.check]
    assert without.state is not ERROR, "without a config nothing can fail"
    assert (without.need_bytes, without.tenants) == (None, ())


@pytest.mark.parametrize("name", sorted({case.check for case in CASES} - {"MemFree", "amdttm pages_limit"}))
def test_every_check_is_seen_failing_unreadable_and_absent(name: str) -> None:
    """Where one can't be absent or can't fail, that is because the kernel always has it or because it is advice."""
    sorts = {case.sort.split(" ")[0] for case in CASES if name.split(" ")[0] == case.check.split(" ")[0]}
    assert {"failing", "unreadable"} <= sorts
    always_there = {"MemAvailable", "swap"}
    assert "absent" in sorts or name in always_there


@pytest.mark.parametrize("saved", sorted(path.name for path in FIXTURES.iterdir()))
def test_saved_hosts_of_every_sort_are_read_whole(saved: str) -> None:
    checks = check_limits(read_limits(recorded_tree(FIXTURES / saved)), Needs(), NO_BOOK)
    assert len(checks) >= len(LimitKind)
    assert all(check.source or check.kind is None for check in checks)
    assert exit_code_of(checks) == 0


@pytest.mark.parametrize("saved", ["cgroup_v2", "cgroup_hybrid", "container_v1"])
@pytest.mark.parametrize("damaged", ["", "\0" * 100, "35 27 0:30 / /dev/sh"])
def test_mounts_that_are_damaged_hide_no_cgroup(saved: str, damaged: str, tmp_path: Path) -> None:
    tree = made_host(tmp_path, {"/proc/self/mountinfo": damaged}, saved)
    cgroup = checked(tree, needs_from(tmp_path, buffer("1 MiB", "pageable")))["cgroup"]
    assert cgroup.state is UNREADABLE
    assert cgroup.tenants == ("cache.store",)


@pytest.mark.parametrize("saved", ["cgroup_v2", "container_v1"])
def test_numbers_that_are_all_nothing_give_checks_and_never_an_error(saved: str, tmp_path: Path) -> None:
    # Damaged bytes are tried at random elsewhere; a text of the right form with only zeros in it hardly comes up there.
    host = made_host(tmp_path, {**AMD, "/sys/kernel/mm/hugepages/hugepages-0kB/free_hugepages": "1\n"}, saved)
    needs = needs_from(tmp_path, buffer("1 MiB", "registered-hugetlb"))
    for path in [path for path in host.root.rglob("*") if path.is_file()]:
        before = path.read_bytes()
        path.write_bytes(re.sub(rb"[0-9]+", b"0", before))
        for some in (needs, Needs()):
            assert exit_code_of(check_limits(read_limits(host), some, NO_BOOK)) in (0, 1, 3), path
        path.write_bytes(before)


def test_what_is_absent_binds_nobody(tmp_path: Path) -> None:
    for check in checked(made_host(tmp_path, large_host(512 * GIB)), needs_from(tmp_path, _BY_DRIVER)).values():
        assert not (isinstance(check.value, Absent) and check.tenants)
