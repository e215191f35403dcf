"""Which host memory a Python object stands for: the address ranges of a tensor, an array, a buffer, or many of these.

Nothing is imported for it and nothing is copied: an object is asked in the ways that tensors, arrays, buffers and
pointers answer. A tensor stands for its whole storage and an array for what its strides reach, since a view keeps all
of it.
"""

from __future__ import annotations

import contextlib
import ctypes
import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

#: A structure nested deeper than this is no collection of tensors, but something that contains itself.
_DEEPEST = 16
#: A smaller number is a length, a rank or a handle: 64-bit Linux maps a process's memory far above this.
_LOWEST_ADDRESS = 2**40


@dataclass(frozen=True, slots=True, order=True)
class Extent:
    """A range of addresses of this process. Where nobody knows how far it reaches, `is_whole` is false."""

    start: int
    size_bytes: int
    is_whole: bool = field(default=True, repr=False)

    @property
    def end(self) -> int:
        """The first address behind it."""
        return self.start + self.size_bytes


class _PyBuffer(ctypes.Structure):
    # Py_buffer of CPython's object.h, part of the stable ABI since 3.11 and the same before.
    _fields_ = (
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.py_object),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.POINTER(ctypes.c_ssize_t)),
        ("strides", ctypes.POINTER(ctypes.c_ssize_t)),
        ("suboffsets", ctypes.POINTER(ctypes.c_ssize_t)),
        ("internal", ctypes.c_void_p),
    )


_PYBUF_STRIDES = 0x0018
_POINTERS = (ctypes.c_void_p, ctypes.c_char_p, ctypes.POINTER(ctypes.c_char).__mro__[1])


def find_extents(value: object, asked_bytes: int) -> tuple[Extent, ...]:
    """Return the ranges that `value` stands for, in rising order, each byte once; none where it shows no address.

    `asked_bytes` is the length of what is a bare address (a number, a `c_void_p`, an object with an `address`) and the
    only one; of several, nobody knows which is how long, and each gives its first byte.

    >>> sorted(extent.size_bytes for extent in find_extents([bytearray(100), bytearray(28)], 0))
    [28, 100]
    >>> find_extents(object(), 4096)
    ()
    """
    return _merged(_extents(value, asked_bytes, _Walk()))


@dataclass
class _Walk:
    """How the walk came to where it is. Each collection is looked into once, whatever contains it."""

    depth: int = 0
    is_one_of_many: bool = False
    seen: set[int] = field(default_factory=set)

    def into(self, count: int) -> _Walk:
        return _Walk(self.depth + 1, self.is_one_of_many or count > 1, self.seen)


def _extents(value: object, asked_bytes: int, walk: _Walk) -> Iterable[Extent]:
    # A foreign object may raise anything when it is asked; then it has not answered, and the next way is tried.
    for ask in (_storage, _array, _buffer):
        try:
            found = ask(value)
            is_empty = found is not None and found.size_bytes <= 0
        except Exception:  # noqa: BLE001
            continue
        if found is not None:
            yield from () if is_empty else (found,)
            return
    if isinstance(value, (Mapping, list, tuple, set, frozenset)):
        if walk.depth == _DEEPEST or id(value) in walk.seen:
            return
        walk.seen.add(id(value))
        items = list(value.values()) if isinstance(value, Mapping) else list(value)
        for item in items:
            yield from _extents(item, asked_bytes, walk.into(len(items)))
        return
    with contextlib.suppress(Exception):
        address = _address(value)
        if address:
            yield Extent(address, min(1, asked_bytes) if walk.is_one_of_many else asked_bytes, not walk.is_one_of_many)


def _storage(value: Any) -> Extent | None:
    """Ask a torch tensor or storage. What lies on a device takes no host memory here."""
    if not hasattr(value, "data_ptr"):
        return None
    if getattr(getattr(value, "device", None), "type", "cpu") != "cpu":
        return Extent(0, 0)
    storage = value.untyped_storage() if hasattr(value, "untyped_storage") else value
    return Extent(int(storage.data_ptr()), int(storage.nbytes()))


def _array(value: Any) -> Extent | None:
    """Ask a numpy array, by the interface that needs no numpy."""
    interface = getattr(value, "__array_interface__", None)
    if interface is None:
        return None
    kind, item = interface["typestr"][1], int(interface["typestr"][2:])
    item *= 4 if kind == "U" else 1  # of text it counts characters, each of four bytes
    shape, strides = interface["shape"], interface.get("strides")
    return _strided(int(interface["data"][0]), item, shape, strides)


def _buffer(value: Any) -> Extent | None:
    """Ask by the buffer protocol, which bytes, memoryview, mmap, array, ctypes arrays and many others have."""
    if isinstance(value, _POINTERS):
        return None  # the buffer of a ctypes pointer is the pointer itself
    view = _PyBuffer()
    get, release = ctypes.pythonapi.PyObject_GetBuffer, ctypes.pythonapi.PyBuffer_Release
    # Raises BufferError or TypeError where the object has none.
    get(ctypes.py_object(value), ctypes.byref(view), ctypes.c_int(_PYBUF_STRIDES))
    try:
        shape = [view.shape[axis] for axis in range(view.ndim)] if view.shape else [view.len // max(1, view.itemsize)]
        strides = [view.strides[axis] for axis in range(view.ndim)] if view.strides else None
        return _strided(view.buf or 0, view.itemsize, shape, strides)
    finally:
        release(ctypes.byref(view))


def _strided(address: int, item_bytes: int, shape: Iterable[int], strides: Iterable[int] | None) -> Extent:
    """Return what strides reach: they may be negative, and then the range begins before the address.

    >>> _strided(1000, 4, (5, 2), (-8, 4))
    Extent(start=968, size_bytes=40)
    """
    counts = [operator.index(count) for count in shape]  # a foreign object may answer anything
    if 0 in counts:
        return Extent(address, 0)
    if strides is None:
        size = item_bytes
        for count in counts:
            size *= count
        return Extent(address, size)
    reaches = [(count - 1) * stride for count, stride in zip(counts, strides, strict=True)]
    low, high = sum(reach for reach in reaches if reach < 0), sum(reach for reach in reaches if reach > 0)
    return Extent(address + low, high - low + item_bytes)


def _address(value: Any) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value if value >= _LOWEST_ADDRESS else None
    if isinstance(value, _POINTERS):
        pointer: Any = value
        return ctypes.cast(pointer, ctypes.c_void_p).value
    for name in ("address", "ptr"):  # an allocation of ours, and CuPy's pointers
        found = getattr(value, name, None)
        if isinstance(found, int) and not isinstance(found, bool):
            return found
    return None


def _merged(extents: Iterable[Extent]) -> tuple[Extent, ...]:
    """Count every byte once: two views of one storage are one range."""
    merged: list[Extent] = []
    for extent in sorted(extents):
        if merged and extent.start < merged[-1].end:
            last = merged[-1]
            merged[-1] = Extent(last.start, max(last.end, extent.end) - last.start, last.is_whole or extent.is_whole)
        else:
            merged.append(extent)
    return tuple(merged)
