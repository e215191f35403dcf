"""Allocators that are there on any machine, or the reason why one is not."""

from __future__ import annotations

import pytest

from pinprobe.probes.allocators.allocator import Allocator
from pinprobe.probes.allocators.registry import prepare_allocator
from pinprobe.probes.errors import AllocatorUnavailable
from tests.probes.allocators.kernel_word import MIB

ALLOCATORS = ("pageable", "mlock", "torch-host")


def prepared(name: str, size_bytes: int = 16 * MIB) -> Allocator:
    try:
        return prepare_allocator(name, size_bytes).allocator
    except AllocatorUnavailable as error:
        pytest.skip(str(error))
