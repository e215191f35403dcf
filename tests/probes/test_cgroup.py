"""Memory cgroups: which bound this process, and what each still gives.

Expected rooms are worked out by hand from the saved texts: limit - usage + droppable, where droppable is the file cache
without shared memory, and no more than the two file lists hold.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pinprobe.probes.cgroup import CgroupLevel, read_cgroup_levels
from pinprobe.probes.host_tree import HostTree
from pinprobe.probes.reading import Amount, Reading, Unreadable

FUZZ = settings(derandomize=True, deadline=None, max_examples=150)
GIB = 2**30
V1_MOUNT = "35 31 0:32 {root} {point} rw,relatime - cgroup cgroup rw,memory\n"
V2_MOUNT = "26 22 0:22 {root} {point} rw,nosuid,nodev,noexec,relatime - cgroup2 cgroup2 rw\n"
WrittenHost = Callable[[Mapping[str, "str | bytes | None"]], HostTree]


def v1_texts(
    own: str, files: Mapping[str, str], root: str = "/", point: str = "/sys/fs/cgroup/memory"
) -> dict[str, str]:
    texts = {
        "/proc/self/cgroup": f"4:memory:{own}\n0::/\n",
        "/proc/self/mountinfo": V1_MOUNT.format(root=root, point=point),
    }
    return texts | {f"{point}{name}": text for name, text in files.items()}


def v2_texts(own: str, files: Mapping[str, str], root: str = "/", point: str = "/sys/fs/cgroup") -> dict[str, str]:
    texts = {"/proc/self/cgroup": f"0::{own}\n", "/proc/self/mountinfo": V2_MOUNT.format(root=root, point=point)}
    return texts | {f"{point}{name}": text for name, text in files.items()}


def levels_of(tree: HostTree) -> tuple[CgroupLevel, ...]:
    levels = read_cgroup_levels(tree)
    assert not isinstance(levels, Unreadable), levels
    return levels


def bytes_of(amount: Amount | None) -> int | None:
    assert not isinstance(amount, Unreadable), amount
    return None if amount is None else amount.bytes


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        (
            "cgroup_hybrid",
            [
                # 1073741824 - 179154944 + min(157347840 - 52428800, 71303168 + 33562624)
                ("/sys/fs/cgroup/memory/pinprobe_fixture/inner", 1_073_741_824, 179_154_944, 104_865_792, 999_452_672),
                # 2147483648 - 179417088 + min(157368320 - 52428800, 71303168 + 33562624)
                ("/sys/fs/cgroup/memory/pinprobe_fixture", 2_147_483_648, 179_417_088, 104_865_792, 2_072_932_352),
                ("/sys/fs/cgroup/memory", None, None, None, None),
            ],
        ),
        (
            "container_v1",
            # The limit is a parent's that can't be seen: 536870912 - 178835456 + min(157315072 - 52428800, 104857600)
            [("/sys/fs/cgroup/memory", 536_870_912, 178_835_456, 104_857_600, 462_893_056)],
        ),
        (
            "cgroup_v2",
            [
                # memory.high: 314572800 - 158851072 + min(137093120 - 31457280, 71995392 + 33603584)
                ("/sys/fs/cgroup/a.slice/b.service", 314_572_800, 158_851_072, 105_598_976, 261_320_704),
                # memory.max: 536870912 - 158863360 + min(137146368 - 31457280, 72044544 + 33615872)
                ("/sys/fs/cgroup/a.slice", 536_870_912, 158_863_360, 105_660_416, 483_667_968),
            ],
        ),
    ],
)
def test_saved_hosts_give_the_room_their_texts_say(
    host: str,
    expected: list[tuple[str, int | None, int | None, int | None, int | None]],
    saved_host: Callable[[str], HostTree],
) -> None:
    levels = levels_of(saved_host(host))
    found = [
        (level.path, bytes_of(level.limit), bytes_of(level.usage), bytes_of(level.droppable), bytes_of(level.room))
        for level in levels[: len(expected)]
    ]
    assert found == expected
    assert {level.version for level in levels} == {2 if host == "cgroup_v2" else 1}


@pytest.mark.parametrize("host", ["cgroup_v2", "old_kernel", "pages_64k"])
def test_the_top_of_a_v2_hierarchy_has_no_limit(host: str, saved_host: Callable[[str], HostTree]) -> None:
    top = levels_of(saved_host(host))[-1]
    assert (top.path, top.limit, top.room) == ("/sys/fs/cgroup", None, None)


@pytest.mark.parametrize(
    ("host", "lost"), [("sandbox_gvisor", "/proc/self/cgroup"), ("gpu_process", "/proc/self/mountinfo")]
)
def test_without_the_two_texts_it_cannot_be_told_which_cgroups_there_are(
    host: str, lost: str, saved_host: Callable[[str], HostTree]
) -> None:
    assert read_cgroup_levels(saved_host(host)) == Unreadable(f"{lost}: No such file or directory")


def test_where_no_memory_controller_is_mounted_there_are_no_levels(written_host: WrittenHost) -> None:
    mounts = "33 31 0:30 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n40 31 0:37 / /s rw - cgroup c rw,name=memory\n"
    tree = written_host({"/proc/self/cgroup": "4:memory:/a\n", "/proc/self/mountinfo": mounts})
    assert read_cgroup_levels(tree) == ()


@pytest.mark.parametrize(
    "memberships", ["", "0::/\n", "9:name=memory:/a\n", "3:cpuset:/a,memory\n", "4:memory\n", "\n"]
)
def test_a_process_that_names_no_memory_cgroup_is_unreadable(memberships: str, written_host: WrittenHost) -> None:
    tree = written_host(v1_texts("/a", {}) | {"/proc/self/cgroup": memberships})
    assert isinstance(read_cgroup_levels(tree), Unreadable)


@pytest.mark.parametrize("mounts", [V1_MOUNT + V2_MOUNT, V2_MOUNT + V1_MOUNT], ids=["v1 first", "v2 first"])
def test_where_both_versions_are_mounted_v1_accounts_the_memory(mounts: str, written_host: WrittenHost) -> None:
    texts = v1_texts("/a", {"/a/memory.limit_in_bytes": "4096\n", "/a/memory.usage_in_bytes": "96\n"})
    tree = written_host(texts | {"/proc/self/mountinfo": mounts.format(root="/", point="/sys/fs/cgroup/memory")})
    assert [(level.version, level.path) for level in levels_of(tree)] == [
        (1, "/sys/fs/cgroup/memory/a"),
        (1, "/sys/fs/cgroup/memory"),
    ]


def test_controllers_mounted_together_are_found_under_each_of_their_names(written_host: WrittenHost) -> None:
    texts = v1_texts("/a", {"/a/memory.limit_in_bytes": "4096\n", "/a/memory.usage_in_bytes": "96\n"})
    texts["/proc/self/cgroup"] = "4:memory,hugetlb:/a\n"
    texts["/proc/self/mountinfo"] = texts["/proc/self/mountinfo"].replace("rw,memory", "rw,memory,hugetlb")
    assert bytes_of(levels_of(written_host(texts))[0].room) == 4000


@pytest.mark.parametrize("texts_of", [v1_texts, v2_texts])
@pytest.mark.parametrize(
    ("own", "root", "folders"),
    [
        ("/a/b/c", "/", ["/a/b/c", "/a/b", "/a", ""]),
        ("/", "/", [""]),
        # A container without a cgroup namespace: the mount begins at its own cgroup.
        ("/docker/abc", "/docker/abc", [""]),
        ("/docker/abc/inner", "/docker/abc", ["/inner", ""]),
    ],
)
def test_the_levels_go_from_the_own_cgroup_to_the_mount_point(
    texts_of: Callable[..., dict[str, str]], own: str, root: str, folders: list[str], written_host: WrittenHost
) -> None:
    point = "/sys/fs/cgroup/here"
    found = [level.path for level in levels_of(written_host(texts_of(own, {}, root=root, point=point)))]
    assert found == [f"{point}{folder}" for folder in folders]


@pytest.mark.parametrize("texts_of", [v1_texts, v2_texts])
@pytest.mark.parametrize(
    ("own", "root"),
    [("/docker/abcd", "/docker/abc"), ("/docker", "/docker/abc"), ("/../..", "/"), ("/../other/x", "/")],
)
def test_a_cgroup_outside_of_what_the_mount_shows_is_unreadable_and_no_path_climbs_out(
    texts_of: Callable[..., dict[str, str]], own: str, root: str, written_host: WrittenHost
) -> None:
    # A level that can be seen need not bind a process that is elsewhere, and the one that does can't be seen.
    found = read_cgroup_levels(written_host(texts_of(own, {}, root=root, point="/sys/fs/cgroup/here")))
    assert isinstance(found, Unreadable)
    assert own in found.reason


def test_a_mount_point_with_a_space_is_unescaped(written_host: WrittenHost) -> None:
    texts = v2_texts("/a", {}, point="/my cgroups") | {
        "/my cgroups/a/memory.max": "4096\n",
        "/my cgroups/a/memory.current": "0\n",
        "/proc/self/mountinfo": V2_MOUNT.format(root="/", point="/my\\040cgroups"),
    }
    assert bytes_of(levels_of(written_host(texts))[0].room) == 4096


@pytest.mark.parametrize("name", ["two words", "a:b", "back\\slash", "Gr\u00fc\u00dfe", "a\rb", "a\u2028b"])
def test_a_cgroup_may_be_called_anything_without_a_newline(name: str, written_host: WrittenHost) -> None:
    texts = v2_texts(f"/{name}", {f"/{name}/memory.max": "4096\n", f"/{name}/memory.current": "0\n"})
    assert bytes_of(levels_of(written_host(texts))[0].room) == 4096


def test_of_memory_max_and_memory_high_the_lower_binds(written_host: WrittenHost) -> None:
    files = {"/a/memory.max": "8192\n", "/a/memory.high": "4096\n", "/a/memory.current": "96\n"}
    assert bytes_of(levels_of(written_host(v2_texts("/a", files)))[0].room) == 4000
    files |= {"/a/memory.high": "max\n"}
    assert bytes_of(levels_of(written_host(v2_texts("/a", files)))[0].room) == 8096
    files |= {"/a/memory.max": "max\n"}
    assert levels_of(written_host(v2_texts("/a", files)))[0].room is None


@pytest.mark.parametrize("unlimited", ["9223372036854771712", "9223372036854710272", "9223372036854775807"])
def test_v1_writes_no_limit_as_the_largest_number_of_whole_pages(unlimited: str, written_host: WrittenHost) -> None:
    # 4 KiB pages, 64 KiB pages, and kernels that print the number as it was set.
    files = {
        "/a/memory.limit_in_bytes": f"{unlimited}\n",
        "/a/memory.usage_in_bytes": "4096\n",
        "/a/memory.stat": f"hierarchical_memory_limit {unlimited}\ntotal_cache 0\ntotal_shmem 0\n",
    }
    level = levels_of(written_host(v1_texts("/a", files)))[0]
    assert (level.limit, level.room) == (None, None)


def test_a_v1_parent_that_cannot_be_seen_binds_through_the_hierarchical_limit(written_host: WrittenHost) -> None:
    files = {
        "/memory.limit_in_bytes": f"{8 * GIB}\n",
        "/memory.usage_in_bytes": f"{GIB}\n",
        "/memory.stat": f"hierarchical_memory_limit {2 * GIB}\n",
    }
    assert bytes_of(levels_of(written_host(v1_texts("/docker/abc", files, root="/docker/abc")))[0].room) == GIB


def test_over_the_limit_there_is_no_room_and_not_less_than_none(written_host: WrittenHost) -> None:
    files = {"/a/memory.max": "max\n", "/a/memory.high": "4096\n", "/a/memory.current": "8192\n"}
    assert bytes_of(levels_of(written_host(v2_texts("/a", files)))[0].room) == 0


def test_a_limit_of_nothing_leaves_no_room(written_host: WrittenHost) -> None:
    files = {"/a/memory.max": "0\n", "/a/memory.current": "0\n"}
    level = levels_of(written_host(v2_texts("/a", files)))[0]
    assert (bytes_of(level.limit), bytes_of(level.room)) == (0, 0)


# What the file cache gives back.


def stat_text(cache: int, shmem: int, inactive: int, active: int, *, version: int) -> str:
    total, file = ("total_", "cache") if version == 1 else ("", "file")
    return (
        f"{total}{file} {cache}\n{total}shmem {shmem}\n"
        f"{total}inactive_file {inactive}\n{total}active_file {active}\nhierarchical_memory_limit {2**62}\n"
    )


def limited(limit: int, usage: int, stat: str | None, *, version: int) -> dict[str, str]:
    limit_name, usage_name = ("limit_in_bytes", "usage_in_bytes") if version == 1 else ("max", "current")
    files = {f"/a/memory.{limit_name}": f"{limit}\n", f"/a/memory.{usage_name}": f"{usage}\n"}
    if stat is not None:
        files["/a/memory.stat"] = stat
    return (v1_texts if version == 1 else v2_texts)("/a", files)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(
    ("cache", "shmem", "inactive", "active", "droppable"),
    [
        (50, 0, 30, 20, 50),
        (50, 50, 0, 0, 0),  # shared memory stands in the file figure and can't be dropped
        (50, 20, 10, 20, 30),
        (50, 20, 10, 5, 15),  # mlocked file pages are cache and on neither list
        (50, 20, 90, 90, 30),
        (20, 50, 90, 90, 0),  # the two lines are summed at different instants
    ],
)
def test_droppable_is_file_cache_without_shared_memory_and_on_the_lists(
    version: int, cache: int, shmem: int, inactive: int, active: int, droppable: int, written_host: WrittenHost
) -> None:
    stat = stat_text(cache, shmem, inactive, active, version=version)
    level = levels_of(written_host(limited(1000, 100, stat, version=version)))[0]
    assert (bytes_of(level.droppable), bytes_of(level.room)) == (droppable, 900 + droppable)


@pytest.mark.parametrize("version", [1, 2])
def test_cache_of_the_whole_group_counts_and_not_that_of_its_own_tasks(version: int, written_host: WrittenHost) -> None:
    # In v1 the lines without total_ leave the children out, and usage does not.
    stat = stat_text(50, 0, 50, 0, version=version) + (
        "cache 1\nshmem 0\ninactive_file 1\nactive_file 0\n" if version == 1 else ""
    )
    assert bytes_of(levels_of(written_host(limited(1000, 100, stat, version=version)))[0].room) == 950


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("missing", ["cache", "shmem", "active_file", "inactive_file"])
def test_where_a_line_of_memory_stat_is_missing_nothing_is_given_back(
    version: int, missing: str, written_host: WrittenHost
) -> None:
    # Without the lists it can't be told how much of the cache is mlocked; the room errs on the small side.
    stat = stat_text(50, 0, 10, 10, version=version)
    name = {1: f"total_{missing}", 2: missing.replace("cache", "file")}[version]
    lines = [line for line in stat.splitlines(keepends=True) if line.split()[0] != name]
    assert len(lines) == 4
    level = levels_of(written_host(limited(1000, 100, "".join(lines), version=version)))[0]
    assert isinstance(level.droppable, Unreadable)
    assert bytes_of(level.room) == 900


@pytest.mark.parametrize("version", [1, 2])
def test_without_memory_stat_nothing_is_given_back_and_the_limit_still_holds(
    version: int, written_host: WrittenHost
) -> None:
    level = levels_of(written_host(limited(1000, 100, None, version=version)))[0]
    assert isinstance(level.droppable, Unreadable)
    assert bytes_of(level.room) == 900


@pytest.mark.parametrize("version", [1, 2])
def test_the_room_is_never_more_than_the_limit(version: int, written_host: WrittenHost) -> None:
    # memory.stat is summed up to two seconds late: cache that was just dropped still stands in it and in usage no more.
    stat = stat_text(500, 0, 500, 0, version=version)
    assert bytes_of(levels_of(written_host(limited(1000, 100, stat, version=version)))[0].room) == 1000


# What can't be read.


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("text", ["", "\n", "lots\n", "-1\n", "12a\n", "1 2\n"])
def test_a_limit_that_holds_no_number_makes_limit_and_room_unreadable(
    version: int, text: str, written_host: WrittenHost
) -> None:
    texts = limited(1000, 100, None, version=version)
    name = next(name for name in texts if name.endswith(("memory.max", "memory.limit_in_bytes")))
    level = levels_of(written_host(texts | {name: text}))[0]
    assert isinstance(level.limit, Unreadable)
    assert isinstance(level.room, Unreadable)
    assert name in level.limit.reason


def test_a_missing_v1_limit_is_unreadable(written_host: WrittenHost) -> None:
    level = levels_of(written_host(v1_texts("/a", {"/a/memory.usage_in_bytes": "96\n"})))[0]
    assert isinstance(level.limit, Unreadable)
    assert isinstance(level.room, Unreadable)


@pytest.mark.parametrize("version", [1, 2])
def test_a_limit_without_a_usage_leaves_an_unreadable_room(version: int, written_host: WrittenHost) -> None:
    texts = limited(1000, 100, None, version=version)
    name = next(name for name in texts if name.endswith(("memory.current", "memory.usage_in_bytes")))
    del texts[name]
    level = levels_of(written_host(texts))[0]
    assert bytes_of(level.limit) == 1000
    assert level.usage == level.room == Unreadable(f"{name}: No such file or directory")


@pytest.mark.parametrize("unreadable", ["memory.max", "memory.high"])
def test_a_second_limit_that_can_be_read_does_not_hide_the_one_that_cannot(
    unreadable: str, written_host: WrittenHost
) -> None:
    # The one that can't be read may be the lower.
    files = {"/a/memory.max": "8192\n", "/a/memory.high": "8192\n", "/a/memory.current": "0\n"}
    level = levels_of(written_host(v2_texts("/a", files | {f"/a/{unreadable}": "?\n"})))[0]
    assert isinstance(level.room, Unreadable)


def test_a_folder_in_place_of_a_limit_is_unreadable(written_host: WrittenHost) -> None:
    tree = written_host(v2_texts("/a", {"/a/memory.max/x": "", "/a/memory.current": "0\n"}))
    assert levels_of(tree)[0].room == Unreadable("/sys/fs/cgroup/a/memory.max: Is a directory")


def test_a_cgroup_whose_controller_is_off_has_no_limit_of_its_own(written_host: WrittenHost) -> None:
    tree = written_host(
        v2_texts("/a/b", {"/a/b/cgroup.procs": "", "/a/memory.max": "4096\n", "/a/memory.current": "0\n"})
    )
    own, above, _ = levels_of(tree)
    assert (own.limit, own.room) == (None, None)
    assert bytes_of(above.room) == 4096


@pytest.mark.parametrize("own", ["/gone", "/gone (deleted)"])
def test_a_v2_cgroup_whose_folder_is_not_there_is_not_taken_for_one_without_a_limit(
    own: str, written_host: WrittenHost
) -> None:
    tree = written_host(v2_texts(own, {"/memory.stat": "file 0\nshmem 0\n", "/cgroup.procs": ""}))
    assert isinstance(levels_of(tree)[0].room, Unreadable)


def test_a_mount_that_begins_above_this_namespace_does_not_make_the_limit_disappear(written_host: WrittenHost) -> None:
    # A container with a cgroup namespace of its own and the host's /sys/fs/cgroup bound into it, as `unshare --cgroup`
    # alone shows it: the process is at / of its namespace, the mount begins two levels above, and which of its folders
    # is the process's own can't be told.
    texts = v2_texts("/", {"/cgroup.procs": "", "/docker/abc/memory.max": f"{8 * GIB}\n"}, root="/../..")
    levels = read_cgroup_levels(written_host(texts))
    assert isinstance(levels, Unreadable) or any(isinstance(level.room, Unreadable) for level in levels)


def test_a_cgroup_that_may_not_be_entered_is_unreadable(
    open_folder: Path, as_nobody: Callable[[], AbstractContextManager[None]]
) -> None:
    for name, text in v2_texts("/a", {"/a/memory.max": "4096\n", "/a/memory.current": "0\n"}).items():
        path = open_folder / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    closed = open_folder / "sys/fs/cgroup/a"
    closed.chmod(0)
    try:
        with as_nobody():
            levels = levels_of(HostTree(open_folder))
    finally:
        closed.chmod(0o700)
    assert isinstance(levels[0].room, Unreadable)
    assert "Permission denied" in levels[0].room.reason


MOUNT = st.builds(
    "{0} {1} 0:1 {2} {3} rw - {4} x {5}\n".format,
    st.sampled_from(["1", "", "x"]),
    st.sampled_from(["1", "2 3"]),
    st.sampled_from(["/", "/a", "/..", "/\\040", "\\134"]),
    st.sampled_from(["/sys/fs/cgroup", "/sys", "", "/\\012"]),
    st.sampled_from(["cgroup", "cgroup2", "tmpfs"]),
    st.sampled_from(["rw,memory", "rw", "memory,cpu", ""]),
)
MEMBERSHIP = st.builds(
    "{0}:{1}:{2}\n".format,
    st.sampled_from(["0", "4", "", "x"]),
    st.sampled_from(["", "memory", "cpu,memory", "name=memory"]),
    st.one_of(st.sampled_from(["/", "/a", "/a/b", "/../a", "", "a", "/a (deleted)"]), st.text(max_size=8)),
)
LIMIT = st.one_of(
    st.binary(max_size=12), st.sampled_from([b"max\n", b"4096\n", b"0\n", b"9223372036854771712\n", b"1e3\n"])
)


def lines_or_bytes(line: st.SearchStrategy[str]) -> st.SearchStrategy[bytes]:
    lines = st.lists(line, max_size=4).map(lambda each: "".join(each).encode("utf-8", "surrogatepass"))
    return st.one_of(lines, lines, st.binary(max_size=60))


@given(
    mounts=lines_or_bytes(MOUNT),
    memberships=lines_or_bytes(MEMBERSHIP),
    limit=LIMIT,
    usage=LIMIT,
    stat=st.binary(max_size=60),
)
@FUZZ
def test_any_bytes_in_any_of_the_files_give_a_limit_that_stands_there_or_none(
    mounts: bytes,
    memberships: bytes,
    limit: bytes,
    usage: bytes,
    stat: bytes,
    fuzzed_host: Callable[[Mapping[str, bytes]], HostTree],
) -> None:
    files: dict[str, bytes] = {}
    for folder in ("/sys/fs/cgroup", "/sys/fs/cgroup/a"):
        files |= dict.fromkeys((f"{folder}/memory.max", f"{folder}/memory.limit_in_bytes"), limit)
        files |= dict.fromkeys((f"{folder}/memory.current", f"{folder}/memory.usage_in_bytes"), usage)
        files[f"{folder}/memory.stat"] = stat
    tree = fuzzed_host({"/proc/self/mountinfo": mounts, "/proc/self/cgroup": memberships, **files})
    levels = read_cgroup_levels(tree)
    for level in () if isinstance(levels, Unreadable) else levels:
        if isinstance(level.limit, Reading):
            assert limit.strip().isdigit()
            assert level.limit.bytes == int(limit)
        if isinstance(level.usage, Reading):
            assert level.usage.bytes == int(usage)
        if isinstance(level.room, Reading):
            assert level.room.bytes >= 0
            assert isinstance(level.limit, Reading)
            assert isinstance(level.usage, Reading)


@given(data=st.data())
@FUZZ
def test_a_damaged_memory_stat_never_gives_more_room_than_the_whole_one(
    data: st.DataObject,
    saved_host: Callable[[str], HostTree],
    fuzzed_host: Callable[[Mapping[str, str]], HostTree],
    damage: Callable[[st.DataObject, str], str],
) -> None:
    folder = "/sys/fs/cgroup/a.slice/b.service"
    names = ["/proc/self/cgroup", "/proc/self/mountinfo", *(f"{folder}/memory.{name}" for name in ("high", "current"))]
    saved = saved_host("cgroup_v2")
    whole = saved.text(f"{folder}/memory.stat")
    assert isinstance(whole, str)
    damaged = damage(data, whole)
    if not damaged.endswith("\n"):  # cut inside a number, which no reader can see
        damaged = damaged[: damaged.rfind("\n") + 1]
    texts = {name: text for name in names if isinstance(text := saved.text(name), str)}
    room = levels_of(fuzzed_host({**texts, f"{folder}/memory.stat": damaged}))[0].room
    assert isinstance(room, Reading)
    assert 314_572_800 - 158_851_072 <= room.bytes <= 261_320_704
