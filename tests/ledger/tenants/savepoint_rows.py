"""Savepoints that can be told from one another: every byte of a row says whose it is."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Mapping
from typing import Any

import pytest

from pinprobe.ledger.tenants.savepoint_layout import SavepointLayout, Slab

#: Every width of item, odd sizes, and slabs that end within a page and beyond one.
MIXED = SavepointLayout(
    (
        Slab("conv", (3, 5), "bfloat16"), Slab("state", (7, 11), "float32"), Slab("odd", (13,), "uint8"),
        Slab("half", (2, 3, 5), "float16"), Slab("one", (), "int64"), Slab("wide", (4099,), "uint8"),
    )
)  # fmt: skip


def slab_bytes(slab: Slab, index: int, number: int) -> bytes:
    """What a slab of savepoint `number` holds: the number and the slab's own index, again and again."""
    stamp = struct.pack("<Q", number << 8 | index)
    return (stamp * (slab.size_bytes // 8 + 1))[: slab.size_bytes]


def stamped(layout: SavepointLayout, number: int) -> dict[str, Any]:
    """The tensors of savepoint `number`. Their bits are no float's in particular."""
    torch = pytest.importorskip("torch")
    return {
        slab.name: torch.frombuffer(bytearray(slab_bytes(slab, index, number)), dtype=torch.uint8)
        .view(getattr(torch, slab.dtype))
        .view(slab.shape)
        for index, slab in enumerate(layout.slabs)
    }


def row_of(layout: SavepointLayout, number: int) -> list[bytes]:
    """Every slab of savepoint `number`, in order."""
    return [slab_bytes(slab, index, number) for index, slab in enumerate(layout.slabs)]


def row_at(layout: SavepointLayout, address: int) -> list[bytes]:
    """Every slab of the row that lies at an address, read from memory."""
    spans = zip(layout.offsets, layout.slabs, strict=True)
    return [ctypes.string_at(address + offset, slab.size_bytes) for offset, slab in spans]


def number_in(row: list[bytes]) -> int:
    """Which savepoint a row's first slab is of."""
    number: int = struct.unpack("<Q", row[0][:8])[0]
    return number >> 8


def bytes_of(tensors: Mapping[str, Any]) -> list[bytes]:
    """Every tensor's bytes."""
    torch = pytest.importorskip("torch")
    return [bytes(tensor.contiguous().reshape(-1).view(torch.uint8).tolist()) for tensor in tensors.values()]
