"""Reads a trace from CSV, plain or gzipped: a request a line, in time order.

The first line names the columns. `savepoint_id` and `parent_id` are whole numbers, and a `parent_id` of -1 says that
the prompt continues nothing seen before; what the columns mean stands with `Request`. A line that can't be used is
never mended or left out: all of them are named, and there is no trace.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from pathlib import Path

from pinprobe.ledger.replay.request import Consistency, Request
from pinprobe.ledger.replay.trace_lines import (
    MOST_REQUESTS,
    BadTrace,
    Faults,
    check_utf8,
    numbered_lines,
    requests_within_bounds,
)
from pinprobe.probes.errors import BadRequest, printable

COLUMNS = (
    "t_s",
    "savepoint_id",
    "parent_id",
    "savepoint_tokens",
    "prompt_tokens",
    "output_tokens",
    "conversation",
)

_SECONDS = re.compile(r"[0-9]{1,12}(\.[0-9]{1,12})?", re.ASCII)
_COUNT = re.compile(r"[0-9]{1,15}", re.ASCII)


def read_trace(path: Path) -> list[Request]:
    """Read a whole trace.

    Raises `BadTrace` with every line that can't be used, and `BadRequest` where there is no trace that could be read.
    """
    faults, consistency = Faults(path), Consistency()
    requests: list[Request] = []
    rows = _rows(path)
    _, header = next(rows, (1, []))
    if not isinstance(header, list) or tuple(header) != COLUMNS:
        raise BadTrace([f"{printable(path)}:1: the first line has to be {','.join(COLUMNS)}"])
    count = 0
    for count, (line, row) in enumerate(rows, 1):
        if count > MOST_REQUESTS:
            break
        try:
            request = _request(row)
        except BadRequest as error:
            faults.add(line, str(error))
            consistency.announce(_savepoint_in(row))
            continue
        fault = consistency.fault(request)
        if fault is None:
            requests.append(request)
        else:
            faults.add(line, fault)
    requests_within_bounds(count, path)
    faults.check()
    return requests


def _rows(path: Path) -> Iterator[tuple[int, list[str] | csv.Error]]:
    """Yield the line that a row ends in, and its values, or what keeps it from being one."""
    reader = csv.reader((text for _, text in numbered_lines(path)), strict=True)
    while True:
        try:
            row: list[str] | csv.Error | None = next(reader, None)
        except csv.Error as error:
            row = error
        if row is None:
            return
        yield reader.line_num, row


def _request(row: list[str] | csv.Error) -> Request:
    if isinstance(row, csv.Error):
        raise BadRequest(f"this is no CSV: {row}")
    if len(row) != len(COLUMNS):
        raise BadRequest(f"{len(row)} values, where {len(COLUMNS)} are to be: {','.join(COLUMNS)}")
    texts = dict(zip(COLUMNS, row, strict=True))
    check_utf8(texts["conversation"])
    return Request(
        at_seconds=_seconds(texts, "t_s"),
        savepoint=_count(texts, "savepoint_id"),
        parent=None if texts["parent_id"] == "-1" else _count(texts, "parent_id", or_else="; -1 where there is none"),
        savepoint_tokens=_count(texts, "savepoint_tokens"),
        prompt_tokens=_count(texts, "prompt_tokens"),
        output_tokens=_count(texts, "output_tokens"),
        conversation=texts["conversation"],
    )


def _savepoint_in(row: list[str] | csv.Error) -> int | None:
    """Return the savepoint of a row that can't be used, where at least this can be read."""
    at = COLUMNS.index("savepoint_id")
    is_there = isinstance(row, list) and len(row) == len(COLUMNS) and _COUNT.fullmatch(row[at])
    return int(row[at]) if isinstance(row, list) and is_there else None


def _count(texts: dict[str, str], column: str, or_else: str = "") -> int:
    if not _COUNT.fullmatch(texts[column]):
        raise BadRequest(f"{column} is {texts[column][:40]!r}, which is no whole number of 0 or more{or_else}")
    return int(texts[column])


def _seconds(texts: dict[str, str], column: str) -> float:
    if not _SECONDS.fullmatch(texts[column]):
        raise BadRequest(f"{column} is {texts[column][:40]!r}, which is no number of seconds since the trace began")
    return float(texts[column])
