"""How many ranks a launcher started on this host, by the variables it gives each of them."""

from __future__ import annotations

from pinprobe.probes.host_tree import HostTree
from pinprobe.probes.limits.limit import Absent, Limit, LimitKind, Value, Words
from pinprobe.probes.reading import Unreadable

#: torchrun's, Open MPI's, MPICH's and Intel's, Slurm's.
VARIABLES = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "SLURM_NTASKS_PER_NODE")

_SOURCE = "/proc/self/environ"


def started_ranks_limit(tree: HostTree) -> Limit:
    """Return the count of ranks on this host, as the first known variable gives it; absent without a launcher.

    The environment is the one that this process was started with. Nothing else of it is kept.
    """
    text = tree.text(_SOURCE)
    value: Value = Absent("no launcher")
    note = ""
    if isinstance(text, Unreadable):
        value = text
    else:
        environment = dict(part.partition("=")[::2] for part in text.split("\0"))
        for name in VARIABLES:
            count = environment.get(name, "")
            if count:
                is_count = count.isascii() and count.isdigit() and 0 < len(count) <= 6
                value = Words(count, int(count)) if is_count else Unreadable(f"{name} reads {count[:40]!r}")
                note = f"by {name}"
                break
    return Limit(LimitKind.RANKS, "ranks started", value, _SOURCE, "copies per rank", note=note)
