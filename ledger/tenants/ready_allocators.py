"""Allocators that are made ready once, and used for every rank that opens a tenant of the same size."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pinprobe.probes.allocators.registry import prepare_allocator

if TYPE_CHECKING:
    from pinprobe.probes.allocators.allocator import Allocator


class ReadyAllocators:
    """The allocators of one kind of tenant, by name and by the size that each has to serve. Not for several threads."""

    def __init__(self) -> None:
        self._ready: dict[tuple[str, int], Allocator] = {}

    def get(self, name: str, asked_bytes: int) -> Allocator:
        """Return the allocator, its runtime up; whether it can serve so much is asked once for each size.

        Raises `BadRequest` for an unknown name and `AllocatorUnavailable` where it can't be had.
        """
        key = (name, asked_bytes)
        if key not in self._ready:
            allocator = self._ready[key] = prepare_allocator(name, asked_bytes).allocator
            allocator.notes()  # brings its runtime up
        return self._ready[key]
