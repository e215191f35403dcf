"""`pinprobe replay`: requests through several ways to keep savepoints, and what each spares for which bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pinprobe.cli.options import Output, check_all
from pinprobe.cli.replay_options import ReplayOptions, replay_options
from pinprobe.probes.errors import printable

if TYPE_CHECKING:
    from pinprobe.ledger.replay.arm import Arm
    from pinprobe.ledger.replay.arm_replay import Setting
    from pinprobe.ledger.replay.arm_result import ArmResult
    from pinprobe.ledger.replay.replay_run import ReplayRun
    from pinprobe.ledger.replay.replicates import Drive, Play
    from pinprobe.ledger.replay.request import Request
    from pinprobe.ledger.replay.ring_prices import RingPrices
    from pinprobe.ledger.replay.shape import Shape

# How large a savepoint of a real replay is: bytes are compared at any size, and a large arm fits a small machine.
_REAL_SCALE = Fraction(1, 16)


@click.command(short_help="Compare ways to keep savepoints, by what they spare and take.")
@replay_options
def replay(**given: Any) -> int:
    """Replay TRACE, or a generated drive, through arms: configs that differ in how they keep savepoints.

    Each arm decides with the code that decides in an engine. Only metadata is replayed, unless --real or --url is
    given, and every figure that is modelled and not measured is said to be. TRACE is a CSV of requests or a JSON object
    a line, plain or gzipped.

    Exit codes: 0 it was replayed, 1 bytes came back wrong, 2 bad usage, a bad config or a bad trace, 3 it was not
    replayed to its end.
    """
    options = ReplayOptions(**given)
    options.check()
    output = Output(options.form or "text", options.path, options.overwrite, options.quiet)
    picture = Output("svg", options.svg, options.overwrite, options.quiet)
    check_all(output, *([picture] if options.svg is not None else []))

    from pinprobe.cli.measuring import tell_what_is_logged

    tell_what_is_logged(output)
    if options.urls:
        from pinprobe.cli.replay_endpoint import drive_endpoints

        return _shown(drive_endpoints(options, _shape(options), output), output, picture)
    run = _swept(options, output) if options.sweep is not None else _played(options, output)
    return _shown(run, output, picture)


def _played(options: ReplayOptions, output: Output) -> ReplayRun:
    """Replay through arms."""
    from pinprobe.cli.measuring import progress
    from pinprobe.ledger.replay.replay_run import ReplayRun, Source, modelled, worth_of
    from pinprobe.ledger.replay.replicates import play_arms
    from pinprobe.ledger.replay.ring_prices import RingPrices

    setting = _setting(options)
    arms = _arms(options)
    drive = _drive(options)
    seed = options.seed or 0
    seeds, notes = _seeds(options, drive, seed)
    requests = drive(seed)
    source = Source.of(requests, trace=_name_of(options.trace), scenario=options.scenario, shape=_shape(options))
    with progress("replay", output) as say:
        say("trying what the rings' allocators take")
        prices = RingPrices(arms)
        play = _real_play(options, setting, prices, say) if options.real else _metadata_play(setting, prices)
        played = play_arms(drive, arms, seeds, play, lambda arm, seed: say(f"{arm.name}, seed {seed}"))
    row_bytes = arms[0].ring_layout.row_bytes
    return ReplayRun(
        source,
        setting,
        row_bytes,
        modelled(setting, is_real=options.real),
        (*notes, *prices.notes),
        worth=worth_of(setting, row_bytes),
        played=played,
        ended=played.ended,
    )


def _swept(options: ReplayOptions, output: Output) -> ReplayRun:
    """Replay policies at numbers of slots."""
    from pinprobe.cli.measuring import progress
    from pinprobe.ledger.replay.replay_run import ReplayRun, Source, worth_of
    from pinprobe.ledger.replay.sweep_slots import policies_for, sweep_slots

    assert options.sweep is not None
    setting = _setting(options)
    arms = _arms(options)
    policies = policies_for(options.policies or ("all",), options.sweep[0])
    requests = _drive(options)(options.seed or 0)
    source = Source.of(requests, trace=_name_of(options.trace), scenario=options.scenario, shape=_shape(options))
    total = len(policies) * len(options.sweep)
    with progress("sweep of slots", output) as say:
        swept = sweep_slots(
            requests, policies, options.sweep,
            lambda policy, slots, done: say(f"{policy} at {slots:,} slots; {done} of {total} points done"),
        )  # fmt: skip
    row_bytes = arms[0].ring_layout.row_bytes
    words = f"All of it is modelled and nothing measured: metadata, copies that take no time, slots of {row_bytes:,} B."
    ended = swept.ended if swept.points or swept.ended else "no policy could be replayed at any number of slots"
    return ReplayRun(source, setting, row_bytes, (words,), worth=worth_of(setting, row_bytes), sweep=swept, ended=ended)


def _shown(run: ReplayRun, output: Output, picture: Output) -> int:
    """Write the result, and return the exit code."""
    from pinprobe.cli.hit_rate_svg import hit_rate_svg
    from pinprobe.cli.measuring import invocation
    from pinprobe.cli.replay_text import render_replay
    from pinprobe.probes.host_facts import read_host_facts

    host = read_host_facts()
    if run.ended:
        click.echo(f"pinprobe: ended early: {run.ended}", err=True)
    if output.form == "csv":
        for note in (*run.notes, *run.modelled):
            output.tell(f"pinprobe: {note}")
    if picture.path is not None:
        picture.write(hit_rate_svg(run, host.pinprobe))
    output.write(render_replay(run, host, output.form, invocation()))
    if run.ended:
        return 3
    return 1 if run.played is not None and run.played.has_wrong_bytes else 0


def _arms(options: ReplayOptions) -> list[Arm]:
    """Read the arms' configs; of two by the same name the later one is told apart by its number."""
    from dataclasses import replace

    from pinprobe.cli.config_options import open_config
    from pinprobe.ledger.replay.arm import arm_of

    arms: list[Arm] = []
    for config in options.arm_configs:
        arm = arm_of(open_config(config, options.settings))
        same = sum(other.name.partition(" #")[0] == arm.name for other in arms)
        arms.append(replace(arm, name=f"{arm.name} #{same + 1}") if same else arm)
    return arms


def _name_of(trace: Path | None) -> str | None:
    return None if trace is None else printable(trace)


def _shape(options: ReplayOptions) -> Shape | None:
    """Read how large the drive is; None where there is a trace in its place."""
    from pinprobe.ledger.replay.shape import parse_prompt_tokens
    from pinprobe.ledger.replay.shaped_scenario import shape_for

    if options.scenario is None:
        return None
    tokens = None if options.prompt_tokens is None else parse_prompt_tokens(options.prompt_tokens)
    return shape_for(
        options.scenario,
        sessions=options.sessions,
        turns=options.turns,
        think_seconds=options.think_seconds,
        prompt_tokens=tokens,
        output_tokens=options.output_tokens,
        seed=options.seed,
    )


def _drive(options: ReplayOptions) -> Drive:
    """Return what makes the requests of a seed."""
    from dataclasses import replace

    from pinprobe.ledger.replay.any_trace import read_any_trace
    from pinprobe.ledger.replay.shaped_scenario import make_shaped_scenario

    if options.trace is not None:
        requests = read_any_trace(options.trace)
        return lambda seed: requests
    name, shape = options.scenario, _shape(options)
    assert name is not None
    assert shape is not None
    return lambda seed: make_shaped_scenario(name, replace(shape, seed=seed))


def _seeds(options: ReplayOptions, drive: Drive, first: int) -> tuple[range, list[str]]:
    """Return the seeds to replay; where another one makes no other requests, one alone and a note on that."""
    from pinprobe.ledger.replay.replicates import is_seeded

    count = options.replicates or 1
    if count == 1 or options.real or (options.trace is None and is_seeded(drive, first)):
        return range(first, first + count), []
    what = "a trace" if options.trace is not None else f"the drive {options.scenario}"
    note = f"{what} is the same for every seed, and so is its replay: one run in the place of {count}"
    return range(first, first + 1), [note]


def _setting(options: ReplayOptions) -> Setting:
    from pinprobe.ledger.replay.arm_replay import Setting
    from pinprobe.ledger.replay.bands import parse_bands
    from pinprobe.ledger.replay.placement import check_placement
    from pinprobe.ledger.tenants.prefill_time import PrefillTime

    placement = options.placement or "prompt-end"
    check_placement(placement)
    return Setting(
        placement=placement,
        prefill_time=None if options.prefill is None else PrefillTime.parse(options.prefill),
        read_back_bytes_per_second=options.read_back,
        bands=() if options.bands is None else parse_bands(options.bands),
    )


def _metadata_play(setting: Setting, prices: RingPrices) -> Play:
    from dataclasses import replace

    from pinprobe.ledger.replay.arm_replay import replay_arm

    def play(requests: Sequence[Request], arm: Arm, seed: int) -> ArmResult:
        return replay_arm(requests, arm, replace(setting, seed=seed), prices.price(arm))

    return play


def _real_play(options: ReplayOptions, setting: Setting, prices: RingPrices, say: Callable[[str], None]) -> Play:
    from dataclasses import replace

    from pinprobe.ledger.replay.real_replay import replay_for_real

    scale = options.scale or _REAL_SCALE

    def play(requests: Sequence[Request], arm: Arm, seed: int) -> ArmResult:
        def watch(done: int) -> None:
            say(f"{arm.name}, seed {seed}: {done:,} of {len(requests):,} requests")

        result = replay_for_real(requests, arm, replace(setting, seed=seed), scale, watch)
        # What small savepoints took is no word on what large ones would; `measured` has it.
        return result if scale == 1 else replace(result, pinned=prices.price(arm))

    return play
