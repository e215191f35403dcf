"""What differs between two receipts, as one JSON document: schema `pinprobe.diff`."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from pinprobe.ledger.receipts.receipt import Document, as_json
from pinprobe.ledger.receipts.receipt_change import Change
from pinprobe.ledger.receipts.receipt_diff import Increase, ReceiptDiff
from pinprobe.ledger.receipts.receipt_file import LedgerReceipt
from pinprobe.probes.reading import Unreadable

#: Raised by one when a key changes its meaning or goes; new keys do not raise it.
VERSION = 1


def diff_receipt(
    diff: ReceiptDiff,
    increases: Sequence[Increase],
    allowed: Fraction | None,
    command: Sequence[str],
) -> Document:
    """Put a comparison into a document; `allowed` is the share by which what is booked might grow, if one was given."""
    growth = diff.growth
    return {
        "schema": "pinprobe.diff",
        "version": VERSION,
        "command": list(command),
        "old": _receipt(diff.old),
        "new": _receipt(diff.new),
        "same": diff.is_same,
        "owners": [
            {
                "owner": owner.owner,
                "state": owner.state.value,
                "presence": owner.presence.value,
                "asked": _change(owner.asked),
                "booked": _change(owner.booked),
                "resident": _change(owner.resident),
            }
            for owner in diff.owners
        ],
        "sums": {name: _change(change) for name, change in diff.sums.items()},
        "process_resident": _change(growth.measured),
        "working_set_floor": _change(growth.floor),
        "headroom": _change(diff.headroom),
        "overhead": _change(diff.overhead),
        "growth": {
            "from_asked": _change(growth.from_asked),
            "from_booked": _change(growth.from_booked),
            "from_resident": _change(growth.from_resident),
            "residue": _change(growth.residue),
            "unattributed": _change(growth.unattributed),
            "outside": _change(growth.outside),
            "in_huge_pages": list(growth.in_huge_pages),
        },
        "config": as_json(diff.config),
        "facts": as_json(diff.facts),
        "allowed_share": None if allowed is None else float(allowed),
        "increases": [_increase(increase) for increase in increases],
        "exit_code": 1 if increases else 0,
    }


def _receipt(receipt: LedgerReceipt) -> Document:
    return {
        "path": receipt.source,
        "measured_at": receipt.measured_at,
        "engine": receipt.engine,
        "scale": receipt.scale,
        "note": receipt.note,
    }


def _change(change: Change) -> Document:
    return {"old": as_json(change.old), "new": as_json(change.new), "difference": as_json(change.difference)}


def _increase(increase: Increase) -> Document:
    share = increase.share
    return {
        "name": increase.name,
        "is_total": increase.is_total,
        "booked": _change(increase.booked),
        "share": as_json(share) if isinstance(share, Unreadable) else float(share),
    }
