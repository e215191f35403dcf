"""A receipt of `pinprobe ledger`, read back from its file into frozen values.

Between writing and reading lie editors, full disks, other tools and other versions: nothing is taken for granted, and
whatever is wrong is told in one line that names the file and the key. What is read agrees with itself: the sums of a
receipt are those of its rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from pinprobe.ledger.booking import RowState
from pinprobe.ledger.ledger_receipt import VERSION
from pinprobe.ledger.receipts.json_value import JsonValue, Leaf, parse_json
from pinprobe.ledger.receipts.whole_file import read_whole
from pinprobe.probes.errors import BadRequest, printable
from pinprobe.probes.host_facts import Fact
from pinprobe.probes.reading import Amount, Unreadable

#: The keys that lead to a value of a config.
KeyPath: TypeAlias = tuple[str, ...]

_REMEDY = "name a receipt of `pinprobe ledger`"
_SCHEMA = "pinprobe.ledger"
_TEXT_FACTS = ("pinprobe", "python", "kernel", "machine")
_NUMBER_FACTS = ("cpu_count", "page_size_bytes")
_MORE_TEXT_FACTS = ("transparent_hugepages", "shared_memory_hugepages", "memlock_limit", "driver", "torch")
_COUNTERS = ("status", "statm", "smaps_rollup")


@dataclass(frozen=True, slots=True)
class ReceiptRow:
    """One row, as far as two receipts are compared by it."""

    owner: str
    state: RowState
    asked_bytes: int
    booked_bytes: int
    resident: Amount
    pageable: bool
    allocator: str


@dataclass(frozen=True)
class LedgerReceipt:
    """One receipt.

    `config` has every value of the config by the keys that lead to it, or is None where the ledger was kept without
    one. `facts` are those of the host that may change what is resident, by name.
    """

    source: str
    measured_at: str
    note: str
    rows: tuple[ReceiptRow, ...]
    peak_bytes: int
    process_resident: Amount
    working_set_floor: Amount
    overhead: Amount
    headroom: Amount
    headroom_bound: str
    config: Mapping[KeyPath, Leaf] | None
    overrides: Mapping[str, str]
    scale: str
    facts: Mapping[str, Fact]
    page_size_bytes: int

    @property
    def engine(self) -> str:
        """What the config calls the engine; empty where that is not known."""
        return str((self.config or {}).get(("engine", "name"), ""))


def read_receipt(path: Path) -> LedgerReceipt:
    """Read a receipt. Raises `BadRequest` in one line where there is none, or it is damaged."""
    source = printable(path)
    return receipt_from(parse_json(read_whole(path, source, "receipt", _REMEDY), source), source)


def receipt_from(document: Any, source: str) -> LedgerReceipt:
    """Take a receipt from a document that is parsed already; `source` is what messages call it.

    Raises `BadRequest` where it is no receipt of `pinprobe ledger`, or one that contradicts itself.
    """
    top = JsonValue(source, "", document)
    top.check_numbers()
    _check_head(top)
    host = top["host"]
    rows = tuple(_row(row) for row in top["rows"].items())
    _check_sums(top["sums"], rows)
    config = top["config"]
    return LedgerReceipt(
        source=source,
        measured_at=top["measured_at"].text(),
        note=top["note"].text(),
        rows=rows,
        peak_bytes=top["sums"]["peak_bytes"].count(),
        process_resident=top["process_resident"].amount(),
        working_set_floor=top["working_set_floor"].amount(),
        overhead=top["overhead"].amount(),
        headroom=top["headroom"]["available"].amount(),
        headroom_bound=top["headroom"]["bound"].text(),
        config=None if config.value is None else config.leaves(),
        overrides={name: value.text() for name, value in top["overrides"].members().items()},
        scale=top["scale"].text(),
        facts=_facts(host),
        page_size_bytes=host["page_size_bytes"].count(),
    )


def _check_head(top: JsonValue) -> None:
    top.members()
    schema = top["schema"].text()
    if schema != _SCHEMA:
        top["schema"].refuse(f"is {schema[:60]!r}, where a receipt of `pinprobe ledger` has {_SCHEMA!r}")
    version = top["version"].count()
    if version > VERSION:
        raise BadRequest(
            f"{top.source}: version {version} is newer than what this pinprobe reads ({VERSION}); compare it with the"
            " pinprobe that wrote it"
        )
    if version < 1:
        top["version"].refuse("is 0, and the first version is 1")


def _row(row: JsonValue) -> ReceiptRow:
    state = row["state"].text()
    known = [name.value for name in RowState]
    if state not in known:
        row["state"].refuse(f"is {state[:60]!r}, which is none of {', '.join(known)}")
    return ReceiptRow(
        owner=row["owner"].text(),
        state=RowState(state),
        asked_bytes=row["asked_bytes"].count(),
        booked_bytes=row["booked_bytes"].count(),
        resident=row["resident"].amount(),
        pageable=row["pageable"].flag(),
        allocator=row["allocator"].text(),
    )


def _check_sums(sums: JsonValue, rows: tuple[ReceiptRow, ...]) -> None:
    reserved = [row for row in rows if row.state is RowState.RESERVED]
    expected = {
        "asked_bytes": sum(row.asked_bytes for row in reserved),
        "booked_bytes": sum(row.booked_bytes for row in reserved),
        "pinned_bytes": pinned_bytes(rows),
        "pageable_bytes": pageable_bytes(rows),
        "unattributed_bytes": sum(row.booked_bytes for row in rows if row.state is RowState.UNATTRIBUTED),
    }
    for name, sum_bytes in expected.items():
        told = sums[name].count()
        if told != sum_bytes:
            sums[name].refuse(f"is {told:,}, and the rows come to {sum_bytes:,}")


def pinned_bytes(rows: tuple[ReceiptRow, ...]) -> int:
    """Return what is booked and can't be paged out: what is retained is booked as the allocator keeps it, pinned."""
    return sum(row.booked_bytes for row in rows if not row.pageable)


def pageable_bytes(rows: tuple[ReceiptRow, ...]) -> int:
    """Return what is booked and can be paged out, without the growth that no row explains."""
    return sum(row.booked_bytes for row in rows if row.pageable and row.state is RowState.RESERVED)


def _facts(host: JsonValue) -> dict[str, Fact]:
    """Take what may be the reason for another figure: not what differs between any two runs, such as the headroom."""
    facts: dict[str, Fact] = {name: host[name].fact() for name in _TEXT_FACTS}
    facts.update({name: f"{host[name].count():,}" for name in _NUMBER_FACTS})
    total = host["memory_total"].amount()
    facts["memory_total"] = total if isinstance(total, Unreadable) else f"{total.bytes:,} B"
    facts.update({name: host[name].fact() for name in _MORE_TEXT_FACTS})
    settings = host["torch_settings"].members()
    facts.update({f"torch_settings.{name}": value.text() for name, value in settings.items()})
    counters = host["counters"]
    for name in _COUNTERS:
        facts[f"counters.{name}"] = "exact" if counters[name].flag() else "not exact"
    facts["counters.error_bytes"] = f"{counters['error_bytes'].count():,}"
    return facts
