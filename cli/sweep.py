"""`pinprobe sweep`: what each slot count costs, and where the cliffs are."""

from __future__ import annotations

from pathlib import Path

import click

from pinprobe.cli.options import (
    SIZES,
    Output,
    Size,
    SlotCounts,
    bound_options,
    check_all,
    detail_options,
    output_options,
    total_bytes,
)


@click.command(short_help="Map what 1, 2, 3 and more slots cost.")
@click.option("--slot-bytes", type=Size(), required=True, help=f"The size of one slot. {SIZES}")
@click.option("--slots", type=SlotCounts(), default="1..64", show_default=True, help="Such as 1..64 or 1,8,16.")
@click.option(
    "--allocator", "names", default=("auto",), multiple=True, show_default="auto", metavar="NAME",
    help="Repeat it to compare; `pinprobe allocators` lists them.",
)  # fmt: skip
@click.option("--walk", "fresh_children", is_flag=True, help="Measure each point in a fresh process, every block anew.")
@click.option("--every-point", is_flag=True, help="List every point, not only those beside a cliff.")
@click.option("--svg", type=click.Path(path_type=Path), help="Draw the staircases into a picture of its own.")
@detail_options
@bound_options
@output_options
def sweep(
    slot_bytes: int,
    slots: tuple[int, ...],
    names: tuple[str, ...],
    fresh_children: bool,
    every_point: bool,
    svg: Path | None,
    columns: str,
    receipt: Path | None,
    share: float,
    at_most: int | None,
    form: str | None,
    path: Path | None,
    overwrite: bool,
    quiet: bool,
) -> int:
    """Map the block cliffs of an allocator: what 1, 2, 3 ... slots really cost.

    The allocator's cache is kept on the way up, so that only its cliffs take memory, and never more than --share of
    what this host can give. What lies beyond that is predicted from the measured points, and marked.
    """
    output = Output(form or "text", path, overwrite, quiet)
    kept = Output("json", receipt, overwrite, quiet)
    picture = Output("svg", svg, overwrite, quiet)
    check_all(output, *([kept] if receipt is not None else []), *([picture] if svg is not None else []))
    largest = total_bytes(slot_bytes, slots[-1])

    from pinprobe.cli.measuring import invocation, prepare, progress, tell_blind_spots
    from pinprobe.cli.render import render_sweeps
    from pinprobe.cli.staircase_svg import staircase_svg
    from pinprobe.probes.allocators.registry import check_name
    from pinprobe.probes.allowance import Allowance, allow, allow_beside
    from pinprobe.probes.errors import CouldNotMeasure
    from pinprobe.probes.headroom import read_headroom
    from pinprobe.probes.host_facts import read_host_facts
    from pinprobe.probes.host_tree import THIS_HOST
    from pinprobe.probes.measuring_child import MeasuringChild
    from pinprobe.probes.one_at_a_time import one_at_a_time
    from pinprobe.probes.units import format_bytes
    from pinprobe.probes.walk import walk

    for name in names:
        check_name(name)
    with one_at_a_time(lambda: output.tell("pinprobe: waiting for another measurement of yours to end")):
        host = read_host_facts()
        tell_blind_spots(host, output)
        allowance = allow(host.headroom, share, at_most)

        def allowance_now(held_bytes: int) -> Allowance:
            return allow_beside(read_headroom(THIS_HOST), held_bytes, share, at_most)

        # One that was asked for by name measures what it can, and says where it stops; `auto` takes one that can do it
        # all.
        able = {name: min(largest, allowance.bytes) if name == "auto" else slots[0] * slot_bytes for name in names}
        ready = [prepare(name, bytes_, output) for name, bytes_ in able.items()]
        sweeps = []
        for allocator in ready:
            with progress(f"sweep of {allocator.name}", output) as say:
                sweeps.append(
                    walk(
                        lambda allocator=allocator: MeasuringChild(allocator),  # type: ignore[misc]
                        allocator.name,
                        slot_bytes,
                        slots,
                        allowance,
                        host.page_size_bytes,
                        allowance_now=allowance_now,
                        fresh_children=fresh_children,
                        watch=lambda count, done, say=say: say(  # type: ignore[misc]
                            f"{count} slots, {format_bytes(count * slot_bytes)}; {done} of {len(slots)} points done"
                        ),
                    )
                )
            if sweeps[-1].ended:
                break
    if sweeps[-1].ended:
        if sweeps[0].control is None and output.form != "json":
            raise CouldNotMeasure(sweeps[0].ended or "nothing was measured")
        click.echo(f"pinprobe: ended early: {sweeps[-1].ended}", err=True)
    if svg is not None:
        picture.write(staircase_svg(sweeps, host))
    if receipt is not None:
        kept.write(render_sweeps(sweeps, host, "json", invocation(), every_point, columns))
    output.write(render_sweeps(sweeps, host, output.form, invocation(), every_point, columns))
    codes = {sweep.exit_code for sweep in sweeps}
    return 1 if 1 in codes else max(codes)
