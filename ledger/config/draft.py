"""A config between reading and reckoning: keys that are known, formulas that are read, nothing worked out yet.

What is wrong with a key is told before a draft is made. It holds what is sound beside, so that all of a file is looked
at in one go.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import TypeAlias

from pinprobe.ledger.budget.budget_draft import read_budget
from pinprobe.ledger.budget.budget_spec import BudgetSpec
from pinprobe.ledger.config.arithmetic import Condition, Formula
from pinprobe.ledger.config.field_types import READERS
from pinprobe.ledger.config.layout_draft import DraftLayout
from pinprobe.ledger.config.marked import Node, Place, Problems, Scalar, Section, quoted
from pinprobe.ledger.config.scalars import read_condition, read_number, read_text
from pinprobe.ledger.tenants.kinds import load_kind
from pinprobe.ledger.tenants.tenant import FieldValue, TenantKind

#: The keys that lead to a value, and those whose values are wrong or missing.
KeyPath: TypeAlias = tuple[str, ...]
Faults: TypeAlias = Set[KeyPath]


@dataclass(frozen=True)
class DraftNumber:
    """A number's formula; None where what is written there is wrong."""

    formula: Formula | None
    place: Place


@dataclass(frozen=True)
class DraftTenant:
    """A tenant with the fields that are sound, defaults filled in, and where each stands.

    `sizes` are those that any tenant may give, `transient` and `printed`, as far as they stand there. `is_whole` says
    that no field is left out but those that may be missing.
    """

    name: str
    kind_name: str
    kind: TenantKind
    per: str
    allocator: str
    detail: str
    fields: Mapping[str, Formula | DraftLayout | FieldValue]
    sizes: Mapping[str, Formula]
    is_whole: bool
    places: Mapping[str, Place]
    place: Place


@dataclass(frozen=True)
class DraftCheck:
    """A check, as it is written and as it is read."""

    name: str
    text: str
    condition: Condition
    place: Place


@dataclass(frozen=True)
class Draft:
    """A whole config.

    `numbers` holds `ranks` too; `are_numbers_known` is false where their section is wrong as a whole, so that nobody
    can say which names there should be. `removed` says by name what became of a number or key.
    """

    engine: str
    allocator: str
    numbers: Mapping[str, DraftNumber]
    are_numbers_known: bool
    tenants: tuple[DraftTenant, ...]
    checks: tuple[DraftCheck, ...]
    budget: BudgetSpec | None
    removed: Mapping[str, str]


def without_removed(document: Section, problems: Problems) -> Section:
    """Return a config without the keys that its `removed` section names, each noted as a problem where it stands."""
    removed = _removed(document)
    document = document.without()
    for name in ("engine", "numbers", "tenants"):
        section = document.get(name)
        if isinstance(section, Section):
            document[name] = _purged(section, removed, problems)
    return document


def _removed(document: Section) -> dict[str, str]:
    words = {}
    section = document.get("removed")
    for name, entry in section.items() if isinstance(section, Section) else ():
        if isinstance(entry, Section):
            since, instead = entry.get("since"), entry.get("instead")
            if isinstance(since, Scalar) and isinstance(instead, Scalar):
                words[name] = f"{quoted(name)} was removed in {since[:60]}; use {instead[:60]} in its stead"
    return words


def _purged(section: Section, removed: Mapping[str, str], problems: Problems) -> Section:
    stale = [key for key in section.key_places if key in removed]
    for key in stale:
        problems.add(section.key_places[key], removed[key])
    section = section.without(*stale)
    for key, value in section.items():
        if isinstance(value, Section):
            section[key] = _purged(value, removed, problems)
    return section


def read_draft(document: Section, faults: Faults) -> Draft:
    """Read what is sound of a config: all but the paths in `faults`."""
    sound = _Sound(document, faults)
    engine = sound.section("engine")
    return Draft(
        engine=read_text(engine["name"]) if "name" in engine else "",
        allocator=read_text(engine["allocator"]) if "allocator" in engine else "auto",
        numbers={**_numbers(sound.section("numbers")), "ranks": _ranks(engine, is_told=("engine",) in faults)},
        are_numbers_known="numbers" not in document.broken and ("numbers",) not in faults,
        tenants=tuple(
            _tenant(name, sound.section("tenants", name), place)
            for name, place in sound.section("tenants").sound_key_places.items()
        ),
        checks=tuple(
            DraftCheck(name, " ".join(str(value).split()), read_condition(value), _place(value))
            for name, value in sound.section("checks").items()
        ),
        budget=read_budget(sound.section, document.key_places["budget"]) if "budget" in document else None,
        removed=_removed(document),
    )


@dataclass(frozen=True)
class _Sound:
    document: Section
    faults: Faults

    def section(self, *path: str) -> Section:
        """Return a section without its faults; an empty one where it is not there, or is no section."""
        section: Node = self.document
        for key in path:
            if not isinstance(section, Section) or key not in section:
                return Section(self.document.place)
            section = section[key]
        if not isinstance(section, Section):
            return Section(self.document.place)
        return section.without(*(key for key in section if (*path, key) in self.faults))


def _numbers(section: Section) -> dict[str, DraftNumber]:
    numbers = {}
    for name, place in section.key_places.items():
        value = section.get(name)
        numbers[name] = DraftNumber(None, place) if value is None else DraftNumber(read_number(value), _place(value))
    return numbers


def _ranks(engine: Section, is_told: bool) -> DraftNumber:
    if "ranks" in engine:
        return DraftNumber(read_number(engine["ranks"]), _place(engine["ranks"]))
    if is_told or "ranks" in engine.broken:
        return DraftNumber(None, engine.place)
    return DraftNumber(read_number(Scalar("1", engine.place)), engine.place)


def _tenant(name: str, section: Section, place: Place) -> DraftTenant:
    kind_name = str(section["kind"])
    kind = load_kind(kind_name)
    fields: dict[str, Formula | DraftLayout | FieldValue] = {}
    is_whole = True
    for field in kind.fields:
        if field.name in section:
            fields[field.name] = READERS[field.type](section[field.name])
        elif field.default is not None and field.name not in section.broken:
            fields[field.name] = field.default
        else:
            is_whole &= field.may_be_missing and field.name not in section.broken
    words = {key: read_text(section[key]) for key in ("per", "allocator", "detail") if key in section}
    return DraftTenant(
        name,
        kind_name,
        kind,
        words.get("per", "rank"),
        words.get("allocator", ""),
        words.get("detail", ""),
        fields,
        {key: read_number(section[key]) for key in ("transient", "printed") if key in section},
        is_whole,
        {key: _place(value) for key, value in section.items()},
        place,
    )


def _place(value: Node) -> Place:
    return value.place
