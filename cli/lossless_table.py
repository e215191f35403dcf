"""The result of `pinprobe lossless` for people: the hashes, the legs, and what it comes to."""

from __future__ import annotations

import textwrap

from pinprobe.cli.grid import WIDTH, Grid
from pinprobe.ledger.tenants.lossless import Lossless
from pinprobe.probes.errors import printable

_SHOWN = 5


def lossless_text(result: Lossless, form: str) -> str:
    """Write it as `text`, `csv` or `markdown`; the last two are the table of hashes alone."""
    hashes = Grid(
        ["<savepoint 0", "<SHA-256 of its row"],
        [
            ["before", result.sha_before],
            ["in the pool", result.sha_in_pool],
            ["elsewhere", result.sha_elsewhere],
            ["restored", result.sha_restored],
        ],
    )
    if form == "csv":
        return hashes.csv()
    if form == "markdown":
        return hashes.markdown()
    legs = Grid(
        ["<leg", "GB", "seconds", "GB/s"],
        [
            [leg.name, f"{leg.bytes / 1e9:,.3f}", f"{leg.seconds:.3f}", f"{leg.gigabytes_a_second:.2f}"]
            for leg in result.legs
        ],
    )
    # A hash of 64 digits leaves no room for a table's own gaps.
    lines = "\n".join(
        f"{name:<14}{digest}" if len(digest) == 64 else _wrapped(printable(f"{name}: {digest}"))
        for name, digest in hashes.rows
    )
    return "\n\n".join([lines, legs.text(), _verdict(result), _wrapped(f"pool: {result.pool.line()}")])


def _verdict(result: Lossless) -> str:
    types = ", ".join(f"{count} {name}" for name, count in sorted(result.types.items()))
    went = (
        f"{result.savepoints:,} savepoints of {result.row_bytes:,} B in {result.slab_count} slabs ({types}), from"
        f" {result.device} through {result.allocator} slots and pageable regions, the first left there through"
        f" {result.laps} laps of the ring"
    )
    if result.holds:
        return _wrapped(f"Lossless: {went}: every bit came back.")
    names = ", ".join(result.mismatched[:_SHOWN]) or "the hashes differ"
    more = f" and {len(result.mismatched) - _SHOWN:,} more" if len(result.mismatched) > _SHOWN else ""
    return _wrapped(f"NOT LOSSLESS: {went}: {names}{more}.")


def _wrapped(text: str) -> str:
    return textwrap.fill(text, WIDTH, break_on_hyphens=False)
