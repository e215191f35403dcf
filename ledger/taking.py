"""One allocation under way: what was read before it, and how what came of it is booked."""

from __future__ import annotations

from dataclasses import dataclass

from pinprobe.ledger.admission import Request
from pinprobe.ledger.records import Entry, Records
from pinprobe.probes.backing import Backing, find_backings
from pinprobe.probes.counters import read_statm
from pinprobe.probes.extents import find_extents
from pinprobe.probes.host_tree import HostTree
from pinprobe.probes.in_process_control import InProcessControl
from pinprobe.probes.reading import Amount, Reading, Unreadable
from pinprobe.probes.units import format_bytes

Parts = tuple[tuple[Backing, int], ...]
_BETWEEN_READINGS_BYTES = 256 * 1024


@dataclass(frozen=True)
class Taking:
    """What the process was before an allocation: its VmRSS, and how much of it the ledger explained."""

    resident: Amount
    explained_bytes: int

    def growth(self, tree: HostTree, records: Records) -> Amount:
        """Return by how much the process grew since, less what the ledger booked and struck for others meanwhile."""
        others = records.explained_bytes - self.explained_bytes
        return read_statm(tree) - self.resident - Reading(others, "statm")


def parts_behind(tree: HostTree, value: object, asked_bytes: int) -> Parts | Unreadable:
    """Return the mappings behind what an allocation returned; none where it shows no address."""
    parts: list[tuple[Backing, int]] = []
    extents = find_extents(value, asked_bytes)
    rest_bytes = asked_bytes - sum(extent.size_bytes for extent in extents if extent.is_whole)
    for extent in extents:
        found = find_backings(tree, extent)
        if isinstance(found, Unreadable):
            return found
        if not extent.is_whole:
            # One of several addresses: what is left of the ask lies behind them, in mappings of their own.
            backing = found[0][0]
            length_bytes = backing.end - extent.start if backing.whole else 1
            found = ((backing, max(1, min(length_bytes, rest_bytes))),)
            rest_bytes -= found[0][1]
        parts.extend(found)
    return tuple(parts)


def entry_for(
    request: Request,
    parts: Parts | Unreadable,
    growth: Amount,
    new_bytes: int,
    control: InProcessControl,
    *,
    kept_unseen_bytes: int,
    detail: str,
    pageable: bool,
) -> Entry:
    """Decide what is booked for a request, beside its shares of mappings, and what speaks for that.

    `new_bytes` is the size of those of its mappings that the ledger had not seen before, `kept_unseen_bytes` what
    opaque owners gave back and the process did not shrink by: a request that grew the process by less than it asked was
    served from there.
    """
    asked = request.asked_bytes
    unseen = grown = taken_over = 0
    if isinstance(parts, Unreadable):
        unseen, measured = asked, False
        evidence = f"booked as asked: {parts}"
    elif not parts:
        grown = max(0, growth.bytes) if isinstance(growth, Reading) else 0
        unseen = max(asked, grown)
        taken_over = min(kept_unseen_bytes, max(0, asked - grown))
        grown += taken_over
        # Where the process grew by less than was asked, what served the rest is unseen.
        measured = grown >= asked and control.fault is None and control.growth_fault is None
        evidence = "statm; it shows no address, and other threads move this figure too"
        if isinstance(growth, Unreadable):
            evidence = f"booked as asked: {growth}"
    else:
        unseen = max(0, asked - sum(part_bytes for _, part_bytes in parts))
        measured = control.fault is None
        evidence = f"{_kind_of(parts, new_bytes)}; {_agreement(growth, new_bytes)}"
    if not measured and control.fault is not None:
        evidence += f"; not measured, since {control.fault}"
    return Entry(
        owner=request.owner,
        asked_bytes=asked,
        allocator=request.allocator,
        detail=detail,
        pageable=pageable,
        unseen_bytes=unseen,
        grown_bytes=grown,
        taken_over_bytes=taken_over,
        growth=growth,
        evidence=evidence,
        measured=measured,
    )


def rides_along(entry: Entry, parts: Parts | Unreadable, new_bytes: int) -> int:
    """Return by how many bytes more the process grew than the allocation's own memory; 0 where it did not by 1 %."""
    if isinstance(parts, Unreadable) or not parts or isinstance(entry.growth, Unreadable):
        return 0
    beyond = entry.growth.bytes - new_bytes - entry.unseen_bytes
    return beyond if beyond > max(entry.asked_bytes // 100, _BETWEEN_READINGS_BYTES) + entry.growth.error_bytes else 0


def _kind_of(parts: Parts, new_bytes: int) -> str:
    if not new_bytes:
        return "mapping, kept from before"
    return "mapping" if all(backing.whole for backing, _ in parts) else "pages of a larger mapping"


def _agreement(growth: Amount, new_bytes: int) -> str:
    if isinstance(growth, Unreadable):
        return "no second source"
    if growth.within(new_bytes, max(_BETWEEN_READINGS_BYTES, new_bytes // 2000)):
        return "statm agrees"
    return f"the process grew by {format_bytes(growth.bytes)} meanwhile"
