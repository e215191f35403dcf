"""One reading of the headroom serves small requests for a second, and no large one."""

from __future__ import annotations

from pathlib import Path

import pytest

from pinprobe.ledger.admission import Request
from pinprobe.ledger.headroom_seen import HeadroomSeen
from pinprobe.ledger.price import Price
from pinprobe.probes.host_tree import HostTree
from pinprobe.probes.reading import Reading

GIB, MIB = 2**30, 2**20


@pytest.fixture
def host(tmp_path: Path) -> Path:
    (tmp_path / "proc").mkdir()
    leaves(tmp_path, GIB)
    return tmp_path


def leaves(host: Path, available_bytes: int) -> None:
    (host / "proc" / "meminfo").write_text(f"MemAvailable: {available_bytes // 1024} kB\n")


def asks(size_bytes: int) -> Request:
    return Request("cache.ring", size_bytes, Price(size_bytes, "the ask"), "")


def seen_by(headroom: HeadroomSeen, size_bytes: int) -> tuple[int, int]:
    found, admitted_bytes = headroom.for_request(asks(size_bytes))
    assert isinstance(found.available, Reading)
    return found.available.bytes, admitted_bytes


def test_a_small_request_is_judged_by_the_reading_before_it_less_what_was_admitted_since(host: Path) -> None:
    headroom = HeadroomSeen(HostTree(host))
    assert seen_by(headroom, MIB) == (GIB, 0)
    headroom.admitted(MIB)
    leaves(host, GIB // 2)
    assert seen_by(headroom, MIB) == (GIB, MIB)


def test_a_large_request_and_many_small_ones_are_judged_by_a_new_reading(host: Path) -> None:
    headroom = HeadroomSeen(HostTree(host))
    seen_by(headroom, MIB)
    leaves(host, GIB // 2)
    assert seen_by(headroom, 64 * MIB) == (GIB // 2, 0)
    leaves(host, GIB // 4)
    headroom.admitted(2 * MIB)
    assert seen_by(headroom, MIB) == (GIB // 4, 0)


def test_an_old_reading_is_read_again(host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    headroom = HeadroomSeen(HostTree(host))
    seen_by(headroom, MIB)
    leaves(host, GIB // 2)
    monkeypatch.setattr("pinprobe.ledger.headroom_seen._STALE_SECONDS", -1)
    assert seen_by(headroom, MIB) == (GIB // 2, 0)
