"""Which memory an object stands for, held against addresses that ctypes, numpy and torch give by other ways."""

from __future__ import annotations

import array
import ctypes
import gc
import mmap
import subprocess
import sys
import weakref
from collections.abc import Callable
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pinprobe.probes.extents import Extent, find_extents

FUZZ = settings(derandomize=True, deadline=None, max_examples=200)


def begins_at(memory: Any) -> int:
    """Where writable memory begins, as ctypes sees it."""
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


class WithAddress:
    """What an allocator hands out: it knows its address and has no buffer."""

    def __init__(self, address: object) -> None:
        self.address = address


class WithPointer:
    """The same as CuPy has it."""

    def __init__(self, pointer: object) -> None:
        self.ptr = pointer


class RaisesWhenAsked:
    """An object that answers no question in peace."""

    def __getattr__(self, name: str) -> object:
        raise RuntimeError(f"{name}: no answer")


class FakeArray:
    """An array of somebody's own, by the interface alone."""

    def __init__(self, address: int, shape: tuple[int, ...], strides: tuple[int, ...] | None) -> None:
        self.__array_interface__ = {
            "data": (address, False), "typestr": "<f4", "shape": shape, "strides": strides, "version": 3,
        }  # fmt: skip


# Buffers.


@pytest.mark.parametrize(
    "memory",
    [
        bytearray(1000),
        mmap.mmap(-1, 8192),
        array.array("d", [0.0] * 125),
        (ctypes.c_double * 125)(),
        memoryview(bytearray(1000)),
        memoryview(bytearray(1000)).cast("d"),
    ],
    ids=["bytearray", "mmap", "array", "ctypes", "memoryview", "cast"],
)
def test_a_buffer_stands_for_all_of_its_bytes(memory: Any) -> None:
    size = memoryview(memory).nbytes
    assert find_extents(memory, 1) == (Extent(begins_at(memory), size),)


def test_memory_that_can_only_be_read_is_memory_too() -> None:
    held = bytes(5000)
    (found,) = find_extents(held, 1)
    assert ctypes.string_at(found.start, found.size_bytes) == held


def test_a_view_that_runs_backwards_or_skips_stands_for_what_it_reaches() -> None:
    memory = bytearray(1000)
    start = begins_at(memory)
    assert find_extents(memoryview(memory)[100:200][::-1], 1) == (Extent(start + 100, 100),)
    assert find_extents(memoryview(memory)[10:20:3], 1) == (Extent(start + 10, 10),)


def test_an_empty_buffer_stands_for_nothing() -> None:
    assert find_extents([bytearray(), b"", memoryview(bytearray(10))[5:5], (ctypes.c_int * 0)()], 4096) == ()


def test_asking_keeps_no_hold_of_the_buffer() -> None:
    grows, shared = bytearray(10), mmap.mmap(-1, 4096)
    find_extents([grows, shared], 1)
    grows.extend(b"x" * 100_000)  # refused as long as anybody has its buffer
    shared.close()


def test_what_was_closed_or_let_go_stands_for_nothing() -> None:
    shared, view = mmap.mmap(-1, 4096), memoryview(bytearray(10))
    shared.close()
    view.release()
    assert find_extents([shared, view], 4096) == ()


def test_asking_keeps_no_reference() -> None:
    class Holder(list[bytearray]):
        pass

    held = Holder([bytearray(10)])
    gone = weakref.ref(held)
    find_extents(held, 1)
    del held
    gc.collect()
    assert gone() is None


# Bare addresses.


@pytest.mark.parametrize(
    "shown",
    [
        lambda address: address,
        ctypes.c_void_p,
        WithAddress,
        WithPointer,
        lambda address: ctypes.cast(address, ctypes.POINTER(ctypes.c_char)),
        lambda address: ctypes.cast(address, ctypes.c_char_p),
        lambda address: [address],
        lambda address: {"block": (WithAddress(address),)},
    ],
    ids=["number", "c_void_p", "address", "ptr", "pointer", "c_char_p", "in a list", "deep"],
)
def test_a_bare_address_is_as_long_as_what_was_asked(shown: Callable[[int], object]) -> None:
    assert find_extents(shown(0x7F0000001000), 12_345) == (Extent(0x7F0000001000, 12_345),)


@pytest.mark.parametrize(
    "value",
    [
        None, object(), "text", 1.5, 0, -4096, True, False, lambda: None, WithAddress(None), WithAddress(True),
        WithAddress("0x1000"), WithPointer(0), ctypes.c_void_p(), RaisesWhenAsked(), [], {}, set(), [[], {}], Extent,
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_what_shows_no_address_gives_none(value: object) -> None:
    assert find_extents(value, 4096) == ()


def test_of_several_blocks_nobody_knows_which_is_how_long() -> None:
    blocks = [WithAddress(0x7F0000020000), WithPointer(0x7F0000010000), WithAddress(0x7F0000020000)]
    found = find_extents(blocks, 12_345)
    assert [extent.start for extent in found] == [0x7F0000010000, 0x7F0000020000]
    assert not any(extent.is_whole for extent in found)
    (alone,) = find_extents(blocks[:1], 12_345)
    assert alone.is_whole


def test_a_number_beside_memory_is_not_taken_for_an_address() -> None:
    # Callables return what they like: a buffer and how many slots it has, a tensor and the layer that it is for.
    memory = bytearray(1000)
    own = (Extent(begins_at(memory), 1000),)
    assert find_extents((memory, 5), 1000) == own
    assert find_extents({"memory": memory, "layers": 32}, 1000) == own
    assert find_extents((memory, len(memory), -1, True, "cpu", None), 1000) == own


# Collections.


def test_collections_are_asked_for_all_that_they_hold_and_dicts_for_their_values() -> None:
    first, second, third = bytearray(100), bytearray(200), mmap.mmap(-1, 4096)
    nested = {"k": [first, (second,)], b"a key is no memory": MappingProxyType({"v": frozenset([bytes(3)])}), 7: third}
    found = find_extents(nested, 1)
    assert sorted(extent.size_bytes for extent in found) == [3, 100, 200, 4096]
    assert {begins_at(first), begins_at(second), begins_at(third)} < {extent.start for extent in found}
    assert list(found) == sorted(found)


def test_each_byte_counts_once_and_neighbours_stay_apart() -> None:
    memory = bytearray(1000)
    start, view = begins_at(memory), memoryview(memory)
    assert find_extents([memory, memory, view[10:20]], 1) == (Extent(start, 1000),)
    assert find_extents([view[400:600], view[:500]], 1) == (Extent(start, 600),)
    assert find_extents([view[:500], view[500:]], 1) == (Extent(start, 500), Extent(start + 500, 500))


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 30)), max_size=8))
@FUZZ
def test_however_views_overlap_their_bytes_are_all_there_and_none_is_there_twice(cuts: list[tuple[int, int]]) -> None:
    memory = bytearray(100)
    start, view = begins_at(memory), memoryview(memory)
    found = find_extents([view[low : low + length] for low, length in cuts], 1)
    covered = [start + index for low, length in cuts for index in range(low, low + length)]
    counted = [address for extent in found for address in range(extent.start, extent.end)]
    assert counted == sorted(set(covered))


def test_what_contains_itself_is_asked_once_for_each_thing_in_it() -> None:
    memory = bytearray(100)
    inside: list[object] = [memory]
    inside.append(inside)
    assert find_extents(inside, 1) == (Extent(begins_at(memory), 100),)


WIDE = """
from pinprobe.probes.extents import find_extents
wide = [bytearray(10)]
wide += [wide] * 8
print(len(find_extents(wide, 1)))
"""


def test_what_contains_itself_many_times_is_answered_too() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WIDE], env={"PYTHONPATH": ":".join(sys.path)}, capture_output=True, text=True,
        timeout=30, check=True,
    )  # fmt: skip
    assert done.stdout == "1\n"


def test_one_thing_that_raises_does_not_hide_the_rest() -> None:
    memory = bytearray(100)
    assert find_extents([RaisesWhenAsked(), memory], 1) == (Extent(begins_at(memory), 100),)


# Arrays.


@pytest.mark.parametrize(
    ("shape", "strides", "low", "size"),
    [
        ((10,), None, 0, 40),
        ((2, 5), None, 0, 40),
        ((), None, 0, 4),
        ((5, 2), (-8, 4), -32, 40),
        ((1000,), (0,), 0, 4),  # broadcast: one item, whatever its shape says
        ((3,), (100,), 0, 204),
    ],
)
def test_an_array_stands_for_what_its_strides_reach(
    shape: tuple[int, ...], strides: tuple[int, ...] | None, low: int, size: int
) -> None:
    assert find_extents(FakeArray(0x10000, shape, strides), 1) == (Extent(0x10000 + low, size),)


def test_an_array_without_items_stands_for_nothing() -> None:
    assert find_extents(FakeArray(0x10000, (5, 0), None), 4096) == ()


@given(data=st.data())
@FUZZ
def test_slices_of_numpy_arrays_reach_as_far_as_numpy_says(data: st.DataObject) -> None:
    numpy = pytest.importorskip("numpy")
    shape = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=3))
    whole = numpy.zeros(shape, dtype=data.draw(st.sampled_from(["u1", "f4", "c16"])))
    bound = st.one_of(st.none(), st.integers(-7, 7))
    steps = st.sampled_from([None, 1, 2, 3, -1, -2])
    part = whole[tuple(slice(data.draw(bound), data.draw(bound), data.draw(steps)) for _ in shape)]
    if data.draw(st.booleans()):
        part = part.T
    bounds = numpy.lib.array_utils.byte_bounds if hasattr(numpy.lib, "array_utils") else numpy.byte_bounds
    low, high = bounds(part)
    assert find_extents(part, 1) == ((Extent(low, high - low),) if part.size else ())


@pytest.mark.parametrize("dtype", ["f8", "?", "O", "S7", "U10", "V16", "M8[ns]", "m8[s]", "i4,f8"])
def test_numpy_arrays_of_every_type_are_as_long_as_numpy_says(dtype: str) -> None:
    numpy = pytest.importorskip("numpy")
    made = numpy.zeros((4, 25), dtype=dtype)
    assert find_extents(made, 1) == (Extent(made.ctypes.data, made.nbytes),)


def test_an_array_that_can_only_be_read_is_memory_too() -> None:
    numpy = pytest.importorskip("numpy")
    made = numpy.zeros(100)
    made.setflags(write=False)
    assert find_extents(made, 1) == (Extent(made.ctypes.data, 800),)


# Tensors.


def test_a_tensor_stands_for_its_whole_storage_as_every_view_of_it_keeps_that() -> None:
    torch = pytest.importorskip("torch")
    whole = torch.zeros(1000, dtype=torch.float32)
    own = (Extent(whole.data_ptr(), 4000),)
    views = [whole, whole[10:20], whole.view(10, 100).t(), whole.untyped_storage(), torch.nn.Parameter(whole)]
    assert [find_extents(view, 1) for view in views] == [own] * len(views)
    assert find_extents({"views": views}, 1) == own


@pytest.mark.parametrize("dtype", ["bfloat16", "complex64", "bool", "float8_e4m3fn"])
def test_a_tensor_of_a_type_that_numpy_lacks_is_found(dtype: str) -> None:
    torch = pytest.importorskip("torch")
    made = torch.zeros(1000, dtype=getattr(torch, dtype))
    assert find_extents(made, 1) == (Extent(made.data_ptr(), 1000 * made.element_size()),)


def test_a_tensor_without_memory_of_this_host_stands_for_none() -> None:
    torch = pytest.importorskip("torch")
    assert find_extents([torch.empty(1000, device="meta"), torch.empty(0), torch.eye(3).to_sparse()], 4096) == ()


def test_memory_on_a_device_is_no_memory_of_this_host() -> None:
    class FakeDevice:
        type = "cuda"

    class FakeDeviceTensor:
        device = FakeDevice()

        def data_ptr(self) -> int:
            return 0x7F0000000000

        def nbytes(self) -> int:
            return 4096

    assert find_extents(FakeDeviceTensor(), 4096) == ()


def test_a_state_dict_is_the_sum_of_its_storages() -> None:
    torch = pytest.importorskip("torch")
    module = torch.nn.Sequential(torch.nn.Linear(10, 20), torch.nn.Linear(20, 5))
    found = find_extents(module.state_dict(), 1)
    assert sum(extent.size_bytes for extent in found) == 4 * (10 * 20 + 20 + 20 * 5 + 5)


@pytest.mark.parametrize("shape", [("ab",), ([1],), ((2,),), (1.5,)])
def test_an_array_of_no_countable_shape_has_not_answered(shape: tuple[object, ...]) -> None:
    class Odd:
        __array_interface__ = {"shape": shape, "typestr": "<f4", "data": (2**46, False), "version": 3}  # noqa: RUF012

    assert find_extents(Odd(), 100) == ()
