"""Where the slabs of a row lie: what views write is read back from memory by its address, not through torch."""

from __future__ import annotations

import ctypes
import gc
import weakref
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinprobe.ledger.tenants.savepoint_layout import ITEM_BYTES, SavepointLayout, Slab
from pinprobe.probes.errors import BadRequest

torch: Any = pytest.importorskip("torch", exc_type=ImportError)

#: A hybrid model of 48 layers whose state is one convolution and one recurrent matrix each.
GEOMETRY = {"conv": ((10240, 4), "bfloat16"), "recurrent": ((48, 128, 128), "float32")}

SLABS = st.lists(
    st.tuples(st.lists(st.integers(1, 9), max_size=3).map(tuple), st.sampled_from(sorted(ITEM_BYTES))),
    min_size=1,
    max_size=12,
).map(lambda kinds: tuple(Slab(f"s{index}", shape, dtype) for index, (shape, dtype) in enumerate(kinds)))
ALIGNMENTS = st.sampled_from([8, 16, 64, 256, 4096])


class Row:
    """Memory for one row, every byte of it 0xEE, aligned as a page is and with a guard of its own behind it."""

    def __init__(self, size_bytes: int) -> None:
        self._memory = ctypes.create_string_buffer(size_bytes + 2 * 4096)
        self.address = -(-ctypes.addressof(self._memory) // 4096) * 4096
        ctypes.memset(self._memory, 0xEE, len(self._memory))

    def bytes(self, offset: int, size_bytes: int) -> bytes:
        return ctypes.string_at(self.address + offset, size_bytes)


# -- where they lie


@given(slabs=SLABS, align=ALIGNMENTS)
def test_slabs_begin_at_the_alignment_follow_one_another_and_none_overlaps(slabs: tuple[Slab, ...], align: int) -> None:
    layout = SavepointLayout(slabs, align)
    starts = (*layout.offsets, layout.row_bytes)
    ends = [offset + slab.size_bytes for offset, slab in zip(layout.offsets, slabs, strict=True)]
    assert starts[0] == 0
    assert all(start % align == 0 for start in starts)
    assert all(0 <= start - end < align for end, start in zip(ends, starts[1:], strict=True))
    assert layout.payload_bytes == sum(slab.size_bytes for slab in slabs)


@given(slabs=SLABS, align=ALIGNMENTS)
def test_a_view_hits_exactly_its_bytes(slabs: tuple[Slab, ...], align: int) -> None:
    layout = SavepointLayout(slabs, align)
    row = Row(layout.row_bytes)
    views = layout.views(row.address, row)
    assert list(views) == [slab.name for slab in slabs]
    for number, (slab, view) in enumerate(zip(slabs, views.values(), strict=True), start=1):
        assert tuple(view.shape) == slab.shape
        assert view.dtype is getattr(torch, slab.dtype)
        assert view.data_ptr() == row.address + layout.offsets[number - 1]
        view.reshape(-1).view(torch.uint8).fill_(number)
    expected = bytearray(b"\xee" * (layout.row_bytes + 4096))
    for number, (slab, offset) in enumerate(zip(slabs, layout.offsets, strict=True), start=1):
        expected[offset : offset + slab.size_bytes] = bytes([number]) * slab.size_bytes
    assert row.bytes(0, layout.row_bytes + 4096) == expected


def test_a_view_sees_what_is_written_by_address() -> None:
    layout = SavepointLayout((Slab("odd", (3,), "uint8"), Slab("wide", (2, 2), "int32")))
    row = Row(layout.row_bytes)
    views = layout.views(row.address, row)
    ctypes.memmove(row.address + 256, bytes(range(16)), 16)
    assert views["wide"].tolist() == [[0x03020100, 0x07060504], [0x0B0A0908, 0x0F0E0D0C]]


def test_views_keep_their_owner_alive_and_let_go_of_it_with_the_last() -> None:
    layout = SavepointLayout((Slab("a", (4,), "float32"), Slab("b", (4,), "float32")))
    row = Row(layout.row_bytes)
    gone = weakref.ref(row)
    view = layout.views(row.address, row)["b"]
    del row
    gc.collect()
    assert gone() is not None
    view.fill_(1)
    del view
    gc.collect()
    assert gone() is None


# -- the row of a real model


def test_48_layers_of_convolution_and_recurrent_state_are_96_slabs_and_154_927_104_bytes() -> None:
    layout = SavepointLayout.of_geometry(48, GEOMETRY)
    assert len(layout.slabs) == 96
    assert layout.row_bytes == layout.payload_bytes == 154_927_104
    assert [slab.name for slab in layout.slabs[:3]] == ["layers.0.conv", "layers.0.recurrent", "layers.1.conv"]
    # By hand: 10240 x 4 of two bytes, then 48 x 128 x 128 of four.
    assert layout.offsets == tuple(accumulate([0, *[81_920, 3_145_728] * 47, 81_920]))


def test_a_row_does_not_grow_with_what_it_covers_and_says_so() -> None:
    words = SavepointLayout.of_geometry(48, GEOMETRY).describe()
    assert "96 slabs (bfloat16, float32), 154,927,104 B a row" in words
    assert "the same bytes whatever it covers" in words
    assert "padding" not in words
    assert "\n" not in words


def test_padding_is_said_where_there_is_some() -> None:
    layout = SavepointLayout((Slab("a", (3,), "uint8"), Slab("b", (1,), "float16")))
    assert (layout.payload_bytes, layout.row_bytes) == (5, 512)
    assert "512 B a row, 507 B of it padding" in layout.describe()


def test_a_layout_of_tensors_is_that_of_their_shapes_and_types() -> None:
    tensors = {
        "conv": torch.zeros(3, 5, dtype=torch.bfloat16),
        "state": torch.zeros(2, 7, 7),
        "count": torch.zeros((), dtype=torch.int64),
        "turned": torch.zeros(4, 6, dtype=torch.float16).t(),
    }
    layout = SavepointLayout.of_tensors(tensors, align_bytes=64)
    assert layout.slabs == (
        Slab("conv", (3, 5), "bfloat16"), Slab("state", (2, 7, 7), "float32"),
        Slab("count", (), "int64"), Slab("turned", (6, 4), "float16"),
    )  # fmt: skip
    assert layout.align_bytes == 64
    layout.check(tensors)


def test_two_layouts_of_the_same_slabs_are_equal() -> None:
    slabs = (Slab("a", (4,), "float32"),)
    assert SavepointLayout(slabs) == SavepointLayout(slabs)
    assert SavepointLayout(slabs) != SavepointLayout(slabs, align_bytes=64)


# -- what is refused, in one line


def refused(words: str, make: Any) -> None:
    with pytest.raises(BadRequest) as error:
        make()
    line = str(error.value)
    assert words in line
    assert "\n" not in line
    assert "\x1b" not in line


@pytest.mark.parametrize(
    ("dtype", "words"),
    [("float128", "'float128' is no type"), ("torch.float32", "is no type"), ("", "is no type"), ("f\n32", r"f\n32")],
)
def test_a_type_that_torch_has_not_is_refused_with_those_it_has(dtype: str, words: str) -> None:
    refused(words, lambda: Slab("a", (1,), dtype))
    refused("float32, float16, bfloat16", lambda: Slab("a", (1,), dtype))


@pytest.mark.parametrize("shape", [(0,), (4, 0, 4), (-1,), (2.5,), ("4",)], ids=repr)
def test_a_shape_with_a_size_that_is_not_positive_is_refused(shape: Any) -> None:
    refused("slab a?b: the shape", lambda: Slab("a\nb", shape, "float32"))


@pytest.mark.parametrize("align", [0, -256, 3, 100, 257])
def test_an_alignment_that_is_no_power_of_two_is_refused(align: int) -> None:
    refused("give a power of two", lambda: SavepointLayout((Slab("a", (1,), "uint8"),), align))


def test_an_alignment_smaller_than_an_item_is_refused_or_its_views_can_be_made() -> None:
    slabs = (Slab("a", (3,), "uint8"), Slab("b", (2,), "float32"))
    try:
        layout = SavepointLayout(slabs, align_bytes=1)
    except BadRequest:
        return
    row = Row(layout.row_bytes)
    assert layout.views(row.address, row)["b"].shape == (2,)


def test_no_slabs_and_slabs_of_the_same_name_are_refused() -> None:
    refused("give it one slab or more", lambda: SavepointLayout(()))
    refused("one slab or more", lambda: SavepointLayout.of_geometry(0, GEOMETRY))
    refused("one slab or more", lambda: SavepointLayout.of_geometry(3, {}))
    twice = (Slab("a\x1bb", (1,), "uint8"), Slab("a\x1bb", (2,), "uint8"))
    refused("two slabs are called a?b", lambda: SavepointLayout(twice))


def test_more_than_any_model_or_address_space_has_is_refused_at_once() -> None:
    refused("than any model has", lambda: SavepointLayout.of_geometry(10**9, GEOMETRY))
    huge = (Slab("a", (2**40, 2**20), "float64"),)
    refused("more than any address space holds", lambda: SavepointLayout(huge))


CHECKED = SavepointLayout((Slab("a", (2, 3), "float32"), Slab("b\nc", (4,), "bfloat16")))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"a": None}, "1 tensors for 2 slabs: a is missing"),
        ({"b\nc": None}, "1 tensors for 2 slabs: b?c is missing"),
        ({"d\ne": ((1,), "float32")}, "3 tensors for 2 slabs: d?e is no slab"),
        ({"a": None, "d": ((2, 3), "float32")}, "2 tensors for 2 slabs: a is missing"),
        ({"a": ((3, 2), "float32")}, "slab a is (2, 3) of torch.float32, not (3, 2) of torch.float32"),
        ({"a": ((6,), "float32")}, "not (6,) of torch.float32"),
        ({"b\nc": ((4,), "float16")}, "slab b?c is (4,) of torch.bfloat16, not (4,) of torch.float16"),
    ],
    ids=["first missing", "last missing", "one more", "renamed", "turned", "flat", "another type of the same size"],
)
def test_tensors_of_another_layout_are_refused_by_name(change: dict[str, Any], words: str) -> None:
    kinds: dict[str, Any] = {slab.name: (slab.shape, slab.dtype) for slab in CHECKED.slabs} | change
    tensors = {name: torch.zeros(kind[0], dtype=getattr(torch, kind[1])) for name, kind in kinds.items() if kind}
    refused(words, lambda: CHECKED.check(tensors))


def test_a_tensor_that_lies_otherwise_in_memory_is_the_same_slab() -> None:
    turned = torch.zeros(3, 2).t()
    assert not turned.is_contiguous()
    CHECKED.check({"a": turned, "b\nc": torch.zeros(8, dtype=torch.bfloat16)[::2]})


def test_tensors_of_a_type_that_no_slab_can_have_are_refused() -> None:
    refused(
        "slab a: 'complex64' is no type",
        lambda: SavepointLayout.of_tensors({"a": torch.zeros(2, dtype=torch.complex64)}),
    )
    refused("not positive", lambda: SavepointLayout.of_tensors({"a": torch.zeros(2, 0)}))
