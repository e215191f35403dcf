"""What the ledger says: rows, and the account of all of them at one moment. Frozen values."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from pinprobe.probes.headroom import Headroom
from pinprobe.probes.in_process_control import InProcessControl
from pinprobe.probes.reading import Amount, Reading, Unreadable


class RowState(str, Enum):
    """What a row stands for."""

    RESERVED = "reserved"
    PENDING = "pending"
    RETAINED = "retained"
    UNATTRIBUTED = "unattributed"


@dataclass(frozen=True)
class Row:
    """One line of the ledger.

    `booked_bytes` is what counts: never less than asked, and with the other rows of a mapping never less than that
    mapping. `block` is this row's share of the mappings behind it, `resident` its share of what is resident of them, as
    smaps said when it was last read. `growth` is by how much the process grew meanwhile, other threads' doings
    included. `measured` is true where the kernel's word stands behind `booked_bytes` and a control proved that word.
    """

    owner: str
    state: RowState
    asked_bytes: int
    booked_bytes: int
    block: Amount
    resident: Amount
    growth: Amount
    pageable: bool
    allocator: str
    detail: str
    evidence: str
    measured: bool

    @property
    def ratio(self) -> float | Unreadable:
        """Booked over asked."""
        return self.booked_bytes / self.asked_bytes if self.asked_bytes else Unreadable("nothing was asked")

    @property
    def holds(self) -> bool | Unreadable:
        """Whether booked >= resident."""
        return self.resident if isinstance(self.resident, Unreadable) else self.booked_bytes >= self.resident.bytes


@dataclass(frozen=True, slots=True)
class Claim:
    """What somebody else's books say that an owner holds, beside what the kernel says."""

    owner: str
    claimed_bytes: int
    resident: Amount

    @property
    def holds(self) -> bool | Unreadable:
        """Whether claimed >= resident."""
        return self.resident if isinstance(self.resident, Unreadable) else self.claimed_bytes >= self.resident.bytes


@dataclass(frozen=True)
class Account:
    """The whole ledger at one moment, every mapping read anew.

    `process_resident` is VmRSS. `overhead` is what pinning took of the host beside resident pages, as far as it was
    seen. `book_reach` says which processes share the book; empty where none is kept. `remarks` are what tenants say of
    themselves at boot, `reports` what they counted since.
    """

    rows: tuple[Row, ...]
    claims: tuple[Claim, ...]
    peak_bytes: int
    process_resident: Amount
    working_set_floor: Amount
    overhead: Amount
    headroom: Headroom
    keep_free_bytes: int
    limit_bytes: int | None
    control: InProcessControl | None
    book_reach: str
    remarks: tuple[str, ...] = ()
    reports: tuple[str, ...] = ()

    @property
    def reserved(self) -> tuple[Row, ...]:
        """The rows of owners."""
        return tuple(row for row in self.rows if row.state is RowState.RESERVED)

    @property
    def booked_bytes(self) -> int:
        """The sum of all rows."""
        return sum(row.booked_bytes for row in self.rows)

    @property
    def overstated_bytes(self) -> int:
        """By how much the headroom would be overstated by a ledger that booked what owners asked."""
        return sum(row.booked_bytes - row.asked_bytes for row in self.rows if row.state is not RowState.UNATTRIBUTED)

    @property
    def holds(self) -> bool:
        """Whether nothing is known to be booked, or claimed, below what is resident."""
        return not self.shortfalls

    @property
    def shortfalls(self) -> tuple[str, ...]:
        """A line for each row or claim that is below what is resident, with both figures."""
        rows = [
            f"{row.owner}: asked {row.asked_bytes:,} B, booked {row.booked_bytes:,} B,"
            f" resident {row.resident.bytes:,} B"
            for row in self.rows
            if isinstance(row.resident, Reading) and row.holds is False
        ]
        claims = [
            f"{claim.owner}: claimed {claim.claimed_bytes:,} B, resident {claim.resident.bytes:,} B:"
            f" {claim.resident.bytes - claim.claimed_bytes:,} B are in no book"
            for claim in self.claims
            if isinstance(claim.resident, Reading) and claim.holds is False
        ]
        return (*rows, *claims)


def total_resident(rows: tuple[Row, ...]) -> Amount:
    """Add up what is resident of some rows; unreadable where any of them is."""
    total: Amount = Reading(0, "smaps, pagemap")
    for row in rows:
        total = total + row.resident
    return Reading(total.bytes, "smaps, pagemap") if isinstance(total, Reading) else total


def grouped(rows: tuple[Row, ...]) -> tuple[Row, ...]:
    """Put the rows of one owner that came about in the same way into one, in the place of the first.

    A pool of a hundred regions is one line for people, and a hundred for machines.
    """
    groups: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        kind = (row.owner, row.state, row.pageable, row.allocator, row.detail, row.evidence, row.measured)
        groups.setdefault(kind, []).append(row)
    return tuple(group[0] if len(group) == 1 else _sum_of(group) for group in groups.values())


def _sum_of(group: list[Row]) -> Row:
    block: Amount = Reading(0, "mapping")
    growth: Amount = Reading(0, "statm")
    for row in group:
        block, growth = block + row.block, growth + row.growth
    first = group[0]
    return replace(
        first,
        asked_bytes=sum(row.asked_bytes for row in group),
        booked_bytes=sum(row.booked_bytes for row in group),
        block=block,
        growth=growth,
        resident=total_resident(tuple(group)),
        detail=f"{len(group)} reservations: {first.detail}" if first.detail else f"{len(group)} reservations",
    )
