"""The memory cgroups above this process, v1, v2 or both mounted at once, and what each still lets it have.

A level's room is `limit - usage + droppable`. Droppable is the file cache the kernel would give back under pressure:
the `file` (v1: `cache`) figure less shared memory, which is counted there but can't be dropped (CUDA's pinned memory is
shared memory), and never more than what stands on the file LRU lists, where mlocked file pages are not.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import PurePosixPath

from pinprobe.probes.host_tree import HostTree
from pinprobe.probes.kernel_text import numbers_by_name, single_number
from pinprobe.probes.reading import Amount, Reading, Unreadable
from pinprobe.probes.units import LARGEST_SIZE_BYTES


@dataclass(frozen=True, slots=True)
class CgroupLevel:
    """One memory cgroup that bounds the process.

    `limit` is the lowest of the level's limits, or None where it sets none. `room` is what it still gives: at least 0,
    None without a limit.
    """

    version: int
    path: str
    limit: Amount | None
    usage: Amount
    droppable: Amount
    room: Amount | None


@dataclass(frozen=True, slots=True)
class _Hierarchy:
    version: int
    mount_point: str
    mount_root: str


def read_cgroup_levels(tree: HostTree, pid: int | str = "self") -> tuple[CgroupLevel, ...] | Unreadable:
    """Return every memory cgroup from the process's own up to the top of what this process can see.

    Empty where no memory controller is mounted; `Unreadable` where it can't be told.
    """
    memberships = tree.text(f"/proc/{pid}/cgroup")
    mounts = tree.text(f"/proc/{pid}/mountinfo")
    if isinstance(memberships, Unreadable):
        return memberships
    if isinstance(mounts, Unreadable):
        return mounts
    found = _find_folders(memberships, mounts, pid)
    if isinstance(found, Unreadable):
        return found
    version, folders = found
    read = _read_v1 if version == 1 else _read_v2
    return tuple(read(tree, folder) for folder in folders)


@lru_cache(maxsize=16)  # both texts stay the same for a process's life, mostly, and are long
def _find_folders(memberships: str, mounts: str, pid: int | str) -> tuple[int, tuple[str, ...]] | Unreadable:
    """Return the version of the hierarchy that accounts memory, and the process's folders in it, if there is one."""
    hierarchy = _memory_hierarchy(mounts)
    if hierarchy is None and (" - " not in mounts or not mounts.endswith("\n")):
        # Every process has mounts, each in a whole line: this text was damaged, and what it names no more may bind.
        return Unreadable(f"/proc/{pid}/mountinfo names no mount or was cut off")
    if hierarchy is None:
        return 0, ()
    own_path = _own_path(memberships, hierarchy.version)
    if own_path is None:
        return Unreadable(f"/proc/{pid}/cgroup names no cgroup v{hierarchy.version} for memory")
    folders = _folders(hierarchy, own_path)
    return folders if isinstance(folders, Unreadable) else (hierarchy.version, tuple(folders))


def _memory_hierarchy(mounts: str) -> _Hierarchy | None:
    """Find the hierarchy that accounts memory: v1 where its memory controller is mounted, as on hybrids, else v2."""
    unified: _Hierarchy | None = None
    for line in mounts.split("\n"):
        before, separator, after = line.partition(" - ")
        place, kind = before.split(), after.split()
        if not separator or len(place) < 5 or len(kind) < 3:
            continue
        root, mount_point = _unescaped(place[3]), _unescaped(place[4])
        if kind[0] == "cgroup" and "memory" in kind[2].split(","):
            return _Hierarchy(1, mount_point, root)
        if kind[0] == "cgroup2" and unified is None:
            unified = _Hierarchy(2, mount_point, root)
    return unified


def _unescaped(field: str) -> str:
    # mountinfo writes space, tab, newline and backslash in octal.
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        field = field.replace(code, character)
    return field


def _own_path(memberships: str, version: int) -> str | None:
    for line in memberships.split("\n"):
        parts = line.split(":", 2)
        if len(parts) == 3:
            is_unified = parts[0] == "0" and not parts[1]
            if (version == 2 and is_unified) or (version == 1 and "memory" in parts[1].split(",")):
                return parts[2]
    return None


def _folders(hierarchy: _Hierarchy, own_path: str) -> list[str] | Unreadable:
    """Return the folders from the process's own cgroup up to the mount point.

    A container may see only a part: its mount shows the hierarchy from `mount_root` on. Where the process's own cgroup
    is not below that, its limits stand in no file here, and a level that is visible need not bind it.
    """
    top = PurePosixPath(hierarchy.mount_point)
    own, root = PurePosixPath(own_path), PurePosixPath(hierarchy.mount_root)
    if ".." in own.parts or ".." in root.parts or not own.is_relative_to(root):
        return Unreadable(
            f"this process is in the memory cgroup {own_path}, and {hierarchy.mount_point} shows those below"
            f" {hierarchy.mount_root} only"
        )
    folders = [top / own.relative_to(root)]
    while folders[-1] != top:
        folders.append(folders[-1].parent)
    return [str(folder) for folder in folders]


def _read_v2(tree: HostTree, folder: str) -> CgroupLevel:
    limits = [_limit_v2(tree, folder, name) for name in ("memory.max", "memory.high")]
    usage = single_number(tree.text(f"{folder}/memory.current"), f"{folder}/memory.current")
    droppable = _droppable(tree, folder, cache="file", shared="shmem", prefix="")
    return _level(2, folder, limits, usage, droppable)


def _limit_v2(tree: HostTree, folder: str, name: str) -> Amount | None:
    text = tree.text(f"{folder}/{name}")
    if isinstance(text, Unreadable) and (files := tree.names(folder)) and name not in files:
        return None  # the top of the hierarchy has no such file; a folder that can't be listed is another matter
    if isinstance(text, str) and text.strip() == "max":
        return None
    return single_number(text, f"{folder}/{name}")


def _read_v1(tree: HostTree, folder: str) -> CgroupLevel:
    own_limit = single_number(tree.text(f"{folder}/memory.limit_in_bytes"), f"{folder}/memory.limit_in_bytes")
    limits: list[Amount | None] = [own_limit]
    stat = numbers_by_name(tree.text(f"{folder}/memory.stat"))
    if not isinstance(stat, Unreadable) and "hierarchical_memory_limit" in stat:
        # The lowest limit above, also of ancestors that a container can't see; their usage is unknown, ours a lower
        # bound.
        limits.append(Reading(stat["hierarchical_memory_limit"], f"{folder}/memory.stat hierarchical_memory_limit"))
    limits = [None if isinstance(limit, Reading) and limit.bytes > LARGEST_SIZE_BYTES else limit for limit in limits]
    usage = single_number(tree.text(f"{folder}/memory.usage_in_bytes"), f"{folder}/memory.usage_in_bytes")
    droppable = _droppable(tree, folder, cache="total_cache", shared="total_shmem", prefix="total_")
    return _level(1, folder, limits, usage, droppable)


def _droppable(tree: HostTree, folder: str, *, cache: str, shared: str, prefix: str) -> Amount:
    origin = f"{folder}/memory.stat"
    stat = numbers_by_name(tree.text(origin))
    if isinstance(stat, Unreadable):
        return stat
    active, inactive = f"{prefix}active_file", f"{prefix}inactive_file"
    missing = [name for name in (cache, shared, active, inactive) if name not in stat]
    if missing:
        return Unreadable(f"{origin} has no {missing[0]}")
    droppable = min(stat[cache] - stat[shared], stat[active] + stat[inactive])
    return Reading(max(0, droppable), origin)


def _level(version: int, folder: str, limits: list[Amount | None], usage: Amount, droppable: Amount) -> CgroupLevel:
    limit = _lowest(limits)
    if limit is None or isinstance(limit, Unreadable):
        room: Amount | None = limit
    elif isinstance(usage, Unreadable):
        room = usage
    else:
        # Cache that can't be told apart is not given back: the room then errs on the small side. The files are read one
        # after the other, and usage may already know of less than memory.stat: no room is larger than its limit.
        given_back = droppable.bytes if isinstance(droppable, Reading) else 0
        room = Reading(min(limit.bytes, max(0, limit.bytes - usage.bytes + given_back)), limit.source)
    return CgroupLevel(version, folder, limit, usage, droppable, room)


def _lowest(limits: list[Amount | None]) -> Amount | None:
    """Return the lowest limit that is set. One that is set and unreadable may be lower than any: then it is unknown."""
    lowest: Reading | None = None
    for limit in limits:
        if isinstance(limit, Unreadable):
            return limit
        if limit is not None and (lowest is None or limit.bytes < lowest.bytes):
            lowest = limit
    return lowest
