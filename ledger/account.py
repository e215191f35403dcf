"""Reads every mapping of the ledger anew and puts the whole of it into one frozen account."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from pinprobe.ledger.booking import Account, Claim, Row, RowState, total_resident
from pinprobe.ledger.mapping_book import Share
from pinprobe.ledger.records import Entry, Records
from pinprobe.probes.backing import Backing, read_resident
from pinprobe.probes.counters import read_statm
from pinprobe.probes.errors import BadRequest, printable
from pinprobe.probes.headroom import read_headroom
from pinprobe.probes.host_tree import HostTree
from pinprobe.probes.in_process_control import InProcessControl
from pinprobe.probes.reading import Amount, Reading, Unreadable

_NOT_READ = Unreadable("not read anew; verify() reads it")


@dataclass(frozen=True)
class Copy:
    """What the ledger held at one moment, taken under its lock so that the kernel can be asked without it."""

    entries: Mapping[int, Entry]
    shares: Mapping[int, Sequence[Share]]
    pending: tuple[Row, ...]
    idle: tuple[tuple[Backing, str], ...]
    kept_unseen_bytes: int
    floor_at_start: Amount
    unattributed: Amount
    peak_bytes: int
    overhead: Amount

    @property
    def backings(self) -> set[Backing]:
        """Every mapping in it."""
        held = {share.backing for shares in self.shares.values() for share in shares}
        return held.union(backing for backing, _ in self.idle)


def copy_of(records: Records, floor_at_start: Amount, process_resident: Amount, overhead: Amount) -> Copy:
    """Copy the records. The caller holds the ledger's lock."""
    pending = tuple(
        Row(
            owner=waiting.request.owner,
            state=RowState.PENDING,
            asked_bytes=waiting.request.asked_bytes,
            booked_bytes=waiting.cost_bytes,
            block=Unreadable("its memory is being taken"),
            resident=Unreadable("its memory is being taken"),
            growth=Unreadable("its memory is being taken"),
            pageable=False,
            allocator=waiting.request.allocator,
            detail="",
            evidence="expected from a kept block" if waiting.reuses else f"price: {waiting.request.price.known}",
            measured=False,
        )
        for waiting in records.pending.values()
    )
    return Copy(
        dict(records.entries),
        records.shares(),
        pending,
        records.mappings.idle,
        records.kept_unseen_bytes,
        floor_at_start,
        unattributed(process_resident, floor_at_start, records.explained_bytes + records.pending_bytes(False)),
        records.peak_bytes,
        overhead,
    )


def unattributed(process_resident: Amount, floor_at_start: Amount, explained_bytes: int) -> Amount:
    """Return by how much the process grew since the ledger began beyond what its rows explain; at least 0."""
    grown = process_resident - floor_at_start
    if isinstance(grown, Unreadable):
        return grown
    return Reading(max(0, grown.bytes - explained_bytes), "statm", grown.error_bytes)


def rows_of(copy: Copy, resident: Mapping[Backing, Amount] | None = None) -> tuple[Row, ...]:
    """Return every row: the reserved, the pending, then what is retained and what no row explains.

    Without `resident` no row says how much of it is.
    """
    rows = [_reserved(copy, number, resident) for number in copy.entries]
    return (*rows, *copy.pending, *_retained(copy, resident), *_unattributed(copy))


def read_account(
    tree: HostTree,
    copy: Copy,
    *,
    claims: Mapping[str, int],
    keep_free_bytes: int,
    limit_bytes: int | None,
    control: InProcessControl | None,
    book_reach: str,
    remarks: tuple[str, ...] = (),
    reports: tuple[str, ...] = (),
) -> Account:
    """Ask the kernel about every mapping in the copy.

    Raises `BadRequest` where a claim is made for an owner who holds nothing: a slip in a name must not pass a check.
    """
    process = read_statm(tree)  # before smaps is read, whose text of a large process takes mebibytes itself
    resident = read_resident(tree, copy.backings)
    measured: Amount = Reading(copy.kept_unseen_bytes, "statm")
    for entry in copy.entries.values():
        measured = measured + Reading(entry.grown_bytes, "statm")
    for backing, amount in resident.items():
        measured = measured + amount if backing.in_rss else measured
    floor = process - measured
    taking = sum(row.booked_bytes for row in copy.pending)
    # The rows count mappings at their full size; now that what is resident of them is known, so is the rest.
    rows = rows_of(replace(copy, unattributed=unattributed(floor, copy.floor_at_start, taking)), resident)
    return Account(
        rows=rows,
        claims=tuple(_claim(owner, claimed, rows) for owner, claimed in claims.items()),
        peak_bytes=copy.peak_bytes,
        process_resident=process,
        working_set_floor=Reading(floor.bytes, "statm - smaps") if isinstance(floor, Reading) else floor,
        overhead=copy.overhead,
        headroom=read_headroom(tree),
        keep_free_bytes=keep_free_bytes,
        limit_bytes=limit_bytes,
        control=control,
        book_reach=book_reach,
        remarks=remarks,
        reports=reports,
    )


def _reserved(copy: Copy, number: int, resident: Mapping[Backing, Amount] | None) -> Row:
    entry, shares = copy.entries[number], copy.shares.get(number, ())
    booked = sum(share.bytes for share in shares) + entry.unseen_bytes
    if shares:
        block: Amount = Reading(sum(share.bytes for share in shares), "mapping")
    else:
        block = Unreadable("it shows no address that is mapped")
    return Row(
        owner=entry.owner,
        state=RowState.RESERVED,
        asked_bytes=entry.asked_bytes,
        booked_bytes=booked,
        block=block,
        resident=_NOT_READ if resident is None else _resident_share(shares, resident, entry),
        growth=entry.growth,
        pageable=entry.pageable,
        allocator=entry.allocator,
        detail=entry.detail,
        evidence=entry.evidence,
        measured=entry.measured,
    )


def _resident_share(shares: Sequence[Share], resident: Mapping[Backing, Amount], entry: Entry) -> Amount:
    """Split what is resident of each mapping as the mapping itself is split, rounded up: erring high costs nothing."""
    total: Amount = Reading(0, "smaps, pagemap")
    for share in shares:
        amount = resident[share.backing]
        if isinstance(amount, Unreadable):
            return amount
        total = total + Reading(-(-amount.bytes * share.bytes // share.whole_bytes), amount.source)
    if not shares:
        if not entry.grown_bytes:
            return Unreadable("it shows no address, and the process did not grow")
        return Reading(entry.grown_bytes, "statm, when it was taken")
    return Reading(total.bytes, "smaps, pagemap") if isinstance(total, Reading) else total


def _retained(copy: Copy, resident: Mapping[Backing, Amount] | None) -> Iterable[Row]:
    kept = sum(backing.size_bytes for backing, _ in copy.idle) + copy.kept_unseen_bytes
    if not kept:
        return
    amount: Amount = Reading(copy.kept_unseen_bytes, "statm") if copy.kept_unseen_bytes else Reading(0, "smaps")
    for backing, _ in copy.idle:
        amount = amount + (_NOT_READ if resident is None else resident[backing])
    blocks = len(copy.idle)
    yield Row(
        owner="retained",
        state=RowState.RETAINED,
        asked_bytes=0,
        booked_bytes=kept,
        block=Reading(sum(backing.size_bytes for backing, _ in copy.idle), "mapping"),
        resident=amount,
        growth=Unreadable("no request of its own"),
        pageable=False,
        allocator=", ".join(sorted({name for _, name in copy.idle if name})),
        detail=f"{blocks} block{'' if blocks == 1 else 's'} given back by owners and still mapped",
        evidence="mapping" if copy.idle else "the process did not shrink when it was given back",
        measured=bool(copy.idle) and not copy.kept_unseen_bytes,
    )


def _unattributed(copy: Copy) -> Iterable[Row]:
    unknown = copy.unattributed
    booked = unknown.bytes if isinstance(unknown, Reading) else 0
    if isinstance(unknown, Reading) and not booked:
        return
    yield Row(
        owner="unattributed",
        state=RowState.UNATTRIBUTED,
        asked_bytes=0,
        booked_bytes=booked,
        block=Unreadable("no row explains it"),
        resident=unknown,
        growth=unknown,
        pageable=True,
        allocator="",
        detail="growth of the process since the ledger began that no row explains",
        evidence="statm" if isinstance(unknown, Reading) else str(unknown),
        measured=isinstance(unknown, Reading),
    )


def _claim(owner: str, claimed_bytes: int, rows: tuple[Row, ...]) -> Claim:
    own = tuple(row for row in rows if row.state is RowState.RESERVED and row.owner == owner)
    if not own:
        known = ", ".join(dict.fromkeys(row.owner for row in rows if row.state is RowState.RESERVED)) or "nobody"
        raise BadRequest(f"a claim is made for {printable(owner)!r}, who holds nothing; owners are {known}")
    return Claim(owner, claimed_bytes, total_resident(own))
