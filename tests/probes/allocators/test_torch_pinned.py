"""`torch` and `cupy`: without an accelerator a reason in one line, with one the kernel's word on what they take."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest

from pinprobe.probes.allocators.allocator import Allocator
from pinprobe.probes.allocators.cupy_pinned import CupyPinned
from pinprobe.probes.allocators.torch_pinned import TorchPinned
from pinprobe.probes.errors import AllocatorUnavailable
from pinprobe.probes.measuring_child import MeasuringChild
from pinprobe.probes.reading import Reading, Unreadable
from tests.probes.allocators.contract import TERMS
from tests.probes.allocators.fresh_process import in_fresh_process

MIB = 2**20
SLOT = 154_927_104
ON_A_GPU = ("torch", "registered", "registered-memfd", "registered-hugetlb", "cupy")


def test_without_torch_the_reason_and_what_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "pinprobe.probes.allocators.torch_pinned.find_installed_torch", lambda: Unreadable("torch is not installed")
    )
    with pytest.raises(AllocatorUnavailable, match=r"torch is not installed; `pip install"):
        TorchPinned.prepare(1)


def test_without_a_device_torch_is_not_even_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pinprobe.probes.allocators.torch_pinned._DEVICES", ("/nowhere/nvidiactl",))
    monkeypatch.setattr("subprocess.run", lambda *_, **__: pytest.fail("it started a process"))
    with pytest.raises(
        AllocatorUnavailable, match=r"looked for /nowhere/nvidiactl\); `--allocator torch-host`|not installed"
    ):
        TorchPinned.prepare(1)


def test_a_device_file_without_a_usable_accelerator_is_told_as_that(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch", exc_type=ImportError)
    monkeypatch.setattr("pinprobe.probes.allocators.torch_pinned._DEVICES", ("/dev/null",))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(AllocatorUnavailable, match="can't use an accelerator here"):
        TorchPinned.prepare(1)


def test_without_cupy_the_reason_and_what_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(AllocatorUnavailable, match="CuPy is not installed"):
        CupyPinned.prepare(1)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ON_A_GPU)
@pytest.mark.parametrize("term", TERMS, ids=lambda term: str(term.__name__))
def test_the_contract(prepared: Callable[..., Allocator], name: str, term: Callable[[Allocator], None]) -> None:
    in_fresh_process(term, prepared(name))


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("name", "counter"),
    [
        ("torch", "RssShmem"),
        ("registered", "RssAnon"),
        ("registered-memfd", "RssShmem"),
        ("registered-hugetlb", "HugetlbPages"),
    ],
)
def test_each_moves_its_own_counter_and_neither_vmlck_nor_vmpin(
    prepared: Callable[..., Allocator], name: str, counter: str
) -> None:
    with MeasuringChild(prepared(name, 256 * MIB)) as child:
        cost = child.measure(256 * MIB)
    assert cost.counter == counter
    for moved, expected in {counter: 256 * MIB, "VmLck": 0, "VmPin": 0}.items():
        amount = cost.counters[moved]
        assert isinstance(amount, Reading)
        assert abs(amount.bytes - expected) <= MIB
    if counter == "HugetlbPages":
        assert isinstance(cost.counters["VmRSS"], Reading)
        assert abs(cost.counters["VmRSS"].bytes) <= MIB


@pytest.mark.gpu
def test_torch_s_own_account_agrees_with_the_mapping(prepared: Callable[..., Allocator]) -> None:
    with MeasuringChild(prepared("torch", 16 * SLOT)) as child:
        cost = child.measure(16 * SLOT)
    assert isinstance(cost.block, Reading)
    assert cost.block.bytes == 4 * 2**30
    if isinstance(cost.block_by_allocator, Reading):
        assert cost.block_by_allocator.bytes == cost.block.bytes


def block_in_use_is_not_free(allocator: Allocator) -> None:
    """A block that a stream still reads is given back by its owner; the next request has to take a new one."""
    torch: Any = importlib.import_module("torch")

    from pinprobe.probes.host_tree import THIS_HOST
    from pinprobe.probes.measure import Measurer

    allocator.notes()
    measurer = Measurer(THIS_HOST)
    asked = 100 * MIB
    first, _ = measurer.measure(allocator, asked)
    device = torch.empty(asked, dtype=torch.uint8, device="cuda")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(4_000_000_000)  # some two seconds of device clocks
        device.copy_(first.tensor, non_blocking=True)  # type: ignore[attr-defined]
    first.release()
    second, cost = measurer.measure(allocator, asked)
    assert isinstance(cost.resident, Reading)
    assert cost.resident.bytes >= 128 * MIB, f"charged {cost.resident.bytes:,} B while the first block was in use"
    assert second.address != first.address
    torch.cuda.synchronize()
    second.release()
    _, again = measurer.measure(allocator, asked)
    assert isinstance(again.resident, Reading)
    assert again.resident.within(0)


@pytest.mark.gpu
def test_a_block_still_in_use_by_a_stream_is_not_counted_as_free(prepared: Callable[..., Allocator]) -> None:
    in_fresh_process(block_in_use_is_not_free, prepared("torch"))
