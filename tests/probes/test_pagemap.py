"""The page table's own entries, written by hand and of this process; smaps and the tests' writes are the judges."""

from __future__ import annotations

import ctypes
import mmap
import struct
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pinprobe.probes.host_tree import THIS_HOST, HostTree
from pinprobe.probes.own_mapping import OwnMapping
from pinprobe.probes.pagemap import read_present
from pinprobe.probes.reading import Amount, Reading, Unreadable
from tests.probes.allocators.kernel_word import smaps_bytes

FUZZ = settings(derandomize=True, deadline=None, max_examples=120)
PAGE = mmap.PAGESIZE
PRESENT = 1 << 63

WrittenHost = Callable[[Mapping[str, bytes]], HostTree]


def bytes_of(amount: Amount) -> int:
    assert isinstance(amount, Reading), amount
    return amount.bytes


def entries(values: list[int]) -> bytes:
    return struct.pack(f"={len(values)}Q", *values)


# Written files.


@given(values=st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=40), data=st.data())
@FUZZ
def test_the_highest_bit_alone_says_that_a_page_is_present(
    values: list[int], data: st.DataObject, fuzzed_host: WrittenHost
) -> None:
    tree = fuzzed_host({"/proc/self/pagemap": entries(values)})
    first = data.draw(st.integers(0, len(values)))
    last = data.draw(st.integers(first, len(values)))
    expected = sum(value >> 63 for value in values[first:last]) * 4096
    assert bytes_of(read_present(tree, first * 4096, last * 4096)) == expected


def test_pages_are_counted_at_the_size_that_the_host_has(written_host: WrittenHost) -> None:
    root = written_host({"/proc/7/pagemap": entries([PRESENT, 0, PRESENT])}).root
    tree = HostTree(root, page_size_bytes=65536)
    assert read_present(tree, 0, 3 * 65536, pid=7) == Reading(2 * 65536, "pagemap")
    assert read_present(tree, 65536, 2 * 65536, pid=7) == Reading(0, "pagemap")


@pytest.mark.parametrize("length", [0, 7, 8, 20])
def test_a_file_that_ends_early_is_unreadable_and_not_the_part_that_was_there(
    length: int, written_host: WrittenHost
) -> None:
    tree = written_host({"/proc/self/pagemap": entries([PRESENT] * 3)[:length]})
    assert read_present(tree, 0, 3 * 4096) == Unreadable("/proc/self/pagemap is cut off at 0x0")


def test_a_host_without_pagemap_says_so(tmp_path: Path) -> None:
    tree = HostTree(tmp_path)
    assert read_present(tree, 0, 4096) == Unreadable("/proc/self/pagemap: No such file or directory")
    (tmp_path / "proc/self/pagemap").mkdir(parents=True)
    assert read_present(tree, 0, 4096) == Unreadable("/proc/self/pagemap: [Errno 21] Is a directory")


@pytest.mark.parametrize(
    ("start", "end"), [(2**63, 2**63 + PAGE), (2**70, 2**70 + PAGE), (2**64 - PAGE, 2**64), (-PAGE, 0)]
)
def test_addresses_that_no_process_has_are_unreadable(start: int, end: int) -> None:
    assert isinstance(read_present(THIS_HOST, start, end), Unreadable)


def test_a_range_of_nothing_holds_nothing() -> None:
    assert bytes_of(read_present(THIS_HOST, PAGE, PAGE)) == 0


# From here on this host reads itself.


@pytest.mark.parametrize("shared", [True, False])
def test_each_written_page_is_present_and_no_other(shared: bool) -> None:
    pages = 16
    size = pages * PAGE
    made = OwnMapping.memfd(size) if shared else OwnMapping.anonymous(size, huge_pages=False)
    with made as memory:
        for written in range(pages):
            assert bytes_of(read_present(THIS_HOST, memory.address, memory.address + size)) == written * PAGE
            memory.write_byte(written * PAGE)
        half = memory.address + size // 2
        assert bytes_of(read_present(THIS_HOST, half, half + 3 * PAGE)) == 3 * PAGE


@given(st.sets(st.integers(0, 99)))
@settings(derandomize=True, deadline=None, max_examples=30)
def test_whichever_pages_are_written_smaps_agrees(written: set[int]) -> None:
    with OwnMapping.anonymous(100 * PAGE, huge_pages=False) as memory:
        for page in written:
            memory.write_byte(page * PAGE)
        present = bytes_of(read_present(THIS_HOST, memory.address, memory.address + memory.size_bytes))
        assert present == len(written) * PAGE == smaps_bytes(memory.address, "Rss")


def test_a_range_longer_than_one_read_is_counted_over_its_seams() -> None:
    # 2**20 pages are read at a time. Of the address space nothing is resident but the pages that are written.
    pages = 2**20 + 2**17
    with OwnMapping.anonymous(pages * PAGE, huge_pages=False) as memory:
        for page in (0, 2**20 - 1, 2**20, pages - 1):
            memory.write_byte(page * PAGE)
        assert bytes_of(read_present(THIS_HOST, memory.address, memory.address + memory.size_bytes)) == 4 * PAGE


def test_a_page_that_was_read_and_never_written_counts_as_present() -> None:
    with OwnMapping.anonymous(8 * PAGE, huge_pages=False) as memory:
        ctypes.string_at(memory.address, 1)
        assert smaps_bytes(memory.address, "Rss") == 0
        assert bytes_of(read_present(THIS_HOST, memory.address, memory.address + 8 * PAGE)) == PAGE


def test_guards_and_what_is_not_mapped_are_not_present() -> None:
    with OwnMapping.anonymous(PAGE, huge_pages=False) as memory:
        memory.write_byte(0)
        start = memory.address
        assert bytes_of(read_present(THIS_HOST, start - PAGE, start + 2 * PAGE)) == PAGE
    assert bytes_of(read_present(THIS_HOST, 0, 16 * PAGE)) == 0


HOLD = """
import ctypes, mmap, sys
memory = mmap.mmap(-1, 8 * mmap.PAGESIZE)
memory[:3 * mmap.PAGESIZE] = b"x" * (3 * mmap.PAGESIZE)
print(ctypes.addressof(ctypes.c_char.from_buffer(memory)), flush=True)
sys.stdin.read()
"""


def test_another_process_can_be_asked_until_it_is_gone() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        start = int(child.stdout.readline())
        assert bytes_of(read_present(THIS_HOST, start, start + 8 * PAGE, pid=child.pid)) == 3 * PAGE
        child.communicate()
    gone = read_present(THIS_HOST, start, start + 8 * PAGE, pid=child.pid)
    assert gone == Unreadable(f"/proc/{child.pid}/pagemap: No such file or directory")
