from __future__ import annotations

from pinprobe.probes.cliffs import Cliff, find_cliffs
from pinprobe.probes.reading import Reading, Unreadable
from pinprobe.probes.sweep import Point, PointState

GIB = 2**30


def point(slots: int, block: int | None, state: PointState = PointState.MEASURED) -> Point:
    known = Unreadable("unknown") if block is None else Reading(block, "mapping")
    return Point(slots, slots * 1000, state, known, known)


def test_the_first_point_has_no_predecessor_and_is_no_cliff() -> None:
    assert find_cliffs([point(1, GIB)]) == ()


def test_a_cliff_names_both_blocks_and_the_count_before_it() -> None:
    cliffs = find_cliffs([point(1, GIB), point(2, GIB), point(3, 2 * GIB)])
    assert cliffs == (Cliff(3, 2, GIB, 2 * GIB, measured=True),)


def test_between_listed_counts_that_are_not_neighbours_the_gap_is_kept() -> None:
    (cliff,) = find_cliffs([point(1, GIB), point(8, 2 * GIB)])
    assert (cliff.previous_slots, cliff.slots) == (1, 8)


def test_a_step_to_a_predicted_block_is_not_called_measured() -> None:
    (cliff,) = find_cliffs([point(1, GIB), point(2, 2 * GIB, PointState.PREDICTED)])
    assert not cliff.measured


def test_unknown_blocks_and_broken_promises_make_no_step() -> None:
    listed = [point(1, GIB), point(2, None, PointState.NOT_MEASURED), point(3, 1, PointState.BROKEN), point(4, GIB)]
    assert find_cliffs(listed) == ()
