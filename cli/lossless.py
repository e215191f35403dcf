"""`pinprobe lossless`: savepoints sent through ring and pool and back, and compared bit by bit."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import click

from pinprobe.cli.options import Output, Scale, check_all, output_options


@click.command(short_help="Send savepoints through ring and pool and compare every bit.")
@click.option(
    "--scale", type=Scale(), default="1/16", show_default=True, metavar="SHARE",
    help="How large a savepoint is: 1 is 96 slabs of 154,927,104 B.",
)  # fmt: skip
@click.option("--savepoints", type=click.IntRange(1, 1_000_000), default=3, show_default=True, help="How many to send.")
@click.option("--laps", type=click.IntRange(1, 10_000), default=16, show_default=True,
              help="How often the ring of four slots is overrun while the first lies in the pool.")  # fmt: skip
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True,
              help="Where savepoints come from and go to.")  # fmt: skip
@click.option(
    "--allocator", default="auto", show_default=True, metavar="NAME", help="`pinprobe allocators` lists them."
)
@click.option("--receipt", type=click.Path(path_type=Path), help="Save what --json would print, beside the output.")
@output_options
def lossless(
    scale: Fraction,
    savepoints: int,
    laps: int,
    device: str,
    allocator: str,
    receipt: Path | None,
    form: str | None,
    path: Path | None,
    overwrite: bool,
    quiet: bool,
) -> int:
    """Send savepoints through a pinned ring and a pageable pool and back, and compare every bit.

    Each is staged from the device into a slot, copied out into a region and restored. The first lies in its region
    while the ring is overrun with other bytes, and is read by another process too. Needs torch; takes a ring of four
    slots and two regions.

    Exit codes: 0 every bit came back, 1 one did not, or a tenant was refused, 2 bad usage, 3 could not measure.
    """
    output = Output(form or "text", path, overwrite, quiet)
    kept = Output("json", receipt, overwrite, quiet)
    check_all(output, *([kept] if receipt is not None else []))

    import json

    from pinprobe.cli.lossless_table import lossless_text
    from pinprobe.cli.measuring import invocation, prepare, progress, tell_what_is_logged
    from pinprobe.ledger.ledger import HostPinnedLedger
    from pinprobe.ledger.tenants.lossless import RING_SLOTS, find_device, mixed_layout, run_lossless
    from pinprobe.ledger.tenants.lossless_receipt import lossless_receipt
    from pinprobe.probes.host_facts import read_host_facts

    tell_what_is_logged(output)
    layout = mixed_layout(scale)
    where = find_device(device)
    host = read_host_facts()
    ready = prepare(allocator, RING_SLOTS * layout.row_bytes, output)
    ready.notes()
    what = f"{savepoints} savepoints through {ready.name}"
    with progress(what, output) as say, HostPinnedLedger(allocator=ready.name) as ledger:
        result = run_lossless(
            ledger, layout, ready, device=where, savepoints=savepoints, laps=laps,
            watch=lambda done: say(f"{done} of {savepoints} done"),
        )  # fmt: skip
    document = json.dumps(lossless_receipt(result, host, invocation()), indent=2)
    if receipt is not None:
        kept.write(document)
    output.write(document if output.form == "json" else lossless_text(result, output.form))
    return 0 if result.holds else 1
