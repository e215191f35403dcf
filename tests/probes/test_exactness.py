"""Which counter is exact is found by touching pages: real counters, and fakes that lag as kernels do."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from pinprobe.probes.counters import read_counters, read_smaps_rollup, read_statm
from pinprobe.probes.exactness import counter_error_bytes, find_exactness, moves_by_a_page
from pinprobe.probes.host_tree import THIS_HOST, HostTree
from pinprobe.probes.reading import Amount, Reading, Unreadable

PAGE = THIS_HOST.page_size_bytes


class CountedPerCpu:
    """Reads this process as a kernel does that keeps its counters per CPU: in whole batches of 32 pages."""

    def __call__(self) -> Amount:
        exact = read_statm(THIS_HOST)
        return Reading(exact.bytes // (32 * PAGE) * (32 * PAGE), "batched") if isinstance(exact, Reading) else exact


class CountedPerThread:
    """Reads as a kernel before 6.2 does: what a thread touched is added up only at its 64th fault."""

    def __init__(self) -> None:
        self.reads = 0

    def __call__(self) -> Amount:
        self.reads += 1
        return Reading(self.reads // 64 * 64 * PAGE, "late")


class Scripted:
    """Moves by the given amounts, one between the two reads around each touched page."""

    def __init__(self, moves: list[int]) -> None:
        self.shown = [0]
        for move in moves:
            self.shown += [self.shown[-1], self.shown[-1] + move]

    def __call__(self) -> Amount:
        return Reading(self.shown.pop(0), "scripted")


@pytest.mark.parametrize("lagging", [CountedPerCpu(), CountedPerThread()], ids=lambda fake: type(fake).__name__)
def test_a_counter_that_lags_is_found_inexact(lagging: Callable[[], Amount]) -> None:
    assert not moves_by_a_page(lagging, PAGE)


@pytest.mark.parametrize(
    ("moves", "exact"),
    [
        ([PAGE] * 8, True),
        ([PAGE] * 5 + [2 * PAGE] * 3, True),  # the interpreter took a page of its own three times
        ([PAGE] * 4 + [0] * 4, False),  # half is a guess, and no finding
        ([0] * 8, False),
        ([-PAGE] * 8, False),
        ([2 * PAGE] * 8, False),
        ([8 * PAGE] + [0] * 7, False),  # right in sum and wrong in each
    ],
)
def test_most_of_the_pages_have_to_be_seen_each_as_one_page(moves: list[int], exact: bool) -> None:
    assert moves_by_a_page(Scripted(moves), PAGE) is exact


def test_a_counter_that_cannot_be_read_is_not_exact() -> None:
    assert not moves_by_a_page(lambda: Unreadable("no such line"), PAGE)


@pytest.mark.parametrize("host", ["gpu_process", "old_kernel", "pages_64k", "sandbox_gvisor"])
def test_in_a_saved_host_nothing_moves_and_nothing_is_exact(host: str, saved_host: Callable[[str], HostTree]) -> None:
    found = find_exactness(saved_host(host))
    assert (found.status, found.statm, found.smaps_rollup) == (False, False, False)
    assert found.error_bytes > 0


@pytest.mark.parametrize(("host", "page_bytes"), [("old_kernel", 4096), ("pages_64k", 65536)])
def test_kernels_before_6_2_do_not_show_one_touched_page_and_the_page_table_walk_does(
    host: str,
    page_bytes: int,
    saved_host: Callable[[str], HostTree],
    changed_host: Callable[[str, dict[str, str]], HostTree],
) -> None:
    before = saved_host(host)
    texts = {}
    for name in ("status", "statm", "smaps_rollup"):
        later = before.text(f"/proc/self/{name}_after_one_page")
        assert isinstance(later, str)
        texts[f"/proc/self/{name}"] = later
    after = changed_host(host, texts)
    assert read_counters(after)["RssAnon"] == read_counters(before)["RssAnon"]
    assert read_statm(after) == read_statm(before)
    assert read_smaps_rollup(after) - read_smaps_rollup(before) == Reading(page_bytes, "smaps_rollup Rss")


@pytest.mark.parametrize(
    ("cpu_count", "error_bytes"),
    [
        (1, 128 * 2**10),
        (2, 256 * 2**10),
        (16, 2 * 2**20),
        (17, 2_367_488),
        (64, 32 * 2**20),
        (128, 128 * 2**20),
        (256, 2**29),
    ],
)
def test_the_error_bar_is_the_kernels_batch_on_every_cpu(cpu_count: int, error_bytes: int) -> None:
    assert counter_error_bytes(cpu_count, 4096) == error_bytes


def test_the_error_bar_counts_in_pages() -> None:
    assert counter_error_bytes(2, 65536) == 4 * 2**20


# From here on this process reads itself.


def test_there_is_an_error_bar_where_status_is_not_exact_and_only_there() -> None:
    found = find_exactness(THIS_HOST)
    bar = counter_error_bytes(os.cpu_count() or 1, PAGE)
    assert found.error_bytes == (0 if found.status else bar)


def test_the_page_table_walk_is_exact_on_every_kernel() -> None:
    if not Path("/proc/self/smaps_rollup").exists():
        pytest.skip("this kernel has no smaps_rollup")
    assert find_exactness(THIS_HOST).smaps_rollup


def test_status_and_statm_are_found_exact_on_a_kernel_that_sums_on_read() -> None:
    release = re.match(r"(\d+)\.(\d+)", os.uname().release)
    if release is None or (int(release[1]), int(release[2])) < (6, 16):
        pytest.skip("only since Linux 6.16 is it known that both are summed exactly")
    found = find_exactness(THIS_HOST)
    assert (found.status, found.statm, found.error_bytes) == (True, True, 0)
