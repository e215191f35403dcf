"""`pinprobe allocators`: what can be measured on this machine, and what would bring the rest."""

from __future__ import annotations

import click

from pinprobe.cli.options import Size


@click.command()
@click.option(
    "--bytes", "largest_bytes", type=Size(), default=154_927_104, show_default=True, help="Able to serve this much."
)
def allocators(largest_bytes: int) -> int:
    """List the allocators, and whether each can be had here."""
    from pinprobe.probes.allocators.registry import AUTO_ORDER, allocator_names, prepare_allocator
    from pinprobe.probes.errors import AllocatorUnavailable

    best = None
    for name in allocator_names():
        try:
            prepare_allocator(name, largest_bytes)
            state = "ready"
            best = min((best or name, name), key=AUTO_ORDER.index) if name in AUTO_ORDER else best
        except AllocatorUnavailable as error:
            state = f"not here: {error}"
        click.echo(f"{name:<12} {state}")
    click.echo(f"{'auto':<12} is {best}")
    return 0
