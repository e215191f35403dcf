"""`cupy`: CuPy's pinned memory pool, where CuPy is installed."""

from __future__ import annotations

import importlib.util
from functools import cached_property
from typing import Any

from pinprobe.probes.errors import AllocationFailed, AllocatorUnavailable


class CupyBlock:
    """Pinned memory of CuPy's pool; letting go of it gives it back to the pool."""

    note = "by CuPy"

    def __init__(self, memory: Any) -> None:
        self._memory = memory
        self.address: int = memory.ptr

    def release(self) -> None:
        """Let go of the memory."""
        self._memory = None


class CupyPinned:
    """CuPy's pool of pinned memory."""

    name = "cupy"
    counter = "RssShmem"

    @classmethod
    def prepare(cls, largest_bytes: int) -> CupyPinned:
        """See that CuPy is installed; whether it finds a GPU shows in the measuring process."""
        if importlib.util.find_spec("cupy") is None:
            raise AllocatorUnavailable("CuPy is not installed", "`pip install cupy-cuda13x`, or the one for your CUDA")
        return cls()

    @cached_property
    def _pool(self) -> Any:
        try:
            import cupy

            pool = cupy.cuda.PinnedMemoryPool()
            pool.malloc(1)  # brings the runtime up before anything is measured
            pool.free_all_blocks()
        except Exception as error:  # noqa: BLE001  # a missing driver or library raises CuPy's own kinds, or ImportError
            lines = str(error).strip().splitlines() or [type(error).__name__]
            raise AllocatorUnavailable(f"CuPy can't use a GPU here: {lines[0][:160]}") from None
        return pool

    def __getstate__(self) -> dict[str, object]:
        return {}

    def notes(self) -> tuple[str, ...]:
        """Name CuPy's version, which brings its runtime up."""
        import cupy

        pool = self._pool
        return (f"CuPy {cupy.__version__}, {type(pool).__name__}",)

    def allocated_bytes(self) -> None:
        """CuPy's pinned pool tells how many blocks are free, and of none how large it is."""

    def allocate(self, asked_bytes: int) -> CupyBlock:
        """Ask the pool for `asked_bytes`."""
        try:
            return CupyBlock(self._pool.malloc(asked_bytes))
        except Exception as error:  # noqa: BLE001  # CuPy raises its runtime's own errors
            lines = str(error).strip().splitlines() or [type(error).__name__]
            raise AllocationFailed(f"CuPy could not pin {asked_bytes:,} B: {lines[0][:160]}") from None

    def empty_cache(self) -> None:
        """Give the blocks that are kept and not in use back."""
        self._pool.free_all_blocks()
