"""Every mapping once, against a plain model that adds everything up anew at each step."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from pinprobe.ledger.mapping_book import MappingBook
from pinprobe.probes.backing import Backing

FUZZ = settings(derandomize=True, deadline=None, max_examples=200)
MIB = 2**20
PAGE = 4096


def mapping(number: int, size_bytes: int = 2 * MIB, *, in_rss: bool = True) -> Backing:
    """A mapping of its own."""
    return Backing(number << 40, (number << 40) + size_bytes, number, whole=True, in_rss=in_rss)


def pages(number: int, count: int = 1) -> Backing:
    """A run of pages in a larger mapping."""
    start = (1 << 50) + number * PAGE
    return Backing(start, start + count * PAGE, 0, whole=False, in_rss=True)


# Sharing out.


def test_ten_small_tensors_in_one_mapping_book_it_once() -> None:
    book = MappingBook()
    for holder in range(10):
        book.hold(holder, [(mapping(1), 1000)], "torch")
    assert book.total_bytes == 2 * MIB
    assert sum(book.share_bytes(holder) for holder in range(10)) == 2 * MIB
    assert all(book.share_bytes(holder) >= 2 * MIB // 10 for holder in range(10))


def test_one_tensor_in_a_large_block_books_the_block() -> None:
    book = MappingBook()
    assert book.hold(1, [(mapping(1, 4096 * MIB), 2364 * MIB)], "torch") == (mapping(1, 4096 * MIB),)
    assert book.share_bytes(1) == book.total_bytes == 4096 * MIB


def test_shares_are_in_proportion_to_what_is_held() -> None:
    book = MappingBook()
    book.hold(1, [(mapping(1), 300)], "")
    book.hold(2, [(mapping(1), 100)], "")
    assert (book.share_bytes(1), book.share_bytes(2)) == (3 * MIB // 2, MIB // 2)


def test_two_owners_of_one_tensor_have_each_what_he_holds() -> None:
    book = MappingBook()
    book.hold(1, [(mapping(1), 2 * MIB)], "")
    book.hold(2, [(mapping(1), 2 * MIB)], "")
    assert (book.share_bytes(1), book.share_bytes(2), book.total_bytes) == (2 * MIB, 2 * MIB, 4 * MIB)
    assert book.in_rss_bytes == 2 * MIB  # it is resident once, however often it is booked
    book.let_go(1)
    assert (book.share_bytes(2), book.total_bytes) == (2 * MIB, 2 * MIB)


@given(size=st.integers(1, 10**9), parts=st.lists(st.integers(1, 10**9), min_size=1, max_size=20))
@FUZZ
def test_shares_add_up_to_the_mapping_and_none_is_below_what_its_holder_has(size: int, parts: list[int]) -> None:
    book = MappingBook()
    for holder, part_bytes in enumerate(parts):
        book.hold(holder, [(mapping(1, size), part_bytes)], "")
    shares = [book.share_bytes(holder) for holder in range(len(parts))]
    assert sum(shares) == max(size, sum(parts)) == book.total_bytes
    assert all(share >= part for share, part in zip(shares, parts, strict=True))
    # In proportion, but for what a division leaves over.
    whole, held = sum(shares), sum(parts)
    assert all(abs(share * held - whole * part) < held * len(parts) for share, part in zip(shares, parts, strict=True))


def test_parts_of_one_mapping_in_one_request_are_one_share() -> None:
    book = MappingBook()
    book.hold(1, [(mapping(1), 100), (mapping(1), 200)], "")
    book.hold(2, [(mapping(1), 300)], "")
    assert (book.share_bytes(1), book.share_bytes(2)) == (MIB, MIB)
    assert [len(shares) for shares in book.all_shares().values()] == [1, 1]


# Coming and going.


def test_what_its_holder_gave_back_stays_booked_until_it_is_gone() -> None:
    book = MappingBook()
    book.hold(1, [(mapping(1), 100)], "torch")
    assert book.let_go(1) == (mapping(1),)
    assert (book.total_bytes, book.idle_bytes, book.in_rss_bytes) == (2 * MIB, 2 * MIB, 2 * MIB)
    assert book.idle == ((mapping(1), "torch"),)
    assert book.backings == (mapping(1),)
    book.drop(mapping(1))
    assert (book.total_bytes, book.idle_bytes, book.in_rss_bytes, len(book.backings)) == (0, 0, 0, 0)


def test_a_kept_block_that_is_handed_out_again_is_neither_counted_twice_nor_not_at_all() -> None:
    book = MappingBook()
    book.hold(1, [(mapping(1), 100)], "torch")
    book.let_go(1)
    assert book.hold(2, [(mapping(1), 100)], "torch") == ()
    assert (book.total_bytes, book.idle_bytes, book.share_bytes(2)) == (2 * MIB, 0, 2 * MIB)


def test_a_mapping_is_idle_only_when_its_last_holder_goes() -> None:
    book = MappingBook()
    book.hold(1, [(mapping(1), 100)], "")
    book.hold(2, [(mapping(1), 100)], "")
    assert book.let_go(1) == ()
    assert (book.idle_bytes, book.share_bytes(2)) == (0, 2 * MIB)
    assert book.let_go(2) == (mapping(1),)


def test_what_is_held_or_unknown_can_t_be_dropped() -> None:
    book = MappingBook()
    book.hold(1, [(mapping(1), 100)], "")
    book.drop(mapping(1))
    book.drop(mapping(2))
    assert (book.total_bytes, book.share_bytes(1)) == (2 * MIB, 2 * MIB)


def test_a_holder_that_is_not_there_has_nothing_and_loses_nothing() -> None:
    book = MappingBook()
    assert book.let_go(1) == ()
    assert book.share_bytes(1) == 0


def test_another_object_at_the_same_address_is_another_mapping() -> None:
    book = MappingBook()
    first, second = Backing(0, MIB, 7, whole=True, in_rss=True), Backing(0, MIB, 8, whole=True, in_rss=True)
    book.hold(1, [(first, 1)], "")
    book.let_go(1)
    assert book.hold(2, [(second, 1)], "") == (second,)
    assert (book.total_bytes, book.idle_bytes) == (2 * MIB, MIB)


def test_huge_pages_of_the_pool_are_booked_and_explain_nothing_of_the_process_s_size() -> None:
    book = MappingBook()
    book.hold(1, [(mapping(1, in_rss=False), 100)], "")
    assert (book.total_bytes, book.in_rss_bytes) == (2 * MIB, 0)
    book.let_go(1)
    book.drop(mapping(1, in_rss=False))
    assert (book.total_bytes, book.in_rss_bytes) == (0, 0)


def test_pages_of_a_larger_mapping_go_with_the_last_who_holds_them() -> None:
    book = MappingBook()
    book.hold(1, [(pages(0, 2), 5000)], "")
    assert (book.share_bytes(1), book.total_bytes) == (2 * PAGE, 2 * PAGE)
    book.hold(2, [(pages(0, 2), 3000)], "")  # two arrays may lie in the same pages
    assert book.share_bytes(1) + book.share_bytes(2) == book.total_bytes >= book.in_rss_bytes >= 2 * PAGE
    assert book.let_go(1) == ()
    assert (book.total_bytes, book.idle_bytes, book.share_bytes(2)) == (2 * PAGE, 0, 2 * PAGE)
    assert book.let_go(2) == ()
    assert (book.total_bytes, book.in_rss_bytes, len(book.backings)) == (0, 0, 0)


def test_two_owners_of_one_array_in_the_heap_have_each_what_he_holds_and_it_is_resident_once() -> None:
    book = MappingBook()
    for holder in (1, 2):
        book.hold(holder, [(pages(0, 2), 8000)], "")
    assert (book.total_bytes, book.in_rss_bytes) == (16000, 2 * PAGE)
    assert (book.share_bytes(1), book.share_bytes(2)) == (8000, 8000)


def test_new_is_what_is_not_in_the_book_yet_each_mapping_once() -> None:
    book = MappingBook()
    book.hold(1, [(mapping(1), 100), (pages(0), 100)], "")
    parts = [(mapping(1), 10), (mapping(2), 10), (mapping(2), 20), (pages(0), 10)]
    assert book.new_bytes(parts) == 2 * MIB
    assert book.total_bytes == 2 * MIB + PAGE  # asking books nothing


@pytest.mark.parametrize(
    ("allocator", "smallest", "largest", "count"),
    [("torch", 1, 2**40, 2), ("torch", 2 * MIB, 2 * MIB, 1), ("torch", 2 * MIB + 1, 4 * MIB - 1, 0), ("", 1, 2**40, 0)],
)
def test_kept_blocks_are_counted_by_allocator_and_size(allocator: str, smallest: int, largest: int, count: int) -> None:
    book = MappingBook()
    held = [(mapping(1, 2 * MIB), 1), (mapping(2, 4 * MIB), 1), (pages(0), 1)]
    book.hold(1, held, "torch")
    book.hold(2, [(mapping(3), 1)], "torch")
    assert list(book.kept_blocks("torch", 1, 2**40)) == []
    book.let_go(1)
    assert len(list(book.kept_blocks(allocator, smallest, largest))) == count


def test_kept_blocks_that_are_gone_can_be_dropped_on_the_way() -> None:
    book = MappingBook()
    book.hold(1, [(mapping(number), 1) for number in range(5)], "torch")
    book.let_go(1)
    for backing in book.kept_blocks("torch", 1, 2**40):
        book.drop(backing)
    assert book.total_bytes == 0


def test_what_a_group_has_is_the_sum_of_its_holders_shares() -> None:
    book = MappingBook()
    book.hold(1, [(mapping(1), 300)], "", "ring")
    book.hold(2, [(mapping(1), 100)], "", "pool")
    book.hold(3, [(mapping(2), 100)], "", "pool")
    assert (book.group_bytes("ring"), book.group_bytes("pool")) == (3 * MIB // 2, MIB // 2 + 2 * MIB)
    book.let_go(1)
    assert (book.group_bytes("ring"), book.group_bytes("pool")) == (0, 4 * MIB)


# Any order of it all.

WHOLE = [mapping(1, 5000), mapping(2, 2 * MIB), mapping(3, 1, in_rss=False), mapping(4, PAGE)]
PIECES = [pages(0), pages(0, 3), pages(2)]
PARTS = st.lists(st.tuples(st.sampled_from(WHOLE + PIECES), st.integers(1, 3 * MIB)), max_size=4)
GROUPS = ["ring", "ring", "pool", "ring", None]
HOLDERS = st.integers(0, len(GROUPS) - 1)


class AgainstAModel(RuleBasedStateMachine):
    """The model keeps who holds what of which, and the mappings that stay though nobody does; it has no sums."""

    def __init__(self) -> None:
        super().__init__()
        self.book = MappingBook()
        self.held: dict[int, list[tuple[Backing, int]]] = {}
        self.known: dict[Backing, str] = {}

    def in_use(self) -> set[Backing]:
        return {backing for parts in self.held.values() for backing, _ in parts}

    @rule(holder=HOLDERS, parts=PARTS, allocator=st.sampled_from(["torch", "mlock"]))
    def hold(self, holder: int, parts: list[tuple[Backing, int]], allocator: str) -> None:
        expected = {backing for backing, _ in parts} - set(self.known) - self.in_use()
        assert self.book.new_bytes(parts) == sum(backing.size_bytes for backing in expected)
        new = self.book.hold(holder, parts, allocator, GROUPS[holder])
        assert len(new) == len(set(new))
        assert set(new) == expected
        self.held.setdefault(holder, []).extend(parts)
        self.known.update((backing, allocator) for backing, _ in parts if backing.whole)

    @rule(holder=HOLDERS)
    def let_go(self, holder: int) -> None:
        before = self.in_use()
        self.held.pop(holder, None)
        assert set(self.book.let_go(holder)) == {backing for backing in before - self.in_use() if backing.whole}

    @rule(backing=st.sampled_from(WHOLE + PIECES))
    def drop(self, backing: Backing) -> None:
        self.book.drop(backing)
        if backing not in self.in_use():
            self.known.pop(backing, None)

    @invariant()
    def nothing_is_lost_and_nothing_is_there_twice(self) -> None:
        idle = {backing: name for backing, name in self.known.items() if backing not in self.in_use()}
        assert dict(self.book.idle) == idle
        assert len(self.book.idle) == len(idle)
        assert self.book.idle_bytes == sum(backing.size_bytes for backing in idle)
        everything = {*self.known, *self.in_use()}
        assert set(self.book.backings) == everything
        assert len(self.book.backings) == len(everything)
        assert self.book.in_rss_bytes == sum(backing.size_bytes for backing in everything if backing.in_rss)

    @invariant()
    def the_sums_are_the_sums_of_their_parts(self) -> None:
        units: dict[Backing, list[int]] = {backing: [] for backing in self.known}
        for parts in self.held.values():
            for backing, part_bytes in parts:
                units.setdefault(backing, []).append(part_bytes)
        booked = {backing: max(backing.size_bytes, sum(parts)) for backing, parts in units.items()}
        assert self.book.total_bytes == sum(booked.values())
        shares = self.book.all_shares()
        assert sum(s.bytes for each in shares.values() for s in each) == self.book.total_bytes - self.book.idle_bytes
        for holder, parts in self.held.items():
            assert self.book.share_bytes(holder) == sum(share.bytes for share in shares[holder])
            for share in shares[holder]:
                assert share.whole_bytes == booked[share.backing]
                assert share.bytes >= sum(part_bytes for backing, part_bytes in parts if backing == share.backing)

    @invariant()
    def the_groups_have_what_their_holders_have(self) -> None:
        groups = set(GROUPS)
        assert sum(map(self.book.group_bytes, groups)) == self.book.total_bytes - self.book.idle_bytes
        for group in groups:
            own = [holder for holder in self.held if GROUPS[holder] == group]
            # What division leaves over is less than a byte a share, and goes to the first holder and the first group.
            left_over = sum(len(each) for each in self.book.all_shares().values())
            assert abs(self.book.group_bytes(group) - sum(map(self.book.share_bytes, own))) <= left_over
            assert self.book.group_bytes(group) >= sum(part_bytes for each in own for _, part_bytes in self.held[each])


TestAgainstAModel = AgainstAModel.TestCase
TestAgainstAModel.settings = settings(derandomize=True, deadline=None, max_examples=100, stateful_step_count=30)
