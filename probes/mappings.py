"""The mapping behind an address: the kernel's own word for what stands there, and how much of it is resident.

Finding it costs 2.5 microseconds by PROCMAP_QUERY (Linux 6.11), else some 400 through /proc/PID/maps; residency is read
from smaps, milliseconds in a large process. A mapping speaks for an allocation only where it is that allocation's own:
shared anonymous memory, memfd and files keep one mapping each, private anonymous mappings merge with their neighbours.
"""

from __future__ import annotations

import bisect
import ctypes
import errno
import fcntl
import os
import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from pinprobe.probes.host_tree import HostTree
from pinprobe.probes.kernel_text import kilobyte_fields
from pinprobe.probes.reading import Amount, Reading, Unreadable

# struct procmap_query of linux/fs.h: size, query_flags, query_addr, then what comes back: vma_start, vma_end,
# vma_flags, vma_page_size, vma_offset, inode, dev_major, dev_minor; then name and build-id sizes and addresses, left at
# 0 here.
_QUERY = struct.Struct("=9Q4I2Q")
# _IOWR('f', 17, struct procmap_query), in the encoding of x86, Arm and RISC-V. Others answer ENOTTY and maps is read.
_PROCMAP_QUERY = (3 << 30) | (_QUERY.size << 16) | (ord("f") << 8) | 17
_ACCESSIBLE_FLAGS, _SHARED_FLAG = 0x3, 0x8
_NAME_BYTES = 4096
_Name = ctypes.c_char * _NAME_BYTES

_HEADER = re.compile(r"^([0-9a-f]{1,16})-([0-9a-f]{1,16}) ([-r][-w][-x][ps]) \S+ \S+ (\d{1,20}) *(.*)$")


@dataclass(frozen=True, slots=True)
class Mapping:
    """One line of /proc/PID/maps.

    `name` is empty and `inode` 0 for private anonymous memory; shared anonymous memory has an inode of its own for each
    mapping that was made, as if it were a file. `accessible` is false for guards. `page_bytes` is 0 where maps was
    read, which does not tell.
    """

    start: int
    end: int
    shared: bool
    name: str
    inode: int = 0
    accessible: bool = True
    page_bytes: int = field(default=0, compare=False)

    @property
    def size_bytes(self) -> int:
        """How much address space it spans."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class MappingResidency:
    """What smaps says of a mapping, or of several in a row. `hugetlb` bytes are in no Rss."""

    mapping: Mapping
    resident: Amount
    locked: Amount
    hugetlb: Amount


def find_mapping(tree: HostTree, address: int, pid: int | str = "self") -> Mapping | Unreadable:
    """Return the mapping that covers `address`, asking the kernel for that one where it can be asked."""
    found = _query_mapping(tree, address, pid)
    return find_mapping_in_maps(tree, address, pid) if found is None else found


def _query_mapping(tree: HostTree, address: int, pid: int | str) -> Mapping | Unreadable | None:
    """Ask the kernel for the mapping that covers an address; None where it can't be asked."""
    name = _Name()
    outputs = [0] * 8
    try:
        request = bytearray(_QUERY.pack(_QUERY.size, 0, address, *outputs, _NAME_BYTES, 0, ctypes.addressof(name), 0))
    except struct.error:
        return None  # no address at all
    try:
        descriptor = tree.open(f"/proc/{pid}/maps")
    except OSError:
        return None
    try:
        fcntl.ioctl(descriptor, _PROCMAP_QUERY, request)
    except OSError as error:
        if error.errno == errno.ENOENT:
            return Unreadable(f"/proc/{pid}/maps has no mapping at {address:#x}")
        return None  # an older kernel, or a saved file
    finally:
        os.close(descriptor)
    _, _, _, start, end, flags, page_bytes, _, inode, *_ = _QUERY.unpack(request)
    # The kernel gives the name as it is, where maps escapes newlines.
    named = name.value.decode("utf-8", "surrogateescape").replace("\n", "\\012")
    accessible = flags & _ACCESSIBLE_FLAGS == _ACCESSIBLE_FLAGS
    return Mapping(start, end, bool(flags & _SHARED_FLAG), named, inode, accessible, page_bytes)


def find_mapping_in_maps(tree: HostTree, address: int, pid: int | str = "self") -> Mapping | Unreadable:
    """Return the mapping that covers `address`, by reading maps whole."""
    text = tree.text(f"/proc/{pid}/maps")
    if isinstance(text, Unreadable):
        return text
    for mapping, _ in _blocks(text):
        if mapping.start <= address < mapping.end:
            return mapping
    return Unreadable(f"/proc/{pid}/maps has no mapping at {address:#x}")


def find_block(tree: HostTree, address: int, asked_bytes: int, pid: int | str = "self") -> Amount:
    """Return how many bytes stand behind `address` that are this allocation's own; 0 where nothing is mapped there.

    That is the mapping that begins there, if it can be told from its neighbours: shared and file mappings are objects
    of their own, private anonymous ones merge and speak for an allocation only between two guards. Where the mapping
    ends before the ask does, what follows without a gap counts too if it is of the same object: advice or locks on a
    part cut one object into several mappings.
    """
    mapping = find_mapping(tree, address, pid)
    if isinstance(mapping, Unreadable):
        nothing_there = isinstance(tree.text(f"/proc/{pid}/maps"), str)
        return Reading(0, "mapping") if nothing_there else mapping
    if mapping.start != address // tree.page_size_bytes * tree.page_size_bytes:
        return Unreadable(f"the mapping at {address:#x} begins before it and holds more than this allocation")
    end = mapping.end
    while end - address < asked_bytes:
        following = find_mapping(tree, end, pid)
        if isinstance(following, Unreadable) or not following.accessible or following.inode != mapping.inode:
            break
        end = following.end
    if mapping.inode == 0 and not (_is_guard(tree, mapping.start - 1, pid) and _is_guard(tree, end, pid)):
        return Unreadable(f"the mapping at {address:#x} is private and may hold its neighbours too")
    return Reading(end - address, "mapping")


def _is_guard(tree: HostTree, address: int, pid: int | str) -> bool:
    beside = find_mapping(tree, address, pid)
    return isinstance(beside, Mapping) and not beside.accessible


def read_residency(
    tree: HostTree, address: int, size_bytes: int = 1, pid: int | str = "self"
) -> MappingResidency | Unreadable:
    """Read what smaps says of the mapping that covers `address` and of those that begin within `size_bytes` of it."""
    text = tree.text(f"/proc/{pid}/smaps")
    if isinstance(text, Unreadable):
        return text
    found: MappingResidency | None = None
    for mapping, body in _blocks(text):
        if mapping.end <= address or (found is None and mapping.start > address):
            continue
        if mapping.start >= address + size_bytes:
            break
        here = _residency(mapping, body)
        if found is None:
            found = here
        else:
            resident, locked = found.resident + here.resident, found.locked + here.locked
            found = MappingResidency(found.mapping, resident, locked, found.hugetlb + here.hugetlb)
    return found or Unreadable(f"/proc/{pid}/smaps has no mapping at {address:#x}")


def read_residencies(
    tree: HostTree, ranges: Sequence[tuple[int, int]], pid: int | str = "self"
) -> list[list[MappingResidency]] | Unreadable:
    """Read smaps once and return, for each range of addresses (start, end), what it says of the mappings within it."""
    text = tree.text(f"/proc/{pid}/smaps")
    if isinstance(text, Unreadable):
        return text
    ordered = sorted(range(len(ranges)), key=lambda index: ranges[index])
    starts = [ranges[index][0] for index in ordered]
    found: list[list[MappingResidency]] = [[] for _ in ranges]
    for mapping, body in _blocks(text):
        # The ranges are mappings as they once were, so they do not overlap, and this one lies in the last that begins
        # at or before it; two of them begin at one place where the second took it when the first was gone.
        first = last = bisect.bisect_right(starts, mapping.start) - 1
        while first > 0 and starts[first - 1] == starts[last]:
            first -= 1
        for place in range(max(0, first), last + 1):
            if mapping.start < ranges[ordered[place]][1]:
                found[ordered[place]].append(_residency(mapping, body))
    return found


def _residency(mapping: Mapping, body: str) -> MappingResidency:
    fields = kilobyte_fields(body, ("Rss", "Locked", "Private_Hugetlb", "Shared_Hugetlb"), "smaps")
    hugetlb = fields["Private_Hugetlb"] + fields["Shared_Hugetlb"]
    return MappingResidency(mapping, fields["Rss"], fields["Locked"], hugetlb)


def _blocks(text: str) -> Iterator[tuple[Mapping, str]]:
    """Yield each mapping of a maps or smaps text with the lines below its header (none in maps)."""
    header: Mapping | None = None
    body: list[str] = []
    for line in text.split("\n"):
        match = _HEADER.match(line)
        if match is None:
            body.append(line)
            continue
        if header is not None:
            yield header, "\n".join(body)
        start, end, permissions, inode, name = match.groups()
        shared, accessible = permissions[3] == "s", permissions.startswith("rw")
        header, body = Mapping(int(start, 16), int(end, 16), shared, name, int(inode), accessible), []
    if header is not None:
        yield header, "\n".join(body)
