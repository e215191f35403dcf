"""Files below a root: read whole, or unreadable with the reason."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from pinprobe.probes.host_tree import LONGEST_TEXT_BYTES, THIS_HOST, HostTree
from pinprobe.probes.reading import Unreadable


def test_a_saved_tree_is_read_below_its_root(saved_host: Callable[[str], HostTree]) -> None:
    assert saved_host("old_kernel").text("/proc/sys/kernel/osrelease") == "5.10.0-32-amd64\n"


def test_this_host_is_read_from_the_root_with_the_kernels_page_size() -> None:
    assert THIS_HOST.path("/proc/self/statm") == Path("/proc/self/statm")
    assert THIS_HOST.page_size_bytes == os.sysconf("SC_PAGE_SIZE")
    assert THIS_HOST.text("/proc/sys/kernel/osrelease") == os.uname().release + "\n"


def test_a_missing_file_is_unreadable_and_named(tmp_path: Path) -> None:
    assert HostTree(tmp_path).text("/proc/zoneinfo") == Unreadable("/proc/zoneinfo: No such file or directory")


def test_a_folder_in_place_of_a_file_is_unreadable(tmp_path: Path) -> None:
    (tmp_path / "proc/meminfo").mkdir(parents=True)
    assert HostTree(tmp_path).text("/proc/meminfo") == Unreadable("/proc/meminfo: Is a directory")


def test_a_file_in_place_of_a_folder_is_unreadable(tmp_path: Path) -> None:
    (tmp_path / "proc").write_text("")
    assert HostTree(tmp_path).text("/proc/meminfo") == Unreadable("/proc/meminfo: Not a directory")


def test_a_link_that_leads_to_itself_is_unreadable(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    assert isinstance(HostTree(tmp_path).text("/loop"), Unreadable)


def test_a_pipe_that_nobody_writes_to_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "meminfo")
    assert HostTree(tmp_path).text("/meminfo") == Unreadable("/meminfo: it is no regular file")


def test_an_endless_device_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "meminfo").symlink_to("/dev/zero")
    assert HostTree(tmp_path).text("/meminfo") == Unreadable("/meminfo: it is no regular file")


def test_a_file_longer_than_any_text_is_not_read(tmp_path: Path) -> None:
    # Sparse: it says that it holds so much, and takes a block.
    with (tmp_path / "meminfo").open("wb") as file:
        file.truncate(LONGEST_TEXT_BYTES + 1)
    expected = "/meminfo: it is larger than 256 MiB, and no text is"
    assert HostTree(tmp_path).text("/meminfo") == Unreadable(expected)


def test_what_may_not_be_looked_at_is_taken_for_missing(
    open_folder: Path, as_nobody: Callable[[], AbstractContextManager[None]]
) -> None:
    (open_folder / "run").mkdir(mode=0o700)
    (open_folder / "run" / "mark").write_text("")
    assert HostTree(open_folder).has("/run/mark")
    with as_nobody():
        assert not HostTree(open_folder).has("/run/mark")
    assert not HostTree(open_folder).has("/run/mark\0")


def test_a_file_that_may_not_be_read_is_unreadable(
    open_folder: Path, as_nobody: Callable[[], AbstractContextManager[None]]
) -> None:
    (open_folder / "smaps").write_text("secret")
    (open_folder / "smaps").chmod(0)
    with as_nobody():
        assert HostTree(open_folder).text("/smaps") == Unreadable("/smaps: Permission denied")


def test_the_memory_of_a_process_that_is_gone_is_unreadable() -> None:
    pid = os.spawnlp(os.P_NOWAIT, "true", "true")
    os.waitpid(pid, 0)
    assert THIS_HOST.text(f"/proc/{pid}/status") == Unreadable(f"/proc/{pid}/status: No such file or directory")


def test_a_name_that_no_file_can_have_is_unreadable(tmp_path: Path) -> None:
    # A name may come from a text (a cgroup's path, say), and a damaged text may hold anything.
    assert isinstance(HostTree(tmp_path).text("/sys/fs/cgroup/a\0b/memory.max"), Unreadable)
    assert HostTree(tmp_path).names("/sys/a\0b") == []


def test_bytes_that_are_not_utf_8_are_kept(tmp_path: Path) -> None:
    everything = bytes(range(256))
    (tmp_path / "maps").write_bytes(everything)
    text = HostTree(tmp_path).text("/maps")
    assert isinstance(text, str)
    assert text.encode("utf-8", "surrogateescape") == everything


def test_a_folder_is_listed_sorted_and_an_unreadable_one_is_empty(tmp_path: Path) -> None:
    for name in ("hugepages-2048kB", "hugepages-1048576kB"):
        (tmp_path / "sys" / name).mkdir(parents=True)
    assert HostTree(tmp_path).names("/sys") == ["hugepages-1048576kB", "hugepages-2048kB"]
    assert HostTree(tmp_path).names("/nowhere") == []


@pytest.mark.parametrize("name", ["/proc/self/smaps", "/proc/zoneinfo"])
def test_a_text_longer_than_one_read_of_the_kernel_arrives_whole(name: str) -> None:
    # One read() of smaps returns at most a page, at line ends or not.
    text = THIS_HOST.text(name)
    assert isinstance(text, str)
    assert len(text) > 4096 or name != "/proc/self/smaps"
    assert text.endswith("\n")
