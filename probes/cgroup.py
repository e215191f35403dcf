"""The memory cgroups above this process, v1, v2 or both mounted at once, and what each still lets it have.

A level's room is `limit - usage + droppable`. Droppable is the file cache the kernel would give back under pressure:
the `file` (v1: `cache`) figure less shared memory, which is counted there but can't be dropped (CUDA's pinned memory is
shared memory), and never more than what stands on the file LRU lists, where mlocked file pages are not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import PurePosixPath

from pinprobe.probes.host_tree import HostTree
from pinprobe.probes.kernel_text import numbers_by_name, single_number
from pinprobe.probes.reading import Amount, Reading, Unreadable
from pinprobe.probes.units import LARGEST_SIZE_BYTES

_NOT_ASKED = Unreadable("it was not asked")


@dataclass(frozen=True, slots=True)
class CgroupLevel:
    """One memory cgroup that bounds the process.

    `limit` is the lowest of the level's limits, or None where it sets none; then nothing else is asked of it and the
    rest is None too. `room` is what it still gives, at least 0.
    """

    version: int
    path: str
    limit: Amount | None
    usage: Amount | None = None
    droppable: Amount | None = None
    room: Amount | None = None


@dataclass(frozen=True, slots=True)
class _Hierarchy:
    version: int
    mount_point: str
    mount_root: str


@dataclass(frozen=True, slots=True)
class CgroupFolders:
    """The folders of a process's memory cgroups, its own first and the mount point last.

    `version` is that of the hierarchy which accounts memory; 0 where there is none, and then no folder.
    """

    version: int
    paths: tuple[str, ...]


def read_cgroup_levels(tree: HostTree, pid: int | str = "self") -> tuple[CgroupLevel, ...] | Unreadable:
    """Return every memory cgroup from the process's own up to the top of what this process can see.

    Empty where no memory controller is mounted; `Unreadable` where it can't be told.
    """
    found = find_cgroup_folders(tree, pid)
    return found if isinstance(found, Unreadable) else read_levels_at(tree, found)


def read_levels_at(tree: HostTree, folders: CgroupFolders, *, with_droppable: bool = True) -> tuple[CgroupLevel, ...]:
    """Return the cgroups at some folders.

    Without `with_droppable` no file cache is given back: rooms are lower bounds then, for a fraction of the time, since
    the kernel adds memory.stat up over all CPUs.
    """
    read = _read_v1 if folders.version == 1 else _read_v2
    return tuple(read(tree, folders.paths, with_droppable))


def find_cgroup_folders(
    tree: HostTree, pid: int | str = "self", mounts: str | Unreadable | None = None
) -> CgroupFolders | Unreadable:
    """Return the folders of a process's memory cgroups; `Unreadable` where it can't be told.

    `mounts` is its mountinfo where that was read already: it is long, and a process is moved sooner than mounts are.
    """
    memberships = tree.text(f"/proc/{pid}/cgroup")
    if mounts is None:
        mounts = tree.text(f"/proc/{pid}/mountinfo")
    if isinstance(memberships, Unreadable):
        return memberships
    if isinstance(mounts, Unreadable):
        return mounts
    return _find_folders(memberships, mounts, pid)


@lru_cache(maxsize=16)  # both texts stay the same for a process's life, mostly, and are long
def _find_folders(memberships: str, mounts: str, pid: int | str) -> CgroupFolders | Unreadable:
    hierarchy = _memory_hierarchy(mounts)
    if hierarchy is None and (" - " not in mounts or not mounts.endswith("\n")):
        # Every process has mounts, each in a whole line: this text was damaged, and what it names no more may bind.
        return Unreadable(f"/proc/{pid}/mountinfo names no mount or was cut off")
    if hierarchy is None:
        return CgroupFolders(0, ())
    own_path = _own_path(memberships, hierarchy.version)
    if own_path is None:
        return Unreadable(f"/proc/{pid}/cgroup names no cgroup v{hierarchy.version} for memory")
    folders = _folders(hierarchy, own_path)
    return folders if isinstance(folders, Unreadable) else CgroupFolders(hierarchy.version, tuple(folders))


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


def _read_v2(tree: HostTree, folders: Iterable[str], with_droppable: bool) -> Iterator[CgroupLevel]:
    for folder in folders:
        limit = _lowest(_limit_v2(tree, folder, name) for name in ("memory.max", "memory.high"))
        if limit is None:
            yield CgroupLevel(2, folder, None)
            continue
        usage = single_number(tree.text(f"{folder}/memory.current"), f"{folder}/memory.current")
        droppable: Amount = _NOT_ASKED
        if with_droppable:
            stat = numbers_by_name(tree.text(f"{folder}/memory.stat"))
            droppable = _droppable(folder, stat, cache="file", shared="shmem", prefix="")
        yield _limited(2, folder, limit, usage, droppable)


def _limit_v2(tree: HostTree, folder: str, name: str) -> Amount | None:
    text = tree.text(f"{folder}/{name}")
    if isinstance(text, Unreadable) and (files := tree.names(folder)) and name not in files:
        return None  # the top of the hierarchy has no such file; a folder that can't be listed is another matter
    if isinstance(text, str) and text.strip() == "max":
        return None
    return single_number(text, f"{folder}/{name}")


def _read_v1(tree: HostTree, folders: Iterable[str], with_droppable: bool) -> Iterator[CgroupLevel]:
    may_be_bounded_above = True
    for folder in folders:
        origin = f"{folder}/memory.limit_in_bytes"
        limit = _set_v1(single_number(tree.text(origin), origin))
        origin = f"{folder}/memory.stat"
        stat: Mapping[str, int] | Unreadable = _NOT_ASKED
        if may_be_bounded_above or (limit is not None and with_droppable):
            stat = numbers_by_name(tree.text(origin))
        if not isinstance(stat, Unreadable) and "hierarchical_memory_limit" in stat:
            # The lowest limit above, also of ancestors that a container can't see; their usage is unknown, ours a lower
            # bound. Where there is none, no level above has to be asked for it again.
            above = _set_v1(Reading(stat["hierarchical_memory_limit"], f"{origin} hierarchical_memory_limit"))
            may_be_bounded_above = above is not None
            limit = _lowest((limit, above))
        if limit is None:
            yield CgroupLevel(1, folder, None)
            continue
        usage = single_number(tree.text(f"{folder}/memory.usage_in_bytes"), f"{folder}/memory.usage_in_bytes")
        droppable = _droppable(folder, stat, cache="total_cache", shared="total_shmem", prefix="total_")
        yield _limited(1, folder, limit, usage, droppable if with_droppable else _NOT_ASKED)


def _set_v1(limit: Amount) -> Amount | None:
    """Return a limit, or None for the huge number by which v1 says that none is set."""
    return None if isinstance(limit, Reading) and limit.bytes > LARGEST_SIZE_BYTES else limit


def _droppable(folder: str, stat: Mapping[str, int] | Unreadable, *, cache: str, shared: str, prefix: str) -> Amount:
    if isinstance(stat, Unreadable):
        return stat
    active, inactive = f"{prefix}active_file", f"{prefix}inactive_file"
    missing = [name for name in (cache, shared, active, inactive) if name not in stat]
    if missing:
        return Unreadable(f"{folder}/memory.stat has no {missing[0]}")
    droppable = min(stat[cache] - stat[shared], stat[active] + stat[inactive])
    return Reading(max(0, droppable), f"{folder}/memory.stat")


def _limited(version: int, folder: str, limit: Amount, usage: Amount, droppable: Amount) -> CgroupLevel:
    room: Amount
    if isinstance(limit, Unreadable):
        room = limit
    elif isinstance(usage, Unreadable):
        room = usage
    else:
        # Cache that can't be told apart is not given back: the room then errs on the small side. The files are read one
        # after the other, and usage may already know of less than memory.stat: no room is larger than its limit.
        given_back = droppable.bytes if isinstance(droppable, Reading) else 0
        room = Reading(min(limit.bytes, max(0, limit.bytes - usage.bytes + given_back)), limit.source)
    return CgroupLevel(version, folder, limit, usage, droppable, room)


def _lowest(limits: Iterable[Amount | None]) -> Amount | None:
    """Return the lowest limit that is set. One that is set and unreadable may be lower than any: then it is unknown."""
    lowest: Reading | None = None
    for limit in limits:
        if isinstance(limit, Unreadable):
            return limit
        if limit is not None and (lowest is None or limit.bytes < lowest.bytes):
            lowest = limit
    return lowest
