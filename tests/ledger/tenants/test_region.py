"""A region's memory: how much, of what kind, what its last page says, and what the kernel forbids to everybody else."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import resource
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinprobe.ledger.tenants.region import Region, RegionPage, region_bytes
from pinprobe.probes.errors import AllocationFailed
from pinprobe.probes.own_mapping import OwnMapping
from tests.ledger.tenants.open_files import open_files
from tests.probes.allocators.fresh_process import in_fresh_process
from tests.probes.allocators.kernel_word import (
    MIB,
    PAGE_BYTES,
    block_bytes,
    counter_bar_bytes,
    counter_bytes,
    mapping_count,
    smaps_bytes,
    whole_pages,
)

SIZES = (1, PAGE_BYTES - 1, PAGE_BYTES, PAGE_BYTES + 1, 3 * MIB + 17)
KEY = bytes(range(16))
# linux/fcntl.h, linux/falloc.h.
F_GET_SEALS, F_ADD_SEALS, F_SEAL_WRITE = 1034, 1033, 0x8
ALL_BUT_OUR_OWN_WRITES = 0x1 | 0x2 | 0x4 | 0x10
PUNCH_HOLE_AND_KEEP_SIZE = 0x02 | 0x01


@contextmanager
def mapped(row_bytes: int, shared: bool) -> Iterator[Region]:
    region = Region(row_bytes, shared)
    try:
        yield region
    finally:
        region.unmap()


@contextmanager
def descriptor_of(region: Region) -> Iterator[int]:
    descriptor = region.read_only_descriptor()
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def last_page(region: Region) -> tuple[bytes, int, int, bytes, int]:
    """The page behind the row, read from memory: magic, filling, row's bytes, key, tokens."""
    text = ctypes.string_at(region.address + whole_pages(region.row_bytes), 48)
    return struct.unpack("=8sQQ16sQ", text)


# -- how much


@pytest.mark.parametrize("row_bytes", SIZES)
@pytest.mark.parametrize("shared", [False, True], ids=["private", "shared"])
def test_a_region_takes_one_page_more_than_its_row_and_all_of_it_is_resident(row_bytes: int, shared: bool) -> None:
    size = whole_pages(row_bytes) + PAGE_BYTES
    assert region_bytes(row_bytes) == size
    counter = "RssShmem" if shared else "RssAnon"
    before = counter_bytes(counter)
    with mapped(row_bytes, shared) as region:
        grown = counter_bytes(counter) - before
        assert region.size_bytes == block_bytes(region.address) == size
        assert smaps_bytes(region.address, "Rss") == size
        # The interpreter's own heap grows by a few pages meanwhile; shared memory is nobody's but ours.
        assert abs(grown - size) <= counter_bar_bytes() + (0 if shared else 256 * 1024)
    assert block_bytes(region.address) == 0


@pytest.mark.parametrize("shared", [False, True], ids=["private", "shared"])
def test_a_region_is_pageable(shared: bool) -> None:
    with mapped(MIB, shared) as region:
        assert smaps_bytes(region.address, "Locked") == 0
        assert ctypes.string_at(region.address, MIB) == bytes(MIB)


def test_neighbours_do_not_merge_into_one_mapping() -> None:
    with mapped(PAGE_BYTES, False) as first, mapped(PAGE_BYTES, False) as second, mapped(PAGE_BYTES, False) as third:
        for region in (first, second, third):
            assert block_bytes(region.address) == 2 * PAGE_BYTES


# -- what its last page says


@pytest.mark.parametrize("shared", [False, True], ids=["private", "shared"])
def test_the_last_page_says_what_lies_in_the_row_and_whether_it_is_whole(shared: bool) -> None:
    row = bytes(value * 7 & 0xFF for value in range(5000))
    with mapped(5000, shared) as region:
        ctypes.memmove(region.address, row, 5000)
        assert region.filling == 0
        assert last_page(region)[0] == bytes(8)
        region.begin()
        assert last_page(region) == (b"pinprobe", 1, 5000, bytes(16), 0)
        region.finish(KEY, 2**40)
        assert last_page(region) == (b"pinprobe", 2, 5000, KEY, 2**40)
        region.begin()
        assert last_page(region) == (b"pinprobe", 3, 5000, bytes(16), 0)
        assert region.filling == 3
        region.finish(KEY[::-1], 1)
        assert last_page(region) == (b"pinprobe", 4, 5000, KEY[::-1], 1)
        assert ctypes.string_at(region.address, 5000) == row


@given(
    st.builds(
        RegionPage, filling=st.integers(0, 2**64 - 1), row_bytes=st.integers(0, 2**64 - 1),
        key=st.binary(min_size=16, max_size=16), tokens=st.integers(0, 2**64 - 1),
    )
)  # fmt: skip
def test_a_page_is_read_as_it_was_written(page: RegionPage) -> None:
    assert RegionPage.parsed(page.packed() + bytes(100)) == page


@given(st.binary(min_size=64, max_size=64))
def test_what_is_no_such_page_is_none(text: bytes) -> None:
    assert RegionPage.parsed(text) is None or text.startswith(b"pinprobe")


# -- what nobody else may do


@pytest.fixture
def shared_region() -> Iterator[Region]:
    """A shared region of 8 KiB whose row is 0xA5 all over."""
    with mapped(2 * PAGE_BYTES, True) as region:
        ctypes.memset(region.address, 0xA5, 2 * PAGE_BYTES)
        yield region


def assert_untouched(region: Region) -> None:
    assert ctypes.string_at(region.address, 2 * PAGE_BYTES) == b"\xa5" * (2 * PAGE_BYTES)
    assert block_bytes(region.address) == 3 * PAGE_BYTES


def test_the_seals_are_those_of_size_and_of_writes_that_are_not_ours(shared_region: Region) -> None:
    with descriptor_of(shared_region) as descriptor:
        assert fcntl.fcntl(descriptor, F_GET_SEALS) == ALL_BUT_OUR_OWN_WRITES
        assert os.fstat(descriptor).st_size == 3 * PAGE_BYTES
        assert fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY
        assert fcntl.fcntl(descriptor, fcntl.F_GETFD) == fcntl.FD_CLOEXEC


def write(descriptor: int) -> None:
    os.write(descriptor, b"x")


def write_in_the_middle(descriptor: int) -> None:
    os.pwrite(descriptor, b"x", PAGE_BYTES)


def shrink(descriptor: int) -> None:
    os.ftruncate(descriptor, PAGE_BYTES)


def grow(descriptor: int) -> None:
    os.ftruncate(descriptor, 10 * PAGE_BYTES)


def map_for_writing(descriptor: int) -> None:
    mmap.mmap(descriptor, PAGE_BYTES, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)


def make_a_mapping_writable(descriptor: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    address = libc.mmap(None, PAGE_BYTES, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
    try:
        access = mmap.PROT_READ | mmap.PROT_WRITE
        if libc.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(PAGE_BYTES), access):
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
    finally:
        libc.munmap(ctypes.c_void_p(address), ctypes.c_size_t(PAGE_BYTES))


def punch_a_hole(descriptor: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.fallocate(descriptor, PUNCH_HOLE_AND_KEEP_SIZE, ctypes.c_long(0), ctypes.c_long(PAGE_BYTES)):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def seal_our_own_writes(descriptor: int) -> None:
    fcntl.fcntl(descriptor, F_ADD_SEALS, F_SEAL_WRITE)


WAYS_TO_CHANGE = (
    write, write_in_the_middle, shrink, grow, map_for_writing, make_a_mapping_writable, punch_a_hole,
    seal_our_own_writes,
)  # fmt: skip


@pytest.mark.parametrize("change", WAYS_TO_CHANGE)
@pytest.mark.parametrize("reopened", [False, True], ids=["as it is lent", "opened anew for writing"])
def test_the_kernel_refuses_every_change_through_a_lent_descriptor(
    shared_region: Region, change: Callable[[int], None], reopened: bool
) -> None:
    with descriptor_of(shared_region) as lent:
        # The same user may open the file behind it once more, and for writing: the seals have to hold by themselves.
        descriptor = os.open(f"/proc/self/fd/{lent}", os.O_RDWR) if reopened else os.dup(lent)
        try:
            with pytest.raises(OSError) as refused:  # noqa: PT011  # which error it is depends on the way
                change(descriptor)
        finally:
            os.close(descriptor)
    assert refused.value.errno in (errno.EPERM, errno.EACCES, errno.EBADF, errno.EINVAL)
    assert_untouched(shared_region)
    ctypes.memset(shared_region.address, 0x5A, 1)  # we ourselves still can


def test_what_is_mapped_privately_from_it_is_a_copy(shared_region: Region) -> None:
    with (
        descriptor_of(shared_region) as descriptor,
        mmap.mmap(descriptor, PAGE_BYTES, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE) as copy,
    ):
        copy[0] = 0
    assert_untouched(shared_region)


def test_a_borrower_sees_what_we_write_later(shared_region: Region) -> None:
    with (
        descriptor_of(shared_region) as descriptor,
        mmap.mmap(descriptor, 0, mmap.MAP_SHARED, mmap.PROT_READ) as borrowed,
    ):
        assert borrowed[:4] == b"\xa5" * 4
        ctypes.memset(shared_region.address, 0x11, 4)
        assert borrowed[:4] == b"\x11" * 4
        shared_region.unmap()
        assert borrowed[:5] == b"\x11\x11\x11\x11\xa5"  # the memory goes with its last user


# -- what is left


def test_a_shared_region_is_one_descriptor_with_a_name_in_no_file_system() -> None:
    files = open_files()
    with mapped(MIB, True) as region:
        assert [file for file in open_files() if file not in files] == ["/memfd:pinprobe-region (deleted)"]
        with descriptor_of(region) as descriptor:
            assert os.fstat(descriptor).st_nlink == 0
    assert open_files() == files


def test_a_private_region_has_no_descriptor_to_lend() -> None:
    files = open_files()
    with mapped(MIB, False) as region:
        assert open_files() == files
        with pytest.raises(AllocationFailed, match="private memory, which no other process can map"):
            region.read_only_descriptor()
    assert open_files() == files


@pytest.mark.parametrize("shared", [False, True], ids=["private", "shared"])
def test_unmapping_gives_memory_and_descriptor_back_and_a_second_time_does_nothing(shared: bool) -> None:
    files, mappings = open_files(), mapping_count()
    regions = [Region(MIB, shared) for _ in range(4)]
    assert len(open_files()) == len(files) + 4 * shared
    for region in regions:
        region.unmap()
        other = os.open("/dev/null", os.O_RDONLY)  # takes the number of the descriptor that was closed
        region.unmap()
        os.fstat(other)
        os.close(other)
    assert open_files() == files
    assert mapping_count() == mappings


def unmapped_regions_under(limit: str, row_bytes: int, shared: bool) -> tuple[str, int, int]:
    """Try for a region under a limit; return the error, and how many descriptors and mappings are left of it."""
    # Once beforehand, so that nothing is loaded for the first time between the two counts.
    Region(PAGE_BYTES, shared).unmap()
    files, mappings = len(open_files()), mapping_count()
    number = getattr(resource, limit)
    soft, hard = resource.getrlimit(number)
    statm = int(Path("/proc/self/statm").read_text().split()[0]) * PAGE_BYTES
    tight = {"RLIMIT_AS": statm + 8 * MIB, "RLIMIT_NOFILE": 3}[limit]
    resource.setrlimit(number, (tight, hard))
    try:
        said = str(Region(row_bytes, shared))
    except AllocationFailed as error:
        said = str(error)
    finally:
        resource.setrlimit(number, (soft, hard))
    return said, len(open_files()) - files, mapping_count() - mappings


@pytest.mark.parametrize(
    ("limit", "shared", "words"),
    [
        ("RLIMIT_AS", False, "mmap of 0.125 GiB failed: Cannot allocate memory"),
        ("RLIMIT_AS", True, "mmap of 0.125 GiB failed: Cannot allocate memory"),
        ("RLIMIT_NOFILE", True, "memfd of 0.125 GiB failed: Too many open files"),
    ],
    ids=["no address space for a private one", "no address space for a shared one", "no descriptor left"],
)
def test_where_the_kernel_refuses_that_is_said_and_nothing_is_left(limit: str, shared: bool, words: str) -> None:
    assert in_fresh_process(unmapped_regions_under, limit, 128 * MIB - PAGE_BYTES, shared) == (words, 0, 0)


@pytest.mark.parametrize("shared", [False, True], ids=["private", "shared"])
def test_where_there_is_no_memory_for_its_pages_nothing_is_left(shared: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(self: OwnMapping, offset: int, size_bytes: int) -> None:
        raise AllocationFailed("touching it failed: Cannot allocate memory")

    files, mappings = open_files(), mapping_count()
    with monkeypatch.context() as patch:
        patch.setattr(OwnMapping, "populate", no_memory)
        with pytest.raises(AllocationFailed, match="touching it failed"):
            Region(MIB, shared)
    assert open_files() == files
    assert mapping_count() == mappings


def shared_region_on_an_old_kernel() -> tuple[str, int, int]:
    """Try for a region where the seal is not known; return the error, and the descriptors and mappings left of it."""
    Region(PAGE_BYTES, shared=True).unmap()
    files, mappings, sealed = len(open_files()), mapping_count(), fcntl.fcntl

    def old_kernel(descriptor: int, command: int, argument: Any = 0) -> Any:
        if command == F_ADD_SEALS:  # what a kernel before 5.1 answers to a seal that it does not know
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return sealed(descriptor, command, argument)

    fcntl.fcntl = old_kernel  # type: ignore[assignment]
    try:
        said = str(Region(MIB, shared=True))
    except AllocationFailed as error:
        said = str(error)
    return said, len(open_files()) - files, mapping_count() - mappings


def test_on_a_kernel_without_the_seal_there_is_no_shared_region_and_nothing_is_left() -> None:
    said, files, mappings = in_fresh_process(shared_region_on_an_old_kernel)
    assert said.endswith("failed: Invalid argument")
    assert (files, mappings) == (0, 0)
