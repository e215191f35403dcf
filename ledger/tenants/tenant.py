"""What a tenant is to the ledger: something that holds reservations under a dotted name, and what a config says of it.

A kind of tenant is a class like `Buffer`: it names the fields that a config may give it, prices them without taking a
byte, and opens them. Kinds of others are added by the entry point group `pinprobe.tenants`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from fractions import Fraction
from typing import TYPE_CHECKING, Protocol, TypeAlias

from pinprobe.ledger.tenants.savepoint_layout import SavepointLayout

if TYPE_CHECKING:
    from pinprobe.ledger.ledger import HostPinnedLedger

FieldValue: TypeAlias = int | str | bool | SavepointLayout

#: What stands in the place of a count that the kind of tenant works out by itself.
AUTO = "auto"


class FieldType(str, Enum):
    """What a field of a tenant may hold.

    A size is bytes, an IEC string or arithmetic that gives bytes; a count is a whole number or arithmetic that gives
    one; an auto count is a count, or the word `auto`, for one that the kind works out. A callable is
    `package.module:attribute`. A layout is a list of slabs, or a geometry, and arrives as a `SavepointLayout`.
    """

    SIZE = "size"
    COUNT = "count"
    AUTO_COUNT = "auto_count"
    TEXT = "text"
    FLAG = "flag"
    CALLABLE = "callable"
    LAYOUT = "layout"


@dataclass(frozen=True, slots=True)
class Field:
    """One key that a kind of tenant understands.

    `default` is None where there is none: then the key has to be given, unless it `may_be_missing`. A key that is
    missing is not among the fields of a `TenantSpec`.
    """

    name: str
    type: FieldType
    meaning: str
    default: FieldValue | None = None
    may_be_missing: bool = False


@dataclass(frozen=True)
class TenantSpec:
    """One tenant of a config, every number resolved.

    `per` is `rank` or `host`: how often it is held. `formulas` gives the text that a value was worked out from, where
    that was more than the value itself. `place` is `file:line:column`. `transient_bytes` is what it takes for a while
    beside what stays, and `printed_bytes` what the engine itself prints of it, if the config says so; both of one copy.
    """

    name: str
    kind: str
    per: str
    allocator: str
    detail: str
    fields: Mapping[str, FieldValue]
    formulas: Mapping[str, str]
    place: str
    transient_bytes: int = 0
    printed_bytes: int | None = None

    @property
    def where(self) -> str:
        """Where it stands and what it is called, as messages begin that speak of it."""
        return f"{self.place}: tenant {self.name}"

    def size(self, name: str) -> int:
        """Return a size or a count, which the schema has seen to be one."""
        value = self.fields[name]
        assert isinstance(value, int)
        return value

    def layout(self, name: str) -> SavepointLayout:
        """Return a layout."""
        value = self.fields[name]
        assert isinstance(value, SavepointLayout)
        return value

    def with_fields(self, **fields: FieldValue) -> TenantSpec:
        """Return it with some fields set anew."""
        return replace(self, fields={**self.fields, **fields})

    def scaled(self, name: str, scale: Fraction) -> TenantSpec:
        """Return it with one count scaled."""
        return self.with_fields(**{name: scaled_count(self.size(name), scale)})

    def detail_for(self, rank: int | None, how: str = "") -> str:
        """Put together what the ledger shows beside it: how it came about, whose it is, and the config's remark."""
        return ", ".join(part for part in (how, "" if rank is None else f"rank {rank}", self.detail) if part)


def scaled_count(count: int, scale: Fraction) -> int:
    """Scale a count: rounded up, and never below 1.

    >>> scaled_count(65, Fraction(1, 64)), scaled_count(3, Fraction(1, 1000))
    (2, 1)
    """
    return max(1, -(-count * scale.numerator // scale.denominator))


class Tenant(Protocol):
    """An open tenant: its memory is taken and booked."""

    def close(self) -> None:
        """Give all of it back. A second call does nothing."""


class TenantKind(Protocol):
    """How one kind is configured, priced and opened."""

    kind: str
    #: One sentence for the schema.
    meaning: str
    fields: tuple[Field, ...]
    #: The allocator that its memory always comes from; None where the config names one.
    only_allocator: str | None

    def asked_bytes(self, spec: TenantSpec) -> int:
        """Return what it would ask for. Takes nothing and runs no code of the engine's."""

    def scaled(self, spec: TenantSpec, scale: Fraction) -> TenantSpec:
        """Return a smaller one of the same sort, its counts scaled; the spec itself where nothing can be."""

    def prepare(self, spec: TenantSpec) -> None:
        """Load what opening it needs, so that this is there before the ledger begins. Takes no memory for it."""

    def open(self, spec: TenantSpec, ledger: HostPinnedLedger, rank: int | None) -> Tenant:
        """Take its memory through the ledger; `rank` is None for what a host holds once.

        Raises `Refused` where it does not fit; then nothing was taken.
        """
