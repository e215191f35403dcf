"""What the other processes of the host hold and are about to take, by the book that they share."""

from __future__ import annotations

from dataclasses import dataclass

from pinprobe.ledger.book.book_entry import BookReading
from pinprobe.ledger.book.host_receipt import book_sums
from pinprobe.ledger.preflight.check import Check, State
from pinprobe.ledger.preflight.needs import Needs
from pinprobe.probes.limits.limit import Absent, Value
from pinprobe.probes.reading import Reading, Unreadable
from pinprobe.probes.units import format_bytes

_NAME, _BINDS = "host's book", "who comes first"


@dataclass(frozen=True)
class BookSeen:
    """One look at the book in `folder`; `reading` is a reason where there was none."""

    folder: str
    reading: BookReading | Absent

    @property
    def promised_bytes(self) -> int:
        """What others are about to take: the host has it still, and it is theirs."""
        return 0 if isinstance(self.reading, Absent) else book_sums(self.reading.entries).pending_bytes


def check_book(book: BookSeen, needs: Needs) -> Check:
    """Say what others hold. A live process whose rows can't be read is about to take nobody knows how much."""
    names = tuple(tenant.row.owner for tenant in needs.tenants)
    state, reason, remedy = State.OK, "", ""
    value: Value
    if isinstance(book.reading, Absent):
        value = book.reading
        names = ()
    elif book.reading.unreadable:
        value, state = Unreadable("; ".join(book.reading.unreadable)), State.UNREADABLE
        reason, remedy = value.reason, "pinprobe host"
    else:
        sums = book_sums(book.reading.entries)
        value = Reading(sums.pinned_bytes + sums.pageable_bytes + sums.pending_bytes, book.folder)
        if sums.pending_bytes:
            state, remedy = State.ADVICE, "pinprobe host"
            count = len(book.reading.entries)
            reason = f"{count} others are in it, and {format_bytes(sums.pending_bytes)} are being taken now"
    return Check(None, _NAME, state, value, None, _BINDS, names, book.folder, reason, remedy)
