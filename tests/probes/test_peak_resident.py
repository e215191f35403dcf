"""The growth of this process at its largest, held against memory that is taken and given back."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from pinprobe.probes.host_tree import HostTree
from pinprobe.probes.own_mapping import OwnMapping
from pinprobe.probes.peak_resident import PeakResident
from pinprobe.probes.reading import Reading, Unreadable

MIB = 2**20
Written = Callable[[Mapping[str, str | bytes | None]], HostTree]


def take_and_give_back(size_bytes: int) -> None:
    with OwnMapping.anonymous(size_bytes, huge_pages=False) as memory:
        memory.write_every_page()


def test_what_was_given_back_meanwhile_is_in_it() -> None:
    peak = PeakResident()
    if not peak.sees_every_moment:
        pytest.skip("the kernel's mark can't be set back here")
    take_and_give_back(32 * MIB)
    grown = peak.grown()
    assert isinstance(grown, Reading)
    assert grown.within(32 * MIB, MIB)


def test_what_was_taken_before_it_is_not() -> None:
    take_and_give_back(64 * MIB)
    peak = PeakResident()
    if not peak.sees_every_moment:
        pytest.skip("the kernel's mark can't be set back here")
    grown = peak.grown()
    assert isinstance(grown, Reading)
    assert grown.bytes < MIB


def _statm(pages: int) -> str:
    return f"1000 {pages} 10 1 0 100 0\n"


def test_where_the_mark_can_not_be_set_back_the_highest_sample_counts(written_host: Written) -> None:
    tree = written_host({"/proc/self/statm": _statm(100), "/proc/self/status": "VmHWM:\t999999 kB\n"})
    # A folder stands in for a file that may not be written, which root would write all the same.
    Path(tree.root, "proc/self/clear_refs").mkdir()
    peak = PeakResident(tree)
    assert not peak.sees_every_moment
    for pages in (400, 200):
        tree.path("/proc/self/statm").write_text(_statm(pages))
        peak.sample()
    assert peak.grown() == Reading(300 * mmap.PAGESIZE, "statm")


def test_the_mark_is_believed_where_it_was_set_back(written_host: Written) -> None:
    tree = written_host(
        {
            "/proc/self/statm": _statm(100),
            "/proc/self/status": "VmHWM:\t     800 kB\n",
            "/proc/self/clear_refs": "",
        }
    )
    peak = PeakResident(tree)
    assert tree.path("/proc/self/clear_refs").read_text() == "5"
    grown = peak.grown()
    assert isinstance(grown, Reading)
    assert grown.bytes == 800 * 1024 - 100 * mmap.PAGESIZE


def test_a_process_that_tells_nothing_is_unreadable_and_not_0(written_host: Written) -> None:
    assert isinstance(PeakResident(written_host({"/proc/self/clear_refs": ""})).grown(), Unreadable)


def test_a_process_that_shrank_grew_by_0(written_host: Written) -> None:
    tree = written_host(
        {"/proc/self/statm": _statm(100), "/proc/self/status": "VmHWM:\t 4 kB\n", "/proc/self/clear_refs": ""}
    )
    grown = PeakResident(tree).grown()
    assert isinstance(grown, Reading)
    assert grown.bytes == 0
