"""A ledger, torch's own allocator and a map of it, and a heap that keeps nothing."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator

import pytest

from pinprobe.ledger.ledger import HostPinnedLedger
from pinprobe.probes.allocators.allocator import Allocator
from pinprobe.probes.sweep import Sweep
from tests.ledger.host_pinned_ledger.real_memory import (
    KINDS,
    ODD,
    prepared,
    trim_the_heap,
)
from tests.probes.allocators.kernel_word import MIB


@pytest.fixture(scope="package", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A cache of our own for the compiled allocator, and no settings of the user's torch."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PINPROBE_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF"):
            patch.delenv(name, raising=False)
        yield


@pytest.fixture(scope="package", autouse=True)
def _libraries_at_hand() -> None:
    """What a library takes at its first time, hundreds of MiB, is no memory of a request."""
    for kind in ("numpy", "torch"):
        with contextlib.suppress(pytest.skip.Exception):
            KINDS[kind](16 * MIB)


@pytest.fixture(autouse=True)
def _heap_that_gives_back() -> None:
    """Keep malloc from learning: what is large is then mapped for itself, and unmapped when it is freed."""
    with contextlib.suppress(AttributeError):  # not glibc
        ctypes.CDLL(None).mallopt(-3, MIB)  # M_MMAP_THRESHOLD
    trim_the_heap()


@pytest.fixture
def torch_host() -> Iterator[Allocator]:
    """Torch's own caching allocator, with an empty cache before and after."""
    allocator = prepared("torch-host", 128 * MIB)
    allocator.empty_cache()
    yield allocator
    allocator.empty_cache()


@pytest.fixture
def ledger() -> HostPinnedLedger:
    made = HostPinnedLedger()
    made.calibrate()
    return made


@pytest.fixture(scope="package")
def torch_map() -> Sweep:
    """Torch's blocks for 1 to 16 slots of 3,000,000 B, measured."""
    prepared("torch-host")
    return HostPinnedLedger(allocator="torch-host").cliffs(ODD, range(1, 17))
