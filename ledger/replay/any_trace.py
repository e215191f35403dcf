"""Reads a trace in whichever of the known forms it is; its first line tells."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from pinprobe.ledger.replay.mooncake import read_mooncake
from pinprobe.ledger.replay.request import Request
from pinprobe.ledger.replay.trace import COLUMNS, read_trace
from pinprobe.ledger.replay.trace_lines import BadTrace, numbered_lines
from pinprobe.probes.errors import BadRequest, printable


def read_any_trace(path: Path) -> list[Request]:
    """Read a whole trace, plain or gzipped: CSV with a header (`trace.py`), or a JSON object a line (`mooncake.py`).

    Raises `BadTrace` where its first line is neither, and what the reader of its form raises.
    """
    with closing(numbered_lines(path)) as lines:
        number, first = next(((number, text.strip()) for number, text in lines if text.strip()), (0, ""))
    if not first:
        raise BadRequest(f"{printable(path)} has no request in it")
    if first.startswith("{"):
        return read_mooncake(path)
    if any(word.strip(' "') in COLUMNS for word in first.split(",")):
        return read_trace(path)
    raise BadTrace(
        [
            f"{printable(path)}:{number}: this is no trace: the first line is neither {','.join(COLUMNS)}"
            " nor a JSON object with timestamp, input_length and hash_ids"
        ]
    )
