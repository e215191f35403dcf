"""What a ring would take is known from its allocator's measured blocks, or it is said that it is not known."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from pinprobe.ledger.allocator_map import map_allocator
from pinprobe.ledger.price import Price
from pinprobe.ledger.replay.ring_prices import RingPrices
from pinprobe.probes.errors import AllocatorUnavailable
from tests.ledger.replay.made_runs import ROW_BYTES, arm_of

PAGE = os.sysconf("SC_PAGESIZE")


def test_an_allocator_that_keeps_nothing_takes_what_is_asked_to_the_page() -> None:
    arm = replace(arm_of(slots=3), allocator="pageable")
    prices = RingPrices([arm])
    assert (prices.price(arm), prices.notes) == (Price(3 * ROW_BYTES, "predicted"), [])
    assert 3 * ROW_BYTES % PAGE == 0


def test_an_allocator_that_can_t_be_tried_is_told_and_its_ring_is_what_is_asked() -> None:
    arm = replace(arm_of(slots=3), allocator="no-such-allocator")
    prices = RingPrices([arm, arm])
    assert prices.price(arm) == Price(3 * ROW_BYTES, "the ask")
    assert len(prices.notes) == 1
    assert "no-such-allocator" in prices.notes[0]
    assert "\n" not in prices.notes[0]


def test_an_allocator_with_a_cache_is_priced_by_its_blocks() -> None:
    pytest.importorskip("torch")
    try:
        largest = map_allocator("torch-host", 3 * ROW_BYTES, [1]).points[0].block
    except AllocatorUnavailable as error:
        pytest.skip(str(error))
    arm = replace(arm_of(slots=3), allocator="torch-host")
    price = RingPrices([arm]).price(arm)
    assert price.known == "predicted"
    assert price.bytes == getattr(largest, "bytes", None)
