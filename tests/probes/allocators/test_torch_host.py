"""torch's allocator beyond the contract: its own account, forks, guards, what it says of locking and of settings."""

from __future__ import annotations

import contextlib
import ctypes
import os
import pickle
import resource
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from pinprobe.probes.allocators import torch_host as torch_host_module
from pinprobe.probes.allocators.allocator import Allocator
from pinprobe.probes.allocators.torch_host import TorchHost
from pinprobe.probes.allocators.torch_host_build import TRIED_RELEASES
from pinprobe.probes.errors import AllocationFailed, AllocatorUnavailable, PinprobeError
from pinprobe.probes.installed_torch import InstalledTorch, find_installed_torch
from pinprobe.probes.measuring_child import MeasuringChild
from pinprobe.probes.reading import Reading
from tests.probes.allocators.fresh_process import in_fresh_process, run_to_its_end
from tests.probes.allocators.kernel_word import (
    MIB,
    PAGE_BYTES,
    block_bytes,
    counter_bar_bytes,
    counter_bytes,
    mapping_ends,
    may_lock,
    smaps_bytes,
    take,
)

_ASKED_BYTES = 3_000_000
_BACKGROUND = {"PYTORCH_ALLOC_CONF": "pinned_use_background_threads:True"}


def _account_beside_the_kernel(allocator: TorchHost) -> list[tuple[int, int]]:
    """The bytes of all blocks after each step: by the allocator, and by the kernel."""
    before = counter_bytes("RssShmem")
    seen = []
    live = []
    for asked in (PAGE_BYTES, 100_000, _ASKED_BYTES, 5 * MIB, 16 * MIB):
        live.append(allocator.allocate(asked))
        seen.append((allocator.allocated_bytes(), counter_bytes("RssShmem") - before))
    for allocation in live[:3]:
        allocation.release()
        seen.append((allocator.allocated_bytes(), counter_bytes("RssShmem") - before))
    allocator.empty_cache()
    seen.append((allocator.allocated_bytes(), counter_bytes("RssShmem") - before))
    for allocation in live:
        allocation.release()
    allocator.empty_cache()
    seen.append((allocator.allocated_bytes(), counter_bytes("RssShmem") - before))
    return seen


def test_its_own_account_agrees_with_the_kernels(torch_host: Allocator) -> None:
    seen = in_fresh_process(_account_beside_the_kernel, torch_host)
    assert all(abs(account - kernel) <= 2 * counter_bar_bytes() for account, kernel in seen), seen
    assert [account for account, _ in seen][-2:] == [24 * MIB, 0]


# Forks. A forked child may hold the allocator's mutexes for ever, and keeps whatever it inherits resident.


def _in_forked_child(work: Callable[[], str]) -> str:
    """What the work says in a forked child; `SIGALRM` where it hung."""
    readable, writable = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.alarm(20)
        os.write(writable, work().encode())
        os._exit(0)
    os.close(writable)
    with os.fdopen(readable) as pipe:
        said = pipe.read()
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    return said if code == 0 else signal.Signals(-code).name


def _each_call_in_a_forked_child(allocator: TorchHost) -> list[str]:
    held = allocator.allocate(_ASKED_BYTES)
    calls: list[Callable[[], object]] = [
        lambda: allocator.allocate(_ASKED_BYTES),
        held.release,
        allocator.empty_cache,
        allocator.allocated_bytes,
    ]

    def said(call: Callable[[], object]) -> str:
        try:
            return f"it answered {call()!r}"
        except AllocationFailed as failure:
            return str(failure)

    answers = [_in_forked_child(lambda call=call: said(call)) for call in calls]  # type: ignore[misc]
    held.release()  # the parent's own block is none the worse for it
    return answers


@pytest.mark.parametrize("settings", [{}, _BACKGROUND], ids=["plain", "background threads"])
def test_a_forked_child_is_refused_in_one_line_and_does_not_hang(
    torch_host: Allocator, settings: dict[str, str]
) -> None:
    answers = in_fresh_process(_each_call_in_a_forked_child, torch_host, settings=settings)
    assert len(answers) == 4
    for answer in answers:
        assert "can't be used in a forked child; start a fresh process" in answer
        assert "\n" not in answer


def _what_a_forked_child_inherits(allocator: Allocator) -> tuple[str, str]:
    allocation, taken = take(allocator, 16 * MIB)
    inherited = _in_forked_child(lambda: f"{block_bytes(taken.address)} {counter_bytes('RssShmem')}")
    allocation.release()
    allocator.empty_cache()
    return inherited, _in_forked_child(lambda: f"{block_bytes(taken.address)} {counter_bytes('RssShmem')}")


def test_a_forked_child_does_not_keep_a_block_that_its_parent_frees(torch_host: Allocator) -> None:
    for inherited in in_fresh_process(_what_a_forked_child_inherits, torch_host):
        block, resident = map(int, inherited.split())
        assert block == 0, "the block is mapped in the child"
        assert resident <= counter_bar_bytes()


# Guards.


def _write_at(allocator: Allocator, asked_bytes: int, offset: int) -> None:
    allocation = allocator.allocate(asked_bytes)
    place = offset if offset < 0 else block_bytes(allocation.address) - 1 + offset
    ctypes.memset(allocation.address + place, 1, 1)


@pytest.mark.parametrize("asked_bytes", [PAGE_BYTES, _ASKED_BYTES])
def test_the_last_byte_of_a_block_can_be_written_and_its_neighbours_are_a_fault(
    torch_host: Allocator, asked_bytes: int
) -> None:
    endings = [run_to_its_end(_write_at, torch_host, asked_bytes, offset).code for offset in (0, 1, -1)]
    assert endings == [0, -signal.SIGSEGV, -signal.SIGSEGV]


# Locked or touched.


@dataclass(frozen=True)
class _Held:
    note: str
    block_bytes: int
    resident_bytes: int
    locked_bytes: int


def _held(allocator: Allocator, limit_bytes: int | None) -> _Held | None:
    """Hold one block where mlock is allowed, or not; None where the right to lock can't be given up."""
    allocator.allocate(1).release()  # load the library while its folder may still be read
    if limit_bytes is not None:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (limit_bytes, limit_bytes))
        if os.geteuid() == 0:
            with contextlib.suppress(OSError):  # a namespace that maps root alone; there the limit binds anyway
                os.setresuid(65534, 65534, 65534)
        if may_lock(_ASKED_BYTES):
            return None
    allocation = allocator.allocate(_ASKED_BYTES)
    address = allocation.address
    return _Held(allocation.note, block_bytes(address), smaps_bytes(address, "Rss"), smaps_bytes(address, "Locked"))


def test_a_block_that_is_called_locked_is_locked(torch_host: Allocator) -> None:
    held = in_fresh_process(_held, torch_host, None)
    assert held is not None
    if held.note != "locked":
        pytest.skip("mlock of 4 MiB is refused here")
    assert held == _Held("locked", 4 * MIB, 4 * MIB, 4 * MIB)


@pytest.mark.parametrize("limit_bytes", [0, 64 * 1024])
def test_where_mlock_is_refused_a_block_is_called_touched_and_is_resident(
    torch_host: Allocator, limit_bytes: int
) -> None:
    held = in_fresh_process(_held, torch_host, limit_bytes)
    if held is None:
        pytest.skip("the right to lock memory can't be given up here")
    assert held == _Held("touched, since mlock was refused", 4 * MIB, 4 * MIB, 0)


# Settings.


def _notes(allocator: Allocator) -> tuple[str, ...]:
    with MeasuringChild(allocator) as child:
        return child.notes


def test_without_settings_there_is_nothing_to_note(torch_host: Allocator) -> None:
    if _installed_torch().release not in TRIED_RELEASES:
        pytest.skip("an untried torch has its own note")
    assert _notes(torch_host) == ()


def test_a_setting_that_the_common_allocator_reads_is_in_force(
    torch_host: Allocator, monkeypatch: pytest.MonkeyPatch
) -> None:
    _need_settings_of_2_13()
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "pinned_max_round_threshold_mb:1, pinned_max_cached_size_mb:1")
    with MeasuringChild(torch_host) as child:
        notes, block = child.notes, child.measure(3 * MIB).block
    assert "setting in force: pinned_max_round_threshold_mb:1" in notes
    assert "setting in force: pinned_max_cached_size_mb:1" in notes
    # And the note is true: without the settings this is a block of 4 MiB.
    assert isinstance(block, Reading)
    assert block.bytes == 3 * MIB


@pytest.mark.parametrize(
    "setting", ["pinned_use_cuda_host_register:True", "pinned_reserve_segment_size_mb:64", "pinned_max_cached_size:1"]
)
def test_a_setting_of_cudas_allocator_or_a_misspelt_one_is_named_as_not_reproduced(
    torch_host: Allocator, monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", setting)
    notes = [note for note in _notes(torch_host) if setting in note]
    assert [note.startswith("setting not reproduced here: ") for note in notes] == [True]


def test_settings_that_are_not_about_pinned_memory_are_no_concern(
    torch_host: Allocator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "max_split_size_mb:128,roundup_power2_divisions:[256:1,512:2,>:4]")
    assert not [note for note in _notes(torch_host) if "setting" in note]


def test_of_two_variables_the_one_with_cuda_in_its_name_wins(
    torch_host: Allocator, monkeypatch: pytest.MonkeyPatch
) -> None:
    _need_settings_of_2_13()
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "pinned_max_round_threshold_mb:7")
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "pinned_max_cached_size_mb:3")
    settings = [note for note in _notes(torch_host) if "setting" in note]
    assert settings == ["setting in force: pinned_max_cached_size_mb:3"]


@pytest.mark.parametrize("setting", ["pinned_use_background_threads:maybe", "nonsense", "pinned_max_cached_size_mb:x"])
def test_an_invalid_setting_is_one_line_that_names_the_variable(
    torch_host: Allocator, monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    _need_settings_of_2_13()
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", setting)
    with pytest.raises(AllocatorUnavailable) as caught:
        _notes(torch_host)
    message = str(caught.value)
    assert "\n" not in message
    assert "PYTORCH_ALLOC_CONF" in message


def _use_and_go(allocator: Allocator) -> None:
    for _ in range(20):
        allocator.allocate(_ASKED_BYTES).release()
    # The interpreter's own way out, with destructors and threads, which a measuring process does not take.
    sys.exit(0)


def test_with_background_threads_a_process_ends_by_itself(torch_host: Allocator) -> None:
    ended = run_to_its_end(_use_and_go, torch_host, settings=_BACKGROUND, patience_seconds=30)
    assert ended.code == 0, ended.stderr


def test_with_background_threads_a_measuring_process_measures_the_same(
    torch_host: Allocator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", _BACKGROUND["PYTORCH_ALLOC_CONF"])
    with MeasuringChild(torch_host) as child:
        first = child.measure(_ASKED_BYTES)
        child.release()
        again = child.measure(_ASKED_BYTES)
    assert isinstance(first.resident, Reading)
    assert isinstance(again.resident, Reading)
    assert first.resident.within(4 * MIB)
    assert again.resident.within(0)
    assert again.address == first.address


# The limit that a sweep sets, and what is left of a failure.


def test_a_block_beyond_the_limit_is_refused_by_the_kernel_though_the_ask_is_below_it(torch_host: Allocator) -> None:
    with MeasuringChild(torch_host) as child:
        before = counter_bytes("VmRSS", child.pid)
        with pytest.raises(AllocationFailed, match=r"block of 67108864 bytes failed") as caught:
            child.measure(33 * MIB, 48 * MIB)
        assert caught.value.no_address_space
        assert counter_bytes("VmRSS", child.pid) - before < MIB
        assert child.measure(8 * MIB, 48 * MIB).asked_bytes == 8 * MIB


def test_a_request_of_nothing_is_an_error_in_words(torch_host: Allocator) -> None:
    with MeasuringChild(torch_host) as child, pytest.raises(AllocationFailed) as caught:
        child.measure(0)
    assert "map::at" not in str(caught.value)


def test_a_loaded_library_does_not_travel_with_the_pickled_allocator(torch_host: Allocator) -> None:
    assert isinstance(torch_host, TorchHost)
    torch_host.allocate(1).release()
    torch_host.empty_cache()
    assert vars(pickle.loads(pickle.dumps(torch_host))).keys() == {"_path"}


def test_a_library_that_is_gone_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(AllocatorUnavailable, match=r"can't be loaded.*; `pinprobe cache clear`") as caught:
        TorchHost(tmp_path / "gone.so").notes()
    assert "\n" not in str(caught.value)


def test_a_library_that_is_gone_reaches_the_parent_as_that_error(tmp_path: Path) -> None:
    with pytest.raises(PinprobeError, match="can't be loaded"):
        MeasuringChild(TorchHost(tmp_path / "gone.so"))


def test_a_torch_that_was_never_tried_is_named(torch_host: Allocator, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = _installed_torch()
    monkeypatch.setattr(
        torch_host_module, "find_installed_torch", lambda: InstalledTorch("2.99.1+cu999", installed.folder)
    )
    assert [note for note in torch_host.notes() if "2.99.1+cu999" in note and "tested" in note]


def _installed_torch() -> InstalledTorch:
    found = find_installed_torch()
    assert isinstance(found, InstalledTorch)
    return found


def _need_settings_of_2_13() -> None:
    if _installed_torch().release < (2, 13):
        pytest.skip(f"torch {_installed_torch().version} does not read these settings")


def test_no_block_of_these_tests_is_left_in_this_process(torch_host: Allocator) -> None:
    torch_host.empty_cache()
    allocation, taken = take(torch_host, _ASKED_BYTES)
    allocation.release()
    torch_host.empty_cache()
    assert taken.address not in mapping_ends()
