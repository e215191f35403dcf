"""The result of a lossless run as one JSON document."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone

from pinprobe.ledger.receipts.receipt import Document, as_json
from pinprobe.ledger.tenants.lossless import Lossless
from pinprobe.probes.host_facts import HostFacts

#: Raised by one when a key changes its meaning or goes; new keys do not raise it.
VERSION = 1


def lossless_receipt(result: Lossless, host: HostFacts, command: Sequence[str]) -> Document:
    """Put a result into a document of schema `pinprobe.lossless`."""
    legs = [{**as_json(leg), "gigabytes_a_second": leg.gigabytes_a_second} for leg in result.legs]
    return {
        "schema": "pinprobe.lossless",
        "version": VERSION,
        "measured_at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": list(command),
        "host": as_json(host),
        **as_json(result),
        "legs": legs,
        "holds": result.holds,
    }
