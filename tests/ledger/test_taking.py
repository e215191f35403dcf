"""What is booked for an allocation that was just made: from real memory, and from readings of every kind."""

from __future__ import annotations

import ctypes
import mmap
from dataclasses import replace

import pytest

from pinprobe.ledger.admission import Request
from pinprobe.ledger.price import Price
from pinprobe.ledger.records import Entry, Records
from pinprobe.ledger.taking import Parts, Taking, entry_for, parts_behind, rides_along
from pinprobe.probes.backing import Backing
from pinprobe.probes.counters import read_statm
from pinprobe.probes.host_tree import THIS_HOST
from pinprobe.probes.in_process_control import InProcessControl
from pinprobe.probes.own_mapping import OwnMapping
from pinprobe.probes.reading import Amount, Reading, Unreadable
from tests.probes.allocators.kernel_word import MIB, block_bytes

PAGE = mmap.PAGESIZE
ASKED = 59 * MIB
GOOD = InProcessControl(MIB, Reading(MIB, "mapping"), Reading(MIB, "smaps"), Reading(MIB, "statm"), 0)
WITHOUT_STATM = replace(GOOD, growth=Reading(0, "statm"))
VOID = replace(GOOD, resident=Reading(0, "smaps"))


def grew(size_bytes: int, error_bytes: int = 0) -> Reading:
    return Reading(size_bytes, "statm", error_bytes)


def mapped(*sizes: tuple[int, int], whole: bool = True) -> Parts:
    """Mappings of (size, how much of it was handed out)."""
    return tuple(
        (Backing(index << 40, (index << 40) + size, index if whole else 0, whole, in_rss=True), part)
        for index, (size, part) in enumerate(sizes, 1)
    )


def booked(
    parts: Parts | Unreadable,
    growth: Amount,
    new_bytes: int = 0,
    control: InProcessControl = GOOD,
    *,
    asked: int = ASKED,
    kept_unseen: int = 0,
) -> Entry:
    request = Request("cache.ring", asked, Price(asked, "the ask"), "torch")
    return entry_for(
        request, parts, growth, new_bytes, control, kept_unseen_bytes=kept_unseen, detail="a detail", pageable=True
    )


# What lies behind a value.


def test_the_parts_of_real_memory_are_the_kernels_mappings_and_add_up_to_what_was_handed_out() -> None:
    with mmap.mmap(-1, 2 * MIB) as shared, OwnMapping.anonymous(MIB, huge_pages=False) as own:
        view = ctypes.c_char.from_buffer(shared)
        start = ctypes.addressof(view)
        del view
        parts = parts_behind(THIS_HOST, [memoryview(shared)[:1000], memoryview(shared)[5000:6000], own], MIB)
        assert not isinstance(parts, Unreadable)
        by_start = {backing.start: sum(part for each, part in parts if each == backing) for backing, _ in parts}
        assert set(by_start) == {start, own.address}
        assert by_start[start] == 2000
        assert {backing.size_bytes for backing, _ in parts} == {block_bytes(start), block_bytes(own.address)}
        alone = parts_behind(THIS_HOST, own, MIB)
        assert not isinstance(alone, Unreadable)
        assert [(backing.start, part) for backing, part in alone] == [(own.address, MIB)]


def test_several_addresses_stand_for_what_was_asked_between_them() -> None:
    with OwnMapping.anonymous(MIB, huge_pages=False) as first, OwnMapping.memfd(2 * MIB) as second:
        parts = parts_behind(THIS_HOST, [first, (second,)], 3 * MIB - 100)
        assert not isinstance(parts, Unreadable)
        assert {backing.start for backing, _ in parts} == {first.address, second.address}
        assert sum(part for _, part in parts) == 3 * MIB - 100
        assert all(0 < part <= backing.size_bytes for backing, part in parts)


def test_what_shows_no_address_has_no_parts_and_a_wrong_address_is_unreadable() -> None:
    assert parts_behind(THIS_HOST, object(), MIB) == ()
    with OwnMapping.anonymous(MIB, huge_pages=False) as gone:
        address = gone.address
    assert isinstance(parts_behind(THIS_HOST, address, MIB), Unreadable)


def test_a_block_that_ends_before_the_ask_does_is_unreadable_and_says_how_much_there_is() -> None:
    with OwnMapping.anonymous(MIB, huge_pages=False) as own:
        parts = parts_behind(THIS_HOST, own, 2 * MIB)
    assert isinstance(parts, Unreadable)
    assert "only 1,048,576 B of 2,097,152 B are mapped for use" in parts.reason


# By how much the process grew.


def test_the_growth_is_without_what_was_booked_and_struck_for_others_meanwhile() -> None:
    records = Records()
    taking = Taking(Reading(100 * MIB, "statm"), records.explained_bytes)
    records.add(1, booked((), grew(7 * MIB), asked=7 * MIB), [])
    now = read_statm(THIS_HOST)
    growth = taking.growth(THIS_HOST, records)
    assert isinstance(now, Reading)
    assert isinstance(growth, Reading)
    assert growth.bytes == pytest.approx(now.bytes - 107 * MIB, abs=MIB)


def test_a_growth_that_can_t_be_read_stays_unknown() -> None:
    taking = Taking(Unreadable("no statm"), 0)
    assert taking.growth(THIS_HOST, Records()) == Unreadable("no statm")


# What is booked.


def test_memory_of_its_own_mapping_is_booked_by_that_and_measured() -> None:
    entry = booked(mapped((64 * MIB, ASKED)), grew(64 * MIB), 64 * MIB)
    assert (entry.unseen_bytes, entry.grown_bytes, entry.measured) == (0, 0, True)
    assert entry.evidence == "mapping; statm agrees"
    assert (entry.owner, entry.asked_bytes, entry.allocator) == ("cache.ring", ASKED, "torch")
    assert (entry.detail, entry.pageable, entry.growth) == ("a detail", True, grew(64 * MIB))


def test_what_was_asked_and_is_behind_no_address_is_booked_beside() -> None:
    # Three buffers were asked for in one, and the value shows two of them.
    entry = booked(mapped((20 * MIB, 20 * MIB), (19 * MIB, 19 * MIB)), grew(ASKED), 39 * MIB)
    assert entry.unseen_bytes == 20 * MIB
    assert entry.measured


def test_unreadable_memory_is_booked_as_asked_and_says_so() -> None:
    entry = booked(Unreadable("no maps"), grew(ASKED))
    assert (entry.unseen_bytes, entry.measured) == (ASKED, False)
    assert entry.evidence == "booked as asked: unreadable, because no maps"


@pytest.mark.parametrize(
    ("growth", "unseen", "grown"),
    [(2 * ASKED, 2 * ASKED, 2 * ASKED), (ASKED, ASKED, ASKED), (MIB, ASKED, MIB), (-5 * MIB, ASKED, 0)],
)
def test_what_shows_no_address_is_booked_by_the_growth_and_never_below_the_ask(
    growth: int, unseen: int, grown: int
) -> None:
    entry = booked((), grew(growth))
    assert (entry.unseen_bytes, entry.grown_bytes) == (unseen, grown)
    assert entry.measured == (grown >= ASKED)  # where it grew by less, what served the rest is unseen
    assert "shows no address" in entry.evidence


def test_what_shows_no_address_and_no_growth_is_booked_as_asked() -> None:
    entry = booked((), Unreadable("no statm"))
    assert (entry.unseen_bytes, entry.grown_bytes, entry.measured) == (ASKED, 0, False)
    assert entry.evidence == "booked as asked: unreadable, because no statm"


@pytest.mark.parametrize(("kept", "grown"), [(ASKED, ASKED), (10 * MIB, 10 * MIB), (2 * ASKED, ASKED), (0, 0)])
def test_opaque_memory_that_was_kept_explains_the_process_on(kept: int, grown: int) -> None:
    # The process did not grow, since it is the memory that somebody gave back: then that is what it holds.
    entry = booked((), grew(0), kept_unseen=kept)
    assert (entry.unseen_bytes, entry.grown_bytes, entry.taken_over_bytes) == (ASKED, grown, grown)
    assert entry.measured == (grown == ASKED)


def test_without_a_control_that_held_nothing_is_called_measured() -> None:
    of_mapping, opaque = booked(mapped((ASKED, ASKED)), grew(ASKED), ASKED, VOID), booked((), grew(ASKED), 0, VOID)
    for entry in (of_mapping, opaque):
        assert not entry.measured
        assert "not measured, since smaps of the control reads 0 B for 1,048,576 B" in entry.evidence


def test_counters_that_failed_the_control_void_what_stands_on_them_alone() -> None:
    assert booked(mapped((ASKED, ASKED)), grew(0), ASKED, WITHOUT_STATM).measured
    assert not booked((), grew(ASKED), 0, WITHOUT_STATM).measured


@pytest.mark.parametrize(
    ("parts", "growth", "new_bytes", "evidence"),
    [
        (mapped((64 * MIB, ASKED)), grew(0), 0, "mapping, kept from before; statm agrees"),
        (mapped((ASKED, ASKED)), Unreadable("no statm"), ASKED, "mapping; no second source"),
        (
            mapped((ASKED, ASKED), whole=False),
            grew(ASKED + 100 * 1024),
            ASKED,
            "pages of a larger mapping; statm agrees",
        ),
        (mapped((ASKED, ASKED)), grew(119 * MIB), ASKED, "mapping; the process grew by 0.116 GiB meanwhile"),
        (mapped((ASKED, ASKED)), grew(0), ASKED, "mapping; the process grew by 0 B meanwhile"),
        (mapped((ASKED, ASKED)), grew(ASKED - MIB, error_bytes=MIB), ASKED, "mapping; statm agrees"),
    ],
)
def test_the_evidence_says_what_speaks_for_it_and_whether_a_second_source_agrees(
    parts: Parts, growth: Amount, new_bytes: int, evidence: str
) -> None:
    assert booked(parts, growth, new_bytes).evidence == evidence


# What rides along.


@pytest.mark.parametrize(
    ("growth", "beyond"),
    [
        (grew(119 * MIB), 60 * MIB),  # "118 GiB asked landed as 238", to a scale
        (grew(ASKED), 0),
        (grew(0), 0),
        (grew(ASKED + ASKED // 100), 0),  # a hundredth is other threads' small change
        (grew(ASKED + ASKED // 100 + PAGE), ASKED // 100 + PAGE),
        (grew(119 * MIB, error_bytes=60 * MIB), 0),  # the counters can't tell
        (Unreadable("no statm"), 0),
    ],
)
def test_growth_beside_the_allocation_s_own_memory_is_found(growth: Amount, beyond: int) -> None:
    parts = mapped((ASKED, ASKED))
    assert rides_along(booked(parts, growth, ASKED), parts, ASKED) == beyond


def test_a_block_larger_than_the_ask_is_its_own_memory_and_nothing_rides_along() -> None:
    parts = mapped((128 * MIB, ASKED))
    assert rides_along(booked(parts, grew(128 * MIB), 128 * MIB), parts, 128 * MIB) == 0


def test_what_rides_along_with_a_kept_block_is_all_that_the_process_grew_by() -> None:
    parts = mapped((64 * MIB, ASKED))
    assert rides_along(booked(parts, grew(60 * MIB), 0), parts, 0) == 60 * MIB
    assert rides_along(booked(parts, grew(0), 0), parts, 0) == 0


def test_memory_that_was_asked_for_and_shows_no_address_does_not_ride_along() -> None:
    parts = mapped((20 * MIB, 20 * MIB), (19 * MIB, 19 * MIB))
    assert rides_along(booked(parts, grew(ASKED), 39 * MIB), parts, 39 * MIB) == 0
    assert rides_along(booked(parts, grew(2 * ASKED), 39 * MIB), parts, 39 * MIB) == ASKED


@pytest.mark.parametrize("parts", [(), Unreadable("no maps")])
def test_where_the_growth_is_all_that_is_known_nothing_rides_along(parts: Parts | Unreadable) -> None:
    assert rides_along(booked(parts, grew(119 * MIB)), parts, 0) == 0
