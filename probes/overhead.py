"""What pinning costs beside resident pages: page tables, and the bookkeeping of the driver and the kernel.

It stands in no counter of the process. What the host has available plus what its processes hold stays the same when a
page goes from one to the other, so its fall is what went elsewhere. Other processes that take or return memory
meanwhile move both parts and not the sum; what other drivers take is in it all the same, so it is a figure for a quiet
host.
"""

from __future__ import annotations

from pinprobe.probes.headroom import per_cpu_lists
from pinprobe.probes.host_tree import HostTree
from pinprobe.probes.kernel_text import kilobyte_fields
from pinprobe.probes.reading import Amount

_SOURCE = "/proc/meminfo"


def read_free_or_held(tree: HostTree) -> Amount:
    """Return MemAvailable and the per-CPU lists, plus all anonymous and shared memory of the host's processes.

    Pages of the huge page pool left MemAvailable when the pool was made, and are in none of it.
    """
    fields = kilobyte_fields(tree.text(_SOURCE), ["MemAvailable", "AnonPages", "Shmem"], _SOURCE)
    return fields["MemAvailable"] + per_cpu_lists(tree) + fields["AnonPages"] + fields["Shmem"]
