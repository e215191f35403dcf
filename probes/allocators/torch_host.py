"""`torch-host`: PyTorch's own caching host allocator, compiled from the installed torch's headers.

It decides block sizes, keeps blocks and hands them out again exactly as `torch.empty(pin_memory=True)` does with a GPU.
Only the memory below it is ours: one shared anonymous mapping a block, as the CUDA driver has it, locked where that is
allowed and touched where not.
"""

from __future__ import annotations

import ctypes
import os
from functools import cached_property
from pathlib import Path

from pinprobe.probes.allocators.torch_host_build import HEADERS, TRIED_RELEASES, find_or_build
from pinprobe.probes.allocators.torch_settings import SETTINGS_NAMES, notes_on_settings
from pinprobe.probes.cache_folder import cache_folder
from pinprobe.probes.errors import AllocationFailed, AllocatorUnavailable, CouldNotMeasure, in_one_line
from pinprobe.probes.installed_torch import find_installed_torch
from pinprobe.probes.measuring_child import MeasuringChild
from pinprobe.probes.reading import Reading, Unreadable

_TEXT_BYTES = 4096
_NO_ADDRESS_SPACE = -2


class _Library:
    """The compiled library, each call turned into a value or an `AllocationFailed`."""

    def __init__(self, path: Path) -> None:
        try:
            self._library = ctypes.CDLL(str(path))
        except OSError as error:
            raise AllocatorUnavailable(
                f"the compiled allocator can't be loaded: {error}", "`pinprobe cache clear`"
            ) from None

    def call(self, name: str, *arguments: object) -> None:
        error = ctypes.create_string_buffer(_TEXT_BYTES)
        status = getattr(self._library, name)(*arguments, error, ctypes.c_size_t(_TEXT_BYTES))
        if status:
            lines = error.value.decode(errors="replace").splitlines() or ["no reason given"]
            raise AllocationFailed(f"torch's allocator: {lines[0][:200]}", no_address_space=status == _NO_ADDRESS_SPACE)


class TorchBlock:
    """A block that torch's allocator handed out."""

    def __init__(self, library: _Library, asked_bytes: int) -> None:
        pointer, context, locked = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_int()
        outputs = (ctypes.byref(pointer), ctypes.byref(context), ctypes.byref(locked))
        library.call("pinprobe_allocate", ctypes.c_size_t(asked_bytes), *outputs)
        self._library = library
        self._context: ctypes.c_void_p | None = context
        self.address = pointer.value or 0
        self.note = "locked" if locked.value else "touched, since mlock was refused"

    def release(self) -> None:
        """Give the block back; the allocator keeps it for the next request of its size class."""
        context, self._context = self._context, None
        if context is not None:
            self._library.call("pinprobe_free", context)


class TorchHost:
    """PyTorch's caching host allocator without a GPU."""

    name = "torch-host"
    counter = "RssShmem"

    def __init__(self, library_path: Path) -> None:
        self._path = library_path

    @classmethod
    def prepare(cls, largest_bytes: int) -> TorchHost:
        """Compile the allocator where no fitting library is kept (some seconds), and see a fresh one run."""
        try:
            return cls(find_or_build(must_run=lambda library: _must_run(cls(library))))
        except AllocatorUnavailable:
            raise
        except CouldNotMeasure as error:
            raise AllocatorUnavailable(
                f"torch's allocator compiled but does not run here: {error}", "use `--allocator mlock`"
            ) from None
        except OSError as error:
            raise AllocatorUnavailable(f"torch's allocator can't be built: {in_one_line(error)}") from None

    @cached_property
    def _library(self) -> _Library:
        return _Library(self._path)

    def __getstate__(self) -> dict[str, object]:
        return {"_path": self._path}  # a loaded library stays in the process that loaded it

    def notes(self) -> tuple[str, ...]:
        """Name the settings in force, those that are not reproduced, and a torch that was never tried."""
        settings, keys = ctypes.create_string_buffer(_TEXT_BYTES), ctypes.create_string_buffer(_TEXT_BYTES)
        try:
            self._library.call("pinprobe_settings", settings, keys, ctypes.c_size_t(_TEXT_BYTES))
        except AllocationFailed as error:
            # What torch says of a setting that it can't read is its parser's own word, and names no setting.
            given = "; ".join(f"{name}={os.environ[name]}" for name in SETTINGS_NAMES if name in os.environ)
            raise AllocatorUnavailable(f"torch refuses its settings ({given}): {error}", "mend or unset them") from None
        torch = find_installed_torch()
        if isinstance(torch, Unreadable):
            return (str(torch),)
        header = (torch.folder / "include" / HEADERS[0]).read_text(encoding="utf-8", errors="replace")
        notes = notes_on_settings(settings.value.decode(errors="replace"), set(keys.value.decode().split(",")), header)
        if not self._path.is_relative_to(cache_folder()):
            notes += (
                f"compiled for this run alone, since {cache_folder()} can't be written; PINPROBE_CACHE_DIR moves it",
            )
        if torch.release not in TRIED_RELEASES:
            notes += (
                f"torch {torch.version} is not one pinprobe was tested with; its allocator compiled and ran here",
            )
        return notes

    def allocate(self, asked_bytes: int) -> TorchBlock:
        """Ask torch's allocator for `asked_bytes`."""
        return TorchBlock(self._library, asked_bytes)

    def empty_cache(self) -> None:
        """Give the blocks that are kept and not in use back to the kernel."""
        self._library.call("pinprobe_empty_cache")

    def allocated_bytes(self) -> int:
        """Return the bytes of all blocks, in use or kept, by the allocator's own account."""
        value = ctypes.c_int64()
        self._library.call("pinprobe_allocated_bytes", ctypes.byref(value))
        return value.value


def _must_run(allocator: TorchHost) -> None:
    """See a fresh library serve two requests, in a process of its own, before anything stands on it."""
    asked_bytes = 3_000_000
    with MeasuringChild(allocator) as child:
        first = child.measure(asked_bytes)
        child.release()
        second = child.measure(asked_bytes)
    holds = isinstance(first.block, Reading) and first.block.bytes >= asked_bytes and second.address == first.address
    if not holds:
        raise AllocatorUnavailable(
            "torch's allocator compiled here but does not keep a block for the next request, so it can't be walked",
            "use `--allocator mlock`",
        )
