"""The options of `pinprobe replay`, and which of them go together. Light, since `--help` loads it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from fractions import Fraction
from pathlib import Path
from typing import TypeVar

import click

from pinprobe.cli.options import SIZES, Scale, Size, SlotCounts, output_options
from pinprobe.probes.errors import BadRequest

#: More runs than these show nothing new.
MOST_REPLICATES = 1000

_Command = TypeVar("_Command", bound=Callable[..., object])

# The configs that come along and differ in how they keep savepoints.
_ARMS = ("savepoint-ring-32", "savepoint-ring-64", "savepoint-split", "savepoint-split-demand")

_OF_A_SCENARIO = ("sessions", "turns", "think_seconds", "prompt_tokens", "output_tokens", "seed")
_OF_ARMS = ("settings", "placement", "read_back", "bands", "real")
_NOT_WITH_SWEEP = ("placement", "bands", "real", "replicates")
_OF_AN_ENDPOINT = ("model", "nonce", "timeout", "silent_is_zero")


@dataclass(frozen=True)
class ReplayOptions:
    """What was asked for, as it was typed; what was left out is None, empty or False."""

    trace: Path | None
    scenario: str | None
    sessions: int | None
    turns: int | None
    think_seconds: float | None
    prompt_tokens: str | None
    output_tokens: int | None
    seed: int | None
    arms: tuple[str, ...]
    settings: tuple[str, ...]
    placement: str | None
    prefill: str | None
    read_back: int | None
    bands: str | None
    replicates: int | None
    real: bool
    scale: Fraction | None
    sweep: tuple[int, ...] | None
    policies: tuple[str, ...]
    urls: tuple[str, ...]
    model: str | None
    nonce: str | None
    timeout: float | None
    silent_is_zero: bool
    svg: Path | None
    form: str | None
    path: Path | None
    overwrite: bool
    quiet: bool

    def check(self) -> None:
        """Raise `BadRequest` where two options don't go together, or one is without the other that it belongs to."""
        if (self.trace is None) == (self.scenario is None):
            raise BadRequest("give either a TRACE, or --scenario NAME such as linear; one of them, not both")
        if self.trace is not None:
            self._refuse(_OF_A_SCENARIO, "shapes a --scenario, and a TRACE is as it was recorded")
        if self.sweep is None:
            self._refuse(("policies",), "belongs to --sweep, such as --sweep 8,16,32; an arm's policy is its config's")
        else:
            self._refuse(_NOT_WITH_SWEEP, "is for arms, and --sweep replays policies without any")
        if not self.real:
            self._refuse(("scale",), "is for --real; metadata takes no memory")
        if self.prefill is None:
            self._refuse(("read_back",), "is held against what prefill takes; give that with --prefill")
        if not self.urls:
            self._refuse(_OF_AN_ENDPOINT, "is for a live endpoint; give its address with --url")
        else:
            self._refuse(("trace",), "can't be sent to an endpoint, since it holds no text; give --scenario linear")
            others = (*_OF_ARMS, "prefill", "arms", "sweep", "svg")
            self._refuse(others, "does not go with --url: what keeps savepoints there is the server")

    @property
    def arm_configs(self) -> tuple[str, ...]:
        """The configs to compare; those that come along where none was named."""
        return self.arms or _ARMS

    def _refuse(self, names: tuple[str, ...], why: str) -> None:
        for name in names:
            if getattr(self, name) not in (None, (), False):
                raise BadRequest(f"{_WORDS[name]} {why}")


# How each option is written, by the field that it fills.
_WORDS = {
    **{field.name: f"--{field.name.replace('_', '-')}" for field in fields(ReplayOptions)},
    "trace": "TRACE",
    "arms": "--arm",
    "settings": "--set",
    "policies": "--policy",
    "urls": "--url",
}


def replay_options(command: _Command) -> _Command:
    """Give the command its options; it gets them by the names of the fields of `ReplayOptions`."""
    for group in (output_options, _endpoint_options, _sweep_options, _arm_options, _requests):  # the last one is first
        command = group(command)
    return command


def _requests(command: _Command) -> _Command:
    return _decorated(
        command,
        click.argument("trace", type=click.Path(path_type=Path), required=False),
        click.option("--scenario", metavar="NAME", help="A generated drive in a trace's place: linear, branching,"
                     " one-shot-flood, agentic, long-context or short-turns."),
        click.option("--sessions", type=click.IntRange(1), metavar="N", help="How many sessions it has at one time."),
        click.option("--turns", type=click.IntRange(1), metavar="N", help="How many turns each has."),
        click.option("--think-seconds", type=click.FloatRange(0), metavar="S",
                     help="From the end of an answer to the next turn."),
        click.option("--prompt-tokens", metavar="A:B", help="Its shortest and its longest prompt, such as 5355:6343."),
        click.option("--output-tokens", type=click.IntRange(0), metavar="N", help="The length of each answer."),
        click.option("--seed", type=click.IntRange(0, 2**31), metavar="N",
                     help="What its chances are drawn from.  [default: 0]"),
    )  # fmt: skip


def _arm_options(command: _Command) -> _Command:
    return _decorated(
        command,
        click.option("--arm", "arms", multiple=True, metavar="CONFIG", help="A config to replay through, a file or the"
                     " name of one that comes along. Repeat it to compare.  [default: the four savepoint configs]"),
        click.option("--set", "settings", multiple=True, metavar="NAME=EXPRESSION",
                     help="Set a number of all these configs anew, for this run."),
        click.option("--placement", metavar="WHERE", help="Where a prefill places savepoints: prompt-end, every-chunk,"
                     " ladder or ladder:K.  [default: prompt-end]"),
        click.option("--prefill", metavar="TEXT", help="What prefill takes, in seconds a token or of n tokens: 0.00019"
                     " or 0.00019*n+1.2e-9*n^2. Tokens that are spared are then seconds, too."),
        click.option("--read-back", type=Size(), help=f"What a disk reads back in a second. {SIZES}"),
        click.option("--bands", metavar="A:B,...", help="Count by the length of prompts: 0:8k,8k:32k,32k:128k."),
        click.option("--replicates", type=click.IntRange(1, MOST_REPLICATES), metavar="N",
                     help="Replay N seeds, from --seed on, and show their spread.  [default: 1]"),
        click.option("--real", is_flag=True, help="Copy real bytes, and measure what that takes. Needs torch."),
        click.option("--scale", type=Scale(), metavar="SHARE",
                     help="How large a savepoint of --real is, as a share of the config's.  [default: 1/16]"),
    )  # fmt: skip


def _sweep_options(command: _Command) -> _Command:
    return _decorated(
        command,
        click.option("--sweep", type=SlotCounts(), metavar="SLOTS",
                     help="Replay policies at so many slots, 8,16,32, in the place of arms."),
        click.option("--policy", "policies", multiple=True, metavar="NAME", help="A policy of --sweep: lru, gdsf,"
                     " chain, gittins or libcachesim:NAME; `libcachesim`: all of that library; `all`: all others."
                     "  [default: all]"),
        click.option("--svg", type=click.Path(path_type=Path), help="Draw hit rates over bytes into a picture."),
    )  # fmt: skip


def _endpoint_options(command: _Command) -> _Command:
    return _decorated(
        command,
        click.option("--url", "urls", multiple=True, metavar="[NAME=]URL",
                     help="Drive the live server there, in the place of arms. Repeat it to compare."),
        click.option("--model", metavar="NAME", help="The server's name of the model.  [default: its first one]"),
        click.option("--nonce", metavar="TEXT",
                     help="What prompts begin with, to repeat a drive. A server that saw it before has it cached."
                     "  [default: a fresh one for each drive]"),
        click.option("--timeout", type=click.FloatRange(0, min_open=True), metavar="SECONDS",
                     help="How long one answer may take.  [default: 600]"),
        click.option("--silent-is-zero", is_flag=True,
                     help="Take an answer that does not say what was cached as none of it."),
    )  # fmt: skip


def _decorated(command: _Command, *options: Callable[[_Command], _Command]) -> _Command:
    for decorate in reversed(options):
        command = decorate(command)
    return command
