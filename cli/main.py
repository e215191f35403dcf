"""The command group, and the one place where an error becomes a line and an exit code.

Exit codes: 0 it holds; 1 a check failed; 2 bad usage; 3 could not measure.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
from types import FrameType
from typing import NoReturn

import click

from pinprobe import __version__
from pinprobe.probes.errors import PinprobeError

#: A new command is one file beside this one and one line here.
_COMMANDS = {
    "probe": "pinprobe.cli.probe:probe",
    "sweep": "pinprobe.cli.sweep:sweep",
    "plan": "pinprobe.cli.plan:plan",
    "advise": "pinprobe.cli.advise:advise",
    "preflight": "pinprobe.cli.preflight:preflight",
    "ledger": "pinprobe.cli.ledger:ledger",
    "diff": "pinprobe.cli.diff:diff",
    "lossless": "pinprobe.cli.lossless:lossless",
    "replay": "pinprobe.cli.replay:replay",
    "allocators": "pinprobe.cli.allocators:allocators",
    "cache": "pinprobe.cli.cache:cache",
    "check": "pinprobe.cli.check:check",
    "budget": "pinprobe.cli.budget:budget",
    "schema": "pinprobe.cli.schema:schema",
    "host": "pinprobe.cli.host:host",
}


class _LazyGroup(click.Group):
    """Loads a command's module when the command is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, or say which was perhaps meant."""
        if args and args[0] not in _COMMANDS and not args[0].startswith("-"):
            import difflib

            close = difflib.get_close_matches(args[0], _COMMANDS, n=1)
            if close:
                ctx.fail(f"No such command {args[0]!r}; did you mean {close[0]}?")
        return super().resolve_command(ctx, args)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module, _, attribute = _COMMANDS[cmd_name].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        for parameter in command.params:
            if isinstance(parameter, click.Option) and parameter.allow_from_autoenv:
                # click would name it after our parameter; users know the option's own name.
                longest = max(parameter.opts, key=len).lstrip("-").replace("-", "_").upper()
                parameter.envvar = f"PINPROBE_{cmd_name.upper()}_{longest}"
        return command


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="pinprobe", message="%(prog)s %(version)s")
def main() -> None:
    """Measure what page-locked host memory really costs.

    An allocator behind pinned memory may take almost twice what it is asked for, and what is pinned can't be swapped or
    reclaimed. pinprobe reads from the kernel what each request takes, against ordinary memory of the same size.

    Exit codes: 0 it holds, 1 a check failed, 2 bad usage, 3 could not measure. Options can be set in the
    environment: PINPROBE_SWEEP_SLOT_BYTES is --slot-bytes of sweep.
    """


def run() -> NoReturn:
    """Run the command line and end the process with its exit code."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup asks for SIGHUP to be ignored
            signal.signal(number, _interrupt)
    status = 3
    try:
        status = main.main(standalone_mode=False, prog_name="pinprobe") or 0
    except click.ClickException as error:
        error.show()
        status = 2
    except (click.Abort, KeyboardInterrupt) as error:
        _say(str(error) or "interrupted")
    except PinprobeError as error:
        _say(str(error))
        status = error.exit_code
    except OSError as error:
        _say(f"{error.filename or 'output'}: {error.strerror or error}")
    except Exception as error:
        if os.environ.get("PINPROBE_TRACEBACK"):
            raise
        _say(f"a fault of pinprobe itself ({type(error).__name__}: {error}); PINPROBE_TRACEBACK=1 shows where")
    sys.exit(status)


def _say(message: str) -> None:
    click.echo(f"pinprobe: {message}", err=True)


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    # One way out for every signal that ends a program, and it passes every `with` on the way.
    raise KeyboardInterrupt(f"ended by {signal.Signals(number).name}")
