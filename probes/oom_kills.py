"""What proves that the kernel's OOM killer ended a process: its own counts, read before and after."""

from __future__ import annotations

from dataclasses import dataclass

from pinprobe.probes.cgroup import find_cgroup_folders
from pinprobe.probes.host_tree import HostTree
from pinprobe.probes.kernel_text import numbers_by_name
from pinprobe.probes.reading import Unreadable

_HOST = "/proc/vmstat"


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
    """Read the counts of this process's memory cgroups, its own first.

    The whole host's count (/proc/vmstat) is read only where those can't be: a kill elsewhere on the host moves it too,
    and proves nothing here.
    """
    folders = find_cgroup_folders(tree)
    sources = []
    if not isinstance(folders, Unreadable):
        name = "memory.oom_control" if folders.version == 1 else "memory.events"
        sources = [f"{path}/{name}" for path in folders.paths]
    found = {source: count for source in sources if (count := _count(tree, source)) is not None}
    if not found and (count := _count(tree, _HOST)) is not None:
        found[_HOST] = count
    return OomKills(found)


def _count(tree: HostTree, source: str) -> int | None:
    counts = numbers_by_name(tree.text(source))
    return None if isinstance(counts, Unreadable) else counts.get("oom_kill")
