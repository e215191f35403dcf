"""A savepoint's layout as a config writes it: a list of slabs or a geometry, its sizes not worked out yet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pinprobe.ledger.config.arithmetic import Formula
from pinprobe.ledger.config.expression_text import shown
from pinprobe.ledger.config.keys import LAYOUT, SLAB
from pinprobe.ledger.config.marked import Listing, Node, Place, Scalar, Section, near, quoted
from pinprobe.ledger.config.scalars import LONGEST_TEXT, read_number, read_text
from pinprobe.ledger.tenants.savepoint_layout import ITEM_BYTES
from pinprobe.probes.errors import BadRequest

#: Sizes of one shape: more than any state has, and few enough that their product stays a number.
MOST_SIZES = 8


@dataclass(frozen=True, slots=True)
class DraftSize:
    """A count somewhere in a layout; `below` are the keys that lead to it, as `[3].shape[0]`."""

    formula: Formula
    place: Place
    below: str


@dataclass(frozen=True, slots=True)
class DraftSlab:
    """One slab of a list, or one attribute of every layer."""

    name: str
    shape: tuple[DraftSize, ...]
    dtype: str


@dataclass(frozen=True)
class DraftLayout:
    """A whole layout. `layers` is None where the slabs are a list, and not the attributes of each layer."""

    slabs: tuple[DraftSlab, ...]
    layers: DraftSize | None
    align: DraftSize | None
    place: Place


@dataclass(frozen=True, slots=True)
class LayoutFault:
    """One thing that is wrong in a layout: where, by which keys below it, and the words that follow their name."""

    place: Place
    below: str
    words: str


class BadLayout(BadRequest):
    """A layout that can't be read, with everything that is wrong in it, as far as it was not told already."""

    def __init__(self, faults: Sequence[LayoutFault]) -> None:
        super().__init__(tuple(faults))
        self.faults = tuple(faults)

    def __str__(self) -> str:
        return "; ".join(f"{fault.place}: {fault.below}{fault.words}" for fault in self.faults)


def read_layout(value: object) -> DraftLayout:
    """Read a list of slabs, or a geometry. Raises `BadLayout`."""
    reading = _Reading()
    layout = reading.layout(value)
    if layout is None:
        raise BadLayout(reading.faults)
    return layout


class _Reading:
    """Reads one layout. What is wrong is noted, and the rest read on; a part that is not sound is None."""

    def __init__(self) -> None:
        self.faults: list[LayoutFault] = []
        # Something was left out that is told already: then there is no layout, and nothing to say of it.
        self._is_broken = False

    def layout(self, value: object) -> DraftLayout | None:
        """Return the layout where all of it is sound."""
        layout = None
        if isinstance(value, Listing):
            layout = self._listed(value)
        elif isinstance(value, Section):
            layout = self._geometry(value)
        elif isinstance(value, Scalar):
            what = "it has no value" if value.is_nothing else f"{shown(value)} is no layout"
            reason = "a layout is a list of slabs, or has `layers` and `attributes` below it"
            self._fault(value.place, "", f": {what}; {reason}")
        return None if self.faults or self._is_broken else layout

    # -- the two forms

    def _listed(self, slabs: Listing) -> DraftLayout:
        found = []
        places: dict[str, Place] = {}
        if not slabs:
            self._fault(slabs.place, "", ": the list has no slab; a savepoint has one or more")
        for at, node in enumerate(slabs):
            below = f"[{at}]"
            if not isinstance(node, Section):
                self._fault(node.place, below, f": a slab has the keys {', '.join(SLAB)}, as {{name: conv, ...}}")
                continue
            self._keys(node, below, SLAB, node.place)
            name = self._text(node, "name", below)
            if name is not None and name in places:
                first = places[name].line
                self._fault(node["name"].place, below, f": {quoted(name)} is a slab already, in line {first}")
            elif name is not None:
                places[name] = node["name"].place
            found.append(DraftSlab(name or "", self._shape(node, below), self._dtype(node, below)))
        return DraftLayout(tuple(found), None, None, slabs.place)

    def _geometry(self, section: Section) -> DraftLayout:
        self._keys(section, "", LAYOUT, section.place, optional=("align",))
        attributes = section.get("attributes")
        found = []
        if isinstance(attributes, Section):
            self._is_broken |= bool(attributes.broken)
            if not attributes.key_places:
                self._fault(attributes.place, ".attributes", ": there is none; a layer has one or more")
            for name, node in attributes.items():
                found.append(self._attribute(name, node, attributes.key_places[name]))
        elif attributes is not None:
            self._fault(attributes.place, ".attributes", " has a key for each tensor of a layer, as conv: {...}")
        layers, align = self._size(section, "layers"), self._size(section, "align")
        return DraftLayout(tuple(found), layers, align, section.place)

    def _attribute(self, name: str, node: Node, place: Place) -> DraftSlab:
        below = f".attributes.{name}"
        if not name.isprintable() or len(name) > LONGEST_TEXT:
            self._fault(place, below, f": a name is 1 to {LONGEST_TEXT} characters that can be printed")
        if not isinstance(node, Section):
            self._fault(node.place, below, " has the keys shape and dtype; write them indented below it, or in {}")
            return DraftSlab(name, (), "")
        keys = {key: meaning for key, meaning in SLAB.items() if key != "name"}
        self._keys(node, below, keys, place)
        return DraftSlab(name, self._shape(node, below), self._dtype(node, below))

    # -- the parts

    def _keys(
        self, section: Section, below: str, known: Mapping[str, str], place: Place, optional: Sequence[str] = ()
    ) -> None:
        self._is_broken |= bool(section.broken)
        for key, key_place in section.key_places.items():
            if key not in known:
                self._fault(key_place, f"{below}.{key}", f" is not known; {near(key, known)}")
        for key, meaning in known.items():
            if key not in section.key_places and key not in optional:
                self._fault(place, below, f" lacks {quoted(key)}: {meaning}")

    def _shape(self, slab: Section, below: str) -> tuple[DraftSize, ...]:
        below += ".shape"
        sizes = slab.get("shape")
        if sizes is None:
            return ()
        if not isinstance(sizes, Listing):
            self._fault(sizes.place, below, ": a shape is a list of sizes, as [48, 128, 128]")
            return ()
        if not 1 <= len(sizes) <= MOST_SIZES:
            self._fault(sizes.place, below, f": it has {len(sizes):,} sizes; a shape has 1 to {MOST_SIZES}")
            return ()
        found = (self._number(size, f"{below}[{at}]") for at, size in enumerate(sizes))
        return tuple(size for size in found if size is not None)

    def _dtype(self, slab: Section, below: str) -> str:
        dtype = self._text(slab, "dtype", below)
        if dtype is not None and dtype not in ITEM_BYTES:
            self._fault(slab["dtype"].place, f"{below}.dtype", f": no type is called {quoted(dtype)};"
                        f" {near(dtype, ITEM_BYTES)}")  # fmt: skip
        return dtype or ""

    def _size(self, section: Section, key: str) -> DraftSize | None:
        return self._number(section[key], f".{key}") if key in section else None

    def _number(self, node: Node, below: str) -> DraftSize | None:
        try:
            return DraftSize(read_number(node), node.place, below)
        except BadRequest as error:
            self._fault(node.place, below, f": {error}")
            return None

    def _text(self, section: Section, key: str, below: str) -> str | None:
        try:
            return read_text(section[key]) if key in section else None
        except BadRequest as error:
            self._fault(section[key].place, f"{below}.{key}", f": {error}")
            return None

    def _fault(self, place: Place, below: str, words: str) -> None:
        self.faults.append(LayoutFault(place, below, words))
