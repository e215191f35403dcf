"""The form of a file of the overflow: what stands where, and that no bit of it can change unseen."""

from __future__ import annotations

import mmap
import struct
from dataclasses import replace

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from pinprobe.ledger.tenants.overflow_file import (
    HEADER_BYTES,
    Fault,
    Loss,
    OverflowHeader,
    file_bytes,
    layout_fingerprint,
    padded_row_bytes,
    parse_header,
)
from pinprobe.ledger.tenants.region import region_bytes
from pinprobe.ledger.tenants.savepoint_layout import SavepointLayout, Slab
from tests.ledger.tenants.overflow_bench import SMALL
from tests.probes.allocators.fresh_process import in_fresh_process

HEADER = OverflowHeader(b"f" * 16, 15_873, b"k" * 16, 6_343, b"h" * 16)
DIGESTS = st.binary(min_size=16, max_size=16)
WORDS = st.integers(0, 2**64 - 1)


def resealed(page: bytes) -> bytes:
    """The page with a checksum that fits."""
    return page[:-16] + xxhash.xxh3_128_digest(page[:-16])


def loss_of(page: bytes) -> Loss:
    fault = parse_header(page)
    assert isinstance(fault, Fault)
    assert "\n" not in fault.text
    return fault.loss


@given(DIGESTS, WORDS, DIGESTS, WORDS, DIGESTS)
def test_a_header_is_one_page_and_is_read_as_it_was_written(
    fingerprint: bytes, row_bytes: int, key: bytes, tokens: int, row_hash: bytes
) -> None:
    header = OverflowHeader(fingerprint, row_bytes, key, tokens, row_hash)
    assert len(header.packed()) == 4096 == HEADER_BYTES
    assert parse_header(header.packed()) == header


def test_the_form_is_the_one_that_version_1_has() -> None:
    order = struct.pack("=I", 0x01020304)
    fields = b"pprow\r\n\x1a" + struct.pack("<I", 1) + order + b"f" * 16 + struct.pack("<Q", 15_873)
    fields += b"k" * 16 + struct.pack("<Q", 6_343) + b"h" * 16
    assert HEADER.packed() == resealed(fields.ljust(4096, b"\0"))


@given(st.integers(0, 8 * 4096 - 1))
def test_a_bit_flipped_anywhere_in_a_header_is_seen(bit: int) -> None:
    page = bytearray(HEADER.packed())
    page[bit // 8] ^= 1 << bit % 8
    expected = Loss.FOREIGN if bit < 64 else Loss.VERSION if bit < 96 else Loss.CHECKSUM
    assert loss_of(bytes(page)) is expected


@given(st.integers(0, 4095))
def test_a_header_that_is_cut_is_no_header(length: int) -> None:
    assert loss_of(HEADER.packed()[:length]) is Loss.CUT


def test_an_empty_page_is_the_header_of_no_finished_file() -> None:
    assert loss_of(bytes(4096)) is Loss.FOREIGN


@pytest.mark.parametrize("version", [0, 2, 2**32 - 1])
def test_another_version_is_told_as_such_wherever_it_has_its_checksum(version: int) -> None:
    page = bytearray(HEADER.packed())
    page[8:12] = struct.pack("<I", version)
    assert loss_of(bytes(page)) is Loss.VERSION
    assert loss_of(resealed(bytes(page))) is Loss.VERSION


def test_the_file_of_a_machine_of_another_byte_order_is_foreign() -> None:
    page = bytearray(HEADER.packed())
    page[12:16] = page[12:16][::-1]
    assert loss_of(resealed(bytes(page))) is Loss.FOREIGN


@pytest.mark.parametrize(
    ("field", "other"), [("fingerprint", b"g" * 16), ("row_bytes", 15_874), ("key", b"l" * 16), ("tokens", 6_344)]
)
def test_a_header_is_compared_with_what_was_asked_for(field: str, other: object) -> None:
    found = replace(HEADER, **{field: other})  # type: ignore[arg-type]
    fault = found.fault_beside(HEADER)
    assert fault is not None
    assert fault.loss is Loss.FOREIGN
    assert field.replace("_", " ") in fault.text


def test_what_was_asked_for_need_not_know_the_row() -> None:
    assert HEADER.fault_beside(replace(HEADER, row_hash=bytes(16))) is None


ANOTHER_LAYOUT = {
    "another name": SavepointLayout((Slab("stated", (777, 5), "float32"), SMALL.slabs[1])),
    "another shape of the same bytes": SavepointLayout((Slab("state", (5, 777), "float32"), SMALL.slabs[1])),
    "another type of the same bytes": SavepointLayout((Slab("state", (777, 5), "int32"), SMALL.slabs[1])),
    "another order": SavepointLayout(SMALL.slabs[::-1]),
    "other places": SavepointLayout(SMALL.slabs, 64),
    "one slab less": SavepointLayout(SMALL.slabs[:1]),
}


@pytest.mark.parametrize("other", ANOTHER_LAYOUT.values(), ids=ANOTHER_LAYOUT)
def test_layouts_that_differ_in_anything_have_different_fingerprints(other: SavepointLayout) -> None:
    assert layout_fingerprint(other) != layout_fingerprint(SMALL)


def test_a_fingerprint_is_the_same_in_every_process() -> None:
    assert in_fresh_process(layout_fingerprint, SMALL, settings={"PYTHONHASHSEED": "7"}) == layout_fingerprint(SMALL)


@given(st.integers(1, 2**40))
def test_a_file_has_a_row_in_as_many_pages_as_a_region_and_one_header(row_bytes: int) -> None:
    assert padded_row_bytes(row_bytes) == region_bytes(row_bytes) - mmap.PAGESIZE
    assert file_bytes(row_bytes) == 4096 + padded_row_bytes(row_bytes)
