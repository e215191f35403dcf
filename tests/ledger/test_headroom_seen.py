"""One reading of the headroom serves small requests for a second, and no large one; nothing is refused by a bound."""

from __future__ import annotations

from pathlib import Path

import pytest

from pinprobe.ledger.admission import Request
from pinprobe.ledger.bookkeeping import Bookkeeping
from pinprobe.ledger.headroom_seen import HeadroomSeen
from pinprobe.ledger.price import Price, PriceList
from pinprobe.probes.errors import Refused
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
    found, admitted_bytes = headroom.at_least(asks(size_bytes))
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
    headroom.admitted(8 * MIB)
    assert seen_by(headroom, MIB) == (GIB // 4, 0)


def test_an_old_reading_is_read_again(host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    headroom = HeadroomSeen(HostTree(host))
    seen_by(headroom, MIB)
    leaves(host, GIB // 2)
    monkeypatch.setattr("pinprobe.ledger.headroom_seen._STALE_SECONDS", -1)
    assert seen_by(headroom, MIB) == (GIB // 2, 0)


def in_a_cgroup(host: Path, limit_bytes: int, used_bytes: int, cached_bytes: int) -> Path:
    """Put the process into a cgroup, and return its folder."""
    folder = host / "sys/fs/cgroup/box"
    (host / "proc/self").mkdir(exist_ok=True)
    folder.mkdir(parents=True, exist_ok=True)
    (host / "proc/self/cgroup").write_text("0::/box\n")
    (host / "proc/self/mountinfo").write_text("26 22 0:22 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")
    (folder / "memory.max").write_text(f"{limit_bytes}\n")
    (folder / "memory.current").write_text(f"{used_bytes}\n")
    (folder / "memory.stat").write_text(f"file {cached_bytes}\nshmem 0\ninactive_file {cached_bytes}\nactive_file 0\n")
    (folder.parent / "cgroup.procs").write_text("")
    return folder


def books_on(host: Path, keep_free_bytes: int = 0) -> Bookkeeping:
    return Bookkeeping(HostTree(host), PriceList(), None, keep_free_bytes, None)


def test_a_lower_bound_leaves_out_the_cache_that_a_cgroup_would_drop(host: Path) -> None:
    in_a_cgroup(host, 512 * MIB, 500 * MIB, 400 * MIB)
    headroom = HeadroomSeen(HostTree(host))
    assert seen_by(headroom, MIB) == (12 * MIB, 0)
    whole, _ = headroom.whole(asks(MIB))
    assert whole.available == Reading(412 * MIB, "/sys/fs/cgroup/box/memory.max")


def test_what_does_not_fit_a_lower_bound_and_fits_the_whole_is_admitted(host: Path) -> None:
    in_a_cgroup(host, 512 * MIB, 500 * MIB, 400 * MIB)
    books = books_on(host)
    books.admit(asks(300 * MIB), 0)
    with pytest.raises(Refused, match=r"box leaves 0\.402 GiB, and 0\.293 GiB are being taken"):
        books.admit(asks(300 * MIB), 0)


def test_what_was_given_back_within_the_second_is_seen_before_anything_is_refused(host: Path) -> None:
    books = books_on(host, keep_free_bytes=1000 * MIB)
    books.admit(asks(MIB), 0)
    with pytest.raises(Refused):
        books.admit(asks(32 * MIB), 0)
    leaves(host, 2 * GIB)
    books.admit(asks(32 * MIB), 0)


def test_a_process_that_was_moved_to_another_cgroup_is_bound_by_that_a_second_later(
    host: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    headroom = HeadroomSeen(HostTree(host))
    assert seen_by(headroom, 16 * MIB) == (GIB, 0)
    in_a_cgroup(host, 64 * MIB, 0, 0)
    monkeypatch.setattr("pinprobe.ledger.headroom_seen._STALE_SECONDS", -1)
    assert seen_by(headroom, 16 * MIB) == (64 * MIB, 0)


def test_a_large_request_of_a_process_that_was_just_moved_is_bound_by_where_it_is_now(host: Path) -> None:
    headroom = HeadroomSeen(HostTree(host))
    (host / "proc/self").mkdir(exist_ok=True)
    in_a_cgroup(host, 900 * MIB, 0, 0)
    assert seen_by(headroom, 512 * MIB) == (900 * MIB, 0)
    small = host / "sys/fs/cgroup/small"
    small.mkdir()
    (small / "memory.max").write_text(f"{256 * MIB}\n")
    (small / "memory.current").write_text("0\n")
    (host / "proc/self/cgroup").write_text("0::/small\n")
    assert seen_by(headroom, 512 * MIB) == (256 * MIB, 0)


def test_where_a_source_of_the_lower_bound_is_gone_the_whole_is_read(host: Path) -> None:
    folder = in_a_cgroup(host, 512 * MIB, 0, 0)
    headroom = HeadroomSeen(HostTree(host))
    seen_by(headroom, 256 * MIB)
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    (host / "proc/self/mountinfo").write_text("26 22 0:22 / /proc rw - proc proc rw\n")
    assert seen_by(headroom, 256 * MIB) == (GIB, 0)
    books_on(host).admit(asks(256 * MIB), 0)
