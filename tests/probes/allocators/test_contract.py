"""One contract, run on every allocator: ours, and one from outside."""

from __future__ import annotations

import ctypes
import importlib
import itertools
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from pinprobe.probes.allocators.allocator import Allocation, Allocator
from pinprobe.probes.allocators.registry import allocator_names, prepare_allocator
from pinprobe.probes.errors import AllocatorUnavailable
from tests.probes.allocators.conftest import EXAMPLES
from tests.probes.allocators.contract import TERMS, reserved_and_then_refused_without_a_trace
from tests.probes.allocators.fresh_process import in_fresh_process
from tests.probes.allocators.kernel_word import MIB, block_bytes, counter_bytes, mapping_ends, smaps_bytes, whole_pages

OURS = ("pageable", "mlock", "torch-host")
NAMES = (*OURS, "memfd")
# All that lives at once stays below the 8 MiB that a shell without rights may lock.
ROOM_BYTES = 7 * MIB


def test_every_allocator_that_needs_no_accelerator_is_under_the_contract() -> None:
    if any(Path(device).exists() for device in ("/dev/nvidiactl", "/dev/kfd", "/dev/dri/renderD128", "/dev/dxg")):
        pytest.skip("an accelerator is here, and what needs one has tests of its own")
    for name in set(allocator_names()) - set(NAMES):
        with pytest.raises(AllocatorUnavailable):
            prepare_allocator(name, 4096)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("term", TERMS, ids=lambda term: str(term.__name__))
def test_the_contract(prepared: Callable[..., Allocator], name: str, term: Callable[[Allocator], None]) -> None:
    in_fresh_process(term, prepared(name))


@pytest.mark.parametrize("name", OURS)
def test_a_request_refused_half_way_leaves_nothing(prepared: Callable[..., Allocator], name: str) -> None:
    if Path("/proc/sys/vm/overcommit_memory").read_text().strip() == "1":
        pytest.skip("this kernel is set to refuse nothing (overcommit_memory is 1)")
    in_fresh_process(reserved_and_then_refused_without_a_trace, prepared(name))


@dataclass
class _Live:
    allocation: Allocation
    asked_bytes: int
    value: int

    def fill(self, value: int) -> None:
        self.value = value
        ctypes.memset(self.allocation.address, value, self.asked_bytes)


class _Model(RuleBasedStateMachine):
    """Live allocations as a list: what was asked, and the byte that each is filled with."""

    allocator: Allocator

    def __init__(self) -> None:
        super().__init__()
        self.allocator.empty_cache()
        self.counter_before = counter_bytes(self.allocator.counter)
        self.live: list[_Live] = []
        self.addresses: set[int] = set()

    def room_bytes(self) -> int:
        return ROOM_BYTES - sum(whole_pages(live.asked_bytes) for live in self.live)

    @precondition(lambda self: self.room_bytes() > 0)
    @rule(data=st.data(), value=st.integers(1, 255))
    def allocate(self, data: st.DataObject, value: int) -> None:
        asked = data.draw(st.integers(1, min(self.room_bytes(), 64 * 1024)) | st.integers(1, self.room_bytes()))
        live = _Live(self.allocator.allocate(asked), asked, value)
        live.fill(value)
        self.live.append(live)
        self.addresses.add(live.allocation.address)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), value=st.integers(1, 255))
    def write(self, data: st.DataObject, value: int) -> None:
        data.draw(st.sampled_from(self.live)).fill(value)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), times=st.integers(1, 2))
    def release(self, data: st.DataObject, times: int) -> None:
        live = self.live.pop(data.draw(st.integers(0, len(self.live) - 1)))
        for _ in range(times):
            live.allocation.release()

    @rule()
    def empty_cache(self) -> None:
        self.allocator.empty_cache()

    @invariant()
    def live_allocations_do_not_overlap(self) -> None:
        spans = sorted((live.allocation.address, live.allocation.address + live.asked_bytes) for live in self.live)
        for (_, end), (start, _) in itertools.pairwise(spans):
            assert end <= start

    @invariant()
    def each_lies_within_one_mapping(self) -> None:
        for live in self.live:
            assert block_bytes(live.allocation.address) >= live.asked_bytes

    @invariant()
    def each_holds_what_was_written_into_it(self) -> None:
        for live in self.live:
            assert ctypes.string_at(live.allocation.address, live.asked_bytes) == bytes([live.value]) * live.asked_bytes

    @invariant()
    def every_live_ask_is_resident(self) -> None:
        for live in self.live:
            assert smaps_bytes(live.allocation.address, "Rss") >= live.asked_bytes
        # RssAnon counts this interpreter's heap too, which shrinks by megabytes now and then: it is no witness here.
        if self.allocator.counter == "RssShmem":
            grown = counter_bytes("RssShmem") - self.counter_before
            assert grown >= sum(live.asked_bytes for live in self.live)

    def teardown(self) -> None:
        for live in self.live:
            live.allocation.release()
        self.allocator.empty_cache()
        assert not self.addresses & mapping_ends().keys()
        if self.allocator.counter == "RssShmem":
            assert counter_bytes("RssShmem") == self.counter_before


@pytest.mark.parametrize("name", NAMES)
def test_any_order_of_calls_keeps_live_memory_apart_and_intact(prepared: Callable[..., Allocator], name: str) -> None:
    machine = type("Machine", (_Model,), {"allocator": prepared(name)})
    run_state_machine_as_test(
        machine, settings=settings(max_examples=8, stateful_step_count=12, deadline=None, database=None)
    )


@pytest.fixture
def with_memfd_registered(tmp_path: Path) -> dict[str, str]:
    """The environment of a user who installed the example as a package of its own."""
    folder = tmp_path / "memfd_allocator-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: memfd-allocator\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text("[pinprobe.allocators]\nmemfd = memfd_allocator:Memfd\n")
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(EXAMPLES), *sys.path])}


def _pinprobe(*arguments: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pinprobe", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


def test_an_allocator_registered_by_its_entry_point_is_measured_like_our_own(
    with_memfd_registered: dict[str, str],
) -> None:
    done = _pinprobe("probe", "--allocator", "memfd", "--bytes", "3000000", environment=with_memfd_registered)
    assert done.returncode == 0, done.stderr
    assert "memfd takes what is asked, to the page" in " ".join(done.stdout.split())
    assert "RssShmem" in done.stdout


def test_an_allocator_registered_by_its_entry_point_is_listed(with_memfd_registered: dict[str, str]) -> None:
    done = _pinprobe("allocators", "--bytes", "4096", environment=with_memfd_registered)
    assert done.returncode == 0, done.stderr
    assert [line.split() for line in done.stdout.splitlines() if line.startswith("memfd")] == [["memfd", "ready"]]


def test_the_example_tells_the_entry_point_that_the_tests_above_register() -> None:
    text = importlib.import_module("memfd_allocator").__doc__
    assert text is not None
    assert "    pinprobe.allocators =\n        memfd = memfd_allocator:Memfd\n" in text
