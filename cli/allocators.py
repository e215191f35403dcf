"""`pinprobe allocators`: what can be measured on this machine, and what would bring the rest."""

from __future__ import annotations

import textwrap

import click

from pinprobe.cli.grid import WIDTH
from pinprobe.cli.options import Size


@click.command(short_help="List what can be measured here.")
@click.option(
    "--bytes",
    "largest_bytes",
    type=Size(),
    default=154_927_104,
    show_default=True,
    help="The request it has to be fit for.",
)
def allocators(largest_bytes: int) -> int:
    """List the allocators, whether each can be had here, and what would bring the rest."""
    from pinprobe.probes.allocators.registry import AUTO_ORDER, allocator_names, prepare_allocator
    from pinprobe.probes.errors import AllocatorUnavailable

    names = allocator_names()
    width = max(map(len, names)) + 2
    ready = []
    for name in names:
        try:
            prepare_allocator(name, largest_bytes)
            ready.append(name)
            state = "ready"
        except AllocatorUnavailable as error:
            state = f"not here: {error}"
        click.echo(textwrap.fill(f"{name:<{width}}{state}", WIDTH, subsequent_indent=" " * width))
    click.echo(f"{'auto':<{width}}is {next(name for name in AUTO_ORDER if name in ready)}")
    return 0
