"""`pinprobe preflight`: does this host let a config's tenants have what they need?"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pinprobe.cli.config_options import open_config
from pinprobe.cli.options import Output, output_options
from pinprobe.probes.errors import BadRequest, CouldNotMeasure, printable
from pinprobe.probes.units import LARGEST_SIZE_BYTES, parse_size

if TYPE_CHECKING:
    from pinprobe.ledger.config.config import Config
    from pinprobe.ledger.preflight.book_check import BookSeen
    from pinprobe.ledger.preflight.needs import Needs
    from pinprobe.probes.host_tree import HostTree


@click.command(short_help="Check a host's limits before an engine boots.")
@click.argument("config", required=False)
@click.option(
    "--set", "settings", multiple=True, metavar="NAME=EXPRESSION",
    help="Set one of the config's numbers anew, for this run. May be given several times.",
)  # fmt: skip
@click.option(
    "--raise", "is_raising", is_flag=True, allow_from_autoenv=False,
    help="Set what may be set of the limits that are too low. By this flag alone, not by the environment.",
)  # fmt: skip
@click.option(
    "--target", metavar="SIZE|NAME",
    help="What TTM's limit is raised to: a size, or a number of the config by its name.  [default: what is needed]",
)  # fmt: skip
@click.option(
    "--root", type=click.Path(path_type=Path), metavar="DIR",
    help="Read the proc and sys in this folder in the place of this host's own.",
)  # fmt: skip
@click.option(
    "--book-dir", type=click.Path(path_type=Path), metavar="DIR",
    help="The host's book, where processes or containers share one.  [default: $PINPROBE_BOOK_DIR, else one of this"
    " user's own]",
)  # fmt: skip
@click.option(
    "--map", "map_paths", type=click.Path(path_type=Path), multiple=True, metavar="FILE",
    help="Price by this map, which `pinprobe sweep --receipt FILE` wrote. May be given several times.",
)  # fmt: skip
@output_options
def preflight(
    config: str | None,
    settings: tuple[str, ...],
    is_raising: bool,
    target: str | None,
    root: Path | None,
    book_dir: Path | None,
    map_paths: tuple[Path, ...],
    form: str | None,
    path: Path | None,
    overwrite: bool,
    quiet: bool,
) -> int:
    """Hold each limit of this host against what the tenants of CONFIG need that are bound by it. Takes nothing.

    CONFIG is a YAML file or the name of one that comes with pinprobe. Only what a tenant is bound by can fail: a short
    RLIMIT_MEMLOCK is no error where a GPU driver pins. Without CONFIG everything is advice. Each check has its source,
    and what fails has a command that mends it.

    Nothing is changed unless --raise is given, which sets TTM's pages_limit and the soft RLIMIT_MEMLOCK of this process
    where these are too low, reads them back, and says by name what it does not set.

    Exit codes: 0 nothing fails, 1 a check fails, 2 the config can't be used, 3 a limit that binds a tenant can't be
    read. So it serves as ExecStartPre= and as an init container.
    """
    output = Output(form or "text", path, overwrite, quiet)
    output.check()
    if config is None and (settings or map_paths):
        raise BadRequest(f"{'--set' if settings else '--map'} is about a config, and none is given; name one")
    if is_raising and root is not None and root.resolve() == Path("/"):
        raise BadRequest(
            f"--raise --root {printable(root)} would set this host's own limits; leave --root out for that"
        )

    from pinprobe.cli.measuring import invocation
    from pinprobe.cli.preflight_table import render_preflight
    from pinprobe.ledger.preflight.needs import Needs
    from pinprobe.ledger.preflight.preflight import check_limits
    from pinprobe.ledger.preflight.preflight_receipt import PreflightRun
    from pinprobe.ledger.preflight.raise_failing import raise_failing
    from pinprobe.probes.host_facts import read_host_facts
    from pinprobe.probes.host_tree import THIS_HOST
    from pinprobe.probes.limits.read_limits import read_limits
    from pinprobe.probes.limits.recorded_tree import recorded_tree

    tree = THIS_HOST if root is None else recorded_tree(root)
    opened = None if config is None else open_config(config, settings)
    target_bytes = None if target is None else _target_bytes(target, opened)
    if target is not None and config is None and not is_raising:
        raise BadRequest("--target is held against what a CONFIG needs, or raised to by --raise; give one of them")
    priced = (Needs(), ()) if opened is None or config is None else _priced(opened, config, settings, map_paths, tree)
    needs, remarks = priced
    book = _look_into_book(book_dir, tree)
    limits = read_limits(tree)
    checks = check_limits(limits, needs, book, target_bytes)
    raises = raise_failing(tree, limits, checks, needs, target_bytes) if is_raising else ()
    if any(each.raised for each in raises):
        checks = check_limits(read_limits(tree), needs, book, target_bytes)
    run = PreflightRun(
        engine=needs.engine,
        config="" if opened is None else opened.path,
        root="" if root is None else printable(root),
        settings=tuple(map(printable, settings)),
        checks=checks,
        raises=raises,
        is_raising=is_raising,
        remarks=remarks,
    )
    host = read_host_facts(tree) if output.form == "json" else None
    output.write(render_preflight(run, host, output.form, invocation()))
    for each in raises if output.form == "csv" else ():
        output.tell(f"pinprobe: {each.refusal or f'raised {each.name}'}")
    return run.exit_code


def _priced(
    opened: Config, config: str, settings: tuple[str, ...], map_paths: tuple[Path, ...], tree: HostTree
) -> tuple[Needs, tuple[str, ...]]:
    """Price the config: by the maps that were given, else by those that this host keeps of its own allocators."""
    import shlex

    from pinprobe.ledger.plan.known_maps import KnownMaps, allocators_of
    from pinprobe.ledger.plan.map_cache import MapCache
    from pinprobe.ledger.plan.map_file import read_map
    from pinprobe.ledger.preflight.needs import needs_of
    from pinprobe.ledger.price import PriceList
    from pinprobe.probes.host_facts import read_host_facts
    from pinprobe.probes.host_tree import THIS_HOST

    # A command to copy has to be about the same numbers and the same prices.
    name = shlex.join([config, *_each("--set", settings), *_each("--map", map(str, map_paths))])
    if tree != THIS_HOST and not map_paths:
        # What this host's allocators take says nothing of another's.
        return needs_of(opened, PriceList(), name, tree.page_size_bytes), ()
    host = read_host_facts()
    known = KnownMaps(tuple(map(read_map, map_paths)), MapCache(host), host)
    known.learn(allocators_of(opened), measure=False)
    return needs_of(opened, known.prices, name, tree.page_size_bytes), tuple(known.remarks)


def _each(option: str, values: Iterable[str]) -> list[str]:
    return [word for value in values for word in (option, value)]


def _target_bytes(target: str, opened: Config | None) -> int:
    numbers = {} if opened is None else {name: opened.numbers[name] for name in opened.sizes if name in opened.numbers}
    if target not in numbers:
        try:
            return parse_size(target)
        except BadRequest as error:
            known = f"; the config's sizes are {', '.join(sorted(numbers))}" if numbers else ""
            raise BadRequest(f"--target: {error}{known}") from None
    size = numbers[target]
    if size.denominator != 1 or not 0 < size <= LARGEST_SIZE_BYTES:
        raise BadRequest(f"--target {target}: it comes to {float(size):,} B, which is no size")
    return int(size)


def _look_into_book(book_dir: Path | None, tree: HostTree) -> BookSeen:
    """Look at what others hold. A tree of another host's has no book but one that is named."""
    import logging

    from pinprobe.ledger.book.book_entry import BookReading
    from pinprobe.ledger.book.host_book import HostBook
    from pinprobe.ledger.preflight.book_check import BookSeen
    from pinprobe.probes.host_tree import THIS_HOST
    from pinprobe.probes.limits.limit import Absent

    if tree != THIS_HOST and book_dir is None:
        return BookSeen("", Absent("none in a recorded tree"))
    # What the book would log is part of what is printed.
    logging.getLogger("pinprobe").addHandler(logging.NullHandler())
    try:
        book = HostBook(book_dir)
    except BadRequest as error:
        if book_dir is not None:
            raise
        return BookSeen("", Absent(f"none is kept: {error}"))
    folder = printable(book.folder)
    try:
        return BookSeen(folder, book.read())
    except CouldNotMeasure as error:
        return BookSeen(folder, BookReading(unreadable=(str(error),)))
