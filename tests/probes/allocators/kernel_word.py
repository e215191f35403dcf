"""The kernel's word on this process, read here a second time and in another way than the product reads it."""

from __future__ import annotations

import ctypes
import mmap
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from pinprobe.probes.allocators.allocator import Allocation, Allocator
from pinprobe.probes.exactness import find_exactness
from pinprobe.probes.host_tree import THIS_HOST

PAGE_BYTES = mmap.PAGESIZE
MIB = 2**20
GIB = 2**30
#: The counters that tell one kind of memory from another.
KINDS = ("RssAnon", "RssShmem", "HugetlbPages")


@dataclass(frozen=True)
class Taken:
    """One request by the kernel's word: the mapping from its address on, and the growth of one counter over it."""

    asked_bytes: int
    address: int
    block_bytes: int
    grown_bytes: int

    def grew_by(self, expected_bytes: int) -> bool:
        """Whether the counter moved by this much: to the byte, but for kernels that sum their counters lazily."""
        return abs(self.grown_bytes - expected_bytes) <= counter_bar_bytes()


@cache
def counter_bar_bytes() -> int:
    """How far one counter may be off on this kernel; 0 on most."""
    return find_exactness(THIS_HOST).error_bytes


def counter_bytes(name: str, pid: int | str = "self") -> int:
    """One line of /proc/PID/status."""
    match = re.search(rf"^{name}:\s+(\d+) kB$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert match, f"status has no {name}"
    return int(match[1]) * 1024


def mapping_ends() -> dict[int, int]:
    """The start and the end of every mapping that can be written to."""
    rows = (line.split(maxsplit=2) for line in Path("/proc/self/maps").read_text().splitlines())
    spans = (span.split("-") for span, permissions, _ in rows if permissions.startswith("rw"))
    return {int(start, 16): int(end, 16) for start, end in spans}


def mapping_count() -> int:
    """How many mappings there are, of any kind."""
    return len(Path("/proc/self/maps").read_text().splitlines())


def block_bytes(address: int) -> int:
    """How far the writable mapping behind an address reaches from there; 0 where there is none."""
    return next((end - address for start, end in mapping_ends().items() if start <= address < end), 0)


def smaps_bytes(address: int, field: str) -> int:
    """One field of the mapping behind an address."""
    inside = False
    for line in Path("/proc/self/smaps").read_text(errors="replace").splitlines():
        header = re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line)
        if header:
            inside = int(header[1], 16) <= address < int(header[2], 16)
        elif inside and line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"no mapping at {address:#x} has a {field}")


def take(allocator: Allocator, asked_bytes: int) -> tuple[Allocation, Taken]:
    """Allocate once between two readings of the counter that the allocator says it moves."""
    before = counter_bytes(allocator.counter)
    allocation = allocator.allocate(asked_bytes)
    grown = counter_bytes(allocator.counter) - before
    return allocation, Taken(asked_bytes, allocation.address, block_bytes(allocation.address), grown)


def may_lock(size_bytes: int) -> bool:
    """Whether mlock of so much is allowed, found by doing it."""
    libc = ctypes.CDLL(None)
    memory, size = ctypes.create_string_buffer(size_bytes), ctypes.c_size_t(size_bytes)
    allowed = int(libc.mlock(memory, size)) == 0
    libc.munlock(memory, size)
    return allowed


def whole_pages(size_bytes: int) -> int:
    """A size rounded up to pages, which is the least that a kernel can give."""
    return -(-size_bytes // PAGE_BYTES) * PAGE_BYTES
