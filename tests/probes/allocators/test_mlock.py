"""mlock where it is allowed, where it is not, and whether its advice helps."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import resource
from collections.abc import Callable

import pytest

from pinprobe.probes.allocators.allocator import Allocator
from pinprobe.probes.allocators.mlock import Mlock
from pinprobe.probes.errors import AllocationFailed, AllocatorUnavailable
from pinprobe.probes.own_mapping import OwnMapping
from tests.probes.allocators.fresh_process import in_fresh_process
from tests.probes.allocators.kernel_word import (
    MIB,
    PAGE_BYTES,
    counter_bytes,
    mapping_count,
    may_lock,
    smaps_bytes,
    whole_pages,
)

_ODD_BYTES = 3_000_000
#: The interpreter may map memory for itself at any moment, to count mappings too; not each time.
_OFTEN = 5


def _without_rights(limits: tuple[int, int], then: Callable[[int], str], asked_bytes: int) -> str | None:
    """Do something under a limit that binds; None where this process can't give up its right to pass the limit."""
    resource.setrlimit(resource.RLIMIT_MEMLOCK, limits)
    if os.geteuid() == 0:
        with contextlib.suppress(OSError):  # a namespace that maps root alone; there the limit binds anyway
            os.setresuid(65534, 65534, 65534)
    if may_lock(limits[0] + 2 * PAGE_BYTES):
        return None
    return then(asked_bytes)


def _prepare(asked_bytes: int) -> str:
    before = counter_bytes("VmRSS"), counter_bytes("VmLck"), mapping_count()
    for _ in range(_OFTEN):
        try:
            Mlock.prepare(asked_bytes)
            said = "ready"
        except AllocatorUnavailable as error:
            said = str(error)
    after = counter_bytes("VmRSS"), counter_bytes("VmLck"), mapping_count()
    assert after[0] - before[0] < MIB, "asking took memory"
    assert after[1] == before[1], "asking kept something"
    assert after[2] - before[2] < _OFTEN, "asking kept something each time"
    return said


def _allocate(asked_bytes: int) -> str:
    before = counter_bytes("VmLck"), mapping_count()
    for _ in range(_OFTEN):
        try:
            Mlock().allocate(asked_bytes).release()
            said = "allocated"
        except AllocationFailed as error:
            said = str(error)
    assert counter_bytes("VmLck") == before[0], "a refused request kept something"
    assert mapping_count() - before[1] < _OFTEN, "a refused request kept something each time"
    return said


def _said(limits: tuple[int, int], then: Callable[[int], str], asked_bytes: int) -> str:
    """What is said under the limits. The 8 MiB that Linux gives by default are enough for each test here."""
    _, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if hard != resource.RLIM_INFINITY and hard < limits[1]:
        pytest.skip(f"the hard limit of {hard:,} B is below what this test sets")
    said = in_fresh_process(_without_rights, limits, then, asked_bytes)
    if said is None:
        pytest.skip("the right to lock beyond the limit can't be given up here")
    assert "\n" not in said
    return said


@pytest.mark.parametrize("then", [_prepare, _allocate])
@pytest.mark.parametrize("soft", [0, 64 * 1024])
def test_a_limit_that_binds_is_named_with_its_value_and_the_remedy(soft: int, then: Callable[[int], str]) -> None:
    said = _said((soft, 8 * MIB), then, 4 * MIB)
    value = "64.000 KiB" if soft else "0 B"
    assert f"mlock of 4.000 MiB is over RLIMIT_MEMLOCK, which is {value}" in said
    assert said.endswith("; `ulimit -l 4096` in this shell")


def test_a_hard_limit_that_binds_needs_root_to_lift_it() -> None:
    said = _said((64 * 1024, 64 * 1024), _prepare, 8 * MIB)
    assert "as root: `prlimit --pid $$ --memlock=8388608`" in said


@pytest.mark.parametrize("asked_bytes", [1, PAGE_BYTES, 1 * MIB - 1, 1 * MIB])
def test_what_fits_the_limit_is_ready_and_is_allocated(asked_bytes: int) -> None:
    assert _said((1 * MIB, 1 * MIB), _prepare, asked_bytes) == "ready"
    assert _said((1 * MIB, 1 * MIB), _allocate, asked_bytes) == "allocated"


@pytest.mark.parametrize("then", [_prepare, _allocate])
def test_one_byte_more_than_the_limit_does_not_fit(then: Callable[[int], str]) -> None:
    assert "is over RLIMIT_MEMLOCK" in _said((1 * MIB, 1 * MIB), then, 1 * MIB + 1)


# A request is rounded up to whole pages and a limit down, so that 3,000,000 B do not fit a limit of 3,000,000 B.


@pytest.mark.parametrize("then", [_prepare, _allocate])
def test_a_limit_that_binds_by_the_page_is_named_too(then: Callable[[int], str]) -> None:
    assert "is over RLIMIT_MEMLOCK" in _said((_ODD_BYTES, _ODD_BYTES), then, _ODD_BYTES)


@pytest.mark.parametrize("hard", [_ODD_BYTES // 2, 8 * MIB])
def test_the_remedy_when_followed_is_enough(hard: int) -> None:
    said = _said((64 * 1024, hard), _prepare, _ODD_BYTES)
    kibibytes = re.search(r"ulimit -l (\d+)", said)
    whole = re.search(r"--memlock=(\d+)", said)
    assert kibibytes or whole, said
    limit = int(kibibytes[1]) * 1024 if kibibytes else int(whole[1]) if whole else 0
    assert limit // PAGE_BYTES * PAGE_BYTES >= whole_pages(_ODD_BYTES), said


def test_memory_that_is_held_counts_against_the_limit_and_the_limit_is_named() -> None:
    said = _said((1 * MIB, 1 * MIB), _allocate_beside_another, 768 * 1024)
    assert "RLIMIT_MEMLOCK" in said


def _allocate_beside_another(asked_bytes: int) -> str:
    held = Mlock().allocate(asked_bytes)
    said = _allocate(asked_bytes)
    held.release()
    return said


def test_locked_memory_is_locked_from_its_first_to_its_last_page(prepared: Callable[..., Allocator]) -> None:
    assert in_fresh_process(_locked, prepared("mlock"), _ODD_BYTES) == [whole_pages(_ODD_BYTES)] * 3


def _locked(allocator: Allocator, asked_bytes: int) -> list[int]:
    before = counter_bytes("VmLck")
    allocation = allocator.allocate(asked_bytes)
    return [
        counter_bytes("VmLck") - before,
        smaps_bytes(allocation.address, "Locked"),
        smaps_bytes(allocation.address, "Rss"),
    ]


@pytest.mark.parametrize("code", [errno.EAGAIN, errno.ENOMEM])
def test_a_failure_that_is_not_the_limits_is_not_blamed_on_it(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    monkeypatch.setattr(OwnMapping, "lock", lambda mapping: code)
    monkeypatch.setattr(resource, "getrlimit", lambda which: (64 * MIB, 64 * MIB))
    with pytest.raises(AllocationFailed, match=re.escape(os.strerror(code))) as caught:
        Mlock().allocate(MIB)
    assert "RLIMIT_MEMLOCK" not in str(caught.value)


def test_more_than_any_address_space_is_unavailable_and_not_a_crash() -> None:
    with pytest.raises(AllocatorUnavailable, match=r"mmap of .* failed"):
        Mlock.prepare(2**56)
