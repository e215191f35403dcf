"""A buffer is one reservation of all its pieces, and is really given back."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from pinprobe.ledger.booking import Row
from pinprobe.ledger.ledger import HostPinnedLedger
from pinprobe.ledger.tenants.buffer import Buffer
from pinprobe.ledger.tenants.tenant import TenantSpec
from pinprobe.probes.counters import read_statm
from pinprobe.probes.errors import AllocatorUnavailable, BadRequest, CouldNotMeasure, Refused
from pinprobe.probes.host_tree import THIS_HOST
from pinprobe.probes.reading import Reading
from tests.ledger.tenants.foreign_package import install

MIB = 2**20

# Keeps every block that is given back, takes twice what it is asked, and writes down what it was told.
KEEPING = """
import ctypes, mmap

told = []

class Block:
    note = "touched"

    def __init__(self, owner, asked_bytes):
        self.owner, self.memory = owner, mmap.mmap(-1, 2 * asked_bytes)
        for at in range(0, 2 * asked_bytes, mmap.PAGESIZE):
            self.memory[at] = 1
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))

    def release(self):
        told.append("release")
        self.owner.kept.append(self.memory)

class Keeping:
    name = "keeping"
    counter = "RssShmem"

    @classmethod
    def prepare(cls, largest_bytes):
        told.append(f"prepare {largest_bytes}")
        return cls()

    def __init__(self):
        self.kept = []

    def notes(self):
        told.append("notes")
        return ()

    def allocated_bytes(self):
        return None

    def allocate(self, asked_bytes):
        told.append(f"allocate {asked_bytes}")
        return Block(self, asked_bytes)

    def empty_cache(self):
        told.append("empty_cache")
        self.kept.clear()
"""


def spec(allocator: str = "pageable", count: int = 4, size_bytes: int = 16 * MIB, detail: str = "") -> TenantSpec:
    fields = {"count": count, "bytes": size_bytes}
    return TenantSpec("cache.ring", "buffer", "rank", allocator, detail, fields, {}, "c.yaml:1:1")


def resident_bytes() -> int:
    reading = read_statm(THIS_HOST)
    assert isinstance(reading, Reading)
    return reading.bytes


def locked_bytes() -> int:
    found = re.search(r"^VmLck:\s+(\d+) kB$", Path("/proc/self/status").read_text(encoding="utf-8"), re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024


def rows(ledger: HostPinnedLedger) -> list[Row]:
    """Its rows and what its allocator kept."""
    return [row for row in ledger.rows() if row.owner == "cache.ring" or row.state.value == "retained"]


@pytest.fixture
def keeping(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """Register the allocator above, and return what tells what it was told."""
    monkeypatch.syspath_prepend(str(tmp_path))
    module = install(tmp_path, KEEPING, {"pinprobe.allocators": {"keeping": ":Keeping"}})
    return lambda: list(importlib.import_module(module).told)


@pytest.mark.parametrize("rank", [None, 1])
def test_it_is_reserved_at_once_and_the_memory_is_gone_when_it_is_closed(rank: int | None) -> None:
    with HostPinnedLedger() as ledger:
        ledger.calibrate()
        before = resident_bytes()
        tenant = Buffer().open(spec(), ledger, rank)
        (row,) = rows(ledger)
        assert row.asked_bytes == 64 * MIB
        assert row.pageable
        assert row.detail == "4 x 16,777,216 B" + ("" if rank is None else ", rank 1")
        assert resident_bytes() - before > 60 * MIB
        tenant.close()
        tenant.close()
        assert abs(resident_bytes() - before) < 4 * MIB
        assert not rows(ledger)


def test_its_price_is_what_all_pieces_ask_for_together() -> None:
    assert Buffer().asked_bytes(spec(count=16, size_bytes=154_927_104)) == 2_478_833_664


def test_what_a_config_says_of_it_is_shown_last() -> None:
    with HostPinnedLedger() as ledger:
        tenant = Buffer().open(spec(count=1, size_bytes=MIB, detail="staging only"), ledger, 0)
        assert [row.detail for row in rows(ledger)] == ["1 x 1,048,576 B, rank 0, staging only"]
        tenant.close()


def test_locked_memory_is_pinned_and_the_lock_goes_with_it() -> None:
    buffer, tenant = Buffer(), spec("mlock", count=3, size_bytes=MIB)
    try:
        buffer.prepare(tenant)
    except AllocatorUnavailable as error:
        pytest.skip(str(error))
    with HostPinnedLedger() as ledger:
        before = locked_bytes()
        opened = buffer.open(tenant, ledger, None)
        assert locked_bytes() - before == 3 * MIB
        assert [(row.pageable, row.allocator) for row in rows(ledger)] == [(False, "mlock")]
        opened.close()
        assert locked_bytes() == before


@pytest.mark.parametrize("wrong", ["mlok", ""])
def test_an_allocator_that_is_not_known_is_refused_when_it_is_prepared(wrong: str) -> None:
    with pytest.raises(BadRequest, match="no allocator is called"):
        Buffer().prepare(spec(wrong))


def test_its_allocator_is_made_ready_once_and_its_runtime_is_up_before_it_is_opened(
    keeping: Callable[[], list[str]],
) -> None:
    buffer, tenant = Buffer(), spec("keeping", count=2, size_bytes=MIB)
    buffer.prepare(tenant)
    assert keeping() == [f"prepare {2 * MIB}", "notes"]
    with HostPinnedLedger() as ledger:
        buffer.open(tenant, ledger, None).close()
    assert keeping()[2:] == [f"allocate {2 * MIB}", "release", "empty_cache"]


def test_it_is_booked_at_its_block_and_a_cache_keeps_nothing_of_it(keeping: Callable[[], list[str]]) -> None:
    with HostPinnedLedger() as ledger:
        tenant = Buffer().open(spec("keeping", count=2, size_bytes=4 * MIB), ledger, None)
        (row,) = rows(ledger)
        assert (row.asked_bytes, row.booked_bytes, row.allocator) == (8 * MIB, 16 * MIB, "keeping")
        tenant.close()
        assert not rows(ledger)
        assert keeping()[-1] == "empty_cache"


def test_each_size_asks_anew_whether_its_allocator_can_serve_it(keeping: Callable[[], list[str]]) -> None:
    buffer = Buffer()
    for count in (1, 2, 1):
        buffer.prepare(spec("keeping", count=count, size_bytes=MIB))
    assert [line for line in keeping() if line.startswith("prepare")] == [f"prepare {MIB}", f"prepare {2 * MIB}"]


def test_what_does_not_fit_is_refused_before_its_allocator_is_asked(keeping: Callable[[], list[str]]) -> None:
    with HostPinnedLedger(limit_bytes=MIB) as ledger:
        with pytest.raises(Refused) as refused:
            Buffer().open(spec("keeping", count=2, size_bytes=MIB), ledger, None)
        assert (refused.value.owner, refused.value.asked_bytes, refused.value.largest_bytes) == (
            "cache.ring", 2 * MIB, MIB,
        )  # fmt: skip
        assert not rows(ledger)
    assert not [line for line in keeping() if line.startswith("allocate")]


def test_memory_of_the_huge_page_pool_is_held_against_the_pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # 2**50 bytes are in no pool; what would hold them is not asked.
    monkeypatch.syspath_prepend(str(tmp_path))
    source = KEEPING.replace("RssShmem", "HugetlbPages")
    install(tmp_path, source, {"pinprobe.allocators": {"keeping": ":Keeping"}})
    with (
        HostPinnedLedger() as ledger,
        pytest.raises((Refused, CouldNotMeasure), match=r"huge page pool|the pool of [\d.]+ \w+ pages"),
    ):
        Buffer().open(spec("keeping", count=1, size_bytes=2**50), ledger, None)
