"""`pinprobe diff`: what differs between two saved runs of `pinprobe ledger`, and why the process is larger."""

from __future__ import annotations

import re
from fractions import Fraction
from pathlib import Path
from typing import Any

import click

from pinprobe.cli.options import Output, output_options
from pinprobe.probes.errors import printable

_PERCENT = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,6})?) ?%", re.ASCII)


class Percentage(click.ParamType):  # type: ignore[type-arg, unused-ignore]  # generic from click 8.2 on
    """A share as a number with `%`: 0.05 alone could be five percent, or a twentieth of one."""

    name = "PERCENT"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Fraction:
        """Read it, or fail with what is wrong."""
        if isinstance(value, Fraction):
            return value
        match = _PERCENT.fullmatch(value.strip())
        if match is None:
            shown = printable(value)[:40]
            self.fail(f"{shown!r} is no percentage: write a number of up to 6 digits and %, as 5%.", param, ctx)
        return Fraction(match[1]) / 100


@click.command(short_help="Compare two saved runs of the ledger.")
@click.argument("old", type=click.Path(path_type=Path))
@click.argument("new", type=click.Path(path_type=Path))
@click.option(
    "--fail-on-increase", "allowed", type=Percentage(), metavar="PERCENT",
    help="Exit with 1 where what is booked for an owner, or in total, grew by more than this: 5%.",
)  # fmt: skip
@output_options
def diff(
    old: Path, new: Path, allowed: Fraction | None, form: str | None, path: Path | None, overwrite: bool, quiet: bool
) -> int:
    """Compare OLD and NEW, two receipts that `pinprobe ledger --receipt` saved.

    Shows each owner's bytes in both and what differs, the keys of the config that differ with what sets them back, and
    why the process is larger or smaller: what was asked, booked and resident would each predict, what was measured, and
    the residue that no row explains. Nothing is measured now.

    Exit codes: 0, or 1 where something grew beyond --fail-on-increase, 2 a receipt can't be used.
    """
    output = Output(form or "text", path, overwrite, quiet)
    output.check()

    import json

    from pinprobe.cli.diff_table import diff_markdown, diff_rows, diff_text
    from pinprobe.cli.diff_words import increase_sentence
    from pinprobe.cli.measuring import invocation
    from pinprobe.ledger.receipts.diff_receipt import diff_receipt
    from pinprobe.ledger.receipts.receipt_diff import diff_receipts, find_increases
    from pinprobe.ledger.receipts.receipt_file import read_receipt

    found = diff_receipts(read_receipt(old), read_receipt(new))
    increases = () if allowed is None else find_increases(found, allowed)
    if output.form == "json":
        output.write(json.dumps(diff_receipt(found, increases, allowed, invocation()), indent=2))
    elif output.form == "csv":
        output.write(diff_rows(found).csv())
        for increase in increases:
            output.tell(f"pinprobe: {increase_sentence(increase)}")
    else:
        write = diff_markdown if output.form == "markdown" else diff_text
        output.write(write(found, increases, allowed))
    return 1 if increases else 0
