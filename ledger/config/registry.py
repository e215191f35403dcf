"""From a YAML file to a `Config`: every problem of the file is found before any is told, each with its place.

YAML gives the keys, the texts and their places here; what the texts mean is decided in `scalars.py`, which keys may
stand where in `schema.py`, and the numbers are worked out in `resolve.py`. No code that a config names is run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

from pinprobe.ledger.config.config import Config
from pinprobe.ledger.config.draft import read_draft, without_removed
from pinprobe.ledger.config.marked import Listing, Node, Place, Problems, Scalar, Section, quoted
from pinprobe.ledger.config.resolve import resolve
from pinprobe.ledger.config.schema import find_faults
from pinprobe.ledger.config.stray_lists import STRAY_LIST, without_stray_lists
from pinprobe.probes.errors import BadConfig, BadRequest, printable

#: Bounds, so that a hostile file costs neither time nor memory: of the file, of its nodes (what an alias stands for
#: counts each time), and of how deep they are nested.
LARGEST_FILE_BYTES = 2**20
MOST_NODES = 20_000
DEEPEST = 32

# All that YAML takes for characters; the byte order mark is allowed at the very beginning only, and taken off there.
_NO_CHARACTER = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]")


def load_config(path: Path, overrides: Mapping[str, str] | None = None) -> Config:
    """Read a config, some of its numbers set anew: `overrides` gives expressions by the numbers' names.

    Raises `BadConfig` with a line for every problem, and `BadRequest` where there is no file that could be read.
    """
    problems = Problems()
    source = printable(path)
    document = _read_document(_read_text(path, source), source, problems)
    document = without_removed(without_stray_lists(document, problems), problems)
    draft = read_draft(document, find_faults(document, problems))
    return resolve(draft, document, source, overrides or {}, problems)


def _read_text(path: Path, source: str) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST_FILE_BYTES + 1)
    except FileNotFoundError:
        raise BadRequest(f"{source}: there is no such file") from None
    except IsADirectoryError:
        raise BadRequest(f"{source} is a folder; name a file in it") from None
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        raise BadRequest(f"{source} can't be read: {reason}") from None
    if len(content) > LARGEST_FILE_BYTES:
        raise BadConfig([f"{source}:1:1: the file is larger than 1 MiB; a config is some pages at most"])
    try:
        text = content.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        place = _place_after(content[: error.start].decode("utf-8"), source)
        raise BadConfig([f"{place}: byte 0x{content[error.start]:02x} is no UTF-8; save the file as UTF-8"]) from None
    stray = _NO_CHARACTER.search(text)
    if stray is not None:
        place = _place_after(text[: stray.start()], source)
        raise BadConfig([f"{place}: the character U+{ord(stray[0]):04X} can't stand in YAML; take it out"])
    return text


def _place_after(text: str, source: str) -> Place:
    return Place(text.count("\n") + 1, len(text) - text.rfind("\n"), source)


def _read_document(text: str, source: str, problems: Problems) -> Section:
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    # The events and not the composed tree: a deep or endless document is left at its bound, before it is built.
    reader = _Reader(yaml.parse(text, Loader=loader), source, problems)
    try:
        document = reader.document()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = Place(mark.line + 1, mark.column + 1, source) if mark else Place(1, 1, source)
        words = getattr(error, "problem", None) or "it can't be read"
        problems.add(place, f"this is not YAML: {words}; look at the indentation, colons and quotes before it")
        document = None
    if not isinstance(document, Section):
        if isinstance(document, Listing):
            problems.add(document.place, STRAY_LIST)
        elif document is not None or not problems.found:
            what = "nothing" if document is None or document.is_nothing else "one value"
            problems.add(Place(1, 1, source), f"there is {what} here; a config begins with engine: {{name: ...}}")
        problems.raise_any()
    assert isinstance(document, Section)
    # A section whose every line is commented out is as good as none.
    for name in [name for name, value in document.items() if isinstance(value, Scalar) and value.is_nothing]:
        del document[name], document.key_places[name]
    return document


class _Reader:
    """Builds nodes from YAML's events. One that has to be left out is None, and its problem is noted."""

    def __init__(self, events: Iterator[Any], source: str, problems: Problems) -> None:
        self._events = events
        self._source = source
        self._problems = problems
        self._anchors: dict[str, Node | None] = {}
        self._open: set[str] = set()
        self._node_count = 0

    def document(self) -> Node | None:
        """Return the only document; None where there is none."""
        import yaml

        node = None
        seen = False
        for event in self._events:
            if isinstance(event, yaml.DocumentStartEvent):
                if seen:
                    self._stop(event, "a second document begins here; put each config into a file of its own")
                seen = True
                node = self._node(next(self._events), 1)
        return node

    def _node(self, event: Any, depth: int) -> Node | None:
        import yaml

        self._count(event, depth)
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event, depth)
        refusal = self._refusal(event)
        node: Node | None = None
        if refusal is not None:
            self._problems.add(self._place(event), refusal)
            if isinstance(event, yaml.CollectionStartEvent):
                self._pass_over(depth)
        elif isinstance(event, yaml.ScalarEvent):
            node = Scalar(event.value, self._place(event), is_plain=not event.style)
        else:
            self._open.add(event.anchor)
            is_list = isinstance(event, yaml.SequenceStartEvent)
            node = self._listing(event, depth) if is_list else self._section(event, depth)
            self._open.discard(event.anchor)
        if event.anchor is not None:
            self._anchors[event.anchor] = node
        return node

    @staticmethod
    def _refusal(event: Any) -> str | None:
        if event.tag is not None:
            tag = event.tag.replace("tag:yaml.org,2002:", "!!")[:60]
            return f"the tag {tag} is not taken; write the value alone"
        return None

    def _pass_over(self, depth: int) -> None:
        """Leave out the rest of a collection that was refused, counting it; what is wrong in it need not be told."""
        import yaml

        opened = 1
        while opened:
            event = next(self._events)
            if isinstance(event, yaml.CollectionEndEvent):
                opened -= 1
                continue
            self._count(event, depth + opened)
            opened += isinstance(event, yaml.CollectionStartEvent)
            if event.anchor is not None and not isinstance(event, yaml.AliasEvent):
                self._anchors[event.anchor] = None

    def _listing(self, start: Any, depth: int) -> Listing | None:
        import yaml

        listing = Listing(self._place(start))
        is_whole = True
        for event in self._events:
            if isinstance(event, yaml.SequenceEndEvent):
                break
            value = self._node(event, depth + 1)
            if value is None:
                is_whole = False
            else:
                listing.append(value)
        return listing if is_whole else None

    def _section(self, start: Any, depth: int) -> Section:
        import yaml

        section = Section(self._place(start))
        for event in self._events:
            if isinstance(event, yaml.MappingEndEvent):
                break
            key = self._node(event, depth + 1)
            value = self._node(next(self._events), depth + 1)
            place = self._place(event)
            if not isinstance(key, Scalar):
                if key is not None:
                    what = "keys of its own" if isinstance(key, Section) else "a list"
                    self._problems.add(place, f"a key has to be a word, not {what}")
            elif key == "<<" and key.is_plain:
                self._problems.add(place, "`<<` merges nothing here; write the keys out")
            elif key in section.key_places:
                first = section.key_places[key].line
                self._problems.add(place, f"{quoted(key)} stands here a second time, first in line {first}; keep one")
            elif key == "":
                self._problems.add(place, "a key is missing before the colon")
            else:
                section.key_places[str(key)] = place
                if value is None:
                    section.broken.add(str(key))
                else:
                    section[str(key)] = value
        return section

    def _alias(self, event: Any, depth: int) -> Node | None:
        name = event.anchor
        if name in self._open:
            self._problems.add(self._place(event), f"*{name[:60]} stands inside of what it stands for; write it out")
        elif name not in self._anchors:
            self._problems.add(self._place(event), f"nothing before *{name[:60]} is marked &{name[:60]}")
        else:
            node = self._anchors[name]
            self._count_again(node, event, depth)
            return node
        return None

    def _count_again(self, node: Node | None, event: Any, depth: int) -> None:
        # As if it were written out: ten aliases of ten aliases of ten are a thousand nodes, or a million.
        for value in node.values() if isinstance(node, Section) else node if isinstance(node, Listing) else ():
            self._count(event, depth + 1)
            self._count_again(value, event, depth + 1)

    def _count(self, event: Any, depth: int) -> None:
        self._node_count += 1
        if self._node_count > MOST_NODES:
            self._stop(
                event, f"there are more than {MOST_NODES:,} values here, aliases counted; a config is some pages"
            )
        if depth > DEEPEST:
            self._stop(event, f"this is nested more than {DEEPEST} deep; a config is seven deep")

    def _place(self, event: Any) -> Place:
        return Place(event.start_mark.line + 1, event.start_mark.column + 1, self._source)

    def _stop(self, event: Any, message: str) -> NoReturn:
        self._problems.add(self._place(event), message)
        self._problems.raise_any()
        raise AssertionError("a problem was just added")
