"""`pinprobe schema`: what a config may say, for editors."""

from __future__ import annotations

import click

from pinprobe.cli.options import Output


@click.command(short_help="Print the JSON Schema of a config.")
def schema() -> int:
    """Print the JSON Schema (draft 2020-12) of a config, with every kind of tenant that is known here.

    An editor that knows it completes and explains the keys: save it beside the config and begin the config with
    `# yaml-language-server: $schema=FILE`.
    """
    output = Output("json", None, False, False)
    output.check()

    import json

    from pinprobe.ledger.config.schema import json_schema

    output.write(json.dumps(json_schema(), indent=2))
    return 0
