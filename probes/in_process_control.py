"""The control inside a process that goes on to other things: an engine whose threads take memory meanwhile.

A fresh measuring process is quiet and reads differences; here the control's own mapping is asked, which no other thread
touches. What the counters saw of it tells whether they can be trusted too.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from pinprobe.probes.backing import find_backings, read_resident
from pinprobe.probes.control import margin_bytes
from pinprobe.probes.counters import read_statm
from pinprobe.probes.errors import AllocationFailed
from pinprobe.probes.exactness import counter_error_bytes, moves_by_a_page
from pinprobe.probes.extents import Extent
from pinprobe.probes.host_tree import HostTree
from pinprobe.probes.own_mapping import OwnMapping
from pinprobe.probes.reading import Amount, Reading, Unreadable

CONTROL_BYTES = 4 * 2**20
_TRIES = 5


@dataclass(frozen=True, slots=True)
class InProcessControl:
    """Ordinary memory of `asked_bytes`, touched.

    `block` is its mapping, `resident` what smaps says of that, `growth` by how much statm rose over it, the nearest of
    some tries. `error_bytes` is how far one RSS counter may be off here.
    """

    asked_bytes: int
    block: Amount
    resident: Amount
    growth: Amount
    error_bytes: int

    @property
    def fault(self) -> str | None:
        """Why no mapping's figure may be called measured, or None where the control reads 1.000 by both."""
        for name, amount in (("the mapping", self.block), ("smaps", self.resident)):
            if isinstance(amount, Unreadable):
                return f"{name} of the control is {amount}"
            if amount.bytes != self.asked_bytes:
                return f"{name} of the control reads {amount.bytes:,} B for {self.asked_bytes:,} B"
        return None

    @property
    def growth_fault(self) -> str | None:
        """Why no difference of the process's size may be called measured, or None where it read 1.000 too."""
        if isinstance(self.growth, Unreadable):
            return str(self.growth)
        if self.growth.error_bytes > self.asked_bytes:
            return f"counters may be off by {self.growth.error_bytes:,} B here"
        if not self.growth.within(self.asked_bytes, margin_bytes(self.asked_bytes, 4096)):
            return f"the process grew by {self.growth.bytes:,} B over a control of {self.asked_bytes:,} B"
        return None


def run_control(tree: HostTree, asked_bytes: int = CONTROL_BYTES) -> InProcessControl:
    """Take, measure and give back a control; costs some milliseconds, more where smaps is long."""
    exact = moves_by_a_page(lambda: read_statm(tree), tree.page_size_bytes)
    error = 0 if exact else counter_error_bytes(os.cpu_count() or 1, tree.page_size_bytes)
    best: Amount = Unreadable("no control could be taken")
    block: Amount = best
    resident: Amount = best
    for _ in range(_TRIES):
        before = read_statm(tree, error_bytes=3 * error)
        try:
            mapping = OwnMapping.anonymous(asked_bytes, huge_pages=False)
        except AllocationFailed as failure:
            unknown = Unreadable(str(failure))
            return InProcessControl(asked_bytes, unknown, unknown, unknown, error)
        with mapping:
            mapping.write_every_page()
            growth = read_statm(tree, error_bytes=3 * error) - before
            if _distance(growth, asked_bytes) < _distance(best, asked_bytes) or isinstance(best, Unreadable):
                best = growth
            if isinstance(block, Unreadable) or isinstance(resident, Unreadable):
                block, resident = _own_word(tree, Extent(mapping.address, asked_bytes))
        if isinstance(best, Reading) and best.within(asked_bytes, tree.page_size_bytes):
            break
    return InProcessControl(asked_bytes, block, resident, best, error)


def _own_word(tree: HostTree, extent: Extent) -> tuple[Amount, Amount]:
    backings = find_backings(tree, extent)
    if isinstance(backings, Unreadable):
        return backings, backings
    if len(backings) != 1 or not backings[0][0].whole:
        unknown = Unreadable("a mapping between guards does not read as one of its own here")
        return unknown, unknown
    backing = backings[0][0]
    return Reading(backing.size_bytes, "mapping"), read_resident(tree, [backing])[backing]


def _distance(amount: Amount, expected_bytes: int) -> int:
    return abs(amount.bytes - expected_bytes) if isinstance(amount, Reading) else expected_bytes
