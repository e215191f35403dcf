"""A sweep's JSON, read back for its blocks: the measured map of an allocator, with which a plan prices requests.

Nothing in the file is taken for granted: whatever is wrong there is told in one line with the file and the key.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pinprobe.ledger.receipts.json_value import JsonValue, parse_json
from pinprobe.ledger.receipts.receipt import VERSION
from pinprobe.ledger.receipts.whole_file import read_whole
from pinprobe.probes.allowance import Allowance
from pinprobe.probes.errors import BadRequest, printable
from pinprobe.probes.host_facts import Fact
from pinprobe.probes.reading import Reading
from pinprobe.probes.sweep import Point, PointState, Sweep

_SCHEMA = "pinprobe.sweep"
_REMEDY = "make the map anew: pinprobe sweep --slot-bytes SIZE --receipt FILE"
_LARGEST_PAGE_BYTES = 2**30


@dataclass(frozen=True)
class MapFile:
    """The sweeps of one file, with at least one measured block each, and what they were measured under.

    `remarks` are sentences on what a reader has to know of them: a block that was smaller than its request.
    """

    source: str
    measured_at: str
    sweeps: tuple[Sweep, ...]
    torch: Fact
    torch_settings: Mapping[str, str]
    remarks: tuple[str, ...]


def read_map(path: Path) -> MapFile:
    """Read what `pinprobe sweep --json` or `--receipt` wrote. Raises `BadRequest` in one line where that can't be."""
    source = printable(path)
    content = read_whole(path, source, "map", _REMEDY)
    return _in_our_words(lambda: map_from(parse_json(content, source), source))


def map_from(document: Any, source: str) -> MapFile:
    """Take the map from a document that is parsed already; `source` is what messages call it."""
    return _in_our_words(lambda: _map(JsonValue(source, "", document)))


def _in_our_words(read: Callable[[], MapFile]) -> MapFile:
    """Say at the end of each message how a map is made: what reads the values speaks of the ledger's receipts."""
    try:
        return read()
    except BadRequest as error:
        reason = str(error).rpartition("; ")[0] or str(error)
        raise BadRequest(f"{reason}; {_REMEDY}") from None


def _map(top: JsonValue) -> MapFile:
    top.check_numbers()
    top.members()
    schema = top["schema"].text()
    if schema != _SCHEMA:
        top["schema"].refuse(f"is {schema[:60]!r}, where a map has {_SCHEMA!r}")
    version = top["version"].count()
    if not 1 <= version <= VERSION:
        top["version"].refuse(f"is {version}, and this pinprobe reads 1 to {VERSION}")
    host = top["host"]
    listed = top["sweeps"]
    sweeps = tuple(map(_sweep, listed.items()))
    if not sweeps:
        listed.refuse("holds no sweep")
    remarks = [
        f"{top.source}: {sweep.allocator} {point.reason}: memory is not safe with it"
        for sweep in sweeps
        for point in sweep.broken_promises
    ]
    return MapFile(
        source=top.source,
        measured_at=top["measured_at"].text(),
        sweeps=sweeps,
        torch=host["torch"].fact(),
        torch_settings={name: value.text() for name, value in host["torch_settings"].members().items()},
        remarks=tuple(remarks[:1]),
    )


def _sweep(value: JsonValue) -> Sweep:
    fault = value["control_fault"]
    if fault.value is not None:
        fault.refuse(f"says {fault.text()[:200]!r}: nothing in it counts as measured")
    page = value["page_size_bytes"]
    page_size_bytes = page.count()
    if not 0 < page_size_bytes <= _LARGEST_PAGE_BYTES or page_size_bytes & (page_size_bytes - 1):
        page.refuse(f"is {page_size_bytes:,}, which is no size of pages")
    points = tuple(map(_point, value["points"].items()))
    if not any(point.state is PointState.MEASURED for point in points):
        value["points"].refuse("holds no measured point")
    return Sweep(
        allocator=value["allocator"].text(),
        notes=tuple(note.text() for note in value["notes"].items()),
        slot_bytes=value["slot_bytes"].count(),
        page_size_bytes=page_size_bytes,
        allowance=Allowance(value["allowance"]["bytes"].count(), value["allowance"]["origin"].text()),
        control=None,
        control_fault=None,
        points=points,
        touched_bytes=value["touched_bytes"].count(),
        peak_bytes=value["peak_bytes"].count(),
        seconds=0.0,
        fresh_children=value["fresh_children"].flag(),
    )


def _point(value: JsonValue) -> Point:
    name = value["state"].text()
    known = {state.value: state for state in PointState}
    if name not in known:
        value["state"].refuse(f"is {name[:60]!r}, which is none of {', '.join(known)}")
    asked = value["asked_bytes"].count()
    if not asked:
        value["asked_bytes"].refuse("is 0, and nothing is measured of that")
    block = value["block"].amount()
    if known[name] is PointState.MEASURED and isinstance(block, Reading) and block.bytes < asked:
        value["block"].refuse(f"has {block.bytes:,} B for {asked:,} B asked, and its point counts as measured")
    return Point(
        slots=value["slots"].count(),
        asked_bytes=asked,
        state=known[name],
        block=block,
        resident=value["resident"].amount(),
        reason=value["reason"].text(),
    )
