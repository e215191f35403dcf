"""What one process writes into the book of its host, as frozen values, and the text that carries them.

The text is read from files that other users, other versions and full disks had a hand in: `parse_entry` takes nothing
for granted and never raises.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from pinprobe.probes.errors import BadRequest, printable
from pinprobe.probes.units import LARGEST_SIZE_BYTES

#: Raised by one when a key changes its meaning or goes; new keys do not raise it.
VERSION = 1
#: No entry is longer; thousands of rows fit.
TEXT_LIMIT_BYTES = 2**20

_SCHEMA = "pinprobe.book"
_LONGEST_NAME = 200


@dataclass(frozen=True, slots=True)
class BookRow:
    """One owner's line in a process's entry.

    `booked_bytes` of a pending row is the price that it is expected to cost. Raises `BadRequest` where an amount is no
    whole number from 0 to 2**56: whoever reads the book could not use it.
    """

    owner: str
    asked_bytes: int
    booked_bytes: int
    pending: bool = False
    pageable: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "owner", _name(self.owner, "owner"))
        _whole(self.asked_bytes, "asked_bytes")
        _whole(self.booked_bytes, "booked_bytes")
        _flag(self.pending, "pending")
        _flag(self.pageable, "pageable")


@dataclass(frozen=True)
class BookEntry:
    """What one process holds.

    `process` is unique among all processes of all pid namespaces. `pid` is what the process itself sees and is there
    for people: life is never judged by it.

    >>> rows = (BookRow("cache.ring", 2**30, 2**31), BookRow("cache.pool", 2**20, 2**20, pending=True))
    >>> entry = BookEntry("0123456789abcdef-01234567", 4711, "rank 0", rows)
    >>> entry.booked_bytes, entry.pending_bytes
    (2147483648, 1048576)
    """

    process: str
    pid: int
    label: str
    rows: tuple[BookRow, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "label", _name(self.label, "label"))
        _whole(self.pid, "pid")

    @property
    def booked_bytes(self) -> int:
        """The sum of the rows that are not pending."""
        return sum(row.booked_bytes for row in self.rows if not row.pending)

    @property
    def pending_bytes(self) -> int:
        """The sum of the rows that are pending: what is about to be taken, at its expected price."""
        return sum(row.booked_bytes for row in self.rows if row.pending)


@dataclass(frozen=True)
class BookReading:
    """One look at the book.

    `entries` are those of live processes, in the order in which they began. `unreadable` has a line with the reason for
    each live process whose rows can't be read: it holds an unknown amount, not none. `set_aside` has a line for each
    file that was moved out of the way in this look.
    """

    entries: tuple[BookEntry, ...] = ()
    unreadable: tuple[str, ...] = ()
    set_aside: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Unusable:
    """Why a text is no entry. One that is not damaged is left where it is: another reader may understand it."""

    reason: str
    is_damaged: bool = True


def entry_text(entry: BookEntry) -> bytes:
    """Write an entry as JSON. Raises `BadRequest` where it has more rows than a reader would take."""
    rows = ", ".join(map(_row_text, entry.rows))
    text = f'{{{_head_text(entry.process, entry.pid, entry.label)}, "rows": [{rows}]}}'.encode("ascii")
    if len(text) > TEXT_LIMIT_BYTES:
        raise BadRequest(
            f"{len(entry.rows):,} rows are more than an entry of the host's book holds ({TEXT_LIMIT_BYTES:,} B); use"
            " fewer owners or shorter names"
        )
    return text


# An entry is written beside each allocation, and all of it but a row or two is what it was.
@lru_cache(maxsize=4)
def _head_text(process: str, pid: int, label: str) -> str:
    head = {"schema": _SCHEMA, "version": VERSION, "process": process, "pid": pid, "label": label}
    return json.dumps(head)[1:-1]


@lru_cache(maxsize=256)
def _row_text(row: BookRow) -> str:
    return json.dumps(
        {
            "owner": row.owner,
            "asked_bytes": row.asked_bytes,
            "booked_bytes": row.booked_bytes,
            "pending": row.pending,
            "pageable": row.pageable,
        }
    )


def parse_entry(text: bytes, process: str) -> BookEntry | Unusable:
    """Read the entry of a process, or say why the text is none.

    >>> parse_entry(b"{", "0123456789abcdef-01234567").reason
    'it is no JSON'
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):  # the second for a text of brackets alone
        return Unusable("it is no JSON")
    if not isinstance(document, dict) or document.get("schema") != _SCHEMA:
        return Unusable(f"it is no document of schema {_SCHEMA}")
    version = document.get("version")
    if type(version) is not int or version < VERSION:
        return Unusable("it names no version")
    if version > VERSION:
        return Unusable(f"it is of a later version than this pinprobe reads ({VERSION})", is_damaged=False)
    try:
        if document["process"] != process:
            return Unusable("it is another process's")
        rows = tuple(_row(row) for row in document["rows"])
        return BookEntry(process, document["pid"], document["label"], rows)
    except KeyError as error:
        return Unusable(f"it has no {error.args[0]}")
    except TypeError:
        return Unusable("its rows are no list of rows")
    except BadRequest as error:
        return Unusable(str(error))


def _row(row: Any) -> BookRow:
    return BookRow(row["owner"], row["asked_bytes"], row["booked_bytes"], row["pending"], row["pageable"])


def _name(value: object, key: str) -> str:
    if not isinstance(value, str):
        raise BadRequest(f"{key} is no text")
    return printable(value)[:_LONGEST_NAME]


def _whole(value: object, key: str) -> None:
    if type(value) is not int or not 0 <= value <= LARGEST_SIZE_BYTES:  # a bool is an int too, and is no amount
        raise BadRequest(f"{key} is no whole number from 0 to 2**56")


def _flag(value: object, key: str) -> None:
    if not isinstance(value, bool):
        raise BadRequest(f"{key} is neither true nor false")
