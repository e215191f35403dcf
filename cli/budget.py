"""`pinprobe budget`: how memory that several consumers share will be divided, before anything is taken."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pinprobe.cli.config_options import config_options, read_settings
from pinprobe.cli.options import Output, output_options
from pinprobe.probes.errors import BadRequest

if TYPE_CHECKING:
    from pinprobe.ledger.config.config import Config


@click.command(short_help="Divide shared memory as an engine would, and say what binds.")
@config_options
@click.option(
    "--wish",
    "wishes",
    multiple=True,
    metavar="CONDITION",
    help='Answer the least value of a lever that does it: --wish "kv.tokens >= 700000". Given several times, each is'
    " answered by itself; join with `and` what has to hold at once.",
)
@click.option("--lever", metavar="NAME", help="Answer with this lever alone, not with each.")
@click.option("--marginal", metavar="NAME", help="Price one more of a number, such as slots, on host and device.")
@output_options
def budget(
    config: str, settings: tuple[str, ...], wishes: tuple[str, ...], lever: str | None, marginal: str | None,
    form: str | None, path: Path | None, overwrite: bool, quiet: bool,
) -> int:  # fmt: skip
    """Work out the `budget:` section of CONFIG, a YAML file or the name of one that comes with pinprobe.

    The waterfall is printed line by line with its rule: claims, floors, and how the rest is shared. Below it stands
    what each lever moves, and why it moves nothing where that is so. Nothing is taken and nothing of the engine's is
    run.

    Exit codes: 0 it fits, and some lever meets every wish; 1 it does not; 2 the config or a wish can't be used.
    """
    output = Output(form or "text", path, overwrite, quiet)
    output.check()

    from pinprobe.cli.budget_table import render_budget
    from pinprobe.ledger.budget.budget_report import report_budget
    from pinprobe.ledger.config.registry import load_config
    from pinprobe.ledger.config.shipped import find_config

    found = find_config(config)
    if found.exists() and not found.is_file() and not found.is_dir():
        raise BadRequest(f"{found} can be read once only, and levers are tried by reading again; save it to a file")
    overrides = read_settings(settings)

    def reload(changed: Mapping[str, str]) -> Config:
        return load_config(found, {**overrides, **changed})

    report = report_budget(reload({}), reload, wishes, lever, marginal)
    output.write(render_budget(report, output.form, settings))
    return report.exit_code
