"""The account of a ledger as one JSON document: versioned, with its host, its config, and a note of whoever ran it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

from pinprobe.ledger.booking import Account, Row, RowState, total_resident
from pinprobe.ledger.receipts.receipt import Document, as_json
from pinprobe.probes.host_facts import HostFacts

#: Raised by one when a key changes its meaning or goes; new keys do not raise it.
VERSION = 1


def ledger_receipt(
    account: Account,
    host: HostFacts,
    command: Sequence[str],
    *,
    config: Mapping[str, Any] | None = None,
    overrides: Mapping[str, str] | None = None,
    scale: str = "1",
    note: str = "",
) -> Document:
    """Put one account into a document of schema `pinprobe.ledger`."""
    reserved = account.reserved
    return {
        "schema": "pinprobe.ledger",
        "version": VERSION,
        "measured_at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": list(command),
        "note": note,
        "host": as_json(host),
        "config": as_json(config),
        "overrides": as_json(overrides or {}),
        "scale": scale,
        "rows": [_row(row) for row in account.rows],
        "claims": [{**as_json(claim), "holds": as_json(claim.holds)} for claim in account.claims],
        "sums": {
            "asked_bytes": sum(row.asked_bytes for row in reserved),
            "booked_bytes": sum(row.booked_bytes for row in reserved),
            "resident": as_json(total_resident(reserved)),
            "pinned_bytes": sum(row.booked_bytes for row in account.rows if not row.pageable),
            "pageable_bytes": sum(row.booked_bytes for row in reserved if row.pageable),
            "unattributed_bytes": sum(row.booked_bytes for row in account.rows if row.state is RowState.UNATTRIBUTED),
            "peak_bytes": account.peak_bytes,
            "overstated_bytes": account.overstated_bytes,
        },
        "process_resident": as_json(account.process_resident),
        "working_set_floor": as_json(account.working_set_floor),
        "overhead": as_json(account.overhead),
        "headroom": {
            "available": as_json(account.headroom.available),
            "bound": account.headroom.binding.name,
            "keep_free_bytes": account.keep_free_bytes,
        },
        "limit_bytes": account.limit_bytes,
        "control": as_json(account.control),
        "book_reach": account.book_reach,
        "remarks": list(account.remarks),
        "reports": list(account.reports),
        "holds": account.holds,
        "shortfalls": list(account.shortfalls),
    }


def _row(row: Row) -> Document:
    return {**as_json(row), "ratio": as_json(row.ratio), "holds": as_json(row.holds)}
