"""What allocators have in common that map memory for each request and keep none of it."""

from __future__ import annotations

from pinprobe.probes.own_mapping import OwnMapping


class MappedMemory:
    """A mapping of one allocation's own. `release` unmaps it, which unlocks it too."""

    def __init__(self, mapping: OwnMapping, note: str) -> None:
        self._mapping = mapping
        self.address = mapping.address
        self.note = note

    def release(self) -> None:
        """Unmap it; a second call does nothing."""
        self._mapping.unmap()


class Uncached:
    """The answers of an allocator that keeps nothing, to what a cache would be asked."""

    def notes(self) -> tuple[str, ...]:
        """Nothing a reader has to know."""
        return ()

    def allocated_bytes(self) -> None:
        """It keeps no account."""

    def empty_cache(self) -> None:
        """It keeps no block."""
