"""`pageable`: the control. Ordinary memory, mapped fresh, every page written, huge pages off.

Not `np.empty` or `torch.empty`, which nobody has touched, nor malloc, whose warm arena costs nothing: a control that
took no memory would make every other reading look right.
"""

from __future__ import annotations

from pinprobe.probes.allocators.uncached import MappedMemory, Uncached
from pinprobe.probes.own_mapping import OwnMapping


class Pageable(Uncached):
    """Fresh pageable memory for every request; no cache."""

    name = "pageable"
    counter = "RssAnon"

    @classmethod
    def prepare(cls, largest_bytes: int) -> Pageable:
        """Nothing is needed."""
        return cls()

    def allocate(self, asked_bytes: int) -> MappedMemory:
        """Map and write `asked_bytes`, rounded up to whole pages."""
        mapping = OwnMapping.anonymous(asked_bytes, huge_pages=False)
        mapping.write_every_page()
        return MappedMemory(mapping, "touched")
