"""Memory that the tests of the ledger really take, and what they ask of the ledger about it.

Every size is small, and memory is asked of the kernel a second time, in the tests' own way.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import mmap
from collections.abc import Callable
from typing import Any

import pytest

from pinprobe.ledger.booking import Row, RowState
from pinprobe.ledger.ledger import HostPinnedLedger
from pinprobe.ledger.reservation import Reservation
from pinprobe.probes.allocators.allocator import Allocation, Allocator
from pinprobe.probes.allocators.registry import prepare_allocator
from pinprobe.probes.errors import AllocatorUnavailable
from pinprobe.probes.own_mapping import OwnMapping
from tests.probes.allocators.kernel_word import MIB

PAGE = mmap.PAGESIZE
#: What the interpreter takes for itself between two readings.
NOISE = 2 * MIB
#: Rounded up to a power of two, which is 4 MiB, by torch.
ODD = 3_000_000


class Opaque:
    """Memory that goes with its object and shows no address."""

    def __init__(self, size_bytes: int) -> None:
        self._memory = iter([written(mmap.mmap(-1, size_bytes))])


def written(memory: mmap.mmap) -> mmap.mmap:
    """The same memory, every page of it touched."""
    for start in range(0, len(memory), PAGE):
        memory[start] = 1
    return memory


def shared(size_bytes: int) -> mmap.mmap:
    return written(mmap.mmap(-1, size_bytes))


def address_of(memory: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def prepared(name: str, size_bytes: int = 64 * MIB) -> Allocator:
    try:
        return prepare_allocator(name, size_bytes).allocator
    except AllocatorUnavailable as error:
        pytest.skip(str(error))


def trim_the_heap() -> None:
    """Have malloc give back what it keeps for others, which the ledger can't tell from what they hold."""
    gc.collect()
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def owners(ledger: HostPinnedLedger) -> dict[str, int]:
    """What is booked for each owner that stands in the ledger, growth that nobody explains left out."""
    return {row.owner: row.booked_bytes for row in ledger.rows() if row.state is not RowState.UNATTRIBUTED}


def unexplained(ledger: HostPinnedLedger) -> int:
    """What no row explains, by the one of the two ways of asking that says more."""
    trim_the_heap()
    both = (ledger.rows(), ledger.verify().rows)
    return max(sum(row.booked_bytes for row in rows if row.state is RowState.UNATTRIBUTED) for rows in both)


def total(ledger: HostPinnedLedger) -> int:
    """All that is booked, by the one of the two ways of asking that says more."""
    trim_the_heap()
    return max(ledger.booked_bytes, ledger.verify().booked_bytes)


def verified(ledger: HostPinnedLedger, owner: str) -> Row:
    account = ledger.verify()
    assert account.holds, account.shortfalls
    (found,) = [row for row in account.rows if row.owner == owner]
    return found


def take(
    ledger: HostPinnedLedger, allocator: Allocator, asked_bytes: int, owner: str = "cache.ring"
) -> Reservation[Allocation]:
    """Reserve a block of an allocator, which its release gives back."""
    return ledger.reserve(
        owner, asked_bytes, lambda: allocator.allocate(asked_bytes), free=lambda block: block.release(),
        allocator=allocator.name,
    )  # fmt: skip


def never_called() -> object:
    raise AssertionError("memory was taken for a request that had to be refused")


def numpy_ones(size_bytes: int) -> Any:
    return pytest.importorskip("numpy").ones(size_bytes, dtype="u1")


def torch_ones(size_bytes: int) -> Any:
    torch = pytest.importorskip("torch")
    return torch.ones(size_bytes, dtype=torch.uint8)


KINDS: dict[str, Callable[[int], Any]] = {
    "mmap": shared,
    "memfd": lambda size: touched(OwnMapping.memfd(size)),
    "bytearray": lambda size: bytearray(b"\1") * size,
    "ctypes": lambda size: filled((ctypes.c_ubyte * size)()),
    "mlock": lambda size: prepared("mlock").allocate(size),
    "pageable": lambda size: prepared("pageable").allocate(size),
    "torch-host": lambda size: prepared("torch-host").allocate(size),
    "numpy": numpy_ones,
    "torch": torch_ones,
    "list": lambda size: [shared(size // 2), bytearray(b"\1") * (size - size // 2)],
    "dict": lambda size: {"k": torch_ones(size // 2), "v": (torch_ones(size - size // 2),)},
    "blocks in a list": lambda size: [prepared("mlock").allocate(size // 2) for _ in range(2)],
    "memory and its length": lambda size: (shared(size), size),
    "opaque": Opaque,
}


def filled(array: ctypes.Array[ctypes.c_ubyte]) -> ctypes.Array[ctypes.c_ubyte]:
    """The same array, written in place: a copy made for it could stay in the heap, resident and no one's."""
    ctypes.memset(array, 1, ctypes.sizeof(array))
    return array


def touched(memory: OwnMapping) -> OwnMapping:
    memory.write_every_page()
    return memory


def give_back(value: Any) -> None:
    """Free what does not go with its object."""
    for block in value if isinstance(value, list) else [value]:
        for name in ("release", "unmap"):
            getattr(block, name, lambda: None)()
