"""`pinprobe advise`: what the other ways of pinning would take for a config's tenants, measured."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import click

from pinprobe.cli.config_options import config_options, open_config
from pinprobe.cli.options import Output, Scale, bound_options, output_options


@click.command(short_help="Try what would cost a config less.")
@config_options
@click.option(
    "--scale", type=Scale(), default="1", show_default=True, metavar="SHARE",
    help="Scale the counts of all tenants, rounded up, as `pinprobe ledger` does: 1/16.",
)  # fmt: skip
@bound_options
@output_options
def advise(
    config: str,
    settings: tuple[str, ...],
    scale: Fraction,
    share: float,
    at_most: int | None,
    form: str | None,
    path: Path | None,
    overwrite: bool,
    quiet: bool,
) -> int:
    """Measure what the pinned tenants of CONFIG take as they are, and what they would take otherwise.

    Tried are the other allocators that can be had here, and each pinned key of PYTORCH_ALLOC_CONF that the installed
    torch knows, one at a time, in fresh processes: small requests first, then the tenants' own sizes as far as --share
    of the headroom goes; what is larger is predicted, and marked. What hands out a block smaller than its request is
    named, and never recommended.

    Exit codes: 0, or 1 where the config's own allocator hands out such blocks, 2 the config can't be used, 3 could not
    measure.
    """
    output = Output(form or "text", path, overwrite, quiet)
    output.check()
    opened = open_config(config, settings)

    from pinprobe.cli.advice_text import render_advice
    from pinprobe.cli.measuring import invocation, progress, tell_blind_spots
    from pinprobe.ledger.plan.advise import advise as find_advice
    from pinprobe.ledger.plan.tried_allocator import Trials
    from pinprobe.probes.host_facts import read_host_facts
    from pinprobe.probes.one_at_a_time import one_at_a_time

    with one_at_a_time(lambda: output.tell("pinprobe: waiting for another measurement of yours to end")):
        host = read_host_facts()
        tell_blind_spots(host, output)
        trials = Trials(share, at_most)
        with progress(f"trying ways to pin for {opened.engine}", output) as say:
            advice = find_advice(opened, scale, trials, say)
    output.write(render_advice(advice, trials.allowance, host, output.form, invocation()))
    return advice.exit_code
