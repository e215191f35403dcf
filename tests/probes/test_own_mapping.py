"""Our own mappings: how large, how resident, how guarded, how locked. The kernel's texts are the witness."""

from __future__ import annotations

import errno
import mmap
import re
import resource
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from pinprobe.probes.counters import read_counters
from pinprobe.probes.errors import AllocationFailed
from pinprobe.probes.host_tree import THIS_HOST
from pinprobe.probes.own_mapping import OwnMapping
from pinprobe.probes.reading import Reading

PAGE = mmap.PAGESIZE
MIB = 2**20


def maps() -> list[tuple[int, int, str]]:
    lines = (line.split() for line in Path("/proc/self/maps").read_bytes().splitlines())
    return [(*(int(part, 16) for part in line[0].split(b"-")), line[1].decode()) for line in lines]  # type: ignore[misc]


def smaps_of(address: int) -> dict[str, str]:
    text = Path("/proc/self/smaps").read_bytes().decode("utf-8", "surrogateescape")
    block = re.search(rf"(?m)^0*{address:x}-.*\n((?:[A-Z]\w*:.*\n)*)", text)
    assert block is not None, f"nothing begins at {address:#x}"
    return {name: value.strip() for name, _, value in (line.partition(":") for line in block[1].splitlines())}


def kib(bytes_: int) -> str:
    return f"{bytes_ // 1024} kB"


def moved(name: str, start: int) -> int:
    amount = read_counters(THIS_HOST)[name]
    assert isinstance(amount, Reading), amount
    return amount.bytes - start


@pytest.mark.parametrize(
    ("asked_bytes", "size_bytes"), [(1, PAGE), (PAGE - 1, PAGE), (PAGE, PAGE), (PAGE + 1, 2 * PAGE), (MIB, MIB)]
)
def test_a_request_is_rounded_up_to_whole_pages(asked_bytes: int, size_bytes: int) -> None:
    with OwnMapping.anonymous(asked_bytes, huge_pages=False) as memory:
        assert memory.size_bytes == size_bytes
        assert memory.address % PAGE == 0
        assert (memory.address, memory.address + size_bytes, "rw-p") in maps()


def test_a_guard_on_either_side_keeps_a_mapping_apart_from_its_neighbours() -> None:
    # Without guards the kernel merges neighbours of the same kind into one mapping, and smaps tells of both at once.
    with OwnMapping.anonymous(MIB, huge_pages=False) as one, OwnMapping.anonymous(MIB, huge_pages=False) as other:
        for memory in (one, other):
            end = memory.address + memory.size_bytes
            assert any(stop >= memory.address > start and mode == "---p" for start, stop, mode in maps())
            assert any(start <= end < stop and mode == "---p" for start, stop, mode in maps())
        one.write_every_page()
        assert smaps_of(one.address)["Rss"] == kib(MIB)
        assert smaps_of(other.address)["Rss"] == "0 kB"


def test_an_untouched_mapping_is_not_resident() -> None:
    with OwnMapping.anonymous(64 * MIB, huge_pages=True) as memory:
        assert smaps_of(memory.address)["Rss"] == "0 kB"


@pytest.mark.parametrize("offset", [0, PAGE - 1, PAGE, MIB - 1])
def test_one_written_byte_makes_its_page_resident_and_no_other(offset: int) -> None:
    with OwnMapping.anonymous(MIB, huge_pages=False) as memory:
        memory.write_byte(offset)
        assert smaps_of(memory.address)["Rss"] == kib(PAGE)


# The writing goes in pieces of 4096 pages: one page, a piece less one, a piece, one more, two pieces and a bit.
@pytest.mark.parametrize("pages", [1, 4095, 4096, 4097, 8193])
def test_writing_every_page_makes_exactly_the_whole_mapping_resident(pages: int) -> None:
    with OwnMapping.anonymous(pages * PAGE, huge_pages=False) as memory:
        memory.write_every_page()
        memory.write_every_page()
        assert smaps_of(memory.address)["Rss"] == kib(pages * PAGE)


@pytest.mark.parametrize("huge_pages", [True, False])
def test_huge_pages_are_off_where_that_was_asked(huge_pages: bool) -> None:
    if not Path("/sys/kernel/mm/transparent_hugepage").exists():
        pytest.skip("this kernel has no transparent huge pages")
    with OwnMapping.anonymous(8 * MIB, huge_pages=huge_pages) as memory:
        memory.write_every_page()
        fields = smaps_of(memory.address)
        assert ("nh" in fields["VmFlags"].split()) is not huge_pages
        if not huge_pages:
            assert fields["AnonHugePages"] == "0 kB"


def test_unmapping_gives_memory_and_guards_back_and_may_be_done_twice() -> None:
    start = read_counters(THIS_HOST)["VmSize"]
    assert isinstance(start, Reading)
    memory = OwnMapping.anonymous(512 * MIB, huge_pages=False)
    assert moved("VmSize", start.bytes) >= 512 * MIB + 2 * PAGE
    memory.unmap()
    # What is mapped in between lies at the freed place, most likely; a second unmap must not take it away.
    with OwnMapping.anonymous(512 * MIB, huge_pages=False) as next_one:
        memory.unmap()
        next_one.write_byte(0)
        assert smaps_of(next_one.address)["Rss"] == kib(PAGE)
    # The interpreter may map an arena of its own meanwhile, but not half a gibibyte.
    assert moved("VmSize", start.bytes) < 64 * MIB


def test_an_error_inside_gives_the_memory_back() -> None:
    with pytest.raises(KeyError), OwnMapping.anonymous(MIB, huge_pages=False) as memory:
        raise KeyError
    assert (memory.address, memory.address + MIB, "rw-p") not in maps()


@pytest.mark.parametrize("asked_bytes", [2**56, 2**63, 2**64 + PAGE])
def test_what_no_address_space_holds_is_refused_by_name(asked_bytes: int) -> None:
    # A size_t wraps at 2**64: without a check the last would be mapped as one page and written as 16 EiB.
    with pytest.raises(AllocationFailed, match=r"mmap of .* GiB failed|more than any address space holds") as refused:
        OwnMapping.anonymous(asked_bytes, huge_pages=False)
    assert refused.value.no_address_space


def test_a_limit_on_the_address_space_refuses_the_mapping_and_leaves_nothing_behind() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    size = read_counters(THIS_HOST)["VmSize"]
    assert isinstance(size, Reading)
    resource.setrlimit(resource.RLIMIT_AS, (size.bytes + 256 * MIB, hard))
    try:
        with pytest.raises(AllocationFailed) as refused:
            OwnMapping.anonymous(512 * MIB, huge_pages=False)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    assert refused.value.no_address_space
    assert moved("VmSize", size.bytes) < 256 * MIB


def test_locking_makes_the_mapping_resident_and_locked() -> None:
    start = read_counters(THIS_HOST)["VmLck"]
    assert isinstance(start, Reading)
    with OwnMapping.anonymous(MIB, huge_pages=False) as memory:
        if memory.lock() in (errno.ENOMEM, errno.EPERM):
            pytest.skip("no MiB may be locked here")
        assert moved("VmLck", start.bytes) == MIB
        assert smaps_of(memory.address)["Rss"] == smaps_of(memory.address)["Locked"] == kib(MIB)
    assert moved("VmLck", start.bytes) == 0


def test_asking_whether_locking_is_allowed_moves_the_locked_count_and_no_page() -> None:
    start = read_counters(THIS_HOST)["VmLck"]
    assert isinstance(start, Reading)
    with OwnMapping.anonymous(MIB, huge_pages=False) as memory:
        if memory.lock_allowed() in (errno.ENOMEM, errno.EPERM):
            pytest.skip("no MiB may be locked here")
        if moved("VmLck", start.bytes) == 0:
            pytest.skip("this kernel or C library has no mlock2")
        assert moved("VmLck", start.bytes) == MIB
        assert smaps_of(memory.address)["Rss"] == "0 kB"
    assert moved("VmLck", start.bytes) == 0


@contextmanager
def memlock_limit(limit_bytes: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (limit_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (soft, hard))


@pytest.mark.parametrize("call", [OwnMapping.lock, OwnMapping.lock_allowed])
@pytest.mark.parametrize(("limit_bytes", "code"), [(64 * 1024, errno.ENOMEM), (0, errno.EPERM)])
def test_over_the_limit_both_give_the_kernels_own_errno(
    call: Callable[[OwnMapping], int],
    limit_bytes: int,
    code: int,
    as_nobody: Callable[[], AbstractContextManager[None]],
) -> None:
    # Root may lock whatever it likes, so the limit is met as another user.
    with OwnMapping.anonymous(MIB, huge_pages=False) as memory:
        with as_nobody(), memlock_limit(limit_bytes):
            answer = call(memory)
        assert answer == code
        assert smaps_of(memory.address)["Rss"] == smaps_of(memory.address)["Locked"] == "0 kB"
