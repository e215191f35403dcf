"""What lies behind a range of addresses, held against maps and smaps as the tests read them themselves."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pinprobe.probes.backing import Backing, find_backings, is_still_there, read_resident
from pinprobe.probes.extents import Extent
from pinprobe.probes.host_tree import THIS_HOST, HostTree
from pinprobe.probes.own_mapping import OwnMapping
from pinprobe.probes.reading import Amount, Reading, Unreadable
from tests.probes.allocators.kernel_word import MIB, block_bytes, smaps_bytes

PAGE = mmap.PAGESIZE
# What the saved process held, at the addresses that README.json beside it gives.
TORCH_PINNED, MEMFD, HUGETLB = 0x7F9DD2000000, 0x7F9DC2000000, 0x7F9DB2000000
REGISTERED, LOCKED = 0x7F9DA2000000, 0x7F9D92000000

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.shmat.restype = ctypes.c_void_p
_libc.shmat.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_int]
_libc.shmdt.argtypes = [ctypes.c_void_p]

SavedHost = Callable[[str], HostTree]
WrittenHost = Callable[[Mapping[str, str]], HostTree]


def bytes_of(amount: Amount) -> int:
    assert isinstance(amount, Reading), amount
    return amount.bytes


def behind(start: int, size_bytes: int, tree: HostTree = THIS_HOST) -> tuple[tuple[Backing, int], ...]:
    found = find_backings(tree, Extent(start, size_bytes))
    assert not isinstance(found, Unreadable), found
    return found


def only(start: int, size_bytes: int, tree: HostTree = THIS_HOST) -> Backing:
    """The one thing behind a range, which has to hold all of it."""
    ((backing, part_bytes),) = behind(start, size_bytes, tree)
    assert part_bytes == size_bytes
    assert backing.start <= start < start + size_bytes <= backing.end
    return backing


def lock(address: int, size_bytes: int) -> None:
    assert _libc.mlock(ctypes.c_void_p(address), ctypes.c_size_t(size_bytes)) == 0


def map_over(address: int, size_bytes: int, flags: int) -> None:
    """Map fresh memory at this very place, whatever was there."""
    assert _libc.mmap(address, size_bytes, 3, flags | mmap.MAP_ANONYMOUS | 0x10, -1, 0) == address


@contextmanager
def shared_memory(size_bytes: int, descriptor: int = -1) -> Iterator[int]:
    with mmap.mmap(descriptor, size_bytes) as memory:
        first = ctypes.c_char.from_buffer(memory)
        try:
            yield ctypes.addressof(first)
        finally:
            del first  # mmap closes only where no view is left


# Which memory is an allocation's own.


def test_shared_memory_is_taken_whole_whichever_byte_of_it_is_held() -> None:
    with shared_memory(2 * MIB) as start:
        for offset, size in [(0, 2 * MIB), (0, 1), (MIB, 100), (2 * MIB - 1, 1)]:
            backing = only(start + offset, size)
            assert (backing.start, backing.end) == (start, start + block_bytes(start))
            assert (backing.whole, backing.in_rss, backing.size_bytes) == (True, True, 2 * MIB)
            assert backing.inode > 0


def test_two_shared_mappings_are_two_objects() -> None:
    with shared_memory(MIB) as first, shared_memory(MIB) as second:
        assert only(first, 1).inode != only(second, 1).inode


@pytest.mark.parametrize("size", [1, PAGE, PAGE + 1, 2 * MIB])
def test_a_memfd_and_memory_between_guards_are_their_own(size: int) -> None:
    pages = -(-size // PAGE) * PAGE
    for made in (OwnMapping.memfd(size), OwnMapping.anonymous(size, huge_pages=False)):
        with made as memory:
            backing = only(memory.address, size)
            assert (backing.start, backing.size_bytes, backing.whole) == (memory.address, pages, True)


def test_memory_of_system_v_is_its_own() -> None:
    key = _libc.shmget(0, ctypes.c_size_t(64 * PAGE), 0o600)
    if key < 0:
        pytest.skip("no shared memory of System V is to be had here")
    start = _libc.shmat(key, None, 0)
    _libc.shmctl(key, 0, None)  # it goes with the last that has it mapped
    try:
        assert only(start + PAGE, 10) == Backing(start, start + 64 * PAGE, key, whole=True, in_rss=True)
    finally:
        _libc.shmdt(start)


def test_the_first_object_of_system_v_on_a_host_has_the_number_0_and_is_an_object_all_the_same(
    written_host: WrittenHost,
) -> None:
    for number in (0, 32768):
        line = f"10000-50000 rw-s 00000000 00:01 {number}    /SYSV00000000 (deleted)\n"
        tree = written_host({"/proc/self/maps": line})
        assert only(0x20000, 10, tree) == Backing(0x10000, 0x50000, number, whole=True, in_rss=True)


def test_of_a_file_on_a_disk_only_the_pages_of_the_range_are_taken(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.write_bytes(bytes(64 * PAGE))
    with path.open("r+b") as file, shared_memory(64 * PAGE, file.fileno()) as start:
        backing = only(start + 5000, 5000)
        assert (backing.start, backing.end) == (start + PAGE, start + 3 * PAGE)
        assert (backing.whole, backing.inode) == (False, path.stat().st_ino)


def test_a_file_that_was_mapped_to_be_read_alone_is_mapped_all_the_same(tmp_path: Path) -> None:
    # As weights are: nobody writes them, and what was read of them is resident.
    numpy = pytest.importorskip("numpy")
    path = tmp_path / "weights"
    path.write_bytes(bytes(64 * PAGE))
    weights = numpy.memmap(path, mode="r")
    assert int(weights.sum()) == 0
    backing = only(weights.ctypes.data, 64 * PAGE)
    assert (backing.size_bytes, backing.whole) == (64 * PAGE, False)
    assert bytes_of(read_resident(THIS_HOST, [backing])[backing]) == 64 * PAGE


def test_of_a_tmpfs_that_others_map_too_the_whole_object_is_taken() -> None:
    path = Path(f"/dev/shm/pinprobe-test-{os.getpid()}")
    try:
        path.write_bytes(bytes(64 * PAGE))
    except OSError as error:
        pytest.skip(f"/dev/shm can't be written here: {error.strerror}")
    with path.open("r+b") as file:
        path.unlink()
        with shared_memory(64 * PAGE, file.fileno()) as start:
            assert only(start + 5000, 5000).size_bytes == 64 * PAGE


def test_private_memory_that_merged_with_its_neighbours_gives_the_pages_of_the_range() -> None:
    with OwnMapping.anonymous(16 * PAGE, huge_pages=False) as place:
        # Two allocations side by side, which the kernel makes one mapping of; then the range is but one of the two.
        heap = ctypes.create_string_buffer(64 * PAGE)
        start = ctypes.addressof(heap)
        backing = only(start + 100, 10 * PAGE)
        low, high = (start + 100) // PAGE * PAGE, -(-(start + 100 + 10 * PAGE) // PAGE) * PAGE
        assert backing == Backing(low, high, 0, whole=False, in_rss=True)
        # A guard on one side alone proves nothing of the other.
        assert only(place.address + PAGE, 1).whole
        map_over(place.address - PAGE, PAGE, mmap.MAP_PRIVATE)
        assert not only(place.address + PAGE, 1).whole
    with OwnMapping.anonymous(16 * PAGE, huge_pages=False) as place:
        map_over(place.address + 16 * PAGE, PAGE, mmap.MAP_PRIVATE)
        assert not only(place.address + PAGE, 1).whole


def test_the_heap_and_the_stack_are_nobodys_own() -> None:
    # What the kernel has a name for holds the whole program's memory, guarded or not.
    lines = Path("/proc/self/maps").read_text().splitlines()
    named = [line for line in lines if line.endswith(("[heap]", "[stack]"))]
    assert named
    for line in named:
        start, end = (int(part, 16) for part in line.split()[0].split("-"))
        assert not only(end - PAGE, PAGE).whole
        assert start < end


# Ranges over several mappings.


@given(
    locked=st.lists(st.tuples(st.integers(0, 31), st.integers(1, 8)), max_size=3),
    offset=st.integers(0, 32 * PAGE - 1),
    data=st.data(),
)
@settings(derandomize=True, deadline=None, max_examples=60)
def test_however_one_object_is_cut_the_parts_add_up_to_the_range(
    locked: list[tuple[int, int]], offset: int, data: st.DataObject
) -> None:
    size = data.draw(st.integers(1, 32 * PAGE - offset))
    for made in (OwnMapping.memfd(32 * PAGE), OwnMapping.anonymous(32 * PAGE, huge_pages=False)):
        with made as memory:
            for first, count in locked:
                lock(memory.address + first * PAGE, min(count, 32 - first) * PAGE)
            found = behind(memory.address + offset, size)
            assert sum(part_bytes for _, part_bytes in found) == size
            assert all(part_bytes <= backing.size_bytes for backing, part_bytes in found)
            assert all(
                memory.address <= backing.start < backing.end <= memory.address + 32 * PAGE for backing, _ in found
            )


def test_a_range_over_two_objects_holds_parts_of_both() -> None:
    with OwnMapping.anonymous(2 * PAGE, huge_pages=False) as place:
        map_over(place.address, PAGE, mmap.MAP_SHARED)
        map_over(place.address + PAGE, PAGE, mmap.MAP_SHARED)
        found = behind(place.address + 1000, 2 * PAGE - 2000)
        assert [(backing.start, part_bytes) for backing, part_bytes in found] == [
            (place.address, PAGE - 1000),
            (place.address + PAGE, PAGE - 1000),
        ]


def test_a_range_that_runs_into_a_guard_names_how_much_of_it_there_is() -> None:
    with OwnMapping.anonymous(2 * PAGE, huge_pages=False) as memory:
        found = find_backings(THIS_HOST, Extent(memory.address, 3 * PAGE))
    assert isinstance(found, Unreadable)
    assert f"only {2 * PAGE:,} B of {3 * PAGE:,} B are mapped for use" in found.reason


def test_what_is_not_mapped_is_unreadable_and_named() -> None:
    assert find_backings(THIS_HOST, Extent(PAGE, 10)) == Unreadable(f"/proc/self/maps has no mapping at {PAGE:#x}")
    with OwnMapping.anonymous(PAGE, huge_pages=False) as memory:
        start = memory.address
    assert isinstance(find_backings(THIS_HOST, Extent(start, PAGE)), Unreadable)


def test_asking_the_kernel_and_reading_maps_give_the_same(written_host: WrittenHost) -> None:
    with shared_memory(MIB) as shared, OwnMapping.anonymous(MIB, huge_pages=False) as own:
        heap = ctypes.create_string_buffer(10 * PAGE)
        saved = written_host({"/proc/self/maps": Path("/proc/self/maps").read_text(errors="surrogateescape")})
        for start in (shared, own.address, ctypes.addressof(heap)):
            assert behind(start + 100, 5 * PAGE) == behind(start + 100, 5 * PAGE, saved)


# A saved process with a GPU.


@pytest.mark.parametrize(
    ("start", "asked_bytes", "size_bytes", "whole", "in_rss"),
    [
        (TORCH_PINNED, 16 * 154_927_104, 4096 * MIB, True, True),
        (MEMFD + 12_345, 1, 256 * MIB, True, True),
        (HUGETLB, 3 * MIB, 256 * MIB, True, False),
        # These two lie between others' mappings, so nothing tells that they are one allocation's own.
        (REGISTERED, 256 * MIB, 256 * MIB, False, True),
        (LOCKED, 256 * MIB, 256 * MIB, False, True),
    ],
)
def test_each_kind_of_pinned_memory_is_known(
    start: int, asked_bytes: int, size_bytes: int, whole: bool, in_rss: bool, saved_host: SavedHost
) -> None:
    backing = only(start, asked_bytes, saved_host("gpu_process"))
    assert (backing.size_bytes, backing.whole, backing.in_rss) == (size_bytes, whole, in_rss)


def test_pages_of_the_huge_page_pool_are_resident_though_in_no_rss(saved_host: SavedHost) -> None:
    tree = saved_host("gpu_process")
    huge, torch = only(HUGETLB, 1, tree), only(TORCH_PINNED, 1, tree)
    resident = read_resident(tree, [huge, torch])
    assert {backing: bytes_of(amount) for backing, amount in resident.items()} == {huge: 256 * MIB, torch: 4096 * MIB}


def test_a_host_without_maps_can_t_be_asked_and_what_was_there_is_taken_to_stay(saved_host: SavedHost) -> None:
    tree = saved_host("sandbox_gvisor")
    assert find_backings(tree, Extent(PAGE, 1)) == Unreadable("/proc/self/maps: No such file or directory")
    backings = [Backing(PAGE, 2 * PAGE, 7, whole, in_rss=True) for whole in (True, False)]
    assert all(is_still_there(tree, backing) for backing in backings)
    resident = read_resident(tree, backings)
    assert set(resident) == set(backings)
    assert all(isinstance(amount, Unreadable) for amount in resident.values())


# Whether it is still there.


def test_a_mapping_is_there_until_it_is_given_back() -> None:
    for made in (OwnMapping.memfd(4 * PAGE), OwnMapping.anonymous(4 * PAGE, huge_pages=False)):
        with made as memory:
            backing = only(memory.address, 1)
            assert is_still_there(THIS_HOST, backing)
            lock(memory.address + PAGE, PAGE)  # cut in three, and all of it there
            assert is_still_there(THIS_HOST, backing)
        assert not is_still_there(THIS_HOST, backing)


def test_another_object_at_the_same_place_is_not_the_one_that_was_there() -> None:
    with OwnMapping.memfd(4 * PAGE) as memory:
        backing = only(memory.address, 1)
        map_over(memory.address, 4 * PAGE, mmap.MAP_SHARED)
        assert not is_still_there(THIS_HOST, backing)
        map_over(memory.address, 4 * PAGE, mmap.MAP_PRIVATE)
        assert not is_still_there(THIS_HOST, backing)


def test_a_larger_mapping_of_another_at_the_same_place_is_not_the_one_that_was_there() -> None:
    # Private memory has no number to be known by; what another thread mapped there since has another end.
    with OwnMapping.anonymous(16 * PAGE, huge_pages=False) as memory:
        memory.write_every_page()
        gone = Backing(memory.address, memory.address + 4 * PAGE, 0, whole=True, in_rss=True)
        assert bytes_of(read_resident(THIS_HOST, [gone])[gone]) <= gone.size_bytes
        assert not is_still_there(THIS_HOST, gone)


# How much is resident.


@given(written=st.sets(st.integers(0, 15)), kind=st.sampled_from(["memfd", "anonymous"]))
@settings(derandomize=True, deadline=None, max_examples=40)
def test_as_much_is_resident_as_was_written(written: set[int], kind: str) -> None:
    made = OwnMapping.memfd(16 * PAGE) if kind == "memfd" else OwnMapping.anonymous(16 * PAGE, huge_pages=False)
    with made as memory:
        for page in written:
            memory.write_byte(page * PAGE)
        whole = only(memory.address, 1)
        pages = Backing(memory.address + PAGE, memory.address + 4 * PAGE, 0, whole=False, in_rss=True)
        resident = read_resident(THIS_HOST, [pages, whole])
        assert bytes_of(resident[whole]) == len(written) * PAGE == smaps_bytes(memory.address, "Rss")
        assert bytes_of(resident[pages]) == len(written & {1, 2, 3}) * PAGE


def test_what_is_resident_of_an_object_that_was_cut_is_added_up() -> None:
    with OwnMapping.anonymous(9 * PAGE, huge_pages=False) as memory:
        memory.write_every_page()
        whole = only(memory.address, 1)
        lock(memory.address + 4 * PAGE, PAGE)
        assert bytes_of(read_resident(THIS_HOST, [whole])[whole]) == 9 * PAGE


def test_another_objects_pages_in_the_range_are_not_counted() -> None:
    with OwnMapping.memfd(4 * PAGE) as memory:
        memory.write_every_page()
        whole = only(memory.address, 1)
        map_over(memory.address + PAGE, PAGE, mmap.MAP_SHARED)
        ctypes.memset(memory.address + PAGE, 1, PAGE)
        assert bytes_of(read_resident(THIS_HOST, [whole])[whole]) == 3 * PAGE
    assert bytes_of(read_resident(THIS_HOST, [whole])[whole]) == 0


def test_nothing_is_read_where_nothing_is_asked(tmp_path: Path) -> None:
    assert read_resident(HostTree(tmp_path), []) == {}
