"""The values of a config file, each with the place where it stands, and the problems that are found there."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

from pinprobe.ledger.config.expression_text import shown
from pinprobe.probes.errors import BadConfig, printable

#: So many known names are worth searching for a near one, and so many are worth listing.
_MOST_SEARCHED = 200
_MOST_LISTED = 12
_LONGEST_LINE = 600


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """A line and a column, counted from 1. What was set on the command line has line 0 and is named by its source."""

    line: int
    column: int
    source: str

    def __str__(self) -> str:
        return f"{self.source}:{self.line}:{self.column}" if self.line else self.source


class Scalar(str):
    """One value as it is written, before anybody took it for a number or a flag."""

    place: Place
    #: Whether it stands without quotes.
    is_plain: bool

    def __new__(cls, text: str, place: Place, is_plain: bool = True) -> Scalar:
        """Make one of its text, its place, and whether it stands without quotes."""
        scalar = super().__new__(cls, text)
        scalar.place = place
        scalar.is_plain = is_plain
        return scalar

    @property
    def is_nothing(self) -> bool:
        """Whether a key has no value behind it."""
        return self.is_plain and str(self) in ("", "~", "null", "Null", "NULL")


class Listing(list["Node"]):
    """Values in their order. Only a layout has any: see `stray_lists.py`."""

    def __init__(self, place: Place, values: Iterable[Node] = ()) -> None:
        super().__init__(values)
        self.place = place


class Section(dict[str, "Node"]):
    """Keys and values in their order.

    `key_places` holds where each key stands; `broken` the keys whose values had to be left out, since what is wrong
    with them is told already.
    """

    def __init__(self, place: Place) -> None:
        super().__init__()
        self.place = place
        self.key_places: dict[str, Place] = {}
        self.broken: set[str] = set()

    @property
    def sound_key_places(self) -> dict[str, Place]:
        """Where the keys stand whose values are at hand."""
        return {key: self.key_places[key] for key in self}

    def without(self, *keys: str) -> Section:
        """Return it with these keys left out as broken."""
        copy = Section(self.place)
        copy.key_places = self.key_places
        copy.broken = self.broken | set(keys)
        copy.update({key: value for key, value in self.items() if key not in keys})
        return copy


Node: TypeAlias = Scalar | Section | Listing


@dataclass
class Problems:
    """What is wrong with a config: all of it is collected before anybody is told."""

    found: dict[tuple[Place, str], None] = field(default_factory=dict)

    def add(self, place: Place, message: str) -> None:
        """Note a problem: what is wrong at a place, and what would be right."""
        self.found[place, printable(message)[:_LONGEST_LINE]] = None

    def raise_any(self) -> None:
        """Raise `BadConfig` with every problem in the order of the file, if there is one."""
        if self.found:
            raise BadConfig([f"{place}: {message}" for place, message in sorted(self.found)])


def near(name: str, known: Iterable[str], what: str = "known are") -> str:
    """Say which known name was perhaps meant, or which there are.

    >>> near("slotz", ["slots", "ranks"])
    'did you mean slots?'
    >>> near("pool", ["slots", "ranks"])
    'known are slots, ranks'
    """
    names = list(known)
    close = difflib.get_close_matches(name[:60], names, n=1) if len(names) <= _MOST_SEARCHED else []
    if close:
        return f"did you mean {close[0]}?"
    if not names:
        return f"{what} none"
    more = f" and {len(names) - _MOST_LISTED} more" if len(names) > _MOST_LISTED else ""
    return f"{what} {', '.join(names[:_MOST_LISTED])}{more}"


def quoted(name: str) -> str:
    """Name a key in a message.

    >>> quoted("slots")
    '`slots`'
    """
    return f"`{shown(name)[1:-1]}`"
