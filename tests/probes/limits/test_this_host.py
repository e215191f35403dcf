"""The limits of this host, held against a second source; none of them is changed by being read."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import psutil
import pytest

from pinprobe.probes.counters import read_counters
from pinprobe.probes.host_tree import THIS_HOST, HostTree
from pinprobe.probes.limits.limit import Absent, Limit, LimitKind, Words
from pinprobe.probes.limits.read_limits import read_limits
from pinprobe.probes.limits.registration import registration_limit
from pinprobe.probes.reading import Reading, Unreadable


@pytest.fixture(scope="module")
def limits() -> dict[LimitKind, Limit]:
    found: dict[LimitKind, Limit] = {}
    for limit in read_limits(THIS_HOST):
        found.setdefault(limit.kind, limit)
    return found


def bytes_of(limit: Limit) -> int:
    assert isinstance(limit.value, Reading), limit
    return limit.value.bytes


def test_every_kind_of_limit_is_asked_for(limits: dict[LimitKind, Limit]) -> None:
    assert set(limits) == set(LimitKind)


def test_memory_and_swap_agree_with_psutil(limits: dict[LimitKind, Limit]) -> None:
    assert limits[LimitKind.MEMORY].parts["total"].bytes == psutil.virtual_memory().total
    assert 0 < bytes_of(limits[LimitKind.MEMORY]) <= psutil.virtual_memory().total
    assert bytes_of(limits[LimitKind.SWAP]) == psutil.swap_memory().total


def test_the_proof_of_memlock_leaves_nothing_locked(limits: dict[LimitKind, Limit]) -> None:
    before = read_counters(THIS_HOST)["VmLck"]
    again = next(limit for limit in read_limits(THIS_HOST) if limit.kind is LimitKind.MEMLOCK)
    assert read_counters(THIS_HOST)["VmLck"] == before
    assert "a real mlock" in again.note
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if soft != resource.RLIM_INFINITY:
        assert again.parts["soft"].bytes == soft
    assert isinstance(again.value, Words) or bytes_of(again) <= soft


def test_shared_memory_agrees_with_its_file_system(limits: dict[LimitKind, Limit]) -> None:
    limit = limits[LimitKind.SHARED_MEMORY]
    if not isinstance(limit.value, Reading):
        pytest.skip(f"/dev/shm: {limit.value}")
    found = os.statvfs("/dev/shm")
    assert limit.parts["total"].bytes == found.f_blocks * found.f_frsize
    assert bytes_of(limit) <= limit.parts["total"].bytes


def test_the_nodes_are_those_that_sysfs_lists(limits: dict[LimitKind, Limit]) -> None:
    folder = Path("/sys/devices/system/node")
    if not folder.is_dir():
        pytest.skip("this kernel shows no nodes")
    with_memory = (folder / "has_memory").read_text(encoding="utf-8").strip()
    value = limits[LimitKind.NUMA].value
    assert (value == Words("1 node", 1)) == with_memory.isdigit()


def test_a_driver_that_is_not_there_has_no_limits(limits: dict[LimitKind, Limit]) -> None:
    if Path("/sys/module/amdgpu").exists() or Path("/proc/driver/nvidia").exists():
        pytest.skip("this host has a GPU's driver")
    assert isinstance(limits[LimitKind.GTT].value, Absent)
    assert isinstance(limits[LimitKind.REGISTRATION].value, Absent)


# What single lines mean.


def one(tree: HostTree, kind: LimitKind) -> Limit:
    return next(limit for limit in read_limits(tree) if limit.kind is kind)


def written(folder: Path, texts: dict[str, str]) -> HostTree:
    for name, text in texts.items():
        path = folder / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return HostTree(folder, page_size_bytes=4096)


@pytest.mark.parametrize(
    ("words", "percent"),
    [("-m\0" + "5", 5), ("-m5,3", 5), ("-r\0" + "60", 10), ("-m\0" + "x", 10), ("", 10), ("-m", 10)],
)
def test_earlyoom_kills_at_the_percent_that_it_was_told(words: str, percent: int, tmp_path: Path) -> None:
    texts = {
        "/proc/7/comm": "earlyoom\n",
        "/proc/7/cmdline": f"earlyoom\0{words}\0",
        "/proc/meminfo": "MemTotal: 1000 kB\n",
    }
    limit = one(written(tmp_path, texts), LimitKind.OOM_DAEMON)
    assert limit.parts["kept_free"].bytes == 1000 * 1024 * percent // 100


def test_a_size_that_the_kernel_leaves_out_is_half_of_the_memory(tmp_path: Path) -> None:
    mounts = "25 1 0:23 / /dev/shm rw - tmpfs tmpfs rw,inode64\n"
    texts = {"/proc/self/mountinfo": mounts, "/proc/meminfo": "MemTotal: 1000 kB\n"}
    assert bytes_of(one(written(tmp_path, texts), LimitKind.SHARED_MEMORY)) == 500 * 1024


def test_of_two_mounts_at_one_place_the_upper_one_counts(tmp_path: Path) -> None:
    line = "25 1 0:23 / /dev/shm rw - tmpfs tmpfs rw,size={}k\n"
    tree = written(tmp_path, {"/proc/self/mountinfo": line.format(4) + line.format(8)})
    assert bytes_of(one(tree, LimitKind.SHARED_MEMORY)) == 8 * 1024


def test_pages_limit_counts_pages_of_4_kib_whatever_the_hosts_pages_are(tmp_path: Path) -> None:
    written(tmp_path, {"/sys/module/ttm/parameters/pages_limit": "1000\n"})
    assert bytes_of(one(HostTree(tmp_path, page_size_bytes=65536), LimitKind.TTM)) == 4_096_000


def test_what_the_cards_took_already_is_off_the_limit_and_connectors_are_no_cards(tmp_path: Path) -> None:
    texts = {"/sys/module/ttm/parameters/pages_limit": "1000\n"}
    for card, used in (("card0", 4096), ("card1", 8192), ("card1-DP-1", 2**30)):
        texts[f"/sys/class/drm/{card}/device/mem_info_gtt_used"] = f"{used}\n"
        texts[f"/sys/class/drm/{card}/device/mem_info_gtt_total"] = f"{2**40}\n"
    tree = written(tmp_path, texts)
    assert bytes_of(one(tree, LimitKind.TTM)) == 4_096_000 - 12_288
    assert [limit.name for limit in read_limits(tree) if limit.kind is LimitKind.GTT] == ["GTT card0", "GTT card1"]


@pytest.mark.parametrize("name", ["LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"])
def test_a_launchers_count_is_taken_and_nothing_else_of_the_environment(name: str, tmp_path: Path) -> None:
    limit = one(written(tmp_path, {"/proc/self/environ": f"SECRET=abc\0{name}=8\0"}), LimitKind.RANKS)
    assert limit.value == Words("8", 8)
    assert "abc" not in repr(limit)


@pytest.mark.parametrize("allowed", ["", "x", "0-", "1,,2", "0-99999999999"])
def test_a_list_of_nodes_that_makes_no_sense_is_unreadable(allowed: str, tmp_path: Path) -> None:
    zone = "Node {}, zone Normal\n  pages free 10\n        managed 20\n"
    texts = {"/proc/zoneinfo": zone.format(0) + zone.format(1), "/proc/self/status": f"Mems_allowed_list:\t{allowed}\n"}
    assert isinstance(one(written(tmp_path, texts), LimitKind.NUMA).value, Unreadable)


def test_what_lies_in_a_folder_that_may_not_be_entered_is_not_taken_for_absent(
    open_folder: Path, as_nobody: Callable[[], AbstractContextManager[None]]
) -> None:
    for name in ("proc/driver/nvidia", "run/systemd"):
        (open_folder / name).mkdir(parents=True)
    (open_folder / "proc/driver").chmod(0o700)
    (open_folder / "run").chmod(0o700)
    with as_nobody():
        limits = {limit.kind: limit for limit in read_limits(HostTree(open_folder))}
    assert isinstance(limits[LimitKind.REGISTRATION].value, Unreadable)
    (open_folder / "proc/driver").chmod(0o755)
    assert isinstance(registration_limit(HostTree(open_folder)).value, Absent)
