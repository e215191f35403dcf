"""Measures one allocation in this process: read, allocate, read, and look at what stands behind the address."""

from __future__ import annotations

import operator
import time
from dataclasses import replace

from pinprobe.probes.allocators.allocator import Allocation, Allocator
from pinprobe.probes.allocators.pageable import Pageable
from pinprobe.probes.cost import Cost
from pinprobe.probes.counters import Counters, read_counters, read_smaps_rollup
from pinprobe.probes.errors import printable
from pinprobe.probes.exactness import Exactness, find_exactness
from pinprobe.probes.host_tree import HostTree
from pinprobe.probes.mappings import MappingResidency, find_block, read_residency
from pinprobe.probes.overhead import read_free_or_held
from pinprobe.probes.reading import Amount, Reading, Unreadable

_WARM_UPS = 2
_QUIET_TRIES = 5


class Measurer:
    """Measures allocations on this host. Not for several threads at once.

    At its start it finds out which counters are exact and how much the interpreter's own work moves them: one touched
    page is measured some times, and the largest deviation becomes part of every error bar.
    """

    def __init__(self, tree: HostTree) -> None:
        self._tree = tree
        self.exactness: Exactness = find_exactness(tree)
        #: How far what the host has available moved by itself while nothing but single pages was taken.
        self.quiet_bytes = 0
        self.noise_bytes = self._find_noise()

    def measure(self, allocator: Allocator, asked_bytes: int) -> tuple[Allocation, Cost]:
        """Allocate once and return the allocation, still held, with its cost.

        Raises what the allocator raises; then nothing is held.
        """
        account_before, host_before = allocator.allocated_bytes(), read_free_or_held(self._tree)
        before, before_walk = self._read()
        started = time.perf_counter()
        allocation = allocator.allocate(asked_bytes)
        seconds = time.perf_counter() - started
        try:
            after, after_walk = self._read()
            host_after, account_after = read_free_or_held(self._tree), allocator.allocated_bytes()
            counters = after - before
            address = operator.index(allocation.address)  # a foreign allocator may give any kind of number
            walked = after_walk - before_walk
            block = find_block(self._tree, address, asked_bytes)
            behind = read_residency(self._tree, address, block.bytes if isinstance(block, Reading) else 1)
            own = _resident(behind) if isinstance(block, Reading) else block
            resident, counter, second = self._growth(allocator.counter, counters, walked, own)
            cost = Cost(
                asked_bytes=asked_bytes,
                address=address,
                resident=resident,
                counter=counter,
                second=second,
                block=block,
                block_resident=_resident(behind),
                block_by_allocator=_account(account_before, account_after),
                overhead=self._overhead(host_before - host_after),
                block_locked=behind if isinstance(behind, Unreadable) else behind.locked,
                counters=counters,
                seconds=seconds,
                note=printable(allocation.note),
            )
        except BaseException:
            allocation.release()
            raise
        return allocation, cost

    def _read(self) -> tuple[Counters, Amount]:
        counters = read_counters(self._tree, error_bytes=self.exactness.error_bytes)
        if self.exactness.status:
            return counters, Unreadable("not walked, since the counters are exact here")
        return counters, read_smaps_rollup(self._tree)

    def _growth(self, counter: str, counters: Counters, walked: Amount, behind: Amount) -> tuple[Amount, str, Amount]:
        """Choose the source of the growth and a second one: (resident, its name, the second).

        Where something grew, the mapping behind it is the best second source if it is the allocation's own: smaps walks
        the page tables, where the counters count. Where nothing grew, that mapping was there before.
        """
        if not self.exactness.status and isinstance(walked, Reading):
            resident, name = self._noisy(walked), "smaps_rollup"
        else:
            name = next((name for name in (counter, "VmRSS") if isinstance(counters[name], Reading)), "statm")
            resident = self._noisy(counters[name])
        if isinstance(resident, Reading) and isinstance(behind, Reading) and not resident.within(0):
            return resident, name, behind
        if name in ("statm", "HugetlbPages"):
            return resident, name, behind if name == "HugetlbPages" else Unreadable("status has no VmRSS here")
        return resident, name, self._noisy(_beside(name, counters))

    def _overhead(self, lost: Amount) -> Amount:
        if isinstance(lost, Unreadable):
            return lost
        return Reading(lost.bytes, "MemAvailable + per-CPU lists + AnonPages + Shmem", self.quiet_bytes)

    def _noisy(self, amount: Amount) -> Amount:
        return (
            replace(amount, error_bytes=amount.error_bytes + self.noise_bytes)
            if isinstance(amount, Reading)
            else amount
        )

    def _find_noise(self) -> int:
        self.noise_bytes = 0
        control = Pageable()
        page = self._tree.page_size_bytes
        worst = 0
        for attempt in range(_WARM_UPS + _QUIET_TRIES):
            allocation, cost = self.measure(control, page)
            allocation.release()
            if attempt >= _WARM_UPS:
                if isinstance(cost.overhead, Reading):
                    self.quiet_bytes = max(self.quiet_bytes, abs(cost.overhead.bytes))
                for amount in (cost.resident, cost.second):
                    worst = max(worst, abs(amount.bytes - page) if isinstance(amount, Reading) else 0)
        return max(0, worst - 6 * self.exactness.error_bytes)


def _resident(behind: MappingResidency | Unreadable) -> Amount:
    if isinstance(behind, Unreadable):
        return behind
    if isinstance(behind.hugetlb, Reading) and behind.hugetlb.bytes:
        return behind.resident + behind.hugetlb  # the kernel's huge page pool is in no Rss, and resident all the same
    return behind.resident


def _account(before: int | None, after: int | None) -> Amount:
    if not (isinstance(before, int) and isinstance(after, int)):
        return Unreadable("this allocator keeps no account of its blocks")
    return Reading(after - before, "the allocator's own account")


def _beside(counter: str, counters: Counters) -> Amount:
    """Return statm's growth less that of the other classes, which other threads and the interpreter move."""
    rest = counters["statm"]
    for other in ("RssAnon", "RssFile", "RssShmem"):
        if counter in ("RssAnon", "RssFile", "RssShmem") and other != counter:
            rest = rest - counters[other]
    return Reading(rest.bytes, "statm", rest.error_bytes) if isinstance(rest, Reading) else rest
