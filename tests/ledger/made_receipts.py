"""Receipts for the tests that read and compare them: made up, through the real builder, and one of a real ledger."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from pinprobe.ledger.booking import Account, Row, RowState
from pinprobe.ledger.boot import Boot
from pinprobe.ledger.config.registry import load_config
from pinprobe.ledger.ledger import HostPinnedLedger
from pinprobe.ledger.ledger_receipt import ledger_receipt
from pinprobe.ledger.receipts.receipt_change import Change
from pinprobe.ledger.receipts.receipt_diff import ReceiptDiff, diff_receipts
from pinprobe.ledger.receipts.receipt_file import receipt_from
from pinprobe.probes.headroom import Headroom, HeadroomSource
from pinprobe.probes.host_facts import HostFacts, read_host_facts
from pinprobe.probes.reading import Amount, Reading, Unreadable

MIB, GIB = 2**20, 2**30
Document = dict[str, Any]

CONFIG = """\
engine: {name: mine, ranks: 2, allocator: pageable}
numbers: {slots: 8, slot_bytes: 3 MiB}
tenants:
  cache.ring: {kind: buffer, count: slots, bytes: slot_bytes}
  cache.pool: {kind: buffer, per: host, bytes: 2 * slot_bytes, detail: kept}
checks: {enough: slots >= 8}
"""


@lru_cache
def this_host() -> HostFacts:
    return read_host_facts()


def row(
    owner: str,
    asked: int,
    booked: int | None = None,
    resident: Amount | int | None = None,
    *,
    state: RowState = RowState.RESERVED,
    pageable: bool = False,
    allocator: str = "torch-host",
) -> Row:
    """A row; what is not given is as large as what is."""
    booked = asked if booked is None else booked
    resident = booked if resident is None else resident
    told = Reading(resident, "smaps, pagemap") if isinstance(resident, int) else resident
    unknown = Unreadable("it was made up")
    return Row(owner, state, asked, booked, unknown, told, unknown, pageable, allocator, "", "mapping", True)


def unattributed(growth: Amount | int) -> Row:
    booked = growth if isinstance(growth, int) else 0
    return row("unattributed", 0, booked, growth, state=RowState.UNATTRIBUTED, pageable=True, allocator="")


def document(
    *rows: Row,
    floor: Amount | int = GIB // 4,
    process: Amount | int | None = None,
    config: Mapping[str, Any] | None = None,
    overrides: Mapping[str, str] | None = None,
    scale: str = "1",
    note: str = "",
    host: HostFacts | None = None,
) -> Document:
    """A receipt as it is saved. Where `process` is not given, it is the floor and what is resident of the rows."""
    if process is None:
        explained = [
            r.resident.bytes for r in rows if isinstance(r.resident, Reading) and r.state is not RowState.UNATTRIBUTED
        ]
        process = sum(explained) + (floor if isinstance(floor, int) else 0)
    account = Account(
        rows=rows,
        claims=(),
        peak_bytes=sum(r.booked_bytes for r in rows if r.state is not RowState.UNATTRIBUTED),
        process_resident=_read(process, "statm"),
        working_set_floor=_read(floor, "statm - smaps"),
        overhead=Reading(8 * MIB, "the host"),
        headroom=Headroom((HeadroomSource("MemAvailable + per-CPU page lists", Reading(30 * GIB, "meminfo")),)),
        keep_free_bytes=0,
        limit_bytes=None,
        control=None,
        book_reach="",
    )
    made = ledger_receipt(
        account, host or this_host(), ["pinprobe", "ledger"], config=config, overrides=overrides, scale=scale, note=note
    )
    parsed: Document = json.loads(json.dumps(made))
    return parsed


def real_document(folder: Path) -> Document:
    """The receipt of a ledger whose tenants were really opened, 54 MiB in all."""
    path = folder / "mine.yaml"
    path.write_text(CONFIG, encoding="utf-8")
    config = load_config(path)
    with Boot(config) as boot, HostPinnedLedger(allocator="pageable") as ledger:
        boot.open(ledger)
        made = ledger_receipt(
            ledger.verify({"cache.pool": 6 * MIB}),
            this_host(),
            ["pinprobe", "ledger", "mine.yaml"],
            config=config.document,
        )
    parsed: Document = json.loads(json.dumps(made))
    return parsed


def diff_of(old: Document, new: Document) -> ReceiptDiff:
    """Two documents compared as the files would be that they are saved in."""
    return diff_receipts(receipt_from(old, "old.json"), receipt_from(new, "new.json"))


def figures(change: Change) -> list[int | str]:
    """Old, new and difference."""
    return [figure(amount) for amount in (change.old, change.new, change.difference)]


def figure(amount: Amount) -> int | str:
    """The bytes of an amount, or why there are none."""
    return amount.bytes if isinstance(amount, Reading) else amount.reason


def _read(amount: Amount | int, source: str) -> Amount:
    return Reading(amount, source) if isinstance(amount, int) else amount
