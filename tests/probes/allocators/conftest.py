"""Allocators that are ready, by name. torch-host's library is compiled once, into a cache that goes with the run."""

from __future__ import annotations

import importlib
import os
import shutil
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

from pinprobe.probes.allocators.allocator import Allocator
from pinprobe.probes.allocators.registry import prepare_allocator
from pinprobe.probes.errors import AllocatorUnavailable

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
# What fits a shell without rights: there mlock is held to 8 MiB.
_SMALL_BYTES = 7 * 2**20


@pytest.fixture(scope="session")
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="package", autouse=True)
def _surroundings(shared_cache: Path) -> Iterator[None]:
    """A cache of our own, no settings of the user's torch, and the example allocator where imports find it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PINPROBE_CACHE_DIR", str(shared_cache))
        for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF"):
            patch.delenv(name, raising=False)
        patch.syspath_prepend(str(EXAMPLES))
        yield


@pytest.fixture
def prepared() -> Callable[..., Allocator]:
    """Give the allocator of a name, or skip with its own words on why it is not to be had."""

    def prepare(name: str, largest_bytes: int = _SMALL_BYTES) -> Allocator:
        if name == "memfd":
            made: Allocator = importlib.import_module("memfd_allocator").Memfd.prepare(largest_bytes)
            return made
        try:
            return prepare_allocator(name, largest_bytes).allocator
        except AllocatorUnavailable as error:
            # Where torch and a compiler are there, a build that fails is a failure and no reason to skip.
            if name == "torch-host" and _could_compile():
                raise
            pytest.skip(str(error))

    return prepare


@pytest.fixture
def torch_host(prepared: Callable[..., Allocator]) -> Allocator:
    return prepared("torch-host")


def _could_compile() -> bool:
    try:
        release = tuple(int(part) for part in version("torch").split(".")[:2])
    except PackageNotFoundError:
        return False
    return release >= (2, 9) and shutil.which(os.environ.get("CXX") or "g++") is not None
