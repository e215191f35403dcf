"""What proves that the kernel's OOM killer ended a process: its own counts, read before and after."""

from __future__ import annotations

from dataclasses import dataclass

from pinprobe.probes.cgroup import read_cgroup_levels
from pinprobe.probes.host_tree import HostTree
from pinprobe.probes.kernel_text import numbers_by_name
from pinprobe.probes.reading import Unreadable


@dataclass(frozen=True, slots=True)
class OomKills:
    """The number of processes killed so far, by each file that counts them."""

    by_source: dict[str, int]

    def proof_since(self, earlier: OomKills) -> str | None:
        """Name the nearest source that counted a kill since `earlier`; None where no source did."""
        for source, count in self.by_source.items():
            before = earlier.by_source.get(source)
            if before is not None and count > before:
                return f"{source}: oom_kill {before} -> {count}"
        return None


def read_oom_kills(tree: HostTree) -> OomKills:
    """Read every count that this process can see, its own cgroup's first and the host's (/proc/vmstat) last."""
    levels = read_cgroup_levels(tree)
    sources = []
    if not isinstance(levels, Unreadable):
        names = {1: "memory.oom_control", 2: "memory.events"}
        sources = [f"{level.path}/{names[level.version]}" for level in levels]
    found: dict[str, int] = {}
    for source in [*sources, "/proc/vmstat"]:
        counts = numbers_by_name(tree.text(source))
        if not isinstance(counts, Unreadable) and "oom_kill" in counts:
            found[source] = counts["oom_kill"]
    return OomKills(found)
