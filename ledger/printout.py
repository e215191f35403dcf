"""The boot lines: what was reserved and what it really costs, row by row. Takes an account; measures nothing."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from pinprobe.ledger.booking import Account, Row, RowState, grouped, total_resident
from pinprobe.probes.errors import printable
from pinprobe.probes.reading import Amount, Reading, Unreadable
from pinprobe.probes.units import format_bytes

_WIDTH = 80
_PENDING = " (pending)"


class Tone(Enum):
    """What a line tells, for whoever can colour it."""

    PLAIN = "plain"
    HEAD = "head"
    DEAR = "dear"
    BROKEN = "broken"
    REMARK = "remark"


@dataclass(frozen=True, slots=True)
class Line:
    """One line of at most 80 columns."""

    text: str
    tone: Tone = Tone.PLAIN


def printout(account: Account, *, stats: bool = False) -> str:
    """Return the lines as plain text, for a log; with `stats` also what tenants counted."""
    return "\n".join(line.text for line in printout_lines(account, stats=stats))


def printout_lines(account: Account, *, stats: bool = False) -> list[Line]:
    """Lay the account out: the sums, the headroom, the floor, a row an owner, and what the ask would have hidden."""
    said = account.remarks + (account.reports if stats else ())
    sections = (_sums(account), _rows(account), _said(said), _meaning(account))
    return [line for section in sections for line in section]


def _sums(account: Account) -> Iterator[Line]:
    reserved = account.reserved
    booked, asked = (sum(getattr(row, name) for row in reserved) for name in ("booked_bytes", "asked_bytes"))
    ratio = f", ratio {booked / asked:.3f}" if asked else ""
    resident = _told(total_resident(reserved))
    yield from _wrapped(
        f"pinprobe ledger: {format_bytes(booked)} booked for {format_bytes(asked)} asked{ratio}; resident {resident}",
        Tone.HEAD,
    )
    binding = account.headroom.binding
    if isinstance(binding.available, Unreadable):
        yield from _wrapped(f"headroom: {binding.available}")
    else:
        kept = f"; {format_bytes(account.keep_free_bytes)} of it are kept free" if account.keep_free_bytes else ""
        yield from _wrapped(f"headroom: {format_bytes(binding.available.bytes)}, bound by {binding.name}{kept}")
    if account.limit_bytes is not None:
        yield from _wrapped(f"limit: {format_bytes(account.limit_bytes)}")
    floor = account.working_set_floor
    marked = f", measured ({floor.source})" if isinstance(floor, Reading) else ""
    yield from _wrapped(f"working-set floor: {_told(floor)}{marked}")
    yield from _wrapped(f"peak: {format_bytes(account.peak_bytes)}; overhead of pinning: {_told(account.overhead)}")
    control = account.control
    if control is None:
        yield from _wrapped("control: none was taken yet, so nothing is measured")
    elif control.fault is not None:
        yield from _wrapped(f"control: {control.fault}; so nothing is measured", Tone.BROKEN)
    else:
        beside = "statm too" if control.growth_fault is None else f"not statm: {control.growth_fault}"
        yield from _wrapped(f"control: 1.000 by its mapping and by smaps, {beside}")
    if account.book_reach:
        yield from _wrapped(f"book: {account.book_reach}")


def _rows(account: Account) -> Iterator[Line]:
    if not account.rows:
        return
    rows = grouped(account.rows)
    table = [("owner", "booked", "asked", "resident", "ratio"), *map(_figures, rows)]
    widths = [max(13, *(len(cells[column]) + 2 for cells in table)) for column in (1, 2, 3)]
    widths.append(max(8, *(len(cells[4]) + 2 for cells in table)))
    yield Line("")
    yield Line(_aligned(table[0], widths), Tone.HEAD)
    for row, cells in zip(rows, table[1:], strict=True):
        tone = Tone.BROKEN if row.holds is False else Tone.DEAR if _is_dear(row) else Tone.PLAIN
        yield Line(_aligned(cells, widths), tone)
        how = ", ".join(part for part in (row.detail, row.allocator) if part)
        evidence = f"measured: {row.evidence}" if row.measured else row.evidence
        yield from _wrapped("; ".join(part for part in (how, evidence) if part), Tone.REMARK, indent="    ")


def _figures(row: Row) -> tuple[str, ...]:
    is_asked = row.state in (RowState.RESERVED, RowState.PENDING)
    is_known = row.state is not RowState.UNATTRIBUTED or isinstance(row.resident, Reading)
    ratio = row.ratio if is_asked and isinstance(row.ratio, float) else None
    return (
        printable(row.owner) + (_PENDING if row.state is RowState.PENDING else ""),
        format_bytes(row.booked_bytes) if is_known else "?",
        format_bytes(row.asked_bytes) if is_asked else "",
        format_bytes(row.resident.bytes) if isinstance(row.resident, Reading) else "?",
        "" if ratio is None else f"{ratio:.3f}" if ratio < 1000 else f"{ratio:,.0f}",
    )


def _aligned(cells: tuple[str, ...], widths: list[int]) -> str:
    room = _WIDTH - sum(widths)
    name = cells[0]
    if len(name) > room:
        kept = _PENDING if name.endswith(_PENDING) else ""
        name = f"{name[: room - 3 - len(kept)]}...{kept}"
    figures = "".join(f"{cell:>{width}}" for cell, width in zip(cells[1:], widths, strict=True))
    return f"{name:<{room}}{figures}".rstrip()


def _is_dear(row: Row) -> bool:
    return isinstance(row.ratio, float) and row.ratio > 1.01


def _said(lines: tuple[str, ...]) -> Iterator[Line]:
    if lines:
        yield Line("")
    for line in lines:
        yield from _wrapped(line)


def _meaning(account: Account) -> Iterator[Line]:
    yield Line("")
    overstated = account.overstated_bytes
    if overstated:
        yield from _wrapped(
            f"A ledger that books what was asked would take {format_bytes(overstated)} for free that are not there.",
            Tone.DEAR,
        )
    pinned = sum(row.booked_bytes for row in account.rows if not row.pageable)
    pageable = sum(row.booked_bytes for row in account.rows if row.pageable and row.state is RowState.RESERVED)
    yield from _wrapped(
        f"pinned {format_bytes(pinned)}: can't be swapped or reclaimed; where it does not fit, the OOM killer ends a"
        " process"
    )
    yield from _wrapped(f"pageable {format_bytes(pageable)}: is paged out where memory runs short, which is slow")
    yield from _wrapped(f"total {format_bytes(pinned + pageable)}, without what no row explains")
    for shortfall in account.shortfalls:
        yield from _wrapped(f"BOOKED BELOW RESIDENT: {shortfall}", Tone.BROKEN)


def _told(amount: Amount) -> str:
    return format_bytes(amount.bytes) if isinstance(amount, Reading) else str(amount)


def _wrapped(text: str, tone: Tone = Tone.PLAIN, indent: str = "") -> Iterator[Line]:
    for line in textwrap.wrap(
        printable(text), _WIDTH, initial_indent=indent, subsequent_indent=indent or "  ", break_on_hyphens=False
    ):
        yield Line(line, tone)
