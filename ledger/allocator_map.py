"""The cliff map of an allocator, measured for a ledger in a process of its own."""

from __future__ import annotations

from collections.abc import Iterable

from pinprobe.probes.allocators.registry import prepare_allocator
from pinprobe.probes.allowance import DEFAULT_SHARE, allow, allow_beside
from pinprobe.probes.errors import CouldNotMeasure
from pinprobe.probes.headroom import read_headroom
from pinprobe.probes.host_tree import THIS_HOST
from pinprobe.probes.measuring_child import MeasuringChild
from pinprobe.probes.one_at_a_time import one_at_a_time
from pinprobe.probes.sweep import Sweep
from pinprobe.probes.walk import walk


def map_allocator(name: str, slot_bytes: int, slots: Iterable[int]) -> Sweep:
    """Sweep an allocator over slot counts, within two thirds of the headroom.

    Raises `CouldNotMeasure` where the control does not hold or no point was measured.
    """
    counts = sorted(set(slots))
    with one_at_a_time(lambda: None):
        allowance = allow(read_headroom(THIS_HOST))
        prepared = prepare_allocator(name, min(counts[-1] * slot_bytes, allowance.bytes)).allocator
        sweep = walk(
            lambda: MeasuringChild(prepared),
            prepared.name,
            slot_bytes,
            counts,
            allowance,
            THIS_HOST.page_size_bytes,
            allowance_now=lambda held: allow_beside(read_headroom(THIS_HOST), held, DEFAULT_SHARE),
        )
    if sweep.control_fault or sweep.ended:
        raise CouldNotMeasure(f"{prepared.name} can't be mapped: {sweep.control_fault or sweep.ended}")
    return sweep
