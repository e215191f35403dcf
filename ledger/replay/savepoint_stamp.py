"""Rows of bytes that tell, at each of their words, which savepoint they are and where in it the word lies."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from fractions import Fraction
from typing import TYPE_CHECKING

from pinprobe.ledger.tenants.savepoint_layout import ALIGN_BYTES, SavepointLayout, Slab
from pinprobe.ledger.tenants.torch_library import load_torch

if TYPE_CHECKING:
    import torch

_SLABS = 4
_PAGE_BYTES = 4096
_WORD_BYTES = 8
_PIECE_WORDS = 2**17  # a mebibyte: what is worked out beside a row stays small
_NUMBER_SHIFT = 32
_NOTHING = -1


def scaled_layout(row_bytes: int, scale: Fraction) -> SavepointLayout:
    """Return a few slabs of bytes whose row is `scale` x `row_bytes`, at least a page, without padding.

    >>> scaled_layout(154_927_104, Fraction(1)).row_bytes, scaled_layout(154_927_104, Fraction(1, 10**6)).row_bytes
    (154927104, 4096)
    """
    units = max(_PAGE_BYTES // ALIGN_BYTES, round(row_bytes * scale / ALIGN_BYTES))
    sizes = (units * (slab + 1) // _SLABS - units * slab // _SLABS for slab in range(_SLABS))
    return SavepointLayout(
        tuple(Slab(f"part {number}", (size * ALIGN_BYTES,), "uint8") for number, size in enumerate(sizes))
    )


class SavepointStamp:
    """Writes the row at one address, and says whether it is the one that was to be there.

    Every word of it is its own, so that a row is told from another one, from parts of two, and from itself moved.
    """

    def __init__(self, address: int, row_bytes: int) -> None:
        self._torch = library = load_torch()
        memory = (ctypes.c_ubyte * row_bytes).from_address(address)
        self._row: torch.Tensor = library.frombuffer(memory, dtype=library.uint8).view(library.int64)
        self._piece: torch.Tensor = library.arange(min(_PIECE_WORDS, len(self._row)), dtype=library.int64)
        self._wanted = library.empty_like(self._piece)

    def write(self, number: int) -> None:
        """Make the row that of savepoint `number`, 0 or more."""
        for first, piece in self._pieces():
            self._torch.add(self._piece[: len(piece)], (number << _NUMBER_SHIFT) + first, out=piece)

    def erase(self) -> None:
        """Make it the row of no savepoint, so that a copy which did nothing shows."""
        self._row.fill_(_NOTHING)

    def fault(self, number: int) -> int | None:
        """Return the first byte that is not of savepoint `number`, to the word; None where there is none."""
        for first, piece in self._pieces():
            wanted = self._torch.add(
                self._piece[: len(piece)], (number << _NUMBER_SHIFT) + first, out=self._wanted[: len(piece)]
            )
            if not self._torch.equal(piece, wanted):
                return (first + int((piece != wanted).nonzero()[0])) * _WORD_BYTES
        return None

    def _pieces(self) -> Iterator[tuple[int, torch.Tensor]]:
        """Yield the parts of the row, each with the number of its first word."""
        for first in range(0, len(self._row), _PIECE_WORDS):
            yield first, self._row[first : first + _PIECE_WORDS]
