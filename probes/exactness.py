"""Which of the kernel's RSS counters is exact here, found by touching one page.

Linux 6.2 made these counters per-CPU: a read may be off by `max(32, 2 * cpus) * cpus` pages for each counter (256 KiB
at 2 CPUs, 128 MiB at 128). 6.16, and the stable 6.12 and 6.15 of July 2025 and later, sum exactly on read. Kernels
before 6.2 keep up to 64 events per thread back. So the version tells little: a page is touched and the counter is
asked.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from pinprobe.probes.counters import read_counters, read_smaps_rollup, read_statm
from pinprobe.probes.host_tree import HostTree
from pinprobe.probes.own_mapping import OwnMapping
from pinprobe.probes.reading import Amount, Reading

_TOUCHES = 8


@dataclass(frozen=True, slots=True)
class Exactness:
    """What one touched page moved in each source.

    `error_bytes` is the bar for one RSS counter: 0 where status proved exact.
    """

    status: bool
    statm: bool
    smaps_rollup: bool
    error_bytes: int


def find_exactness(tree: HostTree) -> Exactness:
    """Touch a few fresh pages of this process, one at a time, and see which sources move by exactly that page.

    Meaningful only for a tree that is this live host: in a saved one nothing moves, and nothing is exact.
    """
    status = moves_by_a_page(lambda: read_counters(tree)["RssAnon"], tree.page_size_bytes)
    return Exactness(
        status=status,
        statm=moves_by_a_page(lambda: read_statm(tree), tree.page_size_bytes),
        smaps_rollup=moves_by_a_page(lambda: read_smaps_rollup(tree), tree.page_size_bytes),
        error_bytes=0 if status else counter_error_bytes(os.cpu_count() or 1, tree.page_size_bytes),
    )


def moves_by_a_page(read: Callable[[], Amount], page_size_bytes: int) -> bool:
    """Say whether `read` sees most of eight single touched pages, each as exactly one page.

    Most and not all, since the interpreter may take or return a page of its own in between; a counter that is summed
    lazily misses nearly every one.
    """
    with OwnMapping.anonymous(_TOUCHES * page_size_bytes, huge_pages=False) as memory:
        read()  # the reader's own first allocations are not the touched page
        seen = 0
        for index in range(_TOUCHES):
            before = read()
            memory.write_byte(index * page_size_bytes)
            moved = read() - before
            seen += isinstance(moved, Reading) and moved.bytes == page_size_bytes
    return seen > _TOUCHES // 2


def counter_error_bytes(cpu_count: int, page_size_bytes: int) -> int:
    """Return how far one RSS counter may be off where it is kept per CPU.

    >>> counter_error_bytes(2, 4096) == 256 * 1024, counter_error_bytes(128, 4096) == 128 * 2**20
    (True, True)
    """
    return max(32, 2 * cpu_count) * cpu_count * page_size_bytes
