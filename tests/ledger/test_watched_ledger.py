"""The watched ledger keeps the account of its fullest moment, and is a ledger in all else."""

from __future__ import annotations

import mmap

import pytest

from pinprobe.ledger.watched_ledger import WatchedLedger
from pinprobe.probes.errors import Refused
from pinprobe.probes.reading import Reading

MIB = 2**20


def take(size_bytes: int) -> mmap.mmap:
    block = mmap.mmap(-1, size_bytes)
    for offset in range(0, size_bytes, mmap.PAGESIZE):
        block[offset] = 1
    return block


def test_the_fullest_moment_is_kept_with_what_was_resident_then() -> None:
    ledger = WatchedLedger()
    with ledger:
        with ledger.reserve("first", 1 * MIB, lambda: take(1 * MIB)):
            with ledger.reserve("second", 3 * MIB, lambda: take(4 * MIB), detail="3 of 4", free=mmap.mmap.close):
                pass
            with ledger.reserve("third", 2 * MIB, lambda: take(2 * MIB)):
                pass
        assert ledger.fullest is not None
        assert [(row.owner, row.detail) for row in ledger.fullest.reserved] == [("first", ""), ("second", "3 of 4")]
        resident = [row.resident for row in ledger.fullest.reserved]
        assert [amount.bytes for amount in resident if isinstance(amount, Reading)] == [1 * MIB, 4 * MIB]
        assert ledger.verify().reserved == ()


def test_adopted_memory_counts_too() -> None:
    block = take(2 * MIB)
    ledger = WatchedLedger()
    with ledger:
        adoption = ledger.adopt("engine", block, pageable=True)
        adoption.release()
        assert ledger.fullest is not None
        assert [row.pageable for row in ledger.fullest.reserved] == [True]


def test_a_refusal_leaves_nothing_to_remember() -> None:
    ledger = WatchedLedger(limit_bytes=MIB)
    with ledger:
        with pytest.raises(Refused):
            ledger.reserve("too.much", 2 * MIB, lambda: take(2 * MIB))
        assert ledger.fullest is None
