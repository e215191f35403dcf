"""`pinprobe cache`: where compiled allocators and measured maps are kept, and emptying it."""

from __future__ import annotations

import click


@click.group()
def cache() -> None:
    """Show or empty the folder that compiled allocators and measured maps are kept in."""


@cache.command()
def path() -> None:
    """Print the folder."""
    from pinprobe.probes.cache_folder import cache_folder

    click.echo(cache_folder())


@cache.command()
def clear() -> None:
    """Remove everything that was compiled or measured."""
    from pinprobe.probes.cache_folder import cache_folder, clear_cache
    from pinprobe.probes.units import format_bytes

    size = clear_cache()
    click.echo(f"{format_bytes(size)} removed from {cache_folder()}" if size else f"{cache_folder()} was empty")
