"""What the host can still give this process: the smallest of several named sources, and which one binds.

MemAvailable does not see pages that sit in the kernel's per-CPU lists: after 1 GiB was freed here, 980 MiB of it lay
there for seconds. They are free memory, so they are added. Huge page pools left MemAvailable at boot: they are room for
memory that is asked of them and for nothing else, and stand apart.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from pinprobe.probes.cgroup import CgroupLevel, find_cgroup_folders, read_cgroup_levels, read_levels_at
from pinprobe.probes.host_tree import HostTree
from pinprobe.probes.kernel_text import kilobyte_fields, single_number
from pinprobe.probes.reading import Amount, Reading, Unreadable

_AVAILABLE = "MemAvailable"
_PER_CPU_COUNT = re.compile(r"^\s+count:\s+(\d{1,20})\s*$", re.MULTILINE | re.ASCII)
_POOL = re.compile(r"hugepages-(\d{1,12})kB")


@dataclass(frozen=True, slots=True)
class HeadroomSource:
    """One thing that bounds what can be had, in words, and how much it leaves."""

    name: str
    available: Amount


@dataclass(frozen=True, slots=True)
class HugepagePool:
    """The pages of one size in the kernel's huge page pool that nobody has or was promised."""

    page_bytes: int
    free: Amount


@dataclass(frozen=True, slots=True)
class Headroom:
    """Every source that was asked, readable or not, and the pools that stand apart."""

    sources: tuple[HeadroomSource, ...]
    pools: tuple[HugepagePool, ...] = ()

    @property
    def binding(self) -> HeadroomSource:
        """The smallest readable source; where none is readable, one that gives the reasons."""
        readable = [source for source in self.sources if isinstance(source.available, Reading)]
        if readable:
            return min(
                readable, key=lambda source: source.available.bytes if isinstance(source.available, Reading) else 0
            )
        reasons = [source.available.reason for source in self.sources if isinstance(source.available, Unreadable)]
        return HeadroomSource("headroom", Unreadable("; ".join(reasons) or "no source was asked"))

    @property
    def available(self) -> Amount:
        """What the binding source leaves."""
        return self.binding.available


def read_headroom(tree: HostTree, pid: int | str = "self", *, with_pools: bool = True) -> Headroom:
    """Ask every source once; the huge page pools only where they are wanted."""
    pools = _hugepage_pools(tree) if with_pools else ()
    host = _with_per_cpu_lists(tree, _host_source(tree))
    return Headroom((host, *_cgroup_sources(read_cgroup_levels(tree, pid))), pools)


def read_least_headroom(tree: HostTree, mounts: str | Unreadable | None = None) -> Headroom:
    """Ask every source for what it leaves at the very least, in a fraction of the time; `mounts` may be known already.

    Left out is what only adds, and what the kernel counts over all CPUs: their page lists, and the file cache that
    cgroups would drop. A request that fits within this fits.
    """
    folders = find_cgroup_folders(tree, mounts=mounts)
    levels = folders if isinstance(folders, Unreadable) else read_levels_at(tree, folders, with_droppable=False)
    return Headroom((_host_source(tree), *_cgroup_sources(levels)))


def _host_source(tree: HostTree) -> HeadroomSource:
    fields = kilobyte_fields(tree.text("/proc/meminfo"), [_AVAILABLE, "MemFree"], "/proc/meminfo")
    available = fields[_AVAILABLE]
    if isinstance(available, Unreadable):  # before Linux 3.14, and in some sandboxes
        return HeadroomSource("MemFree (no MemAvailable here)", fields["MemFree"])
    return HeadroomSource(_AVAILABLE, available)


def _with_per_cpu_lists(tree: HostTree, host: HeadroomSource) -> HeadroomSource:
    if host.name != _AVAILABLE:
        return host
    lists = per_cpu_lists(tree)
    if isinstance(lists, Unreadable):
        return host
    return HeadroomSource(f"{_AVAILABLE} + per-CPU page lists", host.available + lists)


def per_cpu_lists(tree: HostTree) -> Amount:
    """Return the bytes of free pages that sit in per-CPU lists: the sum of `count` in /proc/zoneinfo."""
    text = tree.text("/proc/zoneinfo")
    if isinstance(text, Unreadable):
        return text
    counts = _PER_CPU_COUNT.findall(text)
    if not counts:
        return Unreadable("/proc/zoneinfo has no line count")
    return Reading(sum(map(int, counts)) * tree.page_size_bytes, "/proc/zoneinfo count")


def _cgroup_sources(levels: tuple[CgroupLevel, ...] | Unreadable) -> list[HeadroomSource]:
    if isinstance(levels, Unreadable):
        return [HeadroomSource("memory cgroup", levels)]
    return [
        HeadroomSource(f"memory cgroup v{level.version} {level.path}", level.room)
        for level in levels
        if level.room is not None
    ]


def _hugepage_pools(tree: HostTree) -> tuple[HugepagePool, ...]:
    folder = "/sys/kernel/mm/hugepages"
    pools = []
    for name in tree.names(folder):
        match = _POOL.fullmatch(name)
        if match and int(match[1]):
            page_bytes = int(match[1]) * 1024
            free, reserved = (
                single_number(tree.text(f"{folder}/{name}/{file}"), f"{folder}/{name}/{file}")
                for file in ("free_hugepages", "resv_hugepages")
            )
            # Reserved pages are promised to mappings that have not touched them yet; the free count still holds them.
            left = free - reserved if isinstance(reserved, Reading) else free
            pools.append(HugepagePool(page_bytes, _times(left, page_bytes)))
    return tuple(pools)


def _times(count: Amount, page_bytes: int) -> Amount:
    return Reading(count.bytes * page_bytes, count.source) if isinstance(count, Reading) else count
