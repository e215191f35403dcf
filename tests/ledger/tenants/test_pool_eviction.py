"""Which entry of a pool goes, and that none goes from under its reader."""

from __future__ import annotations

import pytest

from pinprobe.ledger.ledger import HostPinnedLedger
from pinprobe.ledger.tenants.region_sharing import region_id
from pinprobe.probes.errors import BadRequest
from tests.ledger.tenants.kept_savepoints import (
    found,
    keep,
    mapped_regions,
    opened,
    prompt,
)
from tests.ledger.tenants.savepoint_rows import MIXED, row_at, row_of

_PATIENCE_SECONDS = 20.0


def test_the_least_recently_used_goes_first_and_being_found_is_use(ledger: HostPinnedLedger) -> None:
    with opened(ledger, 3) as pool:
        for number in (1, 2, 3):
            keep(pool, prompt(number, 9), number)
        assert found(pool, prompt(1, 9)) == 1
        keep(pool, prompt(4, 9), 4)
        assert found(pool, prompt(2, 9)) is None
        assert not keep(pool, prompt(1, 9), 5)  # it is here, and being offered is use
        keep(pool, prompt(6, 9), 6)
        kept = [number for number in range(1, 7) if found(pool, prompt(number, 9)) is not None]
        assert kept == [1, 4, 6]
        assert pool.stats().evicted == 2


def test_an_entry_that_is_being_read_stays_until_it_is_let_go_and_its_region_is_not_used_meanwhile(
    ledger: HostPinnedLedger,
) -> None:
    with opened(ledger, 1) as pool:
        keep(pool, prompt(1, 9), 1)
        first, second = pool.match(prompt(1, 9)), pool.match(prompt(1, 9))
        assert first is not None
        assert second is not None
        for hold in (first, second):
            assert not keep(pool, prompt(2, 9), 2)
            assert row_at(MIXED, hold.address) == row_of(MIXED, 1)
            assert found(pool, prompt(1, 9)) == 1
            hold.release()
        assert keep(pool, prompt(2, 9), 2)
        assert (found(pool, prompt(1, 9)), found(pool, prompt(2, 9))) == (None, 2)
        stats = pool.stats()
        assert (stats.no_region, stats.promoted, stats.evicted, stats.being_read) == (2, 2, 1, 0)


def test_where_the_oldest_is_being_read_the_next_one_goes(ledger: HostPinnedLedger) -> None:
    with opened(ledger, 2) as pool:
        for number in (1, 2):
            keep(pool, prompt(number, 9), number)
        hold = pool.match(prompt(1, 9))
        assert hold is not None
        assert found(pool, prompt(2, 9)) == 2  # 1 is the least recently used now
        with hold:
            assert keep(pool, prompt(3, 9), 3)
            assert pool.stats().being_read == 1
            assert row_at(MIXED, hold.address) == row_of(MIXED, 1)
        assert [found(pool, prompt(number, 9)) for number in (1, 2, 3)] == [1, None, 3]


@pytest.mark.parametrize("way", ["forgotten", "forgotten and kept again", "trimmed"])
def test_what_goes_while_it_is_being_read_stays_readable_and_its_region_is_free_afterwards(
    ledger: HostPinnedLedger, way: str
) -> None:
    with opened(ledger, 2) as pool:
        keep(pool, prompt(1, 9), 1)
        hold = pool.match(prompt(1, 9))
        assert hold is not None
        if way == "forgotten":
            assert pool.forget(prompt(1, 9))
            assert found(pool, prompt(1, 9)) is None
        elif way == "forgotten and kept again":
            assert pool.forget(prompt(1, 9))
            assert keep(pool, prompt(1, 9), 2)
            assert found(pool, prompt(1, 9)) == 2
        else:
            assert pool.trim() == 0
            assert found(pool, prompt(1, 9)) == 1
        for number in range(3, 7):
            keep(pool, prompt(number, 9), number)
            assert row_at(MIXED, hold.address) == row_of(MIXED, 1)
        assert mapped_regions() == 2
        hold.release()
        keep(pool, prompt(7, 9), 7)
        keep(pool, prompt(8, 9), 8)
        assert [found(pool, prompt(number, 9)) for number in (7, 8)] == [7, 8]
        assert mapped_regions() == pool.stats().held_regions == 2


def test_a_hold_that_was_let_go_shows_no_address_and_lets_go_once(ledger: HostPinnedLedger) -> None:
    with opened(ledger, 1) as pool:
        keep(pool, prompt(1, 9), 1)
        with pool.match(prompt(1, 9)) or pytest.fail("nothing is found") as other:
            hold = pool.match(prompt(1, 9))
            assert hold is not None
            hold.release()
            hold.release()
            assert pool.stats().being_read == 1, "a second release let go of what another reader holds"
            for use in (lambda: hold.address, lambda: hold.region, hold.views):
                with pytest.raises(BadRequest, match="this hold was released"):
                    use()
            assert row_at(MIXED, other.address) == row_of(MIXED, 1)
        assert pool.stats().being_read == 0


def test_an_id_holds_one_filling_of_one_region(ledger: HostPinnedLedger) -> None:
    with opened(ledger, 1) as pool:
        keep(pool, prompt(1, 9), 1)
        with pool.match(prompt(1, 9)) or pytest.fail("nothing is found") as hold:
            name = region_id(hold)
            assert name == f"{hold.key.hex()}-2"
        with pool.hold_by_id(name) or pytest.fail("it is not found") as by_id:
            assert row_at(MIXED, by_id.address) == row_of(MIXED, 1)
            assert not keep(pool, prompt(2, 9), 2)
        assert pool.forget(prompt(1, 9))
        keep(pool, prompt(1, 9), 3)  # the same prefix and the same region, but filled again
        assert pool.hold_by_id(name) is None
        for other in ("", "-", name[:-1], name + "0", name.upper(), "é" * 40):
            assert pool.hold_by_id(other) is None
        assert pool.stats().being_read == 0
