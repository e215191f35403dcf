"""`pinprobe ledger`: every tenant of a config opened for real, its true cost printed, and all of it given back."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pinprobe.cli.config_options import config_options, open_config, read_settings
from pinprobe.cli.options import SIZES, Output, Scale, Size, check_all, output_options

if TYPE_CHECKING:
    from pinprobe.ledger.book.host_book import HostBook
    from pinprobe.ledger.booking import Account


# How long a signal may go unseen that comes just before a sleep.
_PULSE_SECONDS = 0.2


@click.command(short_help="Open a config's tenants and print what they cost.")
@config_options
@click.option(
    "--scale", type=Scale(), default="1", show_default=True, metavar="SHARE",
    help="Scale the counts of all tenants, rounded up, so that a smaller machine can boot the config: 1/16.",
)  # fmt: skip
@click.option("--stats", is_flag=True, help="Print what each tenant counted, too.")
@click.option("--hold", is_flag=True, help="Keep everything until a signal comes (Ctrl-C), then give it back.")
@click.option("--keep-free", type=Size(or_none=True), default=0, help=f"Leave this much of the headroom. {SIZES}")
@click.option("--limit", type=Size(), help="Refuse what would bring all that is booked above this.")
@click.option(
    "--book-dir", type=click.Path(path_type=Path), metavar="DIR",
    help="The host's book, where processes or containers share one.  [default: $PINPROBE_BOOK_DIR, else one of this"
    " user's own]",
)  # fmt: skip
@click.option("--ignore-checks", is_flag=True, help="Open it all though a check of the config fails.")
@click.option("--receipt", type=click.Path(path_type=Path), help="Save what --json would print, beside the output.")
@click.option("--note", default="", metavar="TEXT", help="A note to go into the receipt.")
@output_options
def ledger(
    config: str,
    settings: tuple[str, ...],
    scale: Fraction,
    stats: bool,
    hold: bool,
    keep_free: int,
    limit: int | None,
    book_dir: Path | None,
    ignore_checks: bool,
    receipt: Path | None,
    note: str,
    form: str | None,
    path: Path | None,
    overwrite: bool,
    quiet: bool,
) -> int:
    """Open every tenant of CONFIG, a YAML file or the name of one that comes with pinprobe, and print the ledger.

    The memory is really taken, one copy for each rank where a tenant is held per rank, and given back at the end.
    Before each tenant its price is held against the headroom, and what does not fit is refused by name.

    A tenant of kind `external` runs the engine's own code, looked for in the current folder too.

    Exit codes: 0 booked >= resident holds, 1 it does not, or a check of the config fails, or a tenant was refused, 2
    the config can't be used, 3 could not measure.
    """
    output = Output(form or "text", path, overwrite, quiet)
    kept = Output("json", receipt, overwrite, quiet)
    check_all(output, *([kept] if receipt is not None else []))
    opened = open_config(config, settings)

    import contextlib
    import json
    import sys
    import time

    from pinprobe.cli.ledger_table import ledger_text
    from pinprobe.cli.measuring import invocation, progress, tell_what_is_logged
    from pinprobe.cli.stdout_apart import StdoutApart
    from pinprobe.ledger.boot import Boot
    from pinprobe.ledger.config.checks import refuse_failing
    from pinprobe.ledger.ledger import HostPinnedLedger
    from pinprobe.ledger.ledger_receipt import ledger_receipt
    from pinprobe.probes.errors import printable
    from pinprobe.probes.host_facts import read_host_facts
    from pinprobe.probes.units import format_bytes

    if not ignore_checks:
        refuse_failing(opened)
    with contextlib.suppress(OSError):  # a current folder that is gone holds no engine
        sys.path.append(str(Path.cwd()))
    tell_what_is_logged(output)
    host = read_host_facts()

    def document(account: Account) -> dict[str, Any]:
        return ledger_receipt(
            account,
            host,
            invocation(),
            config=opened.document,
            overrides=read_settings(settings),
            scale=str(scale),
            note=printable(note),
        )

    # Engines and allocators of others may print, at any moment until their memory is given back; stdout is data.
    with contextlib.ExitStack() as stack, StdoutApart() as stdout:
        with progress(f"making {opened.engine} ready", output) as say:
            boot = stack.enter_context(Boot(opened, scale))
            book = _host_book(book_dir, opened.engine, output)
            held = stack.enter_context(
                HostPinnedLedger(allocator=opened.allocator, keep_free_bytes=keep_free, limit_bytes=limit, book=book)
            )
            stack.callback(boot.close)  # before the ledger asks for what is left
            say("trying what its allocators take")
            boot.learn_prices(held)
            say(f"taking {format_bytes(boot.asked_bytes)}")
            boot.open(held)
            account = held.verify()
        try:
            with stdout.given_back():
                if receipt is not None:
                    kept.write(json.dumps(document(account), indent=2))
                text = json.dumps(document(account)) if output.form == "json" else ledger_text(account, output, stats)
                output.write(text)
            if hold:
                output.tell("pinprobe: holding it all; Ctrl-C gives it back")
                while True:
                    time.sleep(_PULSE_SECONDS)
        except KeyboardInterrupt:
            if not hold:
                raise
            output.tell("pinprobe: giving it back")
        stack.close()
    return 0 if account.holds else 1


def _host_book(book_dir: Path | None, engine: str, output: Output) -> HostBook | None:
    """Open the book that was named, or the user's own; where there is no place for that, go on without and say so."""
    from pinprobe.ledger.book.book_folder import given_by_environment
    from pinprobe.ledger.book.host_book import HostBook
    from pinprobe.probes.errors import PinprobeError

    try:
        book = HostBook(book_dir, label=engine)
        with book.locked():
            pass  # registers, so that a folder that is full is known now
        return book
    except PinprobeError as error:
        if book_dir is not None or given_by_environment() is not None:
            raise
        output.tell(f"pinprobe: no book of the host is kept: {error}")
        return None
