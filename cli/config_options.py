"""What commands that read a config share: the argument, and numbers set anew on the command line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

import click

from pinprobe.probes.errors import BadRequest, printable

if TYPE_CHECKING:
    from pinprobe.ledger.config.config import Config

_Command = TypeVar("_Command", bound=Callable[..., object])


def config_options(command: _Command) -> _Command:
    """Give a command its config; it gets it as `config` and `settings`, for `open_config`."""
    for decorate in (
        click.option(
            "--set",
            "settings",
            multiple=True,
            metavar="NAME=EXPRESSION",
            help="Set one of the config's numbers anew, for this run. May be given several times.",
        ),
        click.argument("config"),
    ):
        command = decorate(command)
    return command


def open_config(config: str, settings: Sequence[str]) -> Config:
    """Find and read a config: a file, or one that comes along by its bare name."""
    from pathlib import Path

    from pinprobe.ledger.config.registry import load_config
    from pinprobe.ledger.config.shipped import find_config

    overrides = read_settings(settings)
    found: Path = find_config(config)
    return load_config(found, overrides)


def read_settings(settings: Sequence[str]) -> dict[str, str]:
    """Read what was set into expressions by names.

    >>> read_settings(["slots=16", "pool = 16 * 148 MiB"])
    {'slots': '16', 'pool': '16 * 148 MiB'}
    """
    overrides: dict[str, str] = {}
    for setting in settings:
        name, equals, expression = (part.strip() for part in setting.partition("="))
        if not (name and equals):
            raise BadRequest(f"--set {printable(setting)[:100]!r} sets nothing; write --set slots=16")
        if name in overrides:
            raise BadRequest(f"--set {printable(name)[:100]} is given twice; once is enough")
        overrides[name] = expression
    return overrides
