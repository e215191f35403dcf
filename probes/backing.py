"""What the kernel has behind ranges of addresses: whole mappings where they are an allocation's own, else the pages.

A shared mapping, a memfd, a huge page mapping or a private one between guards is one object, and whoever holds a byte
of it keeps all of it: it is taken whole. Other private memory merges with its neighbours, and a file may be larger than
any machine: of those the pages of the range are taken, which can't hold more than themselves.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pinprobe.probes.extents import Extent
from pinprobe.probes.host_tree import HostTree
from pinprobe.probes.mappings import Mapping as KernelMapping
from pinprobe.probes.mappings import MappingResidency, find_mapping, read_residencies
from pinprobe.probes.pagemap import read_present
from pinprobe.probes.reading import Amount, Reading, Unreadable

# How the kernel names memory that no file on a disk stands behind, one object for each that was made.
_OWN_OBJECTS = ("/dev/zero", "/memfd:", "/dev/shm/", "/SYSV", "/anon_hugepage", "[anon_shmem")


@dataclass(frozen=True, slots=True)
class Backing:
    """A mapping, or a run of pages in one.

    `whole` says that it is a mapping of its own. `inode` tells one object from the next at the same address; private
    memory has 0. `in_rss` is false for huge pages of the kernel's pool, which are in no Rss.
    """

    start: int
    end: int
    inode: int
    whole: bool
    in_rss: bool

    @property
    def size_bytes(self) -> int:
        """The most that can be resident of it."""
        return self.end - self.start


def find_backings(tree: HostTree, extent: Extent) -> tuple[tuple[Backing, int], ...] | Unreadable:
    """Return what lies behind a range, each with how many bytes of the range lie in it.

    `Unreadable` where any part of the range is not mapped, or nothing can be asked.
    """
    found: list[tuple[Backing, int]] = []
    position = extent.start
    while position < extent.end:
        mapping = find_mapping(tree, position)
        if isinstance(mapping, Unreadable):
            return mapping
        if not mapping.accessible and not mapping.inode:  # a guard; a file may well be mapped to be read alone
            got = f"{position - extent.start:,} B of {extent.size_bytes:,} B"
            return Unreadable(f"only {got} are mapped for use: the block is smaller than what it was handed out for")
        part_end = min(mapping.end, extent.end)
        found.append((_backing(tree, mapping, position, part_end), part_end - position))
        position = mapping.end
    return tuple(found)


def is_still_there(tree: HostTree, backing: Backing) -> bool:
    """Say whether a whole mapping is still mapped as it was; where that can't be asked it is taken to be."""
    mapping = find_mapping(tree, backing.start)
    if isinstance(mapping, Unreadable):
        return not os.access(f"{tree.root}/proc/self/maps", os.R_OK)
    return mapping.start == backing.start and _is_of(mapping, backing)


def read_resident(tree: HostTree, backings: Iterable[Backing]) -> Mapping[Backing, Amount]:
    """Return how much of each is resident, its huge pages included: mappings by smaps, read once, pages by pagemap."""
    wanted = list(backings)
    whole = [backing for backing in wanted if backing.whole]
    told = read_residencies(tree, [(backing.start, backing.end) for backing in whole]) if whole else []
    resident: dict[Backing, Amount] = {}
    for index, backing in enumerate(whole):
        resident[backing] = told if isinstance(told, Unreadable) else _sum(told[index], backing)
    for backing in wanted:
        if not backing.whole:
            resident[backing] = read_present(tree, backing.start, backing.end)
    return resident


def _is_of(mapping: KernelMapping, backing: Backing) -> bool:
    """Say whether a mapping is the object that was there, or a part of it.

    Private memory has no number that tells one object from the next; what reaches further is another one.
    """
    return mapping.inode == backing.inode and (backing.inode != 0 or mapping.end <= backing.end)


def _backing(tree: HostTree, mapping: KernelMapping, start: int, end: int) -> Backing:
    in_rss = mapping.page_bytes in (0, tree.page_size_bytes) and not mapping.name.startswith("/anon_hugepage")
    if _is_own(tree, mapping):
        return Backing(mapping.start, mapping.end, mapping.inode, whole=True, in_rss=in_rss)
    page = tree.page_size_bytes
    return Backing(start // page * page, -(-end // page) * page, mapping.inode, whole=False, in_rss=in_rss)


def _is_own(tree: HostTree, mapping: KernelMapping) -> bool:
    if mapping.name.startswith(_OWN_OBJECTS):
        return True  # also the first System V segment of a host, whose inode is 0
    if mapping.inode:
        return mapping.name.endswith(" (deleted)")
    if mapping.name:
        return False  # the heap, a stack, or another that the kernel has a word for
    return all(_is_guard(tree, address) for address in (mapping.start - 1, mapping.end))


def _is_guard(tree: HostTree, address: int) -> bool:
    beside = find_mapping(tree, address)
    return isinstance(beside, KernelMapping) and not beside.accessible


def _sum(parts: list[MappingResidency], backing: Backing) -> Amount:
    """Add up the mappings that the range is cut into by now, those of another object left out."""
    own = [part for part in parts if _is_of(part.mapping, backing)]
    total: Amount = Reading(0, "smaps")
    for part in own:
        total = total + part.resident
        if isinstance(part.hugetlb, Reading) and part.hugetlb.bytes:
            total = total + part.hugetlb
    return Reading(total.bytes, "smaps") if isinstance(total, Reading) else total
