"""`pinprobe probe`: the control, pinned, and pinned again."""

from __future__ import annotations

from pathlib import Path

import click

from pinprobe.cli.options import (
    SIZES,
    Output,
    Size,
    bound_options,
    check_all,
    detail_options,
    output_options,
    total_bytes,
)
from pinprobe.probes.errors import BadRequest


@click.command(short_help="Measure one request, against ordinary memory.")
@click.option("--bytes", "asked_bytes", type=Size(), help=f"How much to ask for. {SIZES}")
@click.option("--slot-bytes", type=Size(), help=f"The size of one slot; give --slots too. {SIZES}")
@click.option("--slots", type=click.IntRange(min=1), help="How many slots to ask for at once.")
@click.option(
    "--allocator", default="auto", show_default=True, metavar="NAME", help="`pinprobe allocators` lists them."
)
@detail_options
@bound_options
@output_options
def probe(
    asked_bytes: int | None,
    slot_bytes: int | None,
    slots: int | None,
    allocator: str,
    columns: str,
    receipt: Path | None,
    share: float,
    at_most: int | None,
    form: str | None,
    path: Path | None,
    overwrite: bool,
    quiet: bool,
) -> int:
    """Measure one request: ordinary memory, pinned memory, and the same once more.

    The three readings together tell a page's price from an allocator's: ordinary memory must cost what was asked, and
    where the second pinned request is free, the first paid for a block that its allocator keeps.
    """
    output = Output(form or "text", path, overwrite, quiet)
    kept = Output("json", receipt, overwrite, quiet)
    check_all(output, *([kept] if receipt is not None else []))
    asked = _asked_bytes(asked_bytes, slot_bytes, slots)

    from pinprobe.cli.measuring import invocation, prepare, progress, tell_blind_spots
    from pinprobe.cli.render import render_trial
    from pinprobe.probes.allocators.registry import check_name
    from pinprobe.probes.allowance import allow
    from pinprobe.probes.errors import CouldNotMeasure
    from pinprobe.probes.host_facts import read_host_facts
    from pinprobe.probes.measuring_child import MeasuringChild
    from pinprobe.probes.one_at_a_time import one_at_a_time
    from pinprobe.probes.trial import run_trial
    from pinprobe.probes.units import format_bytes

    check_name(allocator)
    with one_at_a_time(lambda: output.tell("pinprobe: waiting for another measurement of yours to end")):
        host = read_host_facts()
        tell_blind_spots(host, output)
        allowance = allow(host.headroom, share, at_most)
        allowance.refuse_beyond(asked, "the probe")
        ready = prepare(allocator, asked, output)
        with progress(f"probing {ready.name} with {format_bytes(asked)}", output), MeasuringChild(ready) as child:
            trial = run_trial(child, ready.name, asked, allowance, host.page_size_bytes)
    if trial.ended:
        if trial.control is None and output.form != "json":
            raise CouldNotMeasure(trial.ended)
        click.echo(f"pinprobe: ended early: {trial.ended}", err=True)
    if receipt is not None:
        kept.write(render_trial(trial, host, "json", invocation(), columns))
    output.write(render_trial(trial, host, output.form, invocation(), columns))
    return trial.verdict.exit_code


def _asked_bytes(asked_bytes: int | None, slot_bytes: int | None, slots: int | None) -> int:
    if asked_bytes is not None and slot_bytes is None and slots is None:
        return asked_bytes
    if asked_bytes is None and slot_bytes is not None and slots is not None:
        return total_bytes(slot_bytes, slots)
    raise BadRequest("give either --bytes SIZE, or --slot-bytes SIZE with --slots COUNT")
