"""`--raise` on recorded trees: what it sets, what it reads back, and what it refuses by name."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from pinprobe.ledger.preflight.needs import Needs
from pinprobe.ledger.preflight.preflight import check_limits
from pinprobe.ledger.preflight.raise_failing import Raise, raise_failing
from pinprobe.probes.errors import CheckFailed
from pinprobe.probes.host_tree import HostTree
from pinprobe.probes.limits.raising import raise_pages_limit, refuse_a_running_kernel
from pinprobe.probes.limits.read_limits import read_limits
from tests.ledger.preflight.made_hosts import (
    AMD,
    GIB,
    MIB,
    NO_BOOK,
    TTM,
    buffer,
    checked,
    large_host,
    made_host,
    needs_from,
    needs_of_shipped,
)

_USED = 15_306_752


@pytest.fixture
def host(tmp_path: Path) -> HostTree:
    """256 GiB, half of which may be pinned."""
    return made_host(tmp_path, {**AMD, **large_host(256 * GIB)})


def raised(tree: HostTree, needs: Needs, target: int | None = None) -> dict[str, Raise]:
    limits = read_limits(tree)
    outcomes = raise_failing(tree, limits, check_limits(limits, needs, NO_BOOK, target), needs, target)
    return {each.name: each for each in outcomes}


def pages(tree: HostTree, name: str = TTM) -> int:
    return int(tree.path(name).read_text(encoding="utf-8"))


def test_ttm_is_raised_to_what_is_needed_beside_what_is_used(host: HostTree) -> None:
    needs = needs_of_shipped("expert-tiered-2x200k")
    assert checked(host, needs)["ttm pages_limit"].state.value == "error"
    outcome = raised(host, needs)["ttm pages_limit"]
    assert outcome.raised is not None
    assert outcome.raised.old_bytes == 128 * GIB
    assert outcome.raised.new_bytes == pages(host) * 4096
    need = checked(host, needs)["ttm pages_limit"].need_bytes or 0
    assert need + _USED <= pages(host) * 4096 < need + _USED + MIB
    assert checked(host, needs)["ttm pages_limit"].state.value == "ok"


def test_ttm_is_raised_to_a_target_that_was_given(host: HostTree) -> None:
    raised(host, needs_of_shipped("expert-tiered-2x200k"), 204_800 * MIB)
    assert pages(host) == 52_428_800


def test_a_target_below_the_need_does_not_hold_it_back(host: HostTree) -> None:
    raised(host, needs_of_shipped("expert-tiered-2x200k"), 130_000 * MIB)
    assert pages(host) * 4096 >= 148_920 * MIB


def test_without_a_config_only_a_target_raises_ttm(host: HostTree) -> None:
    assert "ttm pages_limit" not in raised(host, Needs())
    assert pages(host) == 33_554_432
    raised(host, Needs(), 200 * GIB)
    assert pages(host) == 200 * GIB // 4096


def test_what_is_enough_is_left_as_it_is(host: HostTree, tmp_path: Path) -> None:
    assert raised(host, needs_from(tmp_path, buffer("1 GiB", "torch"))) == {}
    assert pages(host) == 33_554_432
    with pytest.raises(CheckFailed, match="which is enough"):
        raise_pages_limit(host, "ttm", GIB)


def test_the_module_that_the_driver_goes_by_is_the_one_that_is_raised(tmp_path: Path) -> None:
    other = "/sys/module/amdttm/parameters/pages_limit"
    tree = made_host(tmp_path, {**AMD, **large_host(256 * GIB), other: "33554432\n"})
    raised(tree, needs_of_shipped("expert-tiered-2x200k"), 204_800 * MIB)
    assert (pages(tree), pages(tree, other)) == (33_554_432, 52_428_800)


def test_more_than_the_host_has_is_refused_by_name(host: HostTree, tmp_path: Path) -> None:
    outcome = raised(host, needs_from(tmp_path, buffer("300 GiB", "torch")))["ttm pages_limit"]
    assert outcome.raised is None
    assert outcome.refusal.startswith("ttm pages_limit is not raised to 307,215 MiB: the host has 262,144 MiB in all")
    assert pages(host) == 33_554_432


def test_what_nobody_here_sets_is_refused_by_name_with_what_would(tmp_path: Path) -> None:
    outcomes = raised(made_host(tmp_path, {}), needs_from(tmp_path, buffer("400 MiB", "pageable")))
    refusal = outcomes["cgroup v2"].refusal
    assert refusal.startswith("cgroup v2 is not raised: preflight sets only TTM's pages_limit and RLIMIT_MEMLOCK; ")
    assert "systemctl set-property b.service" in refusal


def test_the_memlock_of_a_recorded_process_is_not_this_ones_to_raise(tmp_path: Path) -> None:
    outcome = raised(made_host(tmp_path, {}), needs_from(tmp_path, buffer("12 MiB", "mlock")))["RLIMIT_MEMLOCK"]
    assert outcome.raised is None
    assert "this process's own" in outcome.refusal


# No file is written that is not the recorded tree's own.


def test_a_link_out_of_the_tree_is_not_written_through(host: HostTree, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("33554432\n", encoding="utf-8")
    host.path(TTM).unlink()
    host.path(TTM).symlink_to(outside)
    with pytest.raises(CheckFailed, match="lies outside of the tree"):
        raise_pages_limit(host, "ttm", 200 * GIB)
    assert outside.read_text(encoding="utf-8") == "33554432\n"


def test_a_running_kernels_files_are_refused_wherever_they_are_seen() -> None:
    # A tree that is /sys itself: what lies below it belongs to the kernel that runs.
    with pytest.raises(CheckFailed, match=r"it is a running kernel's \(sysfs\), and --root only reads"):
        refuse_a_running_kernel(HostTree(Path("/sys")), Path("/sys/module"), "ttm pages_limit")
    with pytest.raises(CheckFailed, match="lies outside of the tree"):
        refuse_a_running_kernel(HostTree(Path("/proc/self/root")), Path("/proc/self/root/tmp"), "ttm pages_limit")


def test_a_limit_that_is_not_there_is_never_made(tmp_path: Path) -> None:
    tree = made_host(tmp_path, {})
    with pytest.raises(CheckFailed, match="ttm pages_limit is not raised: it is unreadable"):
        raise_pages_limit(tree, "ttm", GIB)
    assert not tree.path(TTM).exists()


@pytest.fixture
def open_host(tmp_path: Path) -> Iterator[HostTree]:
    """The same host where other users can look, as pytest's own folder is not."""
    with tempfile.TemporaryDirectory() as name:
        tree = made_host(tmp_path, {**AMD, **large_host(256 * GIB)})
        shutil.copytree(tree.root, Path(name) / "host")
        Path(name).chmod(0o755)
        yield replace(tree, root=Path(name) / "host")


def test_who_may_not_write_is_told_the_command_for_root(open_host: HostTree) -> None:
    open_host.path(TTM).chmod(0o444)
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(65534)
    try:
        with pytest.raises(CheckFailed) as failure:
            raise_pages_limit(open_host, "ttm", 200 * GIB)
    finally:
        if is_root:
            os.seteuid(0)
    assert "Permission denied" in str(failure.value)
    assert str(failure.value).endswith(f"as root: echo 52428800 | sudo tee {TTM}")
    assert pages(open_host) == 33_554_432
