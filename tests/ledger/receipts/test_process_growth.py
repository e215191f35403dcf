"""What the growth of a process is explained by: the ask, the book, what is resident, and what is left."""

from __future__ import annotations

import importlib

import pytest

from pinprobe.ledger.booking import RowState
from pinprobe.ledger.receipts.process_growth import HUGE_PAGE_ALLOCATORS
from pinprobe.probes.allocators.registry import _OWN
from pinprobe.probes.reading import Reading, Unreadable
from tests.ledger.made_receipts import GIB, MIB, Document, diff_of, document, figure, figures, row, unattributed

SLOT = 154_927_104


def example_receipts(measured_bytes: int) -> tuple[Document, Document]:
    """A pool that took what it asked, and two rings of 16 and 32 slots, whose blocks are powers of two."""
    old = document(row("pool", round(4.47 * GIB), allocator="pageable", pageable=True), floor=GIB)
    rings = [row("cache.savepoint_ring", 32 * SLOT, 8 * GIB), row("cache.staging", 16 * SLOT, 4 * GIB)]
    before = old["process_resident"]["bytes"]
    process = before + measured_bytes
    return old, document(*rings, floor=process - 12 * GIB, process=process)


@pytest.mark.parametrize("measured_bytes", [7_900_000_000, round(7.9 * GIB)], ids=["7.9 GB", "7.9 GiB"])
def test_what_was_asked_explains_a_third_of_the_growth_and_what_is_resident_nearly_all(measured_bytes: int) -> None:
    old, new = example_receipts(measured_bytes)
    growth = diff_of(old, new).growth
    asked, booked, resident, measured, residue = (
        figure(change.difference)
        for change in (growth.from_asked, growth.from_booked, growth.from_resident, growth.measured, growth.residue)
    )
    assert isinstance(asked, int)
    assert isinstance(resident, int)
    assert (round(asked / GIB, 2), round(resident / GIB, 2)) == (2.46, 7.53)
    assert booked == resident
    assert measured == measured_bytes
    assert residue == measured_bytes - (12 * GIB - round(4.47 * GIB))
    # What is left is what the engine itself did, as its floor says too.
    assert residue == figure(growth.floor.difference)
    assert figures(growth.outside) == [0, 0, 0]


def test_growth_that_no_row_explains_is_residue_and_no_prediction() -> None:
    old = document(row("a", GIB), floor=MIB)
    new = document(row("a", GIB), unattributed(5 * MIB), floor=6 * MIB)
    growth = diff_of(old, new).growth
    assert [figure(change.difference) for change in (growth.from_asked, growth.from_booked, growth.from_resident)] == [
        0, 0, 0,
    ]  # fmt: skip
    assert figure(growth.residue.difference) == figure(growth.unattributed.difference) == 5 * MIB


def test_what_an_allocator_keeps_is_booked_and_resident_and_nobody_asked_for_it() -> None:
    kept = row("retained", 0, GIB, state=RowState.RETAINED, allocator="torch-host")
    growth = diff_of(document(row("a", 1)), document(row("a", 1), kept)).growth
    assert figure(growth.from_asked.difference) == 0
    assert figure(growth.from_booked.difference) == figure(growth.from_resident.difference) == GIB
    assert figure(growth.residue.difference) == 0


def test_what_is_in_huge_pages_is_in_none_of_the_lines_and_is_named() -> None:
    huge = [row("weights", 2 * GIB, allocator="registered-hugetlb")]
    huge += [row("retained", 0, GIB, state=RowState.RETAINED, allocator="registered-hugetlb")]
    new = document(row("a", 1), *huge, floor=MIB, process=MIB + 1)
    growth = diff_of(document(row("a", 1), floor=MIB), new).growth
    assert growth.in_huge_pages == ("retained", "weights")
    lines = (growth.from_asked, growth.from_booked, growth.from_resident, growth.measured, growth.residue)
    assert [figure(line.difference) for line in lines] == [0, 0, 0, 0, 0]
    assert figures(growth.outside) == [0, 0, 0]


def test_what_several_allocators_keep_is_counted_unless_all_of_it_is_in_huge_pages() -> None:
    kept = row("retained", 0, GIB, state=RowState.RETAINED, allocator="registered-hugetlb, torch")
    growth = diff_of(document(), document(kept)).growth
    assert growth.in_huge_pages == ()
    assert figure(growth.from_booked.difference) == GIB


def test_every_allocator_of_the_huge_page_pool_is_known() -> None:
    counters = {}
    for name, where in _OWN.items():
        module, _, attribute = where.partition(":")
        allocator = getattr(importlib.import_module(module), attribute)
        counters[name] = getattr(allocator, "counter", None)  # torch's depends on the accelerator
    assert tuple(name for name, counter in counters.items() if counter == "HugetlbPages") == HUGE_PAGE_ALLOCATORS


def test_huge_pages_of_an_engines_own_show_by_what_the_floor_leaves_out() -> None:
    own = row("weights", 2 * GIB, allocator="engine.memory:take")
    growth = diff_of(document(row("a", 1)), document(row("a", 1), own, floor=MIB, process=MIB + 1)).growth
    assert figures(growth.outside) == [0, 2 * GIB, 2 * GIB]


def test_shares_that_were_rounded_up_are_not_taken_for_huge_pages() -> None:
    new = document(row("a", 1), row("b", 1), floor=MIB, process=MIB + 1)
    assert figures(diff_of(document(row("a", 1)), new).growth.outside) == [0, 0, 0]


@pytest.mark.parametrize("which", ["old", "new", "both"])
def test_a_reading_that_is_missing_makes_its_lines_unreadable_with_the_reason_and_no_others(which: str) -> None:
    sound, broken = document(row("a", MIB)), document(row("a", MIB, resident=Unreadable("no smaps here")))
    pair = {"old": (broken, sound), "new": (sound, broken), "both": (broken, broken)}[which]
    found = diff_of(*pair)
    where = "in both receipts" if which == "both" else f"in the {which} receipt"
    growth = found.growth
    assert figure(growth.from_resident.difference) == f"{where}: a: no smaps here"
    assert figure(growth.residue.difference) == f"{where}: a: no smaps here"
    assert figure(growth.from_asked.difference) == figure(growth.from_booked.difference) == 0
    assert found.unreadable == {"a, resident": Unreadable(f"{where}: no smaps here")}
    assert found.is_same == (which == "both")


def test_without_vmrss_the_predictions_stand_and_the_measurement_and_residue_do_not() -> None:
    new = document(row("a", 2), process=Unreadable("no statm"), floor=Unreadable("no statm"))
    growth = diff_of(document(row("a", 1)), new).growth
    assert figure(growth.from_resident.difference) == 1
    for change in (growth.measured, growth.residue, growth.floor, growth.outside):
        assert figure(change.difference) == "in the new receipt: no statm"


def test_error_bars_of_all_readings_are_added() -> None:
    rows = [row(owner, 1, resident=Reading(1, "statm", 7)) for owner in ("a", "b")]
    old, new = document(*rows, process=Reading(5, "statm", 100)), document(row("a", 1))
    growth = diff_of(old, new).growth
    assert isinstance(growth.measured.difference, Reading)
    assert growth.measured.difference.error_bytes == 100
    assert isinstance(growth.residue.difference, Reading)
    assert growth.residue.difference.error_bytes == 114
