"""A value of a receipt that somebody may have damaged, with the key that leads to it.

Each way of reading one either gives what it promises or raises `BadRequest` with one line: the file, the key, what is
wrong there and what to do next.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NoReturn, TypeAlias

from pinprobe.probes.errors import BadRequest, printable
from pinprobe.probes.host_facts import Fact
from pinprobe.probes.reading import Amount, Reading, Unreadable

#: A value without values inside.
Leaf: TypeAlias = str | int | float | bool

#: Bounds, so that a hostile file costs neither time nor memory: thousands of rows fit, and no document of ours is so
#: deep.
MOST_VALUES = 500_000
DEEPEST = 40
#: A config's whole numbers have up to 30 digits; nothing else comes near.
_MOST_DIGITS = 30
#: No sum of rows comes to so much, and a difference of two of them can be added up by any reader of JSON.
_LARGEST_BYTES = 2**62
_LONGEST_KEY = 120
_REMEDY = "make the receipt anew: pinprobe ledger CONFIG --receipt FILE"


def parse_json(content: bytes, source: str) -> Any:
    """Parse a document, more strictly than `json.loads`: UTF-8 alone, and no key twice in one place.

    A number that is none, or has too many digits, becomes one that `check_numbers` finds, since it knows the key.
    """

    def members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, value in pairs:
            if name in found:
                raise BadRequest(f"{source}: the key {_short(name)} stands twice in one place; {_REMEDY}")
            found[name] = value
        return found

    # Counted before anything is built: an empty list of two characters takes many times that in memory.
    if sum(map(content.count, (b",", b"[", b"{"))) > MOST_VALUES:
        raise BadRequest(f"{source} has more than {MOST_VALUES:,} values, and a receipt some hundreds; {_REMEDY}")
    try:
        text = content.decode("utf-8").removeprefix("\ufeff")
        return json.loads(text, object_pairs_hook=members, parse_int=_whole)
    except UnicodeDecodeError as error:
        raise BadRequest(f"{source}: byte {error.start:,} is no UTF-8, so this is no receipt; {_REMEDY}") from None
    except json.JSONDecodeError as error:
        place = f"{source}:{error.lineno}:{error.colno}"
        raise BadRequest(f"{place}: this is not JSON: {error.msg}; {_REMEDY}") from None
    except RecursionError:
        raise BadRequest(f"{source}: values are nested deeper here than in any receipt; {_REMEDY}") from None


def _whole(text: str) -> int | float:
    # Python reads thousands of digits slowly, and beyond some not at all.
    return int(text) if len(text) <= _MOST_DIGITS + 1 else math.inf


def _short(key: str) -> str:
    text = printable(key)
    return text if len(text) <= _LONGEST_KEY else f"{text[:_LONGEST_KEY]}..."


@dataclass(frozen=True)
class JsonValue:
    """A value, the file it is from, and the dotted key that leads to it; an empty one for the whole document."""

    source: str
    key: str
    value: Any

    def refuse(self, what: str) -> NoReturn:
        """Raise what is wrong with it, said of the key."""
        subject = f"{self.source}: {_short(self.key)}" if self.key else f"{self.source}: the document"
        raise BadRequest(f"{subject} {printable(what)}; {_REMEDY}")

    def check_numbers(self) -> None:
        """Refuse a document that anywhere holds a number that is none or beyond all bounds, or is nested too deep."""
        open_values = [iter([self])]
        while open_values:  # a loop, since a document that is nested too deep would break a recursion
            place = next(open_values[-1], None)
            if place is None:
                open_values.pop()
            elif len(open_values) > DEEPEST:
                place.refuse(f"is nested deeper than {DEEPEST} values")
            elif isinstance(place.value, float) and not math.isfinite(place.value):
                place.refuse("is no number, or one beyond all bounds")
            elif isinstance(place.value, (dict, list)):
                open_values.append(place._inner())

    def _inner(self) -> Iterator[JsonValue]:
        if isinstance(self.value, dict):
            yield from (JsonValue(self.source, self._below(name), inner) for name, inner in self.value.items())
        else:
            yield from (JsonValue(self.source, f"{self.key}[{at}]", inner) for at, inner in enumerate(self.value))

    def _below(self, name: str) -> str:
        return f"{self.key}.{name}" if self.key else name

    def __getitem__(self, name: str) -> JsonValue:
        self.members()
        if name not in self.value:
            raise BadRequest(f"{self.source}: {_short(self._below(name))} is missing; {_REMEDY}")
        return JsonValue(self.source, self._below(name), self.value[name])

    def members(self) -> dict[str, JsonValue]:
        """Return the values inside by their names."""
        if not isinstance(self.value, dict):
            self.refuse(f"is {self._kind}, where keys with values are wanted")
        return {name: JsonValue(self.source, self._below(name), inner) for name, inner in self.value.items()}

    def items(self) -> list[JsonValue]:
        """Return the values of a list."""
        if not isinstance(self.value, list):
            self.refuse(f"is {self._kind}, where a list is wanted")
        return list(self._inner())

    def text(self) -> str:
        """Return a text, made fit for one line of a terminal."""
        if not isinstance(self.value, str):
            self.refuse(f"is {self._kind}, where a text is wanted")
        return printable(self.value)

    def flag(self) -> bool:
        """Return true or false."""
        if not isinstance(self.value, bool):
            self.refuse(f"is {self._kind}, where true or false is wanted")
        return self.value

    def count(self) -> int:
        """Return a whole number that is not negative."""
        found = self._bytes()
        if found < 0:
            self.refuse(f"is {found:,}, and can't be negative")
        return found

    def amount(self) -> Amount:
        """Return a number of bytes with its source, or why there is none. It may be negative, as a floor may be."""
        if isinstance(self.value, dict) and "unreadable" in self.value:
            return Unreadable(self["unreadable"].text())
        return Reading(self["bytes"]._bytes(), self["source"].text(), self["error_bytes"].count())

    def fact(self) -> Fact:
        """Return a text, or why there is none."""
        return Unreadable(self["unreadable"].text()) if isinstance(self.value, dict) else self.text()

    def leaves(self) -> dict[tuple[str, ...], Leaf]:
        """Return every value that holds no others, by the keys that lead to it; null counts as nothing."""
        found: dict[tuple[str, ...], Leaf] = {}
        for name, inner in self.members().items():
            self._gather(inner, (printable(name),), found)
        return found

    def _gather(self, place: JsonValue, path: tuple[str, ...], found: dict[tuple[str, ...], Leaf]) -> None:
        value = place.value
        if isinstance(value, list) and not any(isinstance(inner, (dict, list)) for inner in value):
            found[path] = printable(json.dumps(value, ensure_ascii=False))  # such as a shape: one value to people
        elif isinstance(value, (dict, list)):
            names = value if isinstance(value, dict) else map(str, range(len(value)))
            for name, inner in zip(names, place._inner(), strict=True):
                self._gather(inner, (*path, printable(name)), found)
        elif value is not None:
            found[path] = printable(value) if isinstance(value, str) else value

    def _bytes(self) -> int:
        if isinstance(self.value, bool) or not isinstance(self.value, int):
            self.refuse(f"is {self._kind}, where a whole number is wanted")
        if abs(self.value) > _LARGEST_BYTES:
            self.refuse(f"is {self.value:,}, more than any address space holds")
        return self.value

    @property
    def _kind(self) -> str:
        if self.value is None:
            return "null"
        if isinstance(self.value, bool):
            return str(self.value).lower()
        if isinstance(self.value, (int, float)):
            return f"the number {self.value:,}"
        if isinstance(self.value, str):
            return f"the text {_short(self.value)!r}"
        return "a list" if isinstance(self.value, list) else "a group of keys"
