"""Stamped rows: the right one is taken, and anything else is told by its first wrong word."""

from __future__ import annotations

import ctypes
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("torch")

from pinprobe.ledger.replay.savepoint_stamp import SavepointStamp, scaled_layout

ROW_BYTES = 2**20 + 256  # more than a piece
FUZZ = settings(derandomize=True, deadline=None, max_examples=60)


def stamped(number: int) -> tuple[SavepointStamp, ctypes.Array[ctypes.c_char]]:
    memory = ctypes.create_string_buffer(ROW_BYTES)
    stamp = SavepointStamp(ctypes.addressof(memory), ROW_BYTES)
    stamp.write(number)
    return stamp, memory


@pytest.mark.parametrize("number", [0, 1, 2**31 - 1])
def test_a_row_is_the_one_that_was_written(number: int) -> None:
    stamp, memory = stamped(number)
    assert stamp.fault(number) is None
    assert stamp.fault(number ^ 1) == 0
    stamp.erase()
    assert stamp.fault(number) == 0
    assert memory.raw == b"\xff" * ROW_BYTES


@given(at=st.integers(0, ROW_BYTES - 1), bit=st.integers(0, 7))
@FUZZ
def test_a_single_bit_is_found_in_its_word(at: int, bit: int) -> None:
    stamp, memory = stamped(3)
    memory[at] = bytes([memory.raw[at] ^ (1 << bit)])
    assert stamp.fault(3) == at // 8 * 8


@given(words=st.integers(1, ROW_BYTES // 8 - 1))
@FUZZ
def test_a_row_that_was_moved_is_none(words: int) -> None:
    stamp, memory = stamped(3)
    memory.raw = memory.raw[8 * words :] + memory.raw[: 8 * words]
    assert stamp.fault(3) == 0


@given(row_bytes=st.integers(256, 2**40), share=st.fractions(Fraction(1, 10**9), Fraction(1)))
@FUZZ
def test_a_scaled_row_is_at_least_a_page_and_has_no_padding(row_bytes: int, share: Fraction) -> None:
    layout = scaled_layout(row_bytes, share)
    assert layout.row_bytes == layout.payload_bytes >= 4096
    assert layout.row_bytes == 4096 or abs(layout.row_bytes - row_bytes * share) <= 128
    assert len(layout.slabs) == 4
