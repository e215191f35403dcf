"""Savepoints sent through ring and pool and back: that it holds, and that one wrong bit is found and named."""

from __future__ import annotations

import ctypes
import hashlib
import json
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import pytest

from pinprobe.ledger.booking import RowState
from pinprobe.ledger.ledger import HostPinnedLedger
from pinprobe.ledger.tenants import copy_out
from pinprobe.ledger.tenants.lossless import RING_SLOTS, Lossless, find_device, mixed_layout, run_lossless
from pinprobe.ledger.tenants.lossless_receipt import lossless_receipt
from pinprobe.ledger.tenants.region import region_bytes
from pinprobe.ledger.tenants.savepoint_layout import SavepointLayout, Slab
from pinprobe.probes.errors import AllocatorUnavailable, CouldNotMeasure, Refused
from pinprobe.probes.host_facts import read_host_facts
from tests.ledger.tenants.kept_savepoints import mapped_regions
from tests.ledger.tenants.open_files import open_files
from tests.ledger.tenants.prepared_allocators import ALLOCATORS, prepared
from tests.ledger.tenants.savepoint_rows import MIXED
from tests.ledger.tenants.test_copy_out import WORKER
from tests.probes.allocators.kernel_word import counter_bytes, whole_pages

torch: Any = pytest.importorskip("torch", exc_type=ImportError)

#: Odd sizes with padding between them, in some KiB.
LAYOUT = SavepointLayout(tuple(slab for slab in MIXED.slabs if slab.shape))


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    """No memory, no descriptor and no thread, however it ends."""
    torch.zeros(1)
    before = (open_files(), counter_bytes("VmLck"), mapped_regions())
    yield
    assert (open_files(), counter_bytes("VmLck"), mapped_regions()) == before
    assert not [thread for thread in threading.enumerate() if thread.name == WORKER]


def rows_of_tenants(ledger: HostPinnedLedger) -> list[str]:
    return [row.owner for row in ledger.rows() if row.state is not RowState.UNATTRIBUTED]


# -- it holds


def test_a_sixteenth_of_a_hybrid_models_savepoint_comes_back_bit_by_bit(ledger: HostPinnedLedger) -> None:
    layout = mixed_layout(Fraction(1, 16))
    watched: list[int] = []
    result = run_lossless(
        ledger, layout, prepared("mlock", RING_SLOTS * layout.row_bytes), savepoints=3, laps=2, watch=watched.append
    )
    assert result.holds
    assert not result.mismatched
    assert (result.row_bytes, result.slab_count, result.savepoints, result.laps) == (layout.row_bytes, 96, 3, 2)
    assert result.types == {"float16": 24, "bfloat16": 24, "float32": 48}
    hashes = {result.sha_before, result.sha_in_pool, result.sha_elsewhere, result.sha_restored}
    assert hashes == {sha_of_the_first(layout.row_bytes)}
    assert (result.pool.promoted, result.pool.bound_regions, result.pool.peak_regions) == (3, 2, 2)
    assert watched == [1, 2]
    assert rows_of_tenants(ledger) == []


def sha_of_the_first(row_bytes: int) -> str:
    """What the first savepoint is: random bytes of seed 0. No slab of that layout needs padding."""
    row = torch.randint(0, 256, (row_bytes,), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    return hashlib.sha256(ctypes.string_at(row.data_ptr(), row_bytes)).hexdigest()


@pytest.mark.parametrize("name", ALLOCATORS)
def test_slabs_of_odd_sizes_hold_through_every_allocator(ledger: HostPinnedLedger, name: str) -> None:
    result = run_lossless(ledger, LAYOUT, prepared(name), savepoints=6, laps=2)
    assert result.holds
    assert (result.device, result.allocator) == ("cpu", name)
    assert result.pool.requests == result.pool.promoted == 6
    assert rows_of_tenants(ledger) == []


def test_a_slab_of_one_number_holds_too(ledger: HostPinnedLedger) -> None:
    layout = SavepointLayout((Slab("length", (), "int64"), Slab("state", (4,), "float32")))
    assert run_lossless(ledger, layout, prepared("pageable"), laps=1).holds


def test_what_lay_between_the_slabs_before_makes_no_savepoint_another(ledger: HostPinnedLedger) -> None:
    # A block that its allocator kept is not cleared, and padding is never written.
    allocator = prepared("torch-host")
    dirty = allocator.allocate(RING_SLOTS * LAYOUT.row_bytes)
    ctypes.memset(dirty.address, 0xEE, RING_SLOTS * LAYOUT.row_bytes)
    dirty.release()
    assert LAYOUT.row_bytes > LAYOUT.payload_bytes
    assert run_lossless(ledger, LAYOUT, allocator, laps=1).holds


def test_each_leg_tells_its_bytes_and_its_time(ledger: HostPinnedLedger) -> None:
    result = run_lossless(ledger, LAYOUT, prepared("pageable"), savepoints=3, laps=1)
    assert {"device to slot", "slot to region"} <= {leg.name for leg in result.legs}
    for leg in result.legs:
        assert leg.bytes >= 3 * LAYOUT.row_bytes
        assert leg.bytes % LAYOUT.row_bytes == 0
        assert leg.seconds > 0
        assert leg.gigabytes_a_second == pytest.approx(leg.bytes / leg.seconds / 1e9)


def test_the_whole_of_it_is_154_927_104_bytes_in_96_slabs_and_less_is_in_proportion() -> None:
    whole, half = mixed_layout(Fraction(1)), mixed_layout(Fraction(1, 2))
    assert (whole.row_bytes, len(whole.slabs), whole.payload_bytes) == (154_927_104, 96, 154_927_104)
    assert (2 * half.row_bytes, len(half.slabs)) == (whole.row_bytes, 96)
    least = mixed_layout(Fraction(1, 10**9))
    assert (16 * least.row_bytes, len(least.slabs)) == (whole.row_bytes, 96)
    assert {slab.dtype for slab in least.slabs} == {"float16", "bfloat16", "float32"}


# -- it does not hold


def flip_a_bit(monkeypatch: pytest.MonkeyPatch, offset: int, at_copy: int) -> None:
    """Have one bit of one copy out of the ring come out wrong."""
    copies = iter(range(10**6))

    def memmove(target: int, source: int, size_bytes: int) -> None:
        ctypes.memmove(target, source, size_bytes)
        if next(copies) == at_copy:
            byte = ctypes.c_ubyte.from_address(target + offset)
            byte.value ^= 0x10

    monkeypatch.setattr(copy_out, "ctypes", SimpleNamespace(memmove=memmove))


@pytest.mark.parametrize(("at_copy", "slab"), [(0, 0), (0, 1), (0, 2), (0, 3), (0, 4), (1, 0), (2, 4)])
def test_one_wrong_bit_is_found_and_its_slab_is_named(
    ledger: HostPinnedLedger, monkeypatch: pytest.MonkeyPatch, at_copy: int, slab: int
) -> None:
    flip_a_bit(monkeypatch, LAYOUT.offsets[slab] + LAYOUT.slabs[slab].size_bytes - 1, at_copy)
    result = run_lossless(ledger, LAYOUT, prepared("pageable"), savepoints=3, laps=1)
    assert not result.holds
    assert result.mismatched == (LAYOUT.slabs[slab].name,)
    assert (result.sha_in_pool == result.sha_before) == (at_copy != 0)
    assert result.sha_elsewhere == result.sha_in_pool


def test_a_savepoint_that_is_not_in_the_pool_is_named(
    ledger: HostPinnedLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies = iter(range(10**6))

    def memmove(target: int, source: int, size_bytes: int) -> None:
        if next(copies) == 1:
            raise OSError("this one fails")
        ctypes.memmove(target, source, size_bytes)

    monkeypatch.setattr(copy_out, "ctypes", SimpleNamespace(memmove=memmove))
    result = run_lossless(ledger, LAYOUT, prepared("pageable"), savepoints=3, laps=1)
    assert not result.holds
    assert result.mismatched == ("savepoint 1 is not in the pool",)


def test_another_process_that_says_nothing_or_fails_is_no_agreement(
    ledger: HostPinnedLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    result = run_lossless(ledger, LAYOUT, prepared("pageable"), laps=1)
    assert not result.holds
    assert result.sha_before == result.sha_in_pool == result.sha_restored != result.sha_elsewhere


@pytest.mark.parametrize(
    "change",
    [{"sha_before": "0"}, {"sha_in_pool": "0"}, {"sha_elsewhere": "0"}, {"sha_restored": "0"}, {"mismatched": ("a",)}],
    ids=lambda change: next(iter(change)),
)
def test_every_hash_and_every_slab_has_to_agree(ledger: HostPinnedLedger, change: dict[str, Any]) -> None:
    result = run_lossless(ledger, LAYOUT, prepared("pageable"), laps=1)
    assert result.holds
    assert not replace(result, **change).holds
    assert not replace(result, savepoints=2).holds


# -- it can't be done


def failing(monkeypatch: pytest.MonkeyPatch) -> None:
    def memmove(target: int, source: int, size_bytes: int) -> None:
        raise OSError("every copy fails")

    monkeypatch.setattr(copy_out, "ctypes", SimpleNamespace(memmove=memmove))


def test_where_the_first_savepoint_is_never_kept_nothing_was_measured(
    ledger: HostPinnedLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(monkeypatch)
    with pytest.raises(CouldNotMeasure, match="the first savepoint did not reach the pool"):
        run_lossless(ledger, LAYOUT, prepared("pageable"))
    assert rows_of_tenants(ledger) == []


@pytest.mark.parametrize(
    ("limit_bytes", "owner"),
    [
        (whole_pages(RING_SLOTS * LAYOUT.row_bytes) - 1, "cache.savepoint_ring"),
        (whole_pages(RING_SLOTS * LAYOUT.row_bytes) + region_bytes(LAYOUT.row_bytes) - 1, "cache.retention_pool"),
    ],
    ids=["the ring", "the pool"],
)
def test_where_a_tenant_does_not_fit_it_is_refused_by_name(limit_bytes: int, owner: str) -> None:
    with HostPinnedLedger(limit_bytes=limit_bytes, wait_seconds=0) as ledger:
        with pytest.raises(Refused, match=owner) as refused:
            run_lossless(ledger, LAYOUT, prepared("pageable"))
        assert "\n" not in str(refused.value)
        assert rows_of_tenants(ledger) == []


def test_the_device_is_what_torch_has() -> None:
    assert find_device("cpu") == "cpu"
    assert find_device("auto") == ("cuda" if torch.cuda.is_available() else "cpu")
    if not torch.cuda.is_available():
        with pytest.raises(AllocatorUnavailable, match="no CUDA device here; --device cpu needs none"):
            find_device("cuda")


# -- its receipt


def test_the_receipt_is_a_document_of_all_that_was_seen(ledger: HostPinnedLedger) -> None:
    result = run_lossless(ledger, LAYOUT, prepared("pageable"), savepoints=2, laps=1)
    document = json.loads(json.dumps(lossless_receipt(result, read_host_facts(), ["pinprobe", "lossless"])))
    assert (document["schema"], document["version"], document["holds"]) == ("pinprobe.lossless", 1, True)
    assert document["command"] == ["pinprobe", "lossless"]
    assert document["host"]["kernel"]
    names = [name for name in Lossless.__dataclass_fields__ if name not in ("legs", "pool", "mismatched", "types")]
    assert {name: document[name] for name in names} == {name: getattr(result, name) for name in names}
    assert (document["mismatched"], document["types"]) == ([], dict(result.types))
    assert document["pool"]["promoted"] == 2
    for leg, written in zip(result.legs, document["legs"], strict=True):
        assert written == {
            "name": leg.name, "bytes": leg.bytes, "seconds": leg.seconds,
            "gigabytes_a_second": leg.gigabytes_a_second,
        }  # fmt: skip
