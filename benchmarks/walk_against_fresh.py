"""The cached walk beside a fresh process for each point: the same cliffs, and what each touched and took.

Limit: where the cache serves every point but the cliffs, the walk touches at most 2.2 times the largest block. Run it
with `python benchmarks/walk_against_fresh.py [SLOTS]`; it exits 1 where the limit is passed or the two disagree.
"""

from __future__ import annotations

import sys

from pinprobe.probes.allocators.registry import prepare_allocator
from pinprobe.probes.allowance import allow
from pinprobe.probes.cliffs import find_cliffs
from pinprobe.probes.headroom import read_headroom
from pinprobe.probes.host_tree import THIS_HOST
from pinprobe.probes.measuring_child import MeasuringChild
from pinprobe.probes.reading import Reading
from pinprobe.probes.units import format_bytes
from pinprobe.probes.walk import walk

SLOT_BYTES = 154_927_104
LIMIT = 2.2


def main() -> int:
    slots = range(1, int(sys.argv[1]) + 1 if len(sys.argv) > 1 else 17)
    allocator = prepare_allocator("torch-host", slots[-1] * SLOT_BYTES).allocator
    allowance = allow(read_headroom(THIS_HOST))
    found = []
    print(f"limit: {LIMIT} times the largest block, for one process with its cache kept")
    for fresh_children in (False, True):
        sweep = walk(
            lambda: MeasuringChild(allocator), allocator.name, SLOT_BYTES, slots, allowance, THIS_HOST.page_size_bytes,
            fresh_children=fresh_children,
        )  # fmt: skip
        largest = max(point.block.bytes for point in sweep.points if isinstance(point.block, Reading))
        found.append((tuple(cliff.slots for cliff in find_cliffs(sweep.points)), sweep.touched_bytes / largest))
        name = "a fresh process each" if fresh_children else "one process, cache kept"
        print(
            f"{name:<24} {sweep.seconds:6.1f} s   touched {format_bytes(sweep.touched_bytes):>12}"
            f"   {sweep.touched_bytes / largest:5.2f}x the largest block   cliffs {found[-1][0]}"
        )
    (cached_cliffs, cached_ratio), (fresh_cliffs, _) = found
    return int(cached_ratio > LIMIT or cached_cliffs != fresh_cliffs)


if __name__ == "__main__":
    sys.exit(main())
