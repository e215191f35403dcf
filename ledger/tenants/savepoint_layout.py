"""Where each slab of a savepoint lies in a slot: one contiguous layout for the ring and for the pool.

A savepoint is one sequence's recurrent state: a row for each slab, a slab being one (layer, attribute) tensor. Slot and
region share the layout, so that a savepoint is copied by one memmove. Everything here follows from the slabs that are
given, and nothing from any model.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING

from pinprobe.ledger.tenants.torch_library import load_torch
from pinprobe.probes.errors import BadRequest, printable
from pinprobe.probes.units import LARGEST_SIZE_BYTES, format_bytes

if TYPE_CHECKING:
    import torch

#: Bytes of one item, by torch's own names of its types.
ITEM_BYTES = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1,
    "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1, "bool": 1,
}  # fmt: skip
#: Where slabs begin: a multiple of what every device's copy engine and every vector unit likes.
ALIGN_BYTES = 256
#: More of them than any model has.
MOST_SLABS = 65_536


@dataclass(frozen=True, slots=True)
class Slab:
    """One (layer, attribute) tensor's row for one sequence: its name, shape and torch's name of its type."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    def __post_init__(self) -> None:
        if self.dtype not in ITEM_BYTES:
            raise BadRequest(
                f"slab {printable(self.name)}: {self.dtype!r} is no type; known are {', '.join(ITEM_BYTES)}"
            )
        if not all(isinstance(size, int) and size > 0 for size in self.shape):
            raise BadRequest(f"slab {printable(self.name)}: the shape {self.shape} has a size that is not positive")

    @property
    def size_bytes(self) -> int:
        """The bytes of its row."""
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]


@dataclass(frozen=True)
class SavepointLayout:
    """The slabs of one row, in order, each beginning at a multiple of `align_bytes`.

    >>> layout = SavepointLayout.of_geometry(2, {"conv": ((3, 64), "bfloat16"), "state": ((4, 16, 16), "float32")})
    >>> len(layout.slabs), layout.row_bytes, layout.offsets
    (4, 9216, (0, 512, 4608, 5120))
    """

    slabs: tuple[Slab, ...]
    align_bytes: int = ALIGN_BYTES

    def __post_init__(self) -> None:
        if not self.slabs:
            raise BadRequest("a savepoint without a slab holds nothing: give it one slab or more")
        if len(self.slabs) > MOST_SLABS:
            raise BadRequest(f"{len(self.slabs):,} slabs are more than any model has ({MOST_SLABS:,})")
        if self.align_bytes < 1 or self.align_bytes & (self.align_bytes - 1):
            raise BadRequest(f"slabs can't be aligned to {self.align_bytes}: give a power of two")
        widest = max(ITEM_BYTES[slab.dtype] for slab in self.slabs)
        if self.align_bytes < widest:
            raise BadRequest(
                f"slabs aligned to {self.align_bytes} B would cut items of {widest} B; give {widest} or more"
            )
        seen: set[str] = set()
        for slab in self.slabs:
            if slab.name in seen:
                raise BadRequest(f"two slabs are called {printable(slab.name)}: each needs a name of its own")
            seen.add(slab.name)
        if self.row_bytes > LARGEST_SIZE_BYTES:
            raise BadRequest(f"a row of {format_bytes(self.row_bytes)} is more than any address space holds")

    @classmethod
    def of_geometry(
        cls, layer_count: int, attributes: Mapping[str, tuple[Sequence[int], str]], align_bytes: int = ALIGN_BYTES
    ) -> SavepointLayout:
        """Give every layer one slab for each attribute: `attributes` has (shape, dtype) by name."""
        if layer_count * len(attributes) > MOST_SLABS:
            raise BadRequest(
                f"{layer_count:,} layers of {len(attributes):,} attributes are more slabs than any model has"
            )
        slabs = (
            Slab(f"layers.{layer}.{name}", tuple(shape), dtype)
            for layer in range(layer_count)
            for name, (shape, dtype) in attributes.items()
        )
        return cls(tuple(slabs), align_bytes)

    @classmethod
    def of_tensors(cls, tensors: Mapping[str, torch.Tensor], align_bytes: int = ALIGN_BYTES) -> SavepointLayout:
        """Take the slabs from the tensors of one sequence, on any device."""
        slabs = (
            Slab(name, tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))
            for name, tensor in tensors.items()
        )
        return cls(tuple(slabs), align_bytes)

    @cached_property
    def _ends(self) -> tuple[int, ...]:
        return tuple(accumulate(self._padded(slab.size_bytes) for slab in self.slabs))

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """Where each slab begins in a row."""
        return (0, *self._ends[:-1])

    @property
    def row_bytes(self) -> int:
        """The bytes of one savepoint, whatever it covers; a multiple of the alignment."""
        return self._ends[-1]

    @property
    def payload_bytes(self) -> int:
        """The bytes of a row without what aligns its slabs."""
        return sum(slab.size_bytes for slab in self.slabs)

    def views(self, address: int, owner: object) -> dict[str, torch.Tensor]:
        """Return a tensor for each slab of the row that begins at `address`; they keep `owner` alive."""
        torch = load_torch()
        memory = (ctypes.c_ubyte * self.row_bytes).from_address(address)
        memory.owner = owner  # type: ignore[attr-defined]  # the buffer that torch keeps alive keeps its owner
        whole = torch.frombuffer(memory, dtype=torch.uint8)
        return {
            slab.name: whole[offset : offset + slab.size_bytes].view(getattr(torch, slab.dtype)).view(slab.shape)
            for slab, offset in zip(self.slabs, self.offsets, strict=True)
        }

    def check(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Raise `BadRequest` where tensors are not exactly this layout's slabs."""
        missing = [slab.name for slab in self.slabs if slab.name not in tensors]
        if missing or len(tensors) != len(self.slabs):
            unknown = sorted(set(tensors) - {slab.name for slab in self.slabs})
            what = f"{printable(missing[0])} is missing" if missing else f"{printable(unknown[0])} is no slab"
            raise BadRequest(f"{len(tensors)} tensors for {len(self.slabs)} slabs: {what}")
        for slab in self.slabs:
            tensor = tensors[slab.name]
            if tuple(tensor.shape) != slab.shape or str(tensor.dtype) != f"torch.{slab.dtype}":
                have = f"{tuple(tensor.shape)} of {tensor.dtype}"
                raise BadRequest(f"slab {printable(slab.name)} is {slab.shape} of torch.{slab.dtype}, not {have}")

    def describe(self) -> str:
        """Say what a row is, in one line for the boot."""
        kinds = sorted({slab.dtype for slab in self.slabs})
        padding = self.row_bytes - self.payload_bytes
        return (
            f"{len(self.slabs)} slabs ({', '.join(kinds)}), {self.row_bytes:,} B a row"
            f"{f', {padding:,} B of it padding' if padding else ''}: one sequence's recurrent state at one token,"
            " the same bytes whatever it covers and however many sequences are served"
        )

    def _padded(self, size_bytes: int) -> int:
        return -(-size_bytes // self.align_bytes) * self.align_bytes
