"""Swap: where pageable memory goes under pressure. What is pinned can't go there."""

from __future__ import annotations

from pinprobe.probes.host_tree import HostTree
from pinprobe.probes.kernel_text import kilobyte_fields
from pinprobe.probes.limits.limit import Limit, LimitKind
from pinprobe.probes.reading import Reading

_SOURCE = "/proc/meminfo"


def swap_limit(tree: HostTree) -> Limit:
    """Return how much swap there is in all; what is `free` of it is a part. A host without any reads 0."""
    fields = kilobyte_fields(tree.text(_SOURCE), ["SwapTotal", "SwapFree"], _SOURCE)
    free = fields["SwapFree"]
    parts = {"free": free} if isinstance(free, Reading) else {}
    return Limit(LimitKind.SWAP, "swap", fields["SwapTotal"], _SOURCE, "pageable memory", parts)
