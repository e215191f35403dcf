"""The sums of what is reserved, pending and kept, each added up here a second time."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from pinprobe.ledger.admission import Request
from pinprobe.ledger.price import Price
from pinprobe.ledger.records import Entry, Pending, Records, Sum
from pinprobe.probes.backing import Backing
from pinprobe.probes.reading import Reading

MIB = 2**20


def block(number: int, size_bytes: int = 2 * MIB, *, in_rss: bool = True) -> Backing:
    return Backing(number << 40, (number << 40) + size_bytes, number, whole=True, in_rss=in_rss)


def entry(asked_bytes: int = MIB, *, unseen_bytes: int = 0, grown_bytes: int = 0, allocator: str = "torch") -> Entry:
    return Entry(
        "tenant", asked_bytes, allocator, "", False, unseen_bytes, grown_bytes, Reading(0, "statm"), "told", True
    )


def request(
    asked_bytes: int, price_bytes: int | None = None, *, allocator: str = "torch", from_pool: bool = False
) -> Request:
    """A request of known price, or of one that nobody knows."""
    price = Price(asked_bytes, "the ask") if price_bytes is None else Price(price_bytes, "measured")
    return Request("tenant", asked_bytes, price, allocator, from_pool)


def there(backing: Backing) -> bool:
    """No allocator let go of anything."""
    return True


def with_kept(*blocks: Backing, allocator: str = "torch") -> Records:
    """Records of somebody who held these blocks and gave them back."""
    records = Records()
    records.add(1, entry(allocator=allocator), [(each, 1) for each in blocks])
    records.remove(1)
    return records


# Booking and striking.


def test_an_entry_is_booked_at_its_mappings_and_what_is_unseen_beside_them() -> None:
    records = Records()
    assert records.add(1, entry(unseen_bytes=5000), [(block(1), MIB)]) == (block(1),)
    assert records.booked_for(1) == records.booked_bytes == 2 * MIB + 5000
    assert records.explained_bytes == 2 * MIB  # what is unseen is in no VmRSS that anybody has read
    assert records.retained_bytes == 0


def test_growth_that_showed_no_address_explains_that_much_of_the_process() -> None:
    records = Records()
    records.add(1, entry(unseen_bytes=9000, grown_bytes=7000), [])
    assert (records.booked_bytes, records.explained_bytes) == (9000, 7000)
    assert records.remove(1) == ()
    assert (records.booked_bytes, records.explained_bytes, records.retained_bytes) == (0, 0, 0)


def test_what_was_opaque_and_is_still_there_is_retained_and_explains_the_process_on() -> None:
    records = Records()
    records.add(1, entry(unseen_bytes=9000, grown_bytes=7000), [])
    records.remove(1, kept_bytes=7000)
    assert (records.booked_bytes, records.explained_bytes, records.retained_bytes) == (7000, 7000, 7000)


def test_opaque_memory_that_was_kept_is_taken_over_and_counted_once_at_every_moment() -> None:
    records = Records()
    records.add(1, entry(unseen_bytes=9000, grown_bytes=9000), [])
    records.remove(1, kept_bytes=9000)
    taken_over = replace(entry(unseen_bytes=9000, grown_bytes=9000), taken_over_bytes=9000)
    records.add(2, taken_over, [])
    assert (records.booked_bytes, records.retained_bytes, records.explained_bytes) == (9000, 0, 9000)
    assert records.peak_bytes == 9000


def test_a_block_given_back_is_retained_until_it_is_dropped() -> None:
    records = with_kept(block(1))
    assert (records.booked_for(1), records.booked_bytes, records.retained_bytes) == (0, 2 * MIB, 2 * MIB)
    records.mappings.drop(block(1))
    assert (records.booked_bytes, records.retained_bytes, records.explained_bytes) == (0, 0, 0)


def test_striking_one_entry_leaves_the_others_as_they_are() -> None:
    records = Records()
    records.add(1, entry(unseen_bytes=5), [(block(1), 1)])
    records.add(2, entry(unseen_bytes=7), [(block(2), 1)])
    assert records.remove(1) == (block(1),)
    assert (records.booked_for(1), records.booked_for(2)) == (0, 2 * MIB + 7)
    assert records.booked_bytes == 4 * MIB + 7


def test_the_peak_is_the_most_at_one_time_and_no_sum_over_time() -> None:
    records = Records()
    for number in range(1, 4):
        records.add(number, entry(), [(block(number), MIB)])
        records.remove(number)
        records.mappings.drop(block(number))
    assert (records.peak_bytes, records.booked_bytes) == (2 * MIB, 0)
    records.add(4, entry(), [(block(4), MIB)])
    records.add(5, entry(), [(block(5), MIB)])  # the new copy while the old is alive
    records.remove(4)
    assert records.peak_bytes == 4 * MIB


# What is pending.


def test_a_pending_request_costs_its_price_and_one_served_from_a_kept_block_nothing_more() -> None:
    records = Records()
    records.pending[1] = Pending(request(3 * MIB, 4 * MIB), reuses=False)
    records.pending[2] = Pending(request(3 * MIB, 4 * MIB), reuses=True)
    records.pending[3] = Pending(request(MIB, from_pool=True), reuses=False)
    assert records.pending_bytes() == 5 * MIB
    assert (records.pending_bytes(from_pool=True), records.pending_bytes(from_pool=False)) == (MIB, 4 * MIB)
    assert records.booked_bytes == 0


def test_booking_a_request_ends_its_pending() -> None:
    records = Records()
    records.pending[1] = Pending(request(MIB), reuses=False)
    records.add(1, entry(), [(block(1), MIB)])
    assert records.pending == {}
    assert records.pending_bytes() == 0


# Kept blocks.


@pytest.mark.parametrize(
    ("wanted", "fits"),
    [
        (request(3 * MIB, 4 * MIB), True),
        (request(4 * MIB, 4 * MIB), True),
        (request(3 * MIB, 3 * MIB), False),  # its price is another block's
        (request(3 * MIB, 8 * MIB), False),
        (request(3 * MIB), True),  # no price: the block may be what it is rounded to
        (request(2 * MIB), True),
        (request(2 * MIB - 1), False),
        (request(4 * MIB + 1), False),  # a smaller block never serves
        (request(3 * MIB, 4 * MIB, allocator="mlock"), False),
    ],
)
def test_a_kept_block_serves_what_it_fits(wanted: Request, fits: bool) -> None:
    assert with_kept(block(1, 4 * MIB)).can_reuse(wanted, there) is fits


def test_what_nobody_named_an_allocator_for_is_no_block_that_is_kept_for_the_next() -> None:
    # It may as well be memory that somebody else still uses.
    kept = with_kept(block(1, 4 * MIB), allocator="")
    assert kept.retained_bytes == 4 * MIB
    assert not kept.can_reuse(request(4 * MIB, allocator=""), there)


def test_a_block_that_is_held_serves_nobody_else() -> None:
    records = Records()
    records.add(1, entry(), [(block(1, 4 * MIB), 1)])
    assert not records.can_reuse(request(3 * MIB), there)


def test_each_kept_block_serves_one_request_that_waits() -> None:
    records = with_kept(block(1, 4 * MIB), block(2, 4 * MIB))
    wanted = request(3 * MIB, 4 * MIB)
    for number in (2, 3):
        assert records.can_reuse(wanted, there)
        records.pending[number] = Pending(wanted, reuses=True)
    assert not records.can_reuse(wanted, there)
    records.pending.pop(2)
    records.pending[4] = Pending(wanted, reuses=False)  # takes a block of its own
    assert records.can_reuse(wanted, there)


def test_kept_blocks_are_asked_about_until_enough_are_there_and_no_further() -> None:
    blocks = [block(number) for number in range(1, 6)]
    records, asked_about = with_kept(*blocks), list[Backing]()

    def is_there(backing: Backing) -> bool:
        asked_about.append(backing)
        if backing == blocks[0]:
            records.mappings.drop(backing)
        return backing != blocks[0]

    wanted = request(2 * MIB)
    assert records.can_reuse(wanted, is_there)
    assert asked_about == blocks[:2]
    records.pending[2] = Pending(wanted, reuses=True)
    assert records.can_reuse(wanted, is_there)
    assert asked_about[2:] == blocks[1:3]
    assert not records.can_reuse(wanted, lambda _: False)


def test_sums_are_by_owner_and_by_whether_it_can_be_paged_out() -> None:
    records = Records()
    records.add(1, entry(MIB, unseen_bytes=10), [(block(1), MIB)])
    records.add(2, entry(3 * MIB, unseen_bytes=3 * MIB), [])
    records.add(3, replace(entry(MIB), pageable=True), [(block(2), MIB)])
    assert records.sums() == {
        ("tenant", False): Sum(2, 4 * MIB, 5 * MIB + 10),
        ("tenant", True): Sum(1, MIB, 2 * MIB),
    }
    records.remove(3)
    records.remove(1)
    assert records.sums() == {("tenant", False): Sum(1, 3 * MIB, 3 * MIB)}


# Any order of it all.


class AgainstAModel(RuleBasedStateMachine):
    """The model knows each entry, what is kept, and adds up anew."""

    def __init__(self) -> None:
        super().__init__()
        self.records = Records()
        self.entries: dict[int, tuple[Entry, Backing | None]] = {}
        self.kept: set[Backing] = set()
        self.kept_unseen = 0
        self.peak = 0
        self.number = 0

    def held(self) -> set[Backing]:
        return {backing for _, backing in self.entries.values() if backing is not None}

    def booked(self) -> int:
        return (
            sum(e.unseen_bytes for e, _ in self.entries.values())
            + sum(backing.size_bytes for backing in self.held() | self.kept)
            + self.kept_unseen
        )

    @rule(which=st.integers(1, 4), unseen=st.integers(0, 10**6))
    def add_mapped(self, which: int, unseen: int) -> None:
        backing = block(which, which * MIB, in_rss=which != 3)
        self.number += 1
        self.records.pending[self.number] = Pending(request(MIB), reuses=False)
        # Small parts, so that what the holders have never passes the mapping.
        new = self.records.add(self.number, entry(unseen_bytes=unseen), [(backing, 10)])
        assert set(new) == {backing} - self.held() - self.kept
        self.entries[self.number] = (entry(unseen_bytes=unseen), backing)
        self.kept.discard(backing)
        self.peak = max(self.peak, self.booked())

    @rule(unseen=st.integers(0, 10**6), grown=st.integers(0, 10**6))
    def add_opaque(self, unseen: int, grown: int) -> None:
        self.number += 1
        opaque = replace(entry(), unseen_bytes=unseen, grown_bytes=grown)
        assert self.records.add(self.number, opaque, []) == ()
        self.entries[self.number] = (opaque, None)
        self.peak = max(self.peak, self.booked())

    @rule(number=st.integers(1, 30), kept=st.integers(0, 10**6))
    def remove(self, number: int, kept: int) -> None:
        gone = self.entries.pop(number, None)
        if gone is None:
            assert self.records.booked_for(number) == 0
            return
        idle = self.records.remove(number, kept)
        self.kept_unseen += kept
        _, backing = gone
        left = set() if backing is None or backing in self.held() else {backing}
        assert set(idle) == left
        self.kept |= left

    @rule(which=st.integers(1, 4))
    def drop(self, which: int) -> None:
        backing = block(which, which * MIB, in_rss=which != 3)
        self.records.mappings.drop(backing)
        self.kept.discard(backing)

    @invariant()
    def the_sums_hold(self) -> None:
        assert self.records.booked_bytes == self.booked()
        assert self.records.peak_bytes == self.peak
        assert self.records.retained_bytes == sum(b.size_bytes for b in self.kept) + self.kept_unseen
        assert sum(map(self.records.booked_for, self.entries)) == self.booked() - self.records.retained_bytes
        in_rss = sum(backing.size_bytes for backing in self.held() | self.kept if backing.in_rss)
        grown = sum(e.grown_bytes for e, _ in self.entries.values())
        assert self.records.explained_bytes == in_rss + grown + self.kept_unseen
        assert set(self.records.shares()) == set(self.entries)
        sums = self.records.sums().values()
        assert sum(each.entries for each in sums) == len(self.entries)
        assert sum(each.asked_bytes for each in sums) == sum(e.asked_bytes for e, _ in self.entries.values())
        assert sum(each.booked_bytes for each in sums) == self.booked() - self.records.retained_bytes
        assert self.records.pending_bytes() == 0


TestAgainstAModel = AgainstAModel.TestCase
TestAgainstAModel.settings = settings(derandomize=True, deadline=None, max_examples=80, stateful_step_count=30)
