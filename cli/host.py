"""`pinprobe host`: what the processes of this host have booked, and what is left."""

from __future__ import annotations

from pathlib import Path

import click

from pinprobe.cli.options import Output, output_options


@click.command(short_help="Show what the processes of this host have booked.")
@click.option(
    "--book-dir", type=click.Path(path_type=Path), metavar="DIR",
    help="The book's folder, where processes or containers share one.  [default: $PINPROBE_BOOK_DIR, else one of this"
    " user's own in /dev/shm]",
)  # fmt: skip
@output_options
def host(book_dir: Path | None, form: str | None, path: Path | None, overwrite: bool, quiet: bool) -> int:
    """Show the book of this host: who holds how much, what is about to be taken, and what the host can still give.

    Each process that keeps its ledger in this book is listed for as long as it lives. Looking adds nothing to the book.
    Exit code 3 says that the sums are not whole, since the rows of a live process or the headroom can't be read.
    """
    output = Output(form or "text", path, overwrite, quiet)
    output.check()

    import json
    import logging

    from pinprobe.cli.host_table import host_text
    from pinprobe.cli.measuring import invocation
    from pinprobe.ledger.book.host_book import HostBook
    from pinprobe.ledger.book.host_receipt import host_receipt
    from pinprobe.probes.errors import printable
    from pinprobe.probes.host_facts import read_host_facts
    from pinprobe.probes.reading import Unreadable

    # What the book would log is part of what is printed.
    logging.getLogger("pinprobe").addHandler(logging.NullHandler())
    book = HostBook(book_dir)
    reading, reach = book.read(), book.reach
    facts = read_host_facts()
    exit_code = 3 if reading.unreadable or isinstance(facts.headroom.available, Unreadable) else 0
    if output.form == "json":
        document = host_receipt(reading, printable(book.folder), reach, facts, invocation(), exit_code)
        output.write(json.dumps(document, indent=2))
    else:
        output.write(host_text(reading, reach, facts.headroom, output.form))
    if output.form == "csv":
        for line in reading.set_aside:
            output.tell(f"pinprobe: set aside: {line}")
    return exit_code
