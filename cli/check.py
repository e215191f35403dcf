"""`pinprobe check`: does what a config says hold, before a byte is taken?"""

from __future__ import annotations

from pathlib import Path

import click

from pinprobe.cli.config_options import config_options, open_config
from pinprobe.cli.options import Output, output_options


@click.command(short_help="Say whether a config's checks hold.")
@config_options
@output_options
def check(
    config: str, settings: tuple[str, ...], form: str | None, path: Path | None, overwrite: bool, quiet: bool
) -> int:
    """Read CONFIG, a YAML file or the name of one that comes with pinprobe, and work out its checks.

    Nothing is allocated and nothing of the engine's is run. Each check is printed with what both sides come to, and one
    that fails with by how much. A config that can't be used is told with every place that has to be mended, and so is
    a tenant that could not be opened on any host.

    Exit codes: 0 all hold, 1 one fails, 2 the config can't be used.
    """
    output = Output(form or "text", path, overwrite, quiet)
    output.check()
    opened = open_config(config, settings)

    from pinprobe.cli.check_table import render_checks
    from pinprobe.ledger.config.checks import check_tenants, run_checks

    results = run_checks(opened)
    holds = all(result.holds for result in results)
    if holds:
        check_tenants(opened)  # else the failing check says it better
    output.write(render_checks(opened, results, output.form, settings))
    return 0 if holds else 1
