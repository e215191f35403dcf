"""`pinprobe plan`: what a config would cost this host, before a byte is taken."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pinprobe.cli.config_options import config_options, read_settings
from pinprobe.cli.options import SIZES, Output, Scale, Size, output_options
from pinprobe.probes.errors import BadConfig, BadRequest

if TYPE_CHECKING:
    from pinprobe.ledger.config.config import Config
    from pinprobe.probes.headroom import Headroom

#: More alternatives than anyone reads side by side.
MOST_ALTERNATIVES = 32


@click.command(short_help="Price a config before anything is taken.")
@config_options
@click.option(
    "--what-if", "what_if", multiple=True, metavar="NAME=EXPRESSION,...",
    help="Put an alternative beside it: numbers set anew, and `allocator=NAME`, several with commas between.",
)  # fmt: skip
@click.option("--fit", "fit_name", metavar="NAME", help="Find the largest value of one of its numbers that fits.")
@click.option(
    "--map", "map_paths", type=click.Path(path_type=Path), multiple=True, metavar="FILE",
    help="Price by this map, which `pinprobe sweep --receipt FILE` wrote. May be given several times.",
)  # fmt: skip
@click.option("--measure", is_flag=True, help="Try what its allocators take, in a fresh process, and keep that.")
@click.option(
    "--scale", type=Scale(), default="1", show_default=True, metavar="SHARE",
    help="Scale the counts of all tenants, rounded up, as `pinprobe ledger` does: 1/16.",
)  # fmt: skip
@click.option("--headroom", "room", type=Size(), help=f"Plan for a host that leaves this, not for this one. {SIZES}")
@click.option("--keep-free", type=Size(or_none=True), default=0, help=f"Leave this much of the headroom. {SIZES}")
@output_options
def plan(
    config: str,
    settings: tuple[str, ...],
    what_if: tuple[str, ...],
    fit_name: str | None,
    map_paths: tuple[Path, ...],
    measure: bool,
    scale: Fraction,
    room: int | None,
    keep_free: int,
    form: str | None,
    path: Path | None,
    overwrite: bool,
    quiet: bool,
) -> int:
    """Price every tenant of CONFIG, a YAML file or the name of one that comes with pinprobe, without taking it.

    A cost comes from a measured map of the tenant's allocator: --map, else the one that this host kept from --measure.
    What such a map does not hold is predicted from its points, and marked; without a map a tenant is priced at what it
    asks. Nothing of the engine's is run. Each rank's copy counts, a retention pool counts with its bound, and what a
    tenant takes for a while beside what stays counts too.

    Exit codes: 0 it fits, 1 it does not, 2 the config can't be used, 3 the headroom is not known. With --what-if that
    is of the config as it stands, and with --fit whether there is a value that fits.
    """
    output = Output(form or "text", path, overwrite, quiet)
    output.check()
    if len(what_if) > MOST_ALTERNATIVES:
        raise BadRequest(f"--what-if is given {len(what_if)} times; {MOST_ALTERNATIVES} alternatives are the most")
    if measure and map_paths:
        raise BadRequest("--measure and --map: give one of them; a map is used as it is")

    from pinprobe.cli.measuring import invocation, progress
    from pinprobe.cli.plan_text import render_plan
    from pinprobe.ledger.config.shipped import find_config
    from pinprobe.ledger.plan.known_maps import KnownMaps, allocators_of, unmapped_sentences
    from pinprobe.ledger.plan.map_cache import MapCache
    from pinprobe.ledger.plan.map_file import read_map
    from pinprobe.ledger.plan.plan import Plan, make_plan, smaller_tenants
    from pinprobe.ledger.plan.plan_fit import find_fit
    from pinprobe.ledger.plan.plan_receipt import PlanRun
    from pinprobe.ledger.plan.what_if import AS_IT_IS, open_alternative, parse_alternative, with_printed_moved
    from pinprobe.probes.host_facts import read_host_facts

    found = find_config(config)
    overrides = read_settings(settings)
    alternatives = (AS_IT_IS, *map(parse_alternative, what_if))
    configs = [open_alternative(found, overrides, alternative) for alternative in alternatives]
    as_written = _as_written(found, configs[0])
    host = read_host_facts()
    known = KnownMaps(tuple(map(read_map, map_paths)), MapCache(host), host)
    with progress(f"planning {configs[0].engine}", output) as say:
        known.learn(dict.fromkeys(name for each in configs for name in allocators_of(each)), measure=measure, say=say)
        headroom = _headroom(host.headroom, room)

        def planned(at: int, more: dict[str, str]) -> Plan:
            opened = configs[at]
            if more:
                opened = open_alternative(found, {**overrides, **more}, alternatives[at])
            opened = with_printed_moved(opened, as_written)
            given = {**overrides, **alternatives[at].overrides, **more}
            return make_plan(opened, known.prices, headroom, overrides=given, scale=scale, keep_free_bytes=keep_free)

        plans = tuple((alternative.text, planned(at, {})) for at, alternative in enumerate(alternatives))
        first = plans[0][1]
        fit = None
        if fit_name is not None:
            say(f"looking for the largest {fit_name}")
            fit = find_fit(fit_name, configs[0], lambda expression: planned(0, {fit_name: expression}))
    run = PlanRun(
        config=configs[0].path,
        plans=plans,
        smaller=smaller_tenants(first, known.prices) if first.fits is False else (),
        fit=fit,
        maps=tuple(known.maps),
        remarks=(*known.remarks, *unmapped_sentences([each for _, each in plans], known, config)),
    )
    for remark in run.remarks if output.form == "csv" else ():
        output.tell(f"pinprobe: {remark}")
    output.write(render_plan(run, host, output.form, invocation(), config))
    return run.exit_code


def _as_written(path: Path, config: Config) -> Config:
    """Return a config as its file has it: that is what its engine printed its figures of."""
    from pinprobe.ledger.config.registry import load_config

    try:
        return load_config(path)
    except BadConfig:  # what was set makes it whole
        return config


def _headroom(of_this_host: Headroom, room: int | None) -> Headroom:
    """Return this host's, or one that was given: of a host whose huge page pool nobody knows."""
    from pinprobe.probes.headroom import Headroom, HeadroomSource
    from pinprobe.probes.reading import Reading

    if room is None:
        return of_this_host
    return Headroom((HeadroomSource("--headroom", Reading(room, "--headroom")),))
