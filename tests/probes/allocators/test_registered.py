"""Registered memory: where it may be cut, and that nothing is left of it when something fails.

The driver can't be had without a GPU. Here a double stands in for it that keeps the books a driver would keep; the
tests of the driver itself carry the marker `gpu`.
"""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinprobe.probes.allocators.registered import (
    CALL_CEILING_BYTES,
    Registered,
    RegisteredHugetlb,
    RegisteredMemfd,
    cut,
    register_whole,
)
from pinprobe.probes.errors import AllocationFailed, AllocatorUnavailable
from pinprobe.probes.own_mapping import OwnMapping

MIB = 2**20
GIB = 2**30
SLOT = 154_927_104
PAGE = 4096


class DriverDouble:
    """Keeps what is registered, refuses overlaps, and fails at its n-th call: a fake of the driver."""

    def __init__(self, fails_at: int | None = None) -> None:
        self.registered: dict[int, int] = {}
        self.calls = 0
        self.fails_at = fails_at

    def register(self, address: int, size_bytes: int) -> None:
        self.calls += 1
        if self.calls == self.fails_at:
            raise AllocationFailed("the double said no")
        assert all(address >= start + size or address + size_bytes <= start for start, size in self.registered.items())
        self.registered[address] = size_bytes

    def unregister(self, address: int) -> None:
        del self.registered[address]


def with_double(kind: type[Registered] = Registered, *, ceiling: int = CALL_CEILING_BYTES, fails_at: int | None = None):  # type: ignore[no-untyped-def]
    allocator, double = kind(ceiling), DriverDouble(fails_at)
    allocator._registrar = double
    return allocator, double


def mappings() -> int:
    return len(Path("/proc/self/maps").read_text(errors="replace").splitlines())


def test_what_one_call_takes_is_not_cut() -> None:
    assert cut(511 * GIB, None, CALL_CEILING_BYTES, PAGE) == [(0, 511 * GIB)]
    # 511.96 GiB passed in the field, 512.15 failed with an error about something else.
    assert len(cut(int(511.96 * GIB) // PAGE * PAGE, None, CALL_CEILING_BYTES, PAGE)) == 1


def test_beyond_the_ceiling_a_request_that_names_no_slot_is_refused_with_the_reason() -> None:
    with pytest.raises(AllocationFailed, match=r"less than 512\.000 GiB, and a copy across two registrations fails"):
        cut(int(512.15 * GIB), None, CALL_CEILING_BYTES, PAGE)


@pytest.mark.parametrize(
    ("slot", "why"), [(SLOT + 1, "end inside a page"), (600 * GIB, "one slot of 600.000 GiB is more")]
)
def test_a_slot_that_can_t_be_a_boundary_is_refused_by_name(slot: int, why: str) -> None:
    with pytest.raises(AllocationFailed, match=why):
        cut(700 * GIB, slot, CALL_CEILING_BYTES, PAGE)


@given(st.integers(1, 400), st.integers(1, 64), st.integers(2, 2000))
def test_pieces_cover_the_whole_below_the_ceiling_and_no_slot_is_cut(slots: int, slot_pages: int, ceiling: int) -> None:
    slot = slot_pages * PAGE
    ceiling_bytes = ceiling * PAGE
    if slot >= ceiling_bytes:
        return
    pieces = cut(slots * slot, slot, ceiling_bytes, PAGE)
    assert [offset for offset, _ in pieces] == [sum(size for _, size in pieces[:i]) for i in range(len(pieces))]
    assert sum(size for _, size in pieces) == slots * slot
    assert all(size < ceiling_bytes and size % slot == 0 for _, size in pieces)


@pytest.mark.parametrize("fails_at", [1, 2, 3])
def test_a_registration_that_fails_half_way_leaves_nothing_registered_and_nothing_mapped(fails_at: int) -> None:
    allocator, double = with_double(ceiling=3 * MIB)
    allocator.allocate(MIB, slot_bytes=MIB).release()  # threads and lazily loaded parts are there from here on
    double.calls, double.fails_at = 0, fails_at
    before = mappings()
    with pytest.raises(AllocationFailed, match="the double said no"):
        allocator.allocate(8 * MIB, slot_bytes=MIB)
    assert double.registered == {}
    assert mappings() == before


def test_a_failure_to_undo_does_not_hide_the_failure() -> None:
    class WorseDouble(DriverDouble):
        def unregister(self, address: int) -> None:
            raise AllocationFailed("and it can't be undone")

    with OwnMapping.anonymous(4 * MIB, huge_pages=False) as mapping, pytest.raises(AllocationFailed) as failure:
        register_whole(mapping, [(0, MIB), (MIB, MIB)], WorseDouble(fails_at=2))
    assert "the double said no" in str(failure.value)
    assert "can't be undone" in str(failure.value)


@pytest.mark.parametrize("kind", [Registered, RegisteredMemfd])
def test_release_unregisters_before_it_unmaps_and_may_be_called_twice(kind: type[Registered]) -> None:
    allocator, double = with_double(kind)
    memory = allocator.allocate(3 * MIB)
    assert list(double.registered.values()) == [3 * MIB]
    memory.release()
    memory.release()
    assert double.registered == {}


def test_a_tensor_and_its_views_keep_the_memory_and_the_last_of_them_lets_it_go() -> None:
    torch = pytest.importorskip("torch", exc_type=ImportError)
    allocator, double = with_double()
    tensor = allocator.allocate(3_000_000).tensor(3_000_000)
    view = tensor[1_000_000:2_000_000].view(torch.int32)
    tensor.fill_(7)
    del tensor
    gc.collect()
    assert double.registered
    assert int(view[0]) == 0x07070707
    del view
    gc.collect()
    assert double.registered == {}


def test_the_huge_page_pool_is_refused_with_the_count_that_is_missing() -> None:
    with pytest.raises(
        AllocatorUnavailable, match=r"[\d,]+ huge pages of 2 MiB are needed and [\d,]+ are free; .*nr_hugepages="
    ):
        RegisteredHugetlb.prepare(2**50)


@pytest.mark.gpu
class TestWithTheDriver:
    """What only a GPU can show."""

    @pytest.fixture
    def torch(self):  # type: ignore[no-untyped-def]
        torch = pytest.importorskip("torch", exc_type=ImportError)
        if not torch.cuda.is_available():
            pytest.skip("torch has no CUDA device here")
        torch.cuda.init()
        return torch

    @pytest.mark.parametrize("kind", [Registered, RegisteredMemfd])
    def test_its_tensors_are_pinned_and_stop_being_so(self, torch, kind) -> None:  # type: ignore[no-untyped-def]
        memory = kind().allocate(10 * MIB)
        assert memory.tensor(10 * MIB).is_pinned()
        assert not torch.empty(10, dtype=torch.uint8).is_pinned()

    def test_slots_on_every_side_of_every_cut_are_copied_whole(self, torch) -> None:  # type: ignore[no-untyped-def]
        allocator = Registered(ceiling_bytes=3 * SLOT + 1)
        memory = allocator.allocate(8 * SLOT, slot_bytes=SLOT)
        assert "3 calls" in memory.note
        assert self._copies(torch, memory.tensor(8 * SLOT)) == "all eight slots came back"

    def test_a_naive_cut_makes_the_copy_fail(self, torch, monkeypatch) -> None:  # type: ignore[no-untyped-def]
        # Pieces of 64 MiB, as one would cut without knowing of slots: the very test above then fails.
        piece = 64 * MIB

        def naive(size: int, *_: object) -> list[tuple[int, int]]:
            return [(offset, min(piece, size - offset)) for offset in range(0, size, piece)]

        monkeypatch.setattr("pinprobe.probes.allocators.registered.cut", naive)
        memory = Registered().allocate(8 * SLOT)
        with pytest.raises(RuntimeError):
            self._copies(torch, memory.tensor(8 * SLOT))

    @staticmethod
    def _copies(torch, host) -> str:  # type: ignore[no-untyped-def]
        generator = torch.Generator(device="cuda").manual_seed(7)
        device = torch.randint(0, 256, (SLOT,), dtype=torch.uint8, device="cuda", generator=generator)
        back = torch.empty_like(device)
        for index in range(8):
            slot = host[index * SLOT : (index + 1) * SLOT]
            slot.copy_(device, non_blocking=True)
            back.zero_()
            back.copy_(slot, non_blocking=True)
            torch.cuda.synchronize()
            assert torch.equal(back, device)
            assert torch.equal(slot, device.cpu())
        return "all eight slots came back"

    def test_a_bad_chunk_leaves_no_registration_no_mapping_and_no_sticky_error(  # type: ignore[no-untyped-def]
        self, torch, monkeypatch
    ) -> None:
        allocator = Registered(ceiling_bytes=2 * MIB + 1)
        allocator.allocate(2 * MIB, slot_bytes=2 * MIB).release()
        torch.zeros(10, device="cuda")
        before = mappings()

        def into_the_guard(size: int, *_: object) -> list[tuple[int, int]]:
            return [(0, 2 * MIB), (2 * MIB, 2 * MIB), (size, PAGE)]

        monkeypatch.setattr("pinprobe.probes.allocators.registered.cut", into_the_guard)
        with pytest.raises(AllocationFailed, match=r"CUDA_ERROR_[A-Z_]+ \(\d+\)"):
            allocator.allocate(8 * MIB, slot_bytes=2 * MIB)
        assert mappings() <= before
        # A sticky error would surface in the next call of the runtime, whatever that call is.
        assert int(torch.ones(10, device="cuda").sum().item()) == 10
        monkeypatch.undo()
        again = Registered().allocate(8 * MIB)
        assert again.tensor(8 * MIB).is_pinned()

    def test_registering_twice_is_refused_and_the_first_stays(self, torch) -> None:  # type: ignore[no-untyped-def]
        allocator = Registered()
        memory = allocator.allocate(4 * MIB)
        with pytest.raises(AllocationFailed, match="ALREADY_REGISTERED"):
            allocator._registrar.register(memory.address, 4 * MIB)
        assert memory.tensor(4 * MIB).is_pinned()
        assert int(torch.ones(3, device="cuda").sum().item()) == 3
