"""The ledger's account in the forms that people read: the boot lines, coloured on a terminal, and tables."""

from __future__ import annotations

import os
import sys

from pinprobe.cli.figures import ratio, raw
from pinprobe.cli.grid import Grid
from pinprobe.cli.options import Output
from pinprobe.ledger.booking import Account
from pinprobe.ledger.printout import Tone, printout, printout_lines

_STYLES = {Tone.HEAD: "bold", Tone.DEAR: "yellow", Tone.BROKEN: "bold red", Tone.REMARK: "dim", Tone.PLAIN: ""}


def ledger_text(account: Account, output: Output, stats: bool) -> str:
    """Write an account in the form that the output wants: `text`, `csv` or `markdown`."""
    if output.form == "csv":
        return _grid(account).csv()
    if output.form == "markdown":
        return _grid(account).markdown()
    is_terminal = output.path is None and sys.stdout is not None and sys.stdout.isatty()
    if is_terminal and not os.environ.get("NO_COLOR"):
        return _coloured(account, stats)
    return printout(account, stats=stats)


def _coloured(account: Account, stats: bool) -> str:
    from rich.console import Console
    from rich.text import Text

    console = Console(force_terminal=True, highlight=False, width=200)
    with console.capture() as capture:
        for line in printout_lines(account, stats=stats):
            console.print(Text(line.text, style=_STYLES[line.tone]), soft_wrap=True)
    return capture.get().rstrip("\n")


def _grid(account: Account) -> Grid:
    header = ["<owner", "<state", "asked_bytes", "booked_bytes", "resident_bytes", "ratio", "<pageable", "<evidence"]
    rows = [
        [
            row.owner,
            row.state.value,
            str(row.asked_bytes),
            str(row.booked_bytes),
            raw(row.resident),
            ratio(row.ratio, unknown=""),
            str(row.pageable).lower(),
            row.evidence,
        ]
        for row in account.rows
    ]
    return Grid(header, rows)
