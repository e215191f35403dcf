"""What the host itself has left: MemAvailable, and the free pages in per-CPU lists that it does not count."""

from __future__ import annotations

from pinprobe.probes.headroom import read_headroom
from pinprobe.probes.host_tree import HostTree
from pinprobe.probes.kernel_text import kilobyte_fields
from pinprobe.probes.limits.limit import Limit, LimitKind
from pinprobe.probes.reading import Reading

_SOURCE = "/proc/meminfo"


def memory_limit(tree: HostTree) -> Limit:
    """Return what the host can still give to anyone. Its parts say what it has in all (`total`)."""
    host = read_headroom(tree, with_pools=False).sources[0]
    total = kilobyte_fields(tree.text(_SOURCE), ["MemTotal"], _SOURCE)["MemTotal"]
    return Limit(
        LimitKind.MEMORY,
        host.name.partition(" ")[0] if isinstance(host.available, Reading) else "MemAvailable",
        host.available,
        host.available.source if isinstance(host.available, Reading) else _SOURCE,
        "all but pools",
        {"total": total} if isinstance(total, Reading) else {},
    )
