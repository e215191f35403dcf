"""The book of a host as one JSON document: versioned, with its host and with what the host can still give."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

from pinprobe.ledger.book.book_entry import BookEntry, BookReading
from pinprobe.ledger.receipts.receipt import Document, as_json
from pinprobe.probes.host_facts import HostFacts

#: Raised by one when a key changes its meaning or goes; new keys do not raise it.
VERSION = 1


@dataclass(frozen=True, slots=True)
class BookSums:
    """What the processes of a book hold and are about to take. A row that is pending counts as that alone."""

    pinned_bytes: int
    pageable_bytes: int
    pending_bytes: int


def book_sums(entries: Iterable[BookEntry]) -> BookSums:
    """Add up the rows of all entries."""
    rows = [row for entry in entries for row in entry.rows]
    return BookSums(
        pinned_bytes=sum(row.booked_bytes for row in rows if not row.pending and not row.pageable),
        pageable_bytes=sum(row.booked_bytes for row in rows if not row.pending and row.pageable),
        pending_bytes=sum(row.booked_bytes for row in rows if row.pending),
    )


def host_receipt(
    reading: BookReading, folder: str, reach: str, host: HostFacts, command: Sequence[str], exit_code: int
) -> Document:
    """Put one look at the book into a document of schema `pinprobe.host`."""
    binding = host.headroom.binding
    return {
        "schema": "pinprobe.host",
        "version": VERSION,
        "measured_at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": list(command),
        "host": as_json(host),
        "exit_code": exit_code,
        "folder": folder,
        "reach": reach,
        "processes": [_process(entry) for entry in reading.entries],
        "sums": as_json(book_sums(reading.entries)),
        "unreadable": list(reading.unreadable),
        "set_aside": list(reading.set_aside),
        "headroom": {"available": as_json(binding.available), "bound": binding.name},
    }


def _process(entry: BookEntry) -> Document:
    sums = {"booked_bytes": entry.booked_bytes, "pending_bytes": entry.pending_bytes}
    return {**as_json(entry), **sums}
