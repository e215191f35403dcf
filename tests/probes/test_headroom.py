"""What can still be had: the smallest source binds and is named; what can't be read never disappears."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pinprobe.probes.headroom import (
    Headroom,
    HeadroomSource,
    HugepagePool,
    per_cpu_lists,
    read_headroom,
    read_least_headroom,
)
from pinprobe.probes.host_tree import THIS_HOST, HostTree
from pinprobe.probes.reading import Amount, Reading, Unreadable

FUZZ = settings(derandomize=True, deadline=None, max_examples=120)
MIB, GIB = 2**20, 2**30
WrittenHost = Callable[[Mapping[str, "str | bytes | None"]], HostTree]
ChangedHost = Callable[[str, Mapping[str, "str | bytes | None"]], HostTree]


def bytes_of(amount: Amount) -> int:
    assert isinstance(amount, Reading), amount
    return amount.bytes


def host_texts(available: int, *, cgroup: Mapping[str, str], version: int = 2) -> dict[str, str]:
    """A host with so many bytes available, and the files of one cgroup that holds this process."""
    mount = "/sys/fs/cgroup cgroup2 rw" if version == 2 else "/sys/fs/cgroup/memory cgroup rw,memory"
    point, kind, options = mount.split()
    texts = {
        "/proc/meminfo": f"MemFree: {available // 2048} kB\nMemAvailable: {available // 1024} kB\n",
        "/proc/zoneinfo": "Node 0, zone Normal\n  pagesets\n    cpu: 0\n              count:    0\n",
        "/proc/self/cgroup": "0::/box\n" if version == 2 else "4:memory:/box\n0::/\n",
        "/proc/self/mountinfo": f"26 22 0:22 / {point} rw - {kind} {kind} {options}\n",
        f"{point}/cgroup.procs": "",
    }
    return texts | {f"{point}/box/{name}": text for name, text in cgroup.items()}


@pytest.mark.parametrize(
    ("host", "name", "available_bytes"),
    [
        # 127718731776 + 15322 pages in per-CPU lists
        ("gpu_process", "MemAvailable + per-CPU page lists", 127_781_490_688),
        ("cgroup_hybrid", "memory cgroup v1 /sys/fs/cgroup/memory/pinprobe_fixture/inner", 999_452_672),
        ("container_v1", "memory cgroup v1 /sys/fs/cgroup/memory", 462_893_056),
        ("cgroup_v2", "memory cgroup v2 /sys/fs/cgroup/a.slice/b.service", 261_320_704),
        # 724384 kB + 952 pages
        ("old_kernel", "MemAvailable + per-CPU page lists", 745_668_608),
        # 1887616 kB + 199 pages of 64 KiB
        ("pages_64k", "MemAvailable + per-CPU page lists", 1_945_960_448),
        # No zoneinfo there: the lists are unknown, and leaving them out errs on the small side.
        ("sandbox_gvisor", "MemAvailable", 2_051_014_656),
    ],
)
def test_the_smallest_source_of_a_saved_host_binds_and_is_named(
    host: str, name: str, available_bytes: int, saved_host: Callable[[str], HostTree]
) -> None:
    headroom = read_headroom(saved_host(host))
    assert headroom.binding.name == name
    assert bytes_of(headroom.available) == available_bytes
    assert all(
        available_bytes <= bytes_of(each.available) for each in headroom.sources if isinstance(each.available, Reading)
    )


def test_every_level_with_a_limit_is_a_source(saved_host: Callable[[str], HostTree]) -> None:
    assert {each.name: bytes_of(each.available) for each in read_headroom(saved_host("cgroup_hybrid")).sources} == {
        # 24210256 kB + 7722 pages
        "MemAvailable + per-CPU page lists": 24_822_931_456,
        "memory cgroup v1 /sys/fs/cgroup/memory/pinprobe_fixture/inner": 999_452_672,
        "memory cgroup v1 /sys/fs/cgroup/memory/pinprobe_fixture": 2_072_932_352,
    }


def test_an_ancestor_binds_where_it_leaves_less(changed_host: ChangedHost) -> None:
    folder = "/sys/fs/cgroup/a.slice"
    tree = changed_host(
        "cgroup_v2", {f"{folder}/memory.max": "300000000\n", f"{folder}/b.service/memory.high": "max\n"}
    )
    assert read_headroom(tree).binding.name == f"memory cgroup v2 {folder}"
    # 300000000 - 158863360 + 105660416
    assert bytes_of(read_headroom(tree).available) == 246_797_056


@pytest.mark.parametrize(
    "host", ["gpu_process", "cgroup_hybrid", "container_v1", "cgroup_v2", "old_kernel", "pages_64k", "sandbox_gvisor"]
)
def test_the_least_headroom_has_the_same_sources_and_none_leaves_more(
    host: str, saved_host: Callable[[str], HostTree]
) -> None:
    tree = saved_host(host)
    whole = read_headroom(tree, with_pools=False)
    least = read_least_headroom(tree)
    assert len(least.sources) == len(whole.sources)
    for low, high in zip(least.sources, whole.sources, strict=True):
        assert high.name.startswith(low.name)
        assert isinstance(low.available, Unreadable) == isinstance(high.available, Unreadable)
        if isinstance(low.available, Reading):
            assert low.available.bytes <= bytes_of(high.available)


def test_the_least_headroom_of_a_real_host_reads_no_list_and_no_memory_stat_of_v2(
    saved_host: Callable[[str], HostTree], tmp_path: Path
) -> None:
    tree = saved_host("cgroup_v2")
    copy = HostTree(Path(shutil.copytree(tree.root, tmp_path / "host")), tree.page_size_bytes)
    expected = read_least_headroom(tree)
    for path in (copy.path("/proc/zoneinfo"), *copy.root.rglob("memory.stat")):
        path.unlink()
    assert read_least_headroom(copy) == expected


# imp#2070. A tool read 76 GiB free in a container limited to 8 GiB. Then, counting page cache as used, it read 0.45 GiB
# where 68.9 GiB was droppable.


@pytest.mark.parametrize("version", [1, 2])
def test_in_a_container_of_8_gib_a_large_host_is_not_what_can_be_had(version: int, written_host: WrittenHost) -> None:
    limit, usage = (
        ("memory.limit_in_bytes", "memory.usage_in_bytes") if version == 1 else ("memory.max", "memory.current")
    )
    tree = written_host(host_texts(76 * GIB, cgroup={limit: f"{8 * GIB}\n", usage: f"{GIB}\n"}, version=version))
    assert bytes_of(read_headroom(tree).available) == 7 * GIB
    assert read_headroom(tree).binding.name.startswith(f"memory cgroup v{version} ")


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(("shmem_gib", "available_gib"), [(0, 69.375), (68.875, 0.5), (40, 29.375)])
def test_droppable_cache_is_given_back_and_shared_memory_is_not(
    version: int, shmem_gib: float, available_gib: float, written_host: WrittenHost
) -> None:
    cache, shmem = int(68.875 * GIB), int(shmem_gib * GIB)
    if version == 1:
        files = {
            "memory.limit_in_bytes": f"{80 * GIB}\n",
            "memory.usage_in_bytes": f"{int(79.5 * GIB)}\n",
            "memory.stat": f"total_cache {cache}\ntotal_shmem {shmem}\n"
            f"total_inactive_file {cache - shmem}\ntotal_active_file 0\n",
        }
    else:
        files = {
            "memory.max": f"{80 * GIB}\n",
            "memory.current": f"{int(79.5 * GIB)}\n",
            "memory.stat": f"file {cache}\nshmem {shmem}\ninactive_file {cache - shmem}\nactive_file 0\n",
        }
    tree = written_host(host_texts(512 * GIB, cgroup=files, version=version))
    assert bytes_of(read_headroom(tree).available) == int(available_gib * GIB)


# What can't be read.


@pytest.mark.parametrize("limit", ["?\n", "", "-1\n"])
def test_a_cgroup_whose_limit_cannot_be_read_stands_among_the_sources(limit: str, written_host: WrittenHost) -> None:
    headroom = read_headroom(written_host(host_texts(GIB, cgroup={"memory.max": limit, "memory.current": "0\n"})))
    host, box = headroom.sources
    assert box.name == "memory cgroup v2 /sys/fs/cgroup/box"
    assert isinstance(box.available, Unreadable)
    assert headroom.binding == host


def test_a_cgroup_whose_usage_cannot_be_read_stands_among_the_sources(written_host: WrittenHost) -> None:
    headroom = read_headroom(written_host(host_texts(GIB, cgroup={"memory.max": "4096\n"})))
    assert headroom.sources[1].available == Unreadable("/sys/fs/cgroup/box/memory.current: No such file or directory")


@pytest.mark.parametrize("lost", ["/proc/self/cgroup", "/proc/self/mountinfo"])
def test_cgroups_that_cannot_be_told_stand_among_the_sources(lost: str, changed_host: ChangedHost) -> None:
    headroom = read_headroom(changed_host("cgroup_v2", {lost: None}))
    assert headroom.sources[1] == HeadroomSource("memory cgroup", Unreadable(f"{lost}: No such file or directory"))


def test_without_mem_available_free_memory_is_taken_and_named(changed_host: ChangedHost) -> None:
    meminfo = "MemTotal:  986924 kB\nMemFree:  738876 kB\n"
    source = read_headroom(changed_host("old_kernel", {"/proc/meminfo": meminfo})).sources[0]
    assert source.name.startswith("MemFree")
    assert bytes_of(source.available) == 756_609_024


@pytest.mark.parametrize("meminfo", [None, "", "MemAvailable: lots kB\nMemFree: ? kB\n"])
def test_without_either_the_host_is_unreadable_and_a_cgroup_may_still_bind(
    meminfo: str | None, changed_host: ChangedHost
) -> None:
    headroom = read_headroom(changed_host("cgroup_v2", {"/proc/meminfo": meminfo}))
    assert isinstance(headroom.sources[0].available, Unreadable)
    assert bytes_of(headroom.available) == 261_320_704


def test_where_nothing_can_be_read_every_reason_is_given(changed_host: ChangedHost) -> None:
    headroom = read_headroom(changed_host("sandbox_gvisor", {"/proc/meminfo": None}))
    assert isinstance(headroom.available, Unreadable)
    assert "/proc/meminfo" in headroom.available.reason
    assert "/proc/self/cgroup" in headroom.available.reason


def test_asking_nobody_gives_no_headroom_rather_than_any() -> None:
    assert isinstance(Headroom(()).available, Unreadable)


@pytest.mark.parametrize(
    "zoneinfo", ["", "Node 0, zone DMA\n", "    cpu: 0\n              count: x\n", "              count:    \u0663\n"]
)
def test_a_zoneinfo_without_any_count_is_unreadable_and_not_zero(zoneinfo: str, written_host: WrittenHost) -> None:
    assert isinstance(per_cpu_lists(written_host({"/proc/zoneinfo": zoneinfo})), Unreadable)


@pytest.mark.parametrize(("host", "pages"), [("gpu_process", 15_322), ("cgroup_hybrid", 7_722), ("old_kernel", 952)])
def test_the_per_cpu_lists_of_all_zones_are_summed(
    host: str, pages: int, saved_host: Callable[[str], HostTree]
) -> None:
    assert bytes_of(per_cpu_lists(saved_host(host))) == pages * 4096


# Reserved huge pages.


def test_a_pool_stands_apart_and_is_nobody_elses_room(written_host: WrittenHost) -> None:
    folder = "/sys/kernel/mm/hugepages"
    texts = host_texts(GIB, cgroup={})
    pools = {
        f"{folder}/hugepages-2048kB/free_hugepages": "128\n",
        f"{folder}/hugepages-1048576kB/free_hugepages": "2\n",
        f"{folder}/hugepages-64kB/free_hugepages": "?\n",
        f"{folder}/hugepages-xkB/free_hugepages": "9\n",
        f"{folder}/demote": "",
    }
    with_pools, without = read_headroom(written_host(texts | pools)), read_headroom(written_host(texts))
    found = {pool.page_bytes: pool.free for pool in with_pools.pools}
    assert bytes_of(found[2 * MIB]) == 256 * MIB
    assert bytes_of(found[GIB]) == 2 * GIB
    assert isinstance(found.pop(64 * 1024), Unreadable)
    assert set(found) == {2 * MIB, GIB}
    assert with_pools.sources == without.sources
    assert without.pools == ()


def test_a_pool_without_a_count_is_unreadable_and_not_empty(tmp_path: Path) -> None:
    (tmp_path / "sys/kernel/mm/hugepages/hugepages-2048kB").mkdir(parents=True)
    (pool,) = read_headroom(HostTree(tmp_path)).pools
    assert pool.page_bytes == 2 * MIB
    assert isinstance(pool.free, Unreadable)


# Whatever the texts hold.

KILOBYTES = st.sampled_from(
    ["MemAvailable:  10 kB\n", "MemFree: 5 kB\n", "MemAvailable: x kB\n", "MemFree:\n", "count: 3\n"]
)
ZONE = st.sampled_from(
    ["   count:  7\n", "  count: -1\n", " count: 1x\n", "    cpu: 0\n", "\x0b count: 99999999999999999999999\n"]
)


def lines_or_bytes(line: st.SearchStrategy[str]) -> st.SearchStrategy[bytes]:
    lines = st.lists(line, max_size=5).map(lambda each: "".join(each).encode())
    return st.one_of(
        lines, st.binary(max_size=80), st.text(max_size=40).map(lambda text: text.encode("utf-8", "replace"))
    )


@given(
    meminfo=lines_or_bytes(KILOBYTES),
    zoneinfo=lines_or_bytes(ZONE),
    count=st.binary(max_size=8),
    limit=st.binary(max_size=8),
)
@FUZZ
def test_any_bytes_give_a_headroom_from_what_they_say_or_none(
    meminfo: bytes,
    zoneinfo: bytes,
    count: bytes,
    limit: bytes,
    fuzzed_host: Callable[[Mapping[str, str | bytes]], HostTree],
) -> None:
    texts: dict[str, str | bytes] = dict(host_texts(GIB, cgroup={"memory.current": "0\n"}))
    pool = "/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages"
    changed: dict[str, str | bytes] = {
        "/proc/meminfo": meminfo,
        "/proc/zoneinfo": zoneinfo,
        pool: count,
        "/sys/fs/cgroup/box/memory.max": limit,
    }
    headroom = read_headroom(fuzzed_host({**texts, **changed}))
    host = headroom.sources[0].available
    if isinstance(host, Reading):
        named = [int(kib) * 1024 for kib in re.findall(rb"(?m)^(?:MemAvailable|MemFree):\s*(\d+)\s+kB\s*$", meminfo)]
        lists = sum(int(pages) for pages in re.findall(rb"count:\s+(\d{1,20})\s", zoneinfo + b"\n")) * 4096
        assert any(bytes_ <= host.bytes <= bytes_ + lists for bytes_ in named)
    if isinstance(headroom.pools[0].free, Reading):
        assert headroom.pools[0].free.bytes == int(count) * 2 * MIB
    box = [source.available for source in headroom.sources if "box" in source.name]
    assert box == ([] if limit.strip() == b"max" else box[:1])
    assert all(isinstance(amount, Unreadable) or amount.bytes == int(limit) for amount in box)


@given(data=st.data())
@FUZZ
def test_a_damaged_zoneinfo_never_gives_more_than_the_whole_one(
    data: st.DataObject,
    saved_host: Callable[[str], HostTree],
    fuzzed_host: Callable[[Mapping[str, str]], HostTree],
    damage: Callable[[st.DataObject, str], str],
) -> None:
    whole = saved_host("old_kernel").text("/proc/zoneinfo")
    assert isinstance(whole, str)
    amount = per_cpu_lists(fuzzed_host({"/proc/zoneinfo": damage(data, whole)}))
    assert isinstance(amount, Unreadable) or 0 <= amount.bytes <= 952 * 4096


# From here on this host reads itself.


def test_mem_available_agrees_with_psutil() -> None:
    host = read_headroom(THIS_HOST).sources[0].available
    theirs = psutil.virtual_memory().available
    lists = per_cpu_lists(THIS_HOST)
    # Three reads at three instants, while the rest of the host goes on: tests beside this one, and the kernel moving
    # freed pages between its free lists and those per CPU, which hold hundreds of MiB.
    assert bytes_of(host) == pytest.approx(theirs + bytes_of(lists), abs=768 * MIB)


def test_no_source_is_above_the_memory_of_the_host() -> None:
    headroom = read_headroom(THIS_HOST)
    assert 0 < bytes_of(headroom.available) <= psutil.virtual_memory().total
    assert all(isinstance(pool, HugepagePool) for pool in headroom.pools)


# Joins the cgroup, then says at each step what read_headroom says and what the kernel's own files say.
IN_THE_GROUP = """
import json, mmap, pathlib, sys
from pinprobe.probes.headroom import read_headroom
from pinprobe.probes.host_tree import THIS_HOST

folder, file = map(pathlib.Path, sys.argv[1:])
(folder / "cgroup.procs").write_text("0")
v1 = (folder / "memory.limit_in_bytes").exists()
names = ("memory.limit_in_bytes", "memory.usage_in_bytes") if v1 else ("memory.max", "memory.current")

def say(step):
    limit, usage = (int((folder / name).read_text()) for name in names)
    stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    binding = read_headroom(THIS_HOST).binding
    print(json.dumps({
        "step": step, "name": binding.name, "available": binding.available.bytes, "limit": limit, "usage": usage,
        "file": int(stat["total_cache" if v1 else "file"]), "shmem": int(stat["total_shmem" if v1 else "shmem"]),
    }))

say("start")
with file.open("wb") as written:
    written.write(bytes(48 << 20))
    written.flush()
    __import__("os").fsync(written.fileno())
say("file cache")
shared = mmap.mmap(-1, 64 << 20)
for page in range(0, len(shared), mmap.PAGESIZE):
    shared[page] = 1
say("shared memory")
private = mmap.mmap(-1, 64 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for page in range(0, len(private), mmap.PAGESIZE):
    private[page] = 1
say("private memory")
"""


def test_in_a_real_cgroup_of_256_mib_its_room_binds_and_cache_is_given_back(
    limited_cgroup: Callable[[int], Path], tmp_path: Path
) -> None:
    folder = limited_cgroup(256 * MIB)
    child = subprocess.run(
        [sys.executable, "-c", IN_THE_GROUP, str(folder), str(tmp_path / "file")],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    said = {line["step"]: line for line in map(json.loads, child.stdout.splitlines())}
    # The kernel charges in batches of 64 pages a CPU and sums memory.stat as lazily; some MiB beside that are Python's.
    margin = 2 * 64 * (os.cpu_count() or 1) * THIS_HOST.page_size_bytes + 4 * MIB
    for line in said.values():
        assert line["limit"] == 256 * MIB
        assert re.fullmatch(rf"memory cgroup v[12] .*{re.escape(folder.name)}", line["name"])
        expected = line["limit"] - line["usage"] + line["file"] - line["shmem"]
        assert line["available"] == pytest.approx(expected, abs=margin)
    cached, shared = said["file cache"], said["shared memory"]
    assert shared["available"] == pytest.approx(cached["available"] - 64 * MIB, abs=margin)
    assert said["private memory"]["available"] == pytest.approx(shared["available"] - 64 * MIB, abs=margin)
    if cached["file"] - cached["shmem"] > 40 * MIB:  # else the file lies in a tmpfs, and is shared memory itself
        assert cached["usage"] > said["start"]["usage"] + 40 * MIB
        assert cached["available"] == pytest.approx(said["start"]["available"], abs=margin)
