"""Two receipts beside each other: rows, sums and facts that differ, and what grew beyond a bound."""

from __future__ import annotations

import random
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pinprobe.ledger.booking import Row, RowState
from pinprobe.ledger.receipts.receipt_change import Change
from pinprobe.ledger.receipts.receipt_diff import OwnerDiff, Presence, ReceiptDiff, find_increases
from pinprobe.ledger.receipts.receipt_file import receipt_from
from pinprobe.probes.reading import Amount, Unreadable
from tests.ledger.made_receipts import (
    GIB,
    Document,
    diff_of,
    document,
    figure,
    figures,
    real_document,
    row,
    this_host,
    unattributed,
)

FUZZ = settings(derandomize=True, deadline=None, max_examples=80)


# -- rows and sums


def test_the_rows_of_an_owner_are_summed_and_set_beside_those_of_the_other() -> None:
    old = document(row("cache.ring", 3, 4), row("cache.ring", 5, 8))
    new = document(row("cache.ring", 16, 16, 12))
    (owner,) = diff_of(old, new).owners
    assert (owner.owner, owner.presence, owner.is_same) == ("cache.ring", Presence.BOTH, False)
    assert [figures(change) for change in (owner.asked, owner.booked, owner.resident)] == [
        [8, 16, 8], [12, 16, 4], [12, 12, 0],
    ]  # fmt: skip


def test_owners_that_appeared_or_went_are_named_and_were_nothing_before_or_after() -> None:
    found = diff_of(document(row("a", 1), row("b", 2)), document(row("b", 2), row("c", 3)))
    assert [(o.owner, o.presence.value, figures(o.booked)) for o in found.owners] == [
        ("a", "went", [1, 0, -1]), ("b", "both", [2, 2, 0]), ("c", "appeared", [0, 3, 3]),
    ]  # fmt: skip


def test_what_is_retained_and_what_no_row_explains_stand_below_the_owners() -> None:
    kept = row("retained", 0, 64, state=RowState.RETAINED)
    found = diff_of(document(unattributed(5), kept, row("zoo", 1), row("retained", 7)), document(row("zoo", 1)))
    assert [(o.owner, o.state.value) for o in found.owners] == [
        ("retained", "reserved"), ("zoo", "reserved"), ("retained", "retained"), ("unattributed", "unattributed"),
    ]  # fmt: skip
    assert figures(found.owners[2].booked) == [64, 0, -64]
    assert figures(found.owners[3].resident) == [5, 0, -5]


def test_what_is_being_taken_counts_with_what_its_owner_has() -> None:
    waiting = row("a", 100, 128, Unreadable("its memory is being taken"), state=RowState.PENDING)
    (owner,) = diff_of(document(row("a", 10)), document(row("a", 10), waiting)).owners
    assert figures(owner.booked) == [10, 138, 128]
    assert figures(owner.resident)[2] == "in the new receipt: its memory is being taken"


def test_the_sums_are_what_is_pinned_pageable_and_both_without_what_no_row_explains() -> None:
    old = document(row("ring", 3, 4), row("pool", 7, 7, pageable=True), unattributed(1000))
    new = document(row("ring", 3, 8), row("retained", 0, 2, state=RowState.RETAINED))
    sums = diff_of(old, new).sums
    assert {name: figures(change) for name, change in sums.items()} == {
        "pinned": [4, 10, 6], "pageable": [7, 0, -7], "total": [11, 10, -1], "peak": [11, 10, -1],
    }  # fmt: skip


# -- facts


def test_facts_of_the_host_that_differ_are_listed_and_no_others() -> None:
    host = this_host()
    other = replace(
        host,
        kernel="5.4.0",
        driver="NVRM version: 570.1",
        page_size_bytes=65536,
        torch_settings={"PYTORCH_ALLOC_CONF": "pinned_max_cached_size_mb:1"},
        counters=replace(host.counters, statm=not host.counters.statm),
        cgroup="another container's",
    )
    found = diff_of(document(host=replace(host, driver=Unreadable("no such file"))), document(host=other)).facts
    facts = {change.fact: (change.old, change.new) for change in found}
    assert [change.fact for change in found] == [
        "counters.statm", "driver", "kernel", "page_size_bytes", "torch_settings.PYTORCH_ALLOC_CONF",
    ]  # fmt: skip
    assert facts["kernel"] == (host.kernel, "5.4.0")
    assert facts["driver"] == (Unreadable("no such file"), "NVRM version: 570.1")
    assert facts["page_size_bytes"][1] == "65,536"
    assert facts["torch_settings.PYTORCH_ALLOC_CONF"][0] == Unreadable("it is not set")


def test_what_two_kernels_word_differently_is_no_difference() -> None:
    host = this_host()
    old, new = (document(host=replace(host, driver=Unreadable(reason))) for reason in ("ENOENT", "no such file"))
    assert diff_of(old, new).facts == ()


def test_what_auto_came_to_is_listed_for_owners_of_both() -> None:
    old = document(row("ring", 1, allocator="torch"), row("gone", 1, allocator="torch"))
    new = document(row("ring", 1, allocator="mlock"), row("ring", 1, allocator="torch"))
    assert [(change.fact, change.old, change.new) for change in diff_of(old, new).facts] == [
        ("allocator of ring", "torch", "mlock, torch")
    ]


# -- growth beyond a bound


def test_an_owner_that_grew_by_more_than_is_allowed_is_found_and_the_total_with_it() -> None:
    found = diff_of(document(row("a", 90, 100), row("b", 900)), document(row("a", 90, 106), row("b", 900)))
    (increase,) = find_increases(found, Fraction(5, 100))
    assert (increase.name, increase.is_total, increase.share) == ("a", False, Fraction(6, 100))
    assert figures(increase.booked) == [100, 106, 6]
    assert find_increases(found, Fraction(6, 100)) == ()  # just as much is allowed
    assert [(i.name, i.is_total) for i in find_increases(found, Fraction(0))] == [("a", False), ("total", True)]


def test_a_new_owner_grew_from_nothing_which_is_more_than_any_share() -> None:
    found = diff_of(document(row("a", 10**6)), document(row("a", 10**6), row("b", 1)))
    (increase,) = find_increases(found, Fraction(999_999))
    assert increase.name == "b"
    assert increase.share == Unreadable("it grew from 0 B")


def test_what_an_allocator_keeps_grows_the_total_and_what_no_row_explains_does_not() -> None:
    kept = row("retained", 0, 10, state=RowState.RETAINED)
    found = diff_of(document(row("a", 100)), document(row("a", 100), kept))
    assert [increase.is_total for increase in find_increases(found, Fraction(5, 100))] == [True]
    found = diff_of(document(row("a", 100)), document(row("a", 100), unattributed(GIB)))
    assert find_increases(found, Fraction(0)) == ()


def test_what_shrank_or_went_is_no_increase() -> None:
    found = diff_of(document(row("a", 100), row("b", 1)), document(row("a", 50)))
    assert find_increases(found, Fraction(0)) == ()


# -- the same twice, in another order, and the other way round

_BYTES = st.integers(0, 2**40)
_AMOUNTS = st.one_of(_BYTES, st.sampled_from([Unreadable("no smaps"), Unreadable("its memory is being taken")]))
_OWNERS = st.sampled_from(["cache.ring", "cache.pool", "weights", "a"])


def _row(owner: str, asked: int, more: int, resident: Amount | int, pageable: bool, allocator: str) -> Row:
    return row(owner, asked, asked + more, resident, pageable=pageable, allocator=allocator)


_RESERVED = st.builds(
    _row, _OWNERS, _BYTES, _BYTES, _AMOUNTS, st.booleans(), st.sampled_from(["mlock", "torch", "registered-hugetlb"])
)
_KEPT = st.builds(lambda size: row("retained", 0, size, state=RowState.RETAINED), _BYTES)
_CONFIGS = st.one_of(
    st.none(),
    st.fixed_dictionaries(
        {"numbers": st.dictionaries(st.sampled_from("abc"), st.one_of(st.integers(0, 3), st.just("a * 2")))},
        optional={
            "tenants": st.dictionaries(st.sampled_from(["x.y", "x"]), st.fixed_dictionaries({"per": st.just("host")}))
        },
    ),
)


@st.composite
def documents(draw: st.DrawFn) -> Document:
    rows = draw(st.lists(_RESERVED, max_size=4))
    rows += draw(st.lists(_KEPT, max_size=1)) + [unattributed(a) for a in draw(st.lists(_AMOUNTS, max_size=1))]
    scale = draw(st.sampled_from(["1", "1/16"]))
    return document(*rows, floor=draw(_AMOUNTS), process=draw(_AMOUNTS), config=draw(_CONFIGS), scale=scale)


def shuffled(value: Any, order: random.Random) -> Any:
    """The same document with its keys and its rows in another order."""
    if isinstance(value, dict):
        keys = list(value)
        order.shuffle(keys)
        return {key: shuffled(value[key], order) for key in keys}
    if isinstance(value, list):
        values = [shuffled(inner, order) for inner in value]
        order.shuffle(values)
        return values
    return value


def test_a_real_receipt_differs_from_itself_in_nothing(tmp_path_factory: pytest.TempPathFactory) -> None:
    real = real_document(tmp_path_factory.mktemp("real"))
    found = diff_of(real, real)
    assert found.is_same
    assert find_increases(found, Fraction(0)) == ()
    assert set(found.unreadable) <= {"overhead"}  # which is seen over large blocks only


@given(made=documents(), order=st.randoms(use_true_random=False))
@FUZZ
def test_the_order_of_keys_and_rows_does_not_matter(made: Document, order: random.Random) -> None:
    found = diff_of(made, shuffled(made, order))
    assert found.is_same
    assert found.config == ()
    assert found.facts == ()
    assert all(owner.is_same for owner in found.owners)
    assert find_increases(found, Fraction(0)) == ()
    assert {figure(change.difference) for change in found.sums.values()} == {0}


@given(old=documents(), new=documents(), order=st.randoms(use_true_random=False))
@FUZZ
def test_any_order_of_either_gives_the_same_difference(old: Document, new: Document, order: random.Random) -> None:
    assert told(diff_of(old, new)) == told(diff_of(shuffled(old, order), shuffled(new, order)))


@given(old=documents(), new=documents())
@FUZZ
def test_the_other_way_round_is_the_same_with_its_signs_turned(old: Document, new: Document) -> None:
    there, back = diff_of(old, new), diff_of(new, old)
    assert there.is_same == back.is_same
    for one, other in zip(all_changes(there), all_changes(back), strict=True):
        assert (figure(one.old), figure(one.new)) == (figure(other.new), figure(other.old))
        difference = figure(one.difference)
        if isinstance(difference, int):
            assert difference == -int(figure(other.difference))
        else:
            assert isinstance(figure(other.difference), str)
    turned = {Presence.APPEARED: Presence.WENT, Presence.WENT: Presence.APPEARED, Presence.BOTH: Presence.BOTH}
    assert [(o.owner, o.presence) for o in there.owners] == [(o.owner, turned[o.presence]) for o in back.owners]
    assert [(f.fact, f.old, f.new) for f in there.facts] == [(f.fact, f.new, f.old) for f in back.facts]
    if isinstance(there.config, tuple):
        assert isinstance(back.config, tuple)
        assert [(k.key, k.old, k.new) for k in there.config] == [(k.key, k.new, k.old) for k in back.config]


@given(old=documents(), new=documents())
@FUZZ
def test_the_amounts_of_all_owners_add_up_to_the_sums(old: Document, new: Document) -> None:
    found = diff_of(old, new)
    booked = [owner.booked for owner in found.owners if owner.state is not RowState.UNATTRIBUTED]
    total = sum(int(figure(change.difference)) for change in booked)
    assert total == figure(found.sums["total"].difference)
    assert total == sum(int(figure(found.sums[name].difference)) for name in ("pinned", "pageable"))


def all_changes(found: ReceiptDiff) -> list[Change]:
    growth = found.growth
    changes = [change for owner in found.owners for change in owner_changes(owner)]
    changes += [growth.from_asked, growth.from_booked, growth.from_resident, growth.measured, growth.floor]
    return [*changes, growth.residue, growth.outside, growth.unattributed, *found.sums.values(), found.headroom]


def owner_changes(owner: OwnerDiff) -> tuple[Change, Change, Change]:
    return owner.asked, owner.booked, owner.resident


#: Of which nothing is compared.
NOTHING = receipt_from(document(), "")


def told(found: ReceiptDiff) -> ReceiptDiff:
    """A difference without the receipts themselves, whose rows keep their order."""
    return replace(found, old=NOTHING, new=NOTHING)
