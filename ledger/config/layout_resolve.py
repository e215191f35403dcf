"""From a layout as a config writes it to a `SavepointLayout`, its sizes worked out."""

from __future__ import annotations

from collections.abc import Callable

from pinprobe.ledger.config.arithmetic import Formula
from pinprobe.ledger.config.layout_draft import DraftLayout, DraftSize
from pinprobe.ledger.config.marked import Place, Problems, quoted
from pinprobe.ledger.tenants.savepoint_layout import ALIGN_BYTES, ITEM_BYTES, MOST_SLABS, SavepointLayout, Slab
from pinprobe.probes.errors import BadRequest

#: Works a count out, or tells at its place why that can't be and returns None; the last is what it is called.
Count = Callable[[Formula, Place, str], "int | None"]


class LayoutResolver:
    """Works out the layouts of one config.

    Their slabs together are bounded: two short lines may ask for as many as they like, and each would be built.
    """

    def __init__(self, count: Count, problems: Problems) -> None:
        self._count = count
        self._problems = problems
        self._slabs_left = MOST_SLABS

    def resolve(self, draft: DraftLayout, name: str) -> SavepointLayout | None:
        """Work out one layout; `name` is the dotted key that holds it. Where that can't be, tell why, return None."""
        layers = 1 if draft.layers is None else self._size(draft.layers, name)
        align = ALIGN_BYTES if draft.align is None else self._size(draft.align, name)
        shapes = [[self._size(size, name) for size in slab.shape] for slab in draft.slabs]
        if layers is None or align is None or not self._has_room(layers * len(draft.slabs), draft, name):
            return None
        slabs = []
        for slab, sizes in zip(draft.slabs, shapes, strict=True):
            shape = tuple(size for size in sizes if size is not None)
            if len(shape) < len(sizes):
                return None
            slabs.append(Slab(slab.name, shape, slab.dtype))
        if draft.align is not None and not self._is_aligned(align, slabs, draft.align, name):
            return None
        try:
            if draft.layers is None:
                return SavepointLayout(tuple(slabs), align)
            return SavepointLayout.of_geometry(layers, {slab.name: (slab.shape, slab.dtype) for slab in slabs}, align)
        except BadRequest as error:
            self._problems.add(draft.place, f"{quoted(name)}: {error}")
            return None

    def _size(self, size: DraftSize, name: str) -> int | None:
        return self._count(size.formula, size.place, quoted(name + size.below))

    def _has_room(self, slabs: int, draft: DraftLayout, name: str) -> bool:
        self._slabs_left -= slabs
        if self._slabs_left >= 0:
            return True
        self._slabs_left += slabs
        place = draft.place if draft.layers is None else draft.layers.place
        message = f"it has {slabs:,} slabs; {MOST_SLABS:,} are the most that the layouts of a config have together"
        self._problems.add(place, f"{quoted(name)}: {message}")
        return False

    def _is_aligned(self, align: int, slabs: list[Slab], size: DraftSize, name: str) -> bool:
        widest = max(slabs, key=lambda slab: ITEM_BYTES[slab.dtype])
        least = ITEM_BYTES[widest.dtype]
        if align & (align - 1):
            reason = f"{align:,} is no power of two; write one of {least} or more"
        elif align < least:
            reason = f"{align} is less than an item of {widest.dtype} takes; write {least} or more"
        else:
            return True
        self._problems.add(size.place, f"{quoted(name + size.below)}: {reason}")
        return False
