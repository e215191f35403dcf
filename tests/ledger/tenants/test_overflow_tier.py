"""The pool's second tier: what is written and why not, what comes back, and what becomes of files nobody wants.

Bytes are read in memory and in the files themselves; what lies in the folder is the file system's word.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pinprobe.ledger.ledger import HostPinnedLedger
from pinprobe.ledger.tenants import disk_overflow, overflow_entry
from pinprobe.ledger.tenants.disk_overflow import DiskOverflow
from pinprobe.ledger.tenants.overflow_tier import PATIENCE_SECONDS, TierStats
from pinprobe.ledger.tenants.prefill_time import PrefillTime
from pinprobe.ledger.tenants.recall import Recall
from pinprobe.ledger.tenants.retention_pool import RetentionPool
from pinprobe.ledger.tenants.row_transfer import RowFile
from tests.ledger.tenants.kept_savepoints import CHUNK, REGION, found, keep, mapped_regions, prompt
from tests.ledger.tenants.savepoint_rows import MIXED, number_in, row_at, row_of

_PATIENCE_SECONDS = 10.0


class Bench:
    """A pool of two regions, the least recently used first to go, with an overflow and a clock of its own."""

    def __init__(self, ledger: HostPinnedLedger, folder: Path, *, files: int = 8, **options: Any) -> None:
        self.now = 0.0
        self.folder = folder / "overflow"
        self.store = DiskOverflow(self.folder, MIXED, files * REGION)
        settings = {"bound_regions": 2, "policy": "lru", "prefill_time": PrefillTime(1.0), **options}
        self.pool = RetentionPool(
            ledger, MIXED, chunk_tokens=CHUNK, shared=True, overflow=self.store, clock=lambda: self.now, **settings
        )

    @property
    def stats(self) -> TierStats:
        stats = self.pool.stats().overflow
        assert stats is not None
        return stats

    def files(self) -> list[Path]:
        return sorted(path for path in self.folder.rglob("*.row"))

    def keep(self, conversation: int, tokens: int = 9) -> None:
        """Keep savepoint `conversation` of the conversation of that number."""
        self.now += 1
        keep(self.pool, prompt(conversation, tokens), conversation, f"c{conversation}")

    def idle(self, times: int = 1) -> None:
        for _ in range(times):
            self.now += 10
            self.pool.settle()

    def recall(self, conversation: int, tokens: int = 20) -> Recall | None:
        return self.pool.recall(prompt(conversation, tokens), f"c{conversation}")


def came_back(recall: Recall | None) -> int | None:
    """Which savepoint a recall brings back, every byte of it; None where it brings none."""
    assert recall is not None
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while recall.is_pending:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    hold = recall.collect()
    if hold is None:
        return None
    with hold:
        row = row_at(MIXED, hold.address)
    assert row == row_of(MIXED, number_in(row))
    return number_in(row)


@pytest.fixture
def ledger() -> HostPinnedLedger:
    ledger = HostPinnedLedger(wait_seconds=0)
    ledger.calibrate()
    return ledger


@pytest.fixture
def make(ledger: HostPinnedLedger, tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    made: list[Bench] = []

    def bench(**options: Any) -> Bench:
        made.append(Bench(ledger, tmp_path, **options))
        return made[-1]

    yield bench
    for each in made:
        each.pool.close()
        assert not each.files()
    assert mapped_regions() == 0


def test_what_would_go_next_is_written_when_there_is_nothing_else_to_do_and_comes_back(
    make: Callable[..., Bench],
) -> None:
    bench = make()
    bench.pool.measure_overflow()
    bench.keep(1)
    bench.idle()
    assert not bench.files(), "there is room: nothing has to go"
    bench.keep(2)
    bench.idle()
    (written,) = bench.files()
    assert row_of(MIXED, 1)[0] in written.read_bytes()
    bench.keep(3)
    assert found(bench.pool, prompt(1, 20)) is None
    assert bench.stats.spill.spilled == 1
    assert came_back(bench.recall(1)) == 1
    assert found(bench.pool, prompt(1, 20)) == 1, "the policy keeps what came back"
    stats = bench.stats
    assert (stats.recalls, stats.recalled, stats.files.restored - 1) == (1, 1, 1)
    assert mapped_regions() <= 2


def test_what_is_here_is_not_read_from_disk_unless_the_disk_has_more_of_it(make: Callable[..., Bench]) -> None:
    bench = make(bound_regions=3)
    bench.pool.measure_overflow()
    bench.keep(1, 9)
    bench.keep(2)
    bench.keep(3)
    bench.idle()
    assert bench.recall(1) is None  # it has a file, and is here as well
    bench.keep(4)
    bench.keep(5, 7)
    assert came_back(bench.recall(1)) == 1
    assert bench.recall(1, tokens=8) is None  # no prefix of what is asked for
    assert bench.recall(6) is None


def test_each_entry_that_goes_is_spilled_or_has_its_reason(make: Callable[..., Bench]) -> None:
    bench = make(bound_regions=1)
    bench.pool.measure_overflow()
    bench.keep(1)
    bench.keep(2)  # 1 goes before there was an idle moment
    assert bench.stats.spill.rejected["slot_reused"] == 1
    bench.pool.end("c2")
    bench.keep(3)
    assert bench.stats.spill.rejected["over"] == 1
    two = make(bound_regions=2)
    two.pool.measure_overflow()
    two.keep(1, 7)
    two.keep(1, 9)
    two.keep(2)
    assert two.stats.spill.rejected["dominated"] == 1
    unknown = make(bound_regions=1, prefill_time=None)
    unknown.pool.measure_overflow()
    unknown.keep(1)
    unknown.idle()
    unknown.keep(2)
    assert unknown.stats.spill.rejected["unmeasured"] == 1
    assert "prefill of n tokens unknown: nothing is spilled until `prefill` is given" in unknown.pool.describe()
    unread = make(bound_regions=1)  # nobody measured the drive
    unread.keep(1)
    unread.keep(2)
    assert unread.stats.spill.rejected["unmeasured"] == 1
    cheap = make(bound_regions=1, prefill_time=PrefillTime(1e-12))
    cheap.pool.measure_overflow()
    cheap.keep(1)
    cheap.idle()
    cheap.keep(2)
    assert cheap.stats.spill.rejected["not_worth_it"] == 1
    for each in (bench, two, unknown, unread, cheap):
        assert each.stats.spill.rejected_count + each.stats.spill.spilled == each.pool.stats().evicted
        assert not each.files()


def test_serving_leaves_no_time_for_writing_where_it_takes_all_of_it(make: Callable[..., Bench]) -> None:
    bench = make(bound_regions=1)
    bench.pool.measure_overflow()
    bench.keep(1)
    bench.pool.served(1.0)
    for _ in range(20):
        bench.now += 1
        bench.pool.served(1.0)
        bench.pool.settle()
    assert not bench.files()
    bench.idle(3)
    assert len(bench.files()) == 1


def test_files_that_nobody_awaits_any_more_are_deleted(make: Callable[..., Bench]) -> None:
    bench = make()
    bench.pool.measure_overflow()
    for conversation in (1, 2):
        bench.keep(conversation)
    bench.idle(2)
    assert len(bench.files()) == 2
    bench.pool.end("c1")
    bench.idle()
    assert len(bench.files()) == 1
    assert found(bench.pool, prompt(2, 9)) == 2
    bench.keep(2, 12)  # its conversation went on
    bench.idle()
    assert [path.exists() for path in bench.files()] in ([], [True])
    assert bench.recall(1) is None


def test_a_recall_that_nobody_collects_is_cancelled_and_its_region_is_free_again(make: Callable[..., Bench]) -> None:
    bench = make()
    bench.pool.measure_overflow()
    for conversation in (1, 2):
        bench.keep(conversation)
    bench.idle(2)
    bench.keep(3)
    recall = bench.recall(1)
    assert recall is not None
    bench.now += PATIENCE_SECONDS + 1
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not recall.is_over:
        assert time.monotonic() < deadline
        bench.pool.settle()
    assert recall.collect() is None
    assert bench.stats.uncollected == 1
    for conversation in (4, 5, 6):
        bench.keep(conversation)
    assert [found(bench.pool, prompt(conversation, 9)) for conversation in (5, 6)] == [5, 6]
    assert mapped_regions() == 2


@pytest.mark.parametrize("way", ["a bit flipped", "cut", "gone"])
def test_a_file_that_is_not_what_was_written_is_lost_and_counted_and_never_served(
    make: Callable[..., Bench], way: str
) -> None:
    bench = make()
    bench.pool.measure_overflow()
    for conversation in (1, 2):
        bench.keep(conversation)
    bench.idle()
    (path,) = bench.files()
    if way == "gone":
        path.unlink()
    else:
        content = bytearray(path.read_bytes())
        content[5000] ^= 1
        path.write_bytes(content[: 5000 if way == "cut" else None])
    bench.keep(3)
    assert came_back(bench.recall(1)) is None
    assert sum(bench.stats.files.lost.values()) == 1
    assert bench.recall(1) is None
    bench.keep(1)
    assert found(bench.pool, prompt(1, 9)) == 1


def test_no_bytes_are_set_aside_that_the_bound_has_no_room_for(
    make: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = make(files=1)
    bench.pool.measure_overflow()
    set_aside, seen = overflow_entry.set_aside, []

    def watched(path: Path, size_bytes: int) -> int:
        taken_bytes = sum(file.stat().st_blocks * 512 for file in bench.files())
        seen.append(taken_bytes + size_bytes <= bench.store.bound_bytes)
        return set_aside(path, size_bytes)

    monkeypatch.setattr(disk_overflow, "set_aside", watched)
    for conversation in range(1, 6):
        bench.keep(conversation, 8 + conversation)  # each worth more than the one before
        bench.idle()
    assert len(seen) > 1
    assert all(seen)


def test_where_every_region_is_read_nothing_is_recalled(make: Callable[..., Bench]) -> None:
    bench = make()
    bench.pool.measure_overflow()
    for conversation in (1, 2):
        bench.keep(conversation)
    bench.idle(2)
    bench.keep(3)
    holds = [bench.pool.match(prompt(conversation, 9)) for conversation in (2, 3)]
    assert bench.recall(1) is None
    for hold in holds:
        assert hold is not None
        hold.release()
    assert came_back(bench.recall(1)) == 1


def test_the_pool_may_be_closed_while_something_comes_back(make: Callable[..., Bench]) -> None:
    bench = make()
    bench.pool.measure_overflow()
    for conversation in (1, 2):
        bench.keep(conversation)
    bench.idle(2)
    bench.keep(3)
    recall = bench.recall(1)
    bench.pool.close()
    assert recall is not None
    assert recall.collect() is None
    assert mapped_regions() == 0


def test_what_is_forgotten_comes_back_from_disk_as_little_as_from_memory(make: Callable[..., Bench]) -> None:
    bench = make()
    bench.pool.measure_overflow()
    for conversation in (1, 2):
        bench.keep(conversation)
    bench.idle(2)
    assert len(bench.files()) == 2
    assert bench.pool.forget(prompt(1, 9)), "it is in memory and has a file"
    assert len(bench.files()) == 1
    assert bench.recall(1) is None
    for conversation in (3, 4):
        bench.keep(conversation)
    on_its_way = bench.recall(2)
    assert on_its_way is not None
    assert not bench.pool.forget(prompt(2, 9)), "it is on disk alone"
    assert not bench.files()
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while on_its_way.is_pending:
        assert time.monotonic() < deadline
    assert on_its_way.collect() is None
    assert bench.recall(2) is None
    assert bench.stats.files.files == 0
    assert mapped_regions() <= 2


def test_where_memory_is_short_what_comes_back_takes_the_place_of_another(tmp_path: Path) -> None:
    with HostPinnedLedger(limit_bytes=2 * REGION + 100, wait_seconds=0) as ledger:
        ledger.calibrate()
        bench = Bench(ledger, tmp_path, bound_regions=4)
        try:
            bench.pool.measure_overflow()
            for conversation in (1, 2):
                bench.keep(conversation)
            bench.keep(3)
            bench.idle(2)
            bench.keep(4)
            assert (bench.pool.stats().held_regions, bench.pool.stats().bound_regions) == (2, 4)
            assert found(bench.pool, prompt(2, 9)) is None
            assert came_back(bench.recall(2)) == 2
            assert mapped_regions() == 2
        finally:
            bench.pool.close()
    assert mapped_regions() == 0


def test_a_recall_that_a_drive_holds_up_beyond_the_end_of_its_pool_gives_its_region_back_once_it_is_collected(
    make: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = make()
    bench.pool.measure_overflow()
    for conversation in (1, 2):
        bench.keep(conversation)
    bench.idle(2)
    bench.keep(3)
    go_on, read = threading.Event(), RowFile.read

    def slow_read(self: RowFile, view: memoryview, offset: int) -> None:
        assert go_on.wait(_PATIENCE_SECONDS)
        read(self, view, offset)

    monkeypatch.setattr(RowFile, "read", slow_read)
    monkeypatch.setattr(DiskOverflow.close, "__defaults__", (0.01,))
    recall = bench.recall(1)
    assert recall is not None
    bench.pool.close()
    assert mapped_regions() == 1, "the drive may still write its memory"
    assert recall.collect() is None
    go_on.set()
    assert recall.restore.wait(_PATIENCE_SECONDS)
    assert recall.collect() is None
    assert (mapped_regions(), bench.pool.stats().held_regions) == (0, 0)


def test_the_boot_says_where_it_is_how_large_and_how_fast(
    make: Callable[..., Bench], ledger: HostPinnedLedger, tmp_path: Path
) -> None:
    bench = make()
    assert "; unmeasured;" in bench.pool.describe()
    bench.pool.measure_overflow()
    text = bench.pool.describe()
    assert f"overflow to disk in {tmp_path / 'overflow'}: at most {8 * REGION / 1024:.3f} KiB" in text
    assert "MB/s, measured" in text
    assert "overflow to disk in" in " ".join(ledger.printout().split())
    off = RetentionPool(ledger, MIXED, bound_regions=1, owner="cache.other")
    assert "no overflow to disk: no directory is given" in off.describe()
    off.close()
