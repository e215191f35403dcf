"""The mapping behind an address, from saved texts and from this process; two ways of finding it have to agree."""

from __future__ import annotations

import ctypes
import mmap
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pinprobe.probes.host_tree import THIS_HOST, HostTree
from pinprobe.probes.mappings import (
    Mapping,
    MappingResidency,
    _query_mapping,
    find_block,
    find_mapping,
    find_mapping_in_maps,
    read_residencies,
    read_residency,
)
from pinprobe.probes.own_mapping import OwnMapping
from pinprobe.probes.reading import Amount, Reading, Unreadable

FUZZ = settings(derandomize=True, deadline=None, max_examples=120)
MIB, GIB = 2**20, 2**30
# What the saved process held, at the addresses that README.json beside it gives.
TORCH_PINNED, TORCH_SMALL = 0x7F9DD2000000, 0x7F9EF1A00000
MEMFD, HUGETLB, REGISTERED, LOCKED = 0x7F9DC2000000, 0x7F9DB2000000, 0x7F9DA2000000, 0x7F9D92000000


def bytes_of(amount: Amount) -> int:
    assert isinstance(amount, Reading), amount
    return amount.bytes


def residency(tree: HostTree, address: int) -> MappingResidency:
    found = read_residency(tree, address)
    assert isinstance(found, MappingResidency), found
    return found


@pytest.mark.parametrize(
    ("address", "size_bytes", "shared", "name"),
    [
        # 16 * 154,927,104 B were asked for, and 3,000,000 B: the mapping is torch's rounded block.
        (TORCH_PINNED, 4 * GIB, True, "/dev/zero (deleted)"),
        (TORCH_SMALL, 4 * MIB, True, "/dev/zero (deleted)"),
        (MEMFD, 256 * MIB, True, "/memfd:pinprobe:cache.savepoint_retention (deleted)"),
        (HUGETLB, 256 * MIB, False, "/anon_hugepage (deleted)"),
        (REGISTERED, 256 * MIB, False, ""),
        (LOCKED, 256 * MIB, False, ""),
    ],
)
def test_each_kind_of_pinned_memory_shows_its_own_mapping(
    address: int, size_bytes: int, shared: bool, name: str, saved_host: Callable[[str], HostTree]
) -> None:
    mapping = find_mapping(saved_host("gpu_process"), address)
    assert isinstance(mapping, Mapping)
    assert (mapping.start, mapping.end) == (address, address + size_bytes)
    assert (mapping.shared, mapping.name) == (shared, name)
    assert mapping.size_bytes == size_bytes


@pytest.mark.parametrize(
    ("address", "resident_bytes", "locked_bytes", "hugetlb_bytes"),
    [
        (TORCH_PINNED, 4 * GIB, 0, 0),
        (TORCH_SMALL, 4 * MIB, 0, 0),
        (MEMFD, 256 * MIB, 0, 0),
        (HUGETLB, 0, 0, 256 * MIB),  # reserved huge pages are in no Rss
        (REGISTERED, 256 * MIB, 0, 0),
        (LOCKED, 256 * MIB, 256 * MIB, 0),
    ],
)
def test_residency_is_what_smaps_says_of_that_mapping(
    address: int, resident_bytes: int, locked_bytes: int, hugetlb_bytes: int, saved_host: Callable[[str], HostTree]
) -> None:
    found = residency(saved_host("gpu_process"), address + 4096)  # any address inside will do
    assert found.mapping.start == address
    assert bytes_of(found.resident) == resident_bytes
    assert bytes_of(found.locked) == locked_bytes
    assert bytes_of(found.hugetlb) == hugetlb_bytes


@pytest.mark.parametrize("find", [find_mapping, find_mapping_in_maps])
def test_a_mapping_ends_before_its_end(
    find: Callable[[HostTree, int], Mapping | Unreadable], saved_host: Callable[[str], HostTree]
) -> None:
    tree = saved_host("gpu_process")
    below, own = find(tree, TORCH_PINNED - 1), find(tree, TORCH_PINNED)
    assert isinstance(below, Mapping)
    assert isinstance(own, Mapping)
    assert (below.start, below.end, own.start) == (MEMFD, TORCH_PINNED, TORCH_PINNED)
    assert find(tree, own.end - 1) == own
    assert find(tree, own.end) != own


@pytest.mark.parametrize("address", [0, 4096, 0x10004000000, 2**63, 2**64 - 1])
def test_an_address_that_nothing_covers_is_unreadable_and_named(
    address: int, saved_host: Callable[[str], HostTree]
) -> None:
    tree = saved_host("gpu_process")
    assert find_mapping(tree, address) == Unreadable(f"/proc/self/maps has no mapping at {address:#x}")
    assert read_residency(tree, address) == Unreadable(f"/proc/self/smaps has no mapping at {address:#x}")


@pytest.mark.parametrize("lost", ["/proc/self/maps", "/proc/self/smaps"])
def test_a_sandbox_without_these_files_is_unreadable(lost: str, saved_host: Callable[[str], HostTree]) -> None:
    found = (find_mapping if lost.endswith("/maps") else read_residency)(saved_host("sandbox_gvisor"), 4096)
    assert found == Unreadable(f"{lost}: No such file or directory")


def test_a_folder_in_place_of_maps_is_unreadable(tmp_path: Path) -> None:
    (tmp_path / "proc/self/maps").mkdir(parents=True)
    assert find_mapping(HostTree(tmp_path), 4096) == Unreadable("/proc/self/maps: Is a directory")


@pytest.mark.parametrize("field", ["Rss", "Locked", "Private_Hugetlb", "Shared_Hugetlb"])
def test_a_line_missing_from_smaps_is_unreadable_and_not_taken_from_the_next_mapping(
    field: str, written_host: Callable[[dict[str, str]], HostTree]
) -> None:
    fields = {"Rss": 4, "Locked": 0, "Private_Hugetlb": 0, "Shared_Hugetlb": 0}
    below = "".join(f"{name}:   {kib} kB\n" for name, kib in fields.items() if name != field)
    whole = "".join(f"{name}:   {kib} kB\n" for name, kib in fields.items())
    text = f"1000-2000 rw-p 00000000 00:00 0 \n{below}2000-3000 rw-p 00000000 00:00 0 \n{whole}"
    found = residency(written_host({"/proc/self/smaps": text}), 0x1000)
    amounts = {"Rss": found.resident, "Locked": found.locked}
    assert amounts.get(field, found.hugetlb) == Unreadable(f"smaps has no line {field}")


PIECE = st.sampled_from(
    ["1000-2000 rw-p 0 00:00 0", "2000-3000 rw-s 0 0:1 5 /dev/zero (deleted)", "5000-1000 ---p 0 0 1"]
)
FIELD = st.tuples(
    st.sampled_from(["Rss", "Locked", "Shared_Hugetlb"]), st.text(alphabet=" -0123456789kBx²٣", max_size=9)
)


@given(
    text=st.one_of(
        st.binary(max_size=200),
        st.lists(st.one_of(PIECE, FIELD.map(": ".join), st.text(max_size=20)), max_size=12).map(
            lambda lines: "\n".join(lines).encode("utf-8", "surrogatepass")
        ),
    )
)
@example(text=b"ffffffffffffffff1-0 rw-p 0 0 0\n")
@FUZZ
def test_any_bytes_give_a_mapping_that_covers_the_address_or_nothing(
    text: bytes, fuzzed_host: Callable[[dict[str, bytes]], HostTree]
) -> None:
    tree = fuzzed_host({"/proc/self/maps": text, "/proc/self/smaps": text})
    for address in (0x1000, 0x2FFF, 0x4000):
        mapping = find_mapping(tree, address)
        assert isinstance(mapping, Unreadable) or mapping.start <= address < mapping.end
        found = read_residency(tree, address)
        if isinstance(found, MappingResidency):
            assert found.mapping == mapping
            for name, amount in {"Rss": found.resident, "Locked": found.locked}.items():
                if isinstance(amount, Reading):
                    assert re.search(rb"(?m)^%b:\s*0*%d\s+kB\s*$" % (name.encode(), amount.bytes // 1024), text)


@given(data=st.data())
@FUZZ
def test_a_damaged_smaps_reads_as_it_was_or_not_at_all(
    data: st.DataObject,
    saved_host: Callable[[str], HostTree],
    fuzzed_host: Callable[[dict[str, str]], HostTree],
    damage: Callable[[st.DataObject, str], str],
) -> None:
    text = saved_host("gpu_process").text("/proc/self/smaps")
    assert isinstance(text, str)
    part = text[text.index("7f9db2000000-") : text.index("7f9ed2000000-")]  # hugetlb, memfd and torch's block
    intact = residency(fuzzed_host({"/proc/self/smaps": part}), MEMFD)
    found = read_residency(fuzzed_host({"/proc/self/smaps": damage(data, part)}), MEMFD)
    if isinstance(found, MappingResidency):
        assert (found.mapping.start, found.mapping.end) == (MEMFD, TORCH_PINNED)
        for amount, whole in [(found.resident, intact.resident), (found.locked, intact.locked)]:
            assert isinstance(amount, Unreadable) or amount == whole


def residencies(tree: HostTree, ranges: list[tuple[int, int]]) -> list[list[MappingResidency]]:
    found = read_residencies(tree, ranges)
    assert not isinstance(found, Unreadable), found
    assert len(found) == len(ranges)
    return found


def test_many_mappings_are_read_at_once_each_in_the_place_where_it_was_asked_for(
    saved_host: Callable[[str], HostTree],
) -> None:
    tree = saved_host("gpu_process")
    starts = [TORCH_PINNED, LOCKED, TORCH_SMALL, HUGETLB, MEMFD, REGISTERED, TORCH_PINNED]
    alone = [residency(tree, start) for start in starts]
    assert residencies(tree, [(one.mapping.start, one.mapping.end) for one in alone]) == [[one] for one in alone]


def test_a_range_is_told_every_mapping_that_begins_in_it_and_no_other(saved_host: Callable[[str], HostTree]) -> None:
    tree = saved_host("gpu_process")
    before, whole, nothing = residencies(tree, [(LOCKED - 4096, LOCKED), (LOCKED, TORCH_PINNED), (0x1000, 0x2000)])
    assert [one.mapping.start for one in whole] == [LOCKED, REGISTERED, HUGETLB, MEMFD]
    assert [bytes_of(one.resident) for one in whole] == [256 * MIB, 256 * MIB, 0, 256 * MIB]
    assert (before, nothing) == ([], [])
    assert residencies(tree, []) == []


def test_without_smaps_no_range_is_told_anything(saved_host: Callable[[str], HostTree]) -> None:
    found = read_residencies(saved_host("sandbox_gvisor"), [(4096, 8192)])
    assert found == Unreadable("/proc/self/smaps: No such file or directory")


RANGE = st.integers(0, 7).map(lambda page: (page * 0x1000, (page + 1) * 0x1000))


@given(mapped=st.sets(st.integers(0, 7)), ranges=st.lists(RANGE, max_size=10))
@FUZZ
def test_whichever_ranges_are_asked_for_each_is_told_of_its_own_page(
    mapped: set[int], ranges: list[tuple[int, int]], fuzzed_host: Callable[[dict[str, str]], HostTree]
) -> None:
    lines = [
        f"{page * 0x1000:x}-{(page + 1) * 0x1000:x} rw-p 00000000 00:00 0 \nRss:   {page} kB\nLocked: 0 kB\n"
        for page in sorted(mapped)
    ]
    found = residencies(fuzzed_host({"/proc/self/smaps": "".join(lines)}), ranges)
    for (start, end), told in zip(ranges, found, strict=True):
        expected = [(start, end, start // 0x1000 * 1024)] if start // 0x1000 in mapped else []
        assert [(one.mapping.start, one.mapping.end, bytes_of(one.resident)) for one in told] == expected


# From here on this process reads itself.


@contextmanager
def shared_memory(size_bytes: int, descriptor: int = -1) -> Iterator[tuple[mmap.mmap, int]]:
    with mmap.mmap(descriptor, size_bytes) as memory:
        first = ctypes.c_char.from_buffer(memory)
        address = ctypes.addressof(first)
        del first  # mmap closes only where no view is left
        yield memory, address


def test_an_untouched_mapping_is_not_resident_and_each_written_page_is() -> None:
    pages = 16
    with OwnMapping.anonymous(pages * mmap.PAGESIZE, huge_pages=False) as memory:
        for written in range(pages + 1):
            found = residency(THIS_HOST, memory.address)
            assert bytes_of(found.resident) == written * mmap.PAGESIZE
            assert (found.mapping.start, found.mapping.size_bytes) == (memory.address, memory.size_bytes)
            if written < pages:
                memory.write_byte(written * mmap.PAGESIZE)


def test_shared_anonymous_memory_is_one_mapping_of_its_own_named_as_cuda_s_is() -> None:
    with shared_memory(4 * MIB) as (memory, address):
        found = residency(THIS_HOST, address)
        assert replace(found.mapping, inode=0) == Mapping(address, address + 4 * MIB, True, "/dev/zero (deleted)")
        assert found.mapping.inode > 0  # an object of its own, which no other block shares
        assert bytes_of(found.resident) == 0
        memory[0] = 1
        huge = Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
        page = 4 * MIB if huge.exists() and "[always]" in huge.read_text() else mmap.PAGESIZE
        assert 0 < bytes_of(residency(THIS_HOST, address).resident) <= page


@pytest.mark.parametrize(
    "name", ["plain", "two words", "line\nend", "back\\slash", "return\r\x0b\x85end", "byte\udcff"]
)
def test_a_file_is_found_whatever_its_name_holds(name: str) -> None:
    descriptor = os.memfd_create(name)
    try:
        os.ftruncate(descriptor, MIB)
        with shared_memory(MIB, descriptor) as (_, address):
            mapping = find_mapping_in_maps(THIS_HOST, address)
            assert isinstance(mapping, Mapping)
            assert (mapping.start, mapping.end, mapping.shared) == (address, address + MIB, True)
            assert mapping.name.startswith("/memfd:")
            assert mapping.name.endswith(" (deleted)")
            assert bytes_of(residency(THIS_HOST, address).resident) == 0
    finally:
        os.close(descriptor)


def test_asking_the_kernel_and_reading_maps_find_the_same_bounds_for_every_mapping() -> None:
    with OwnMapping.anonymous(mmap.PAGESIZE, huge_pages=False) as memory:
        if _query_mapping(THIS_HOST, memory.address, "self") is None:
            pytest.skip("this kernel has no PROCMAP_QUERY")
    # A mapping may come or go while this runs, so only those count that stood in maps before and after.
    before = Path("/proc/self/maps").read_bytes().splitlines()
    answers: dict[bytes, set[Mapping | Unreadable | None]] = {}
    for line in before:
        start, end = (int(part, 16) for part in line.split()[0].split(b"-"))
        places = (start, (start + end) // 2, end - 1)
        answers[line] = {_query_mapping(THIS_HOST, place, "self") for place in places}
    stood = [line for line in Path("/proc/self/maps").read_bytes().splitlines() if line in answers]
    # The vsyscall page belongs to no process: maps shows it, the query does not.
    compared = [line for line in stood if not line.endswith(b"[vsyscall]")]
    assert len(compared) > 20
    for line in compared:
        bounds, permissions, _, _, inode, *name = line.split(maxsplit=5)
        start, end = (int(part, 16) for part in bounds.split(b"-"))
        called = name[0].decode("utf-8", "surrogateescape") if name else ""
        assert answers[line] == {
            Mapping(start, end, permissions.endswith(b"s"), called, int(inode), permissions.startswith(b"rw"))
        }


@pytest.mark.parametrize("shared", [True, False])
def test_both_ways_of_finding_a_mapping_give_the_same_answer(shared: bool) -> None:
    with shared_memory(MIB) as (_, theirs), OwnMapping.anonymous(MIB, huge_pages=False) as own:
        address = theirs if shared else own.address
        assert find_mapping(THIS_HOST, address) == find_mapping_in_maps(THIS_HOST, address)


def test_an_address_that_this_process_has_given_back_is_unreadable() -> None:
    with OwnMapping.anonymous(MIB, huge_pages=False) as memory:
        address = memory.address
    found = find_mapping(THIS_HOST, address)
    # Another mapping may have taken the place since, but not one of that very start and size between guards.
    assert found == Unreadable(f"/proc/self/maps has no mapping at {address:#x}") or found != Mapping(
        address, address + MIB, False, ""
    )


def test_a_block_is_the_mapping_that_begins_at_the_address() -> None:
    with OwnMapping.anonymous(10 * mmap.PAGESIZE, huge_pages=False) as memory:
        assert find_block(THIS_HOST, memory.address, 1) == Reading(10 * mmap.PAGESIZE, "mapping")
        # As malloc does it: the allocation begins a few bytes into its mapping.
        assert find_block(THIS_HOST, memory.address + 16, 1) == Reading(10 * mmap.PAGESIZE - 16, "mapping")


def test_a_mapping_that_begins_before_the_address_speaks_for_no_block() -> None:
    with OwnMapping.anonymous(10 * mmap.PAGESIZE, huge_pages=False) as memory:
        assert isinstance(find_block(THIS_HOST, memory.address + mmap.PAGESIZE, 1), Unreadable)


def test_one_object_cut_into_several_mappings_is_one_block_and_a_guard_ends_it() -> None:
    # A lock on the middle page makes three mappings of one; a block called too small for that would be a false alarm.
    with OwnMapping.anonymous(9 * mmap.PAGESIZE, huge_pages=False) as memory:
        libc = ctypes.CDLL(None)
        assert libc.mlock(ctypes.c_void_p(memory.address + 4 * mmap.PAGESIZE), ctypes.c_size_t(mmap.PAGESIZE)) == 0
        assert find_block(THIS_HOST, memory.address, 9 * mmap.PAGESIZE) == Reading(9 * mmap.PAGESIZE, "mapping")
        assert find_block(THIS_HOST, memory.address, 2**40) == Reading(9 * mmap.PAGESIZE, "mapping")


def test_a_neighbour_of_another_object_is_not_counted_in() -> None:
    # Two shared mappings side by side, as a driver may lay two blocks: the first is too small whatever follows it.
    size = mmap.PAGESIZE
    with OwnMapping.anonymous(2 * size, huge_pages=False) as place:
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mmap.restype = ctypes.c_void_p
        for index in range(2):
            flags = mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | 0x10  # MAP_FIXED
            at = ctypes.c_void_p(place.address + index * size)
            assert libc.mmap(at, ctypes.c_size_t(size), 3, flags, -1, ctypes.c_long(0)) == place.address + index * size
        assert find_block(THIS_HOST, place.address, 2 * size) == Reading(size, "mapping")


def test_all_pieces_of_an_object_that_was_cut_are_told() -> None:
    page = mmap.PAGESIZE
    with (
        OwnMapping.anonymous(9 * page, huge_pages=False) as memory,
        OwnMapping.anonymous(page, huge_pages=False) as one,
    ):
        memory.write_every_page()
        libc = ctypes.CDLL(None)
        assert libc.mlock(ctypes.c_void_p(memory.address + 4 * page), ctypes.c_size_t(page)) == 0
        ranges = [(one.address, one.address + page), (memory.address, memory.address + 9 * page)]
        other, pieces = residencies(THIS_HOST, ranges)
        assert [bytes_of(piece.resident) for piece in pieces] == [4 * page, page, 4 * page]
        assert [bytes_of(piece.locked) for piece in pieces] == [0, page, 0]
        assert [bytes_of(piece.resident) for piece in other] == [0]


def test_the_kernel_tells_the_page_size_where_it_is_asked_and_maps_does_not() -> None:
    with OwnMapping.anonymous(mmap.PAGESIZE, huge_pages=False) as memory:
        asked = _query_mapping(THIS_HOST, memory.address, "self")
        if asked is not None:
            assert isinstance(asked, Mapping)
            assert asked.page_bytes == mmap.PAGESIZE
        read = find_mapping_in_maps(THIS_HOST, memory.address)
        assert isinstance(read, Mapping)
        assert read.page_bytes == 0
