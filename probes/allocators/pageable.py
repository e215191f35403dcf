"""`pageable`: the control. Ordinary memory, mapped fresh, every page written, huge pages off.

Not `np.empty` or `torch.empty`, which nobody has touched, nor malloc, whose warm arena costs nothing: a control that
took no memory would make every other reading look right.
"""

from __future__ import annotations

from pinprobe.probes.own_mapping import OwnMapping


class PageableMemory:
    """A private mapping that was written page by page."""

    note = "touched"

    def __init__(self, mapping: OwnMapping) -> None:
        self._mapping = mapping

    @property
    def address(self) -> int:
        """Where it begins."""
        return self._mapping.address

    def release(self) -> None:
        """Unmap it; nothing is kept."""
        self._mapping.unmap()


class Pageable:
    """Fresh pageable memory for every request; no cache."""

    name = "pageable"
    counter = "RssAnon"

    @classmethod
    def prepare(cls, largest_bytes: int) -> Pageable:
        """Nothing is needed."""
        return cls()

    def notes(self) -> tuple[str, ...]:
        """Nothing to know."""
        return ()

    def allocated_bytes(self) -> None:
        """It keeps no account."""

    def allocate(self, asked_bytes: int) -> PageableMemory:
        """Map and write `asked_bytes`, rounded up to whole pages."""
        mapping = OwnMapping.anonymous(asked_bytes, huge_pages=False)
        mapping.write_every_page()
        return PageableMemory(mapping)

    def empty_cache(self) -> None:
        """Nothing is kept."""
