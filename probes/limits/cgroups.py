"""What each memory cgroup above this process still gives: v1, v2 or both mounted at once, over all ancestors."""

from __future__ import annotations

from pinprobe.probes.cgroup import CgroupLevel, read_cgroup_levels
from pinprobe.probes.host_tree import HostTree
from pinprobe.probes.limits.limit import Absent, Limit, LimitKind
from pinprobe.probes.reading import Reading, Unreadable

_SOURCE = "/proc/self/cgroup"
_BINDS = "all, pinned too"


def cgroup_limits(tree: HostTree) -> tuple[Limit, ...]:
    """Return a limit for each level that sets one, the process's own first; one that is absent where none does.

    File cache that the kernel would drop is given back in the value; shared memory, which pinned memory is, is not. The
    parts are the level's `limit`, `used` and `droppable`.
    """
    levels = read_cgroup_levels(tree)
    if isinstance(levels, Unreadable):
        return (Limit(LimitKind.CGROUP, "cgroup", levels, _SOURCE, _BINDS),)
    if not levels:
        return (Limit(LimitKind.CGROUP, "cgroup", Absent("none is mounted"), "/proc/self/mountinfo", _BINDS),)
    bounded = tuple(_limit(level) for level in levels if level.room is not None)
    absent = Absent("none sets a limit")
    return bounded or (Limit(LimitKind.CGROUP, f"cgroup v{levels[0].version}", absent, levels[0].path, _BINDS),)


def _limit(level: CgroupLevel) -> Limit:
    room = level.room if level.room is not None else Absent("it sets no limit")
    parts = {"limit": level.limit, "used": level.usage, "droppable": level.droppable}
    return Limit(
        LimitKind.CGROUP,
        f"cgroup v{level.version}",
        room,
        level.limit.source if isinstance(level.limit, Reading) else level.path,
        _BINDS,
        {name: part for name, part in parts.items() if isinstance(part, Reading)},
    )
