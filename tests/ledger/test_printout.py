"""The boot lines, over accounts that are made up here: what has to stand in them, and what must never."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pinprobe.ledger.booking import Account, Claim, Row, RowState
from pinprobe.ledger.printout import Line, Tone, printout, printout_lines
from pinprobe.probes.headroom import Headroom, HeadroomSource
from pinprobe.probes.in_process_control import InProcessControl
from pinprobe.probes.reading import Amount, Reading, Unreadable

FUZZ = settings(derandomize=True, deadline=None, max_examples=300)
MIB, GIB = 2**20, 2**30
SLOT = 154_927_104
CONTROL = InProcessControl(MIB, Reading(MIB, "mapping"), Reading(MIB, "smaps"), Reading(MIB, "statm"), 0)
UNREAD = Unreadable("no smaps here")


def row(
    owner: str = "cache.savepoint_ring",
    asked: int = 16 * SLOT,
    booked: int = 4 * GIB,
    resident: Amount | int = 4 * GIB,
    *,
    state: RowState = RowState.RESERVED,
    pageable: bool = False,
    measured: bool = True,
    detail: str = "16 x 154,927,104 B",
    evidence: str = "mapping; statm agrees",
) -> Row:
    told = Reading(resident, "smaps") if isinstance(resident, int) else resident
    return Row(
        owner, state, asked, booked, Reading(booked, "mapping"), told, Reading(booked, "statm"), pageable,
        "torch-host", detail, evidence, measured,
    )  # fmt: skip


def retained(booked: int = 2 * GIB) -> Row:
    return row("retained", 0, booked, booked, state=RowState.RETAINED, detail="1 block given back")


def unattributed(resident: Amount | int = GIB, measured: bool = True) -> Row:
    booked = resident if isinstance(resident, int) else 0
    return row(
        "unattributed", 0, booked, resident, state=RowState.UNATTRIBUTED, pageable=True, measured=measured,
        detail="growth that no row explains",
    )  # fmt: skip


def account(*rows: Row, claims: tuple[Claim, ...] = ()) -> Account:
    return Account(
        rows=rows,
        claims=claims,
        peak_bytes=4 * GIB,
        process_resident=Reading(8 * GIB, "statm"),
        working_set_floor=Reading(GIB, "statm - smaps"),
        overhead=Reading(8 * MIB, "the host"),
        headroom=Headroom((HeadroomSource("MemAvailable + per-CPU page lists", Reading(30 * GIB, "meminfo")),)),
        keep_free_bytes=0,
        limit_bytes=None,
        control=CONTROL,
        book_reach="",
    )


def said(made: Account) -> str:
    """The whole of it as one line, however it was wrapped."""
    return " ".join(printout(made).split())


def line_of(made: Account, start: str) -> Line:
    (found,) = [line for line in printout_lines(made) if line.text.startswith(start)]
    return found


def columns_of(made: Account, start: str) -> list[str]:
    """The columns of a row of figures, which two spaces or more have to tell apart."""
    return re.split(" {2,}", line_of(made, start).text)


# What it says.


def test_the_first_line_gives_what_is_booked_for_what_was_asked() -> None:
    made = account(row(), row("cache.pool", GIB, GIB, GIB, pageable=True))
    first = printout_lines(made)[0]
    assert first.tone is Tone.HEAD
    assert said(made).startswith(
        "pinprobe ledger: 5.000 GiB booked for 3.309 GiB asked, ratio 1.511; resident 5.000 GiB headroom: 30.000 GiB,"
        " bound by MemAvailable + per-CPU page lists"
    )


def test_the_plain_text_is_the_lines() -> None:
    made = account(row(), retained(), unattributed())
    assert printout(made).split("\n") == [line.text for line in printout_lines(made)]


def test_a_row_gives_its_figures_and_below_them_how_they_are_known() -> None:
    made = account(row())
    assert columns_of(made, "owner") == ["owner", "booked", "asked", "resident", "ratio"]
    assert columns_of(made, "cache.savepoint_ring") == [
        "cache.savepoint_ring", "4.000 GiB", "2.309 GiB", "4.000 GiB", "1.733",
    ]  # fmt: skip
    assert "16 x 154,927,104 B, torch-host; measured: mapping; statm agrees" in said(made)


def test_the_bounds_stand_in_it_where_there_are_any() -> None:
    bounded = replace(
        account(row()), keep_free_bytes=2 * GIB, limit_bytes=10 * GIB, book_reach="all of user 0 (3 live)"
    )
    assert "; 2.000 GiB of it are kept free" in said(bounded)
    assert "limit: 10.000 GiB" in said(bounded)
    assert "book: all of user 0 (3 live)" in said(bounded)
    plain = said(account(row()))
    assert not any(word in plain for word in ("kept free", "limit:", "book:"))


def test_the_floor_the_peak_and_the_overhead_stand_in_it() -> None:
    text = said(account(row()))
    assert "working-set floor: 1.000 GiB, measured (statm - smaps)" in text
    assert "peak: 4.000 GiB; overhead of pinning: 8.000 MiB" in text


def test_what_was_kept_and_what_no_row_explains_are_rows_of_their_own() -> None:
    made = account(row(), retained(), unattributed())
    # Nobody asked for them, so that they have no ask and no ratio.
    assert columns_of(made, "retained") == ["retained", "2.000 GiB", "2.000 GiB"]
    assert columns_of(made, "unattributed") == ["unattributed", "1.000 GiB", "1.000 GiB"]
    assert "would take 3.691 GiB for free that are not there" in said(made)  # 4 - 2.309, and what is retained
    assert "total 6.000 GiB, without what no row explains" in said(made)


def test_pinned_and_pageable_are_summed_apart_each_with_what_it_means() -> None:
    text = said(account(row(), row("cache.pool", GIB, GIB, GIB, pageable=True), unattributed()))
    assert "pinned 4.000 GiB: can't be swapped or reclaimed" in text
    assert "pageable 1.000 GiB: is paged out" in text
    assert "total 5.000 GiB" in text


def test_a_pending_row_is_called_pending_and_its_memory_is_not_known() -> None:
    waiting = row("cache.next", GIB, 2 * GIB, Unreadable("being taken"), state=RowState.PENDING, measured=False)
    figures = ["cache.next (pending)", "2.000 GiB", "1.000 GiB", "?", "2.000"]
    assert columns_of(account(waiting), "cache.next") == figures


def test_what_was_booked_as_asked_is_not_called_measured() -> None:
    made = account(row(measured=False, booked=16 * SLOT, resident=UNREAD, evidence="booked as asked: no maps"))
    assert "booked as asked: no maps" in said(made)
    assert "measured: " not in said(made)


def test_an_empty_ledger_is_told_without_a_table() -> None:
    made = account()
    text = printout(made)
    assert "0 B booked for 0 B asked; resident 0 B" in said(made)
    assert "ratio" not in text
    assert "not there" not in text


def test_rows_of_one_owner_that_came_about_alike_are_one_line() -> None:
    regions = [row("cache.pool", 100 * MIB, 128 * MIB, 128 * MIB, detail="a region") for _ in range(100)]
    made = account(*regions, row("cache.pool", MIB, MIB, MIB, detail="the index"), row("weights"))
    pools = [line.text for line in printout_lines(made) if line.text.startswith("cache.pool")]
    assert [re.split(" {2,}", text) for text in pools] == [
        ["cache.pool", "12.500 GiB", "9.766 GiB", "12.500 GiB", "1.280"],
        ["cache.pool", "1.000 MiB", "1.000 MiB", "1.000 MiB", "1.000"],
    ]
    assert "100 reservations: a region" in said(made)
    assert len(made.rows) == 102  # a machine reads them all


def test_one_row_below_is_named_though_the_rows_beside_it_hold_more_than_enough() -> None:
    regions = [row("cache.pool", GIB, GIB, MIB) for _ in range(3)]
    made = account(*regions, row("cache.pool", GIB, GIB, 2 * GIB))
    assert said(made).count("BOOKED BELOW RESIDENT: cache.pool") == 1


def test_one_row_that_can_t_be_read_leaves_the_sum_of_its_like_unknown() -> None:
    made = account(row("cache.pool", GIB, GIB, GIB), row("cache.pool", GIB, GIB, UNREAD))
    assert columns_of(made, "cache.pool") == ["cache.pool", "2.000 GiB", "2.000 GiB", "?", "1.000"]


def test_tenants_say_what_they_are_at_boot_and_what_they_counted_where_that_is_asked_for() -> None:
    made = replace(account(row()), remarks=("cache.ring: 16 slots",), reports=("cache.ring: 5 laps",))
    assert "cache.ring: 16 slots" in said(made)
    assert "5 laps" not in said(made)
    assert "cache.ring: 16 slots cache.ring: 5 laps" in " ".join(printout(made, stats=True).split())


# What can't be read.


def test_what_can_t_be_read_says_so_with_its_reason_and_is_never_zero() -> None:
    made = replace(
        account(row(resident=UNREAD), unattributed(Unreadable("no statm here"), measured=False)),
        working_set_floor=Unreadable("no statm here"),
        overhead=Unreadable("no meminfo here"),
        headroom=Headroom((HeadroomSource("host", Unreadable("no meminfo here")),)),
    )
    text = said(made)
    assert "resident unreadable, because no smaps here" in text
    assert "headroom: unreadable, because no meminfo here" in text
    assert "working-set floor: unreadable, because no statm here" in text
    assert "overhead of pinning: unreadable, because no meminfo here" in text
    assert columns_of(made, "cache.savepoint_ring")[3] == "?"
    # Nothing is known of it, so it has no figure; 0 B would be one.
    assert set(columns_of(made, "unattributed")[1:]) == {"?"}


@pytest.mark.parametrize(
    ("control", "words", "tone"),
    [
        (CONTROL, "control: 1.000 by its mapping and by smaps, statm too", Tone.PLAIN),
        (None, "control: none was taken yet, so nothing is measured", Tone.PLAIN),
        (replace(CONTROL, growth=Reading(0, "statm")), "not statm: the process grew by 0 B over a control", Tone.PLAIN),
        (replace(CONTROL, resident=Reading(0, "smaps")), "smaps of the control reads 0 B for 1,048,576 B", Tone.BROKEN),
        (replace(CONTROL, block=UNREAD), "is unreadable, because no smaps here; so nothing is measured", Tone.BROKEN),
    ],
)
def test_the_control_is_told_and_a_broken_one_loudly(control: InProcessControl | None, words: str, tone: Tone) -> None:
    made = replace(account(row()), control=control)
    assert words in said(made)
    assert line_of(made, "control:").tone is tone


# What is wrong.


def test_a_row_below_what_is_resident_is_named_with_its_figures() -> None:
    made = account(row(booked=16 * SLOT, resident=4 * GIB))
    assert not made.holds
    assert (
        "BOOKED BELOW RESIDENT: cache.savepoint_ring: asked 2,478,833,664 B, booked 2,478,833,664 B,"
        " resident 4,294,967,296 B" in said(made)
    )
    assert line_of(made, "cache.savepoint_ring").tone is Tone.BROKEN
    assert {line.tone for line in printout_lines(made) if "BOOKED BELOW" in line.text} == {Tone.BROKEN}


def test_a_claim_below_what_is_resident_is_named_with_both_figures() -> None:
    claimed = Claim("stores", 6 * GIB, Reading(10 * GIB, "smaps"))
    made = account(row(), claims=(claimed, Claim("ring", 4 * GIB, Reading(4 * GIB, "smaps")), Claim("x", 1, UNREAD)))
    assert made.shortfalls == (
        "stores: claimed 6,442,450,944 B, resident 10,737,418,240 B: 4,294,967,296 B are in no book",
    )
    assert said(made).endswith(f"BOOKED BELOW RESIDENT: {made.shortfalls[0]}")


def test_where_all_holds_nothing_is_shouted() -> None:
    made = account(row(), row(resident=UNREAD), retained(), unattributed(UNREAD), claims=(Claim("x", 1, UNREAD),))
    assert made.holds
    assert "BOOKED BELOW" not in printout(made)
    assert Tone.BROKEN not in {line.tone for line in printout_lines(made)}


@pytest.mark.parametrize(
    ("made", "tone"),
    [
        (row(), Tone.DEAR),
        (row(booked=16 * SLOT, resident=16 * SLOT), Tone.PLAIN),
        (row(asked=1000 * MIB, booked=1010 * MIB, resident=MIB), Tone.PLAIN),  # a page more is no price
        (row(asked=1000 * MIB, booked=1011 * MIB, resident=MIB), Tone.DEAR),
        (row(booked=GIB, resident=4 * GIB), Tone.BROKEN),
        (row(resident=UNREAD, booked=16 * SLOT), Tone.PLAIN),
    ],
)
def test_a_dear_row_and_a_broken_one_can_be_coloured(made: Row, tone: Tone) -> None:
    assert line_of(account(made), "cache.savepoint_ring").tone is tone


def test_what_the_ask_would_have_hidden_is_a_dear_line() -> None:
    made = account(row())
    hidden = line_of(made, "A ledger that books what was asked")
    assert hidden.tone is Tone.DEAR
    assert "1.691 GiB" in said(made)


# Whatever stands in it.


@pytest.mark.parametrize(
    ("made", "figures"),
    [
        (row("tokens", 1, 2 * MIB, 2 * MIB), ["tokens", "2.000 MiB", "1 B", "2.000 MiB"]),
        (
            row("weights", 1500 * GIB, 2048 * GIB, 2048 * GIB),
            ["weights", "2,048.000 GiB", "1,500.000 GiB", "2,048.000 GiB"],
        ),
    ],
    ids=["a byte in a large block", "a host of terabytes"],
)
def test_figures_of_any_length_keep_apart(made: Row, figures: list[str]) -> None:
    shown = line_of(account(made), made.owner).text
    assert shown.startswith(made.owner)
    assert re.search(r"\s+".join(map(re.escape, figures)) + r"\s", shown), shown
    assert len(shown) <= 80


def test_a_long_name_leaves_the_figures_their_place() -> None:
    long = row("cache.retention_pool_of_the_second_engine", GIB, GIB, UNREAD, state=RowState.PENDING, measured=False)
    shown = line_of(account(long), "cache.retention_pool").text
    assert len(shown) <= 80
    assert "pending" in shown


def test_what_others_wrote_can_t_colour_or_break_a_line() -> None:
    evil = "red\x1b[31m\u2028\udcff\r\n\x07"
    claim = Claim(evil, 1, Reading(2, "smaps"))
    made = replace(account(row(evil, detail=evil, evidence=evil), claims=(claim,)), book_reach=evil, remarks=(evil,))
    assert [line.text for line in printout_lines(made) if not line.text.isprintable()] == []


#: Up to 64 TiB, more than any host has.
SIZES = st.one_of(st.integers(0, 2**46), st.sampled_from([0, 1, 1023, MIB, 999 * GIB, 2**46]))
AMOUNTS = st.one_of(SIZES.map(lambda size: Reading(size, "told")), st.text(max_size=90).map(Unreadable))
TEXTS = st.text(st.characters(codec="utf-8"), max_size=120)
OWNERS = st.one_of(st.from_regex(r"[a-z]{1,20}(\.[a-z_]{1,30}){0,3}", fullmatch=True), TEXTS)
ROWS = st.builds(
    row,
    OWNERS,
    st.integers(1, 2**46),
    SIZES,
    AMOUNTS,
    state=st.sampled_from(RowState),
    pageable=st.booleans(),
    measured=st.booleans(),
    detail=TEXTS,
    evidence=TEXTS,
)


@given(
    rows=st.lists(ROWS, max_size=4),
    claims=st.lists(st.builds(Claim, TEXTS, SIZES, AMOUNTS), max_size=2),
    floor=AMOUNTS,
    headroom=AMOUNTS,
    limit=st.none() | SIZES,
    reach=TEXTS,
)
@example([row(booked=2**46, resident=2**46, asked=2**46)], [], UNREAD, UNREAD, None, "")
@example([row("x" * 100, asked=1, booked=2**46)], [], UNREAD, UNREAD, None, "")
@FUZZ
def test_every_line_fits_80_columns_and_every_shortfall_is_named(
    rows: list[Row], claims: list[Claim], floor: Amount, headroom: Amount, limit: int | None, reach: str
) -> None:
    made = replace(
        account(*rows, claims=tuple(claims)),
        working_set_floor=floor,
        headroom=Headroom((HeadroomSource("told", headroom),)),
        limit_bytes=limit,
        book_reach=reach,
    )
    lines = printout_lines(made)
    assert [line.text for line in lines if len(line.text) > 80] == []
    loud = sum(line.text.startswith("BOOKED BELOW RESIDENT: ") for line in lines)
    below = [row.owner for row in rows if row.holds is False] + [each.owner for each in claims if each.holds is False]
    assert loud == len(below) == len(made.shortfalls)
    for each in rows:
        if isinstance(each.resident, Reading) and each.resident.bytes > each.booked_bytes:
            assert re.search(rf"\bresident {each.resident.bytes:,} B", said(made))
