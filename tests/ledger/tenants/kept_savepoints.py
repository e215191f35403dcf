"""Pools of savepoints that can be told from one another, and what the kernel and the ledger say of them."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pinprobe.ledger.ledger import HostPinnedLedger
from pinprobe.ledger.tenants.pool_entry import Place
from pinprobe.ledger.tenants.retention_pool import RetentionPool
from pinprobe.ledger.tenants.savepoint_layout import SavepointLayout
from tests.ledger.tenants.savepoint_rows import MIXED, number_in, row_at, row_of
from tests.probes.allocators.kernel_word import (
    PAGE_BYTES,
    whole_pages,
)

POOL = "cache.retention_pool"
#: Tokens of a prefill chunk here, and of a block of the index.
CHUNK = 4
REGION = whole_pages(MIXED.row_bytes) + PAGE_BYTES


@contextmanager
def opened(
    ledger: HostPinnedLedger,
    bound_regions: int,
    *,
    shared: bool = True,
    layout: SavepointLayout = MIXED,
    **options: Any,
) -> Iterator[RetentionPool]:
    """A pool that has given everything back in the end; the least recently used goes, where nothing else is said."""
    pool = RetentionPool(
        ledger, layout, bound_regions=bound_regions, chunk_tokens=CHUNK, shared=shared, **{"policy": "lru", **options}
    )
    try:
        yield pool
    finally:
        pool.close()
    assert pool.stats().held_regions == 0
    assert booked_bytes(ledger) == 0


def prompt(conversation: int, tokens: int) -> list[int]:
    """The first tokens of a conversation. All begin with the same system prompt, of a block and a half."""
    return [*range(min(tokens, 6)), *(100 * conversation + index for index in range(tokens - 6))]


def copied(pool: RetentionPool, number: int, tokens: Sequence[int], conversation: str = "c") -> Place | None:
    """A place with the row of savepoint `number` in it, as the copy-out would leave it."""
    place = pool.take_place(tokens, conversation)
    if place is not None:
        place.region.begin()
        for offset, slab in zip(pool.layout.offsets, row_of(pool.layout, number), strict=True):
            ctypes.memmove(place.region.address + offset, slab, len(slab))
    return place


def keep(pool: RetentionPool, tokens: Sequence[int], number: int, conversation: str = "c") -> bool:
    """Offer a savepoint and have it kept; say whether it was."""
    if not pool.offer(len(tokens)):
        return False
    place = copied(pool, number, tokens, conversation)
    if place is not None:
        pool.publish(place)
    return place is not None


def found(pool: RetentionPool, tokens: Sequence[int]) -> int | None:
    """Which savepoint is found for a prompt; None where none is. Its row has to be whole."""
    hold = pool.match(tokens)
    if hold is None:
        return None
    with hold:
        row = row_at(pool.layout, hold.address)
    number = number_in(row)
    assert row == row_of(pool.layout, number)
    return number


def address_of(pool: RetentionPool, tokens: Sequence[int]) -> int:
    """Where the savepoint that is found for a prompt lies."""
    with pool.match(tokens) or pytest.fail("nothing is found") as hold:
        return hold.address


def mapped_regions() -> int:
    """How many shared regions the kernel says are mapped in this process."""
    return Path("/proc/self/maps").read_text(encoding="utf-8").count("/memfd:pinprobe-region")


def booked_bytes(ledger: HostPinnedLedger) -> int:
    """What is booked for the pool, or pending."""
    return sum(row.booked_bytes for row in ledger.rows() if row.owner == POOL)
