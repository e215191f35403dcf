"""Which keys may stand where in a config, and what each holds: pydantic models, built from the kinds' own fields.

The same models say what is wrong with a file, in our own words, and give the JSON Schema that editors use.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache, reduce
from types import GenericAlias
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pinprobe.ledger.budget.budget_keys import BUDGET, CONSUMER, ELSEWHERE, LENDS, read_part_name
from pinprobe.ledger.config.draft import Faults, KeyPath
from pinprobe.ledger.config.expression_text import LONGEST_EXPRESSION
from pinprobe.ledger.config.faults import Fault
from pinprobe.ledger.config.field_types import HOW, READERS, SCHEMAS
from pinprobe.ledger.config.keys import (
    ENGINE,
    NUMBER_NAME,
    REMOVED,
    TENANT,
    TENANT_NAME,
    TOP,
    read_number_name,
    read_tenant_name,
)
from pinprobe.ledger.config.marked import Problems, Scalar, Section, quoted
from pinprobe.ledger.config.scalars import read_allocator, read_choice, read_condition, read_number, read_only_allocator
from pinprobe.ledger.tenants.kinds import kind_names, load_kind
from pinprobe.ledger.tenants.tenant import FieldType, FieldValue, TenantKind
from pinprobe.probes.errors import BadRequest, in_one_line

if TYPE_CHECKING:
    from pydantic import BaseModel

#: More of a kind than anyone looks at.
MOST_ENTRIES = 1000

#: Beside a mapping whose keys follow a pattern: no others.
_CLOSED = {"additionalProperties": False}


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a config, with every kind of tenant that is known here.

    Raises `BadRequest` where a kind that somebody else added can't be loaded.
    """
    schema = _config_model(tuple(kind_names())).model_json_schema()
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "A config of pinprobe"}
    return {**head, **{key: value for key, value in schema.items() if key != "title"}}


def find_faults(document: Section, problems: Problems) -> Faults:
    """Note every key that is unknown, missing or wrongly filled, and return the paths that hold nothing sound.

    Nothing that a tenant names is imported; kinds that others added are.
    """
    from pydantic import ValidationError

    _refuse_overfull(document, problems)
    kinds, unusable = _kinds_of(document, problems)
    faults = set(unusable)
    try:
        _config_model(kinds).model_validate(document)
    except ValidationError as error:
        for entry in error.errors(include_url=False):
            fault = Fault(document, entry["type"], tuple(map(str, entry["loc"])), dict(entry.get("ctx", {})))
            if fault.path not in unusable:
                fault.tell(problems)
            faults.add(fault.path)
    return faults


def _refuse_overfull(document: Section, problems: Problems) -> None:
    for name, section in document.items():
        if isinstance(section, Section) and len(section.key_places) > MOST_ENTRIES:
            message = f"{quoted(name)} has {len(section.key_places):,} entries; {MOST_ENTRIES:,} are the most"
            problems.add(document.key_places[name], message)
            problems.raise_any()


def _kinds_of(document: Section, problems: Problems) -> tuple[tuple[str, ...], set[KeyPath]]:
    """Return the kinds to know: the plainest ones, so that there is always a choice, and those that are used."""
    used = dict.fromkeys(("buffer", "external"))
    unusable: set[KeyPath] = set()
    known = kind_names()
    tenants = document.get("tenants")
    for name, tenant in tenants.items() if isinstance(tenants, Section) else ():
        kind = tenant.get("kind") if isinstance(tenant, Section) else None
        if isinstance(kind, Scalar) and kind in known:
            try:
                _tenant_model(str(kind))
                used[str(kind)] = None
            except BadRequest as error:
                problems.add(kind.place, str(error))
                unusable.add(("tenants", name))
    return tuple(used), unusable


@dataclass(frozen=True)
class _Key:
    """A key of a model: its type, what it is for, its default, and what the schema says beside.

    A key without a default has to be given, unless it `may_be_missing`: then it has none that is worth showing.
    """

    type: Any
    meaning: str
    default: FieldValue | None = None
    may_be_missing: bool = False
    beside: Mapping[str, Any] = field(default_factory=dict)


@lru_cache(maxsize=16)
def _config_model(kinds: tuple[str, ...]) -> type[BaseModel]:
    from pydantic import Field

    text = _of_type(FieldType.TEXT)
    engine = _model(
        "The engine",
        TOP["engine"],
        {
            "name": _Key(text, ENGINE["name"]),
            "ranks": _Key(_of_type(FieldType.COUNT), f"{ENGINE['ranks']} {HOW[FieldType.COUNT]}", 1),
            "allocator": _Key(_leaf(read_allocator, SCHEMAS[FieldType.TEXT]), ENGINE["allocator"], "auto"),
        },
    )
    tenant: Any = Annotated[reduce(operator.or_, map(_tenant_model, kinds)), Field(discriminator="kind")]
    removed = _model("A removed key", TOP["removed"], {name: _Key(text, words) for name, words in REMOVED.items()})
    number_name = _leaf(read_number_name, {"type": "string", "pattern": NUMBER_NAME})
    tenant_name = _leaf(read_tenant_name, {"type": "string", "pattern": TENANT_NAME})
    any_name = _leaf(str, {"type": "string"})
    number = _leaf(read_number, {"type": ["number", "string"], "minLength": 1, "maxLength": LONGEST_EXPRESSION})
    check = _leaf(read_condition, {"type": "string", "minLength": 1, "maxLength": LONGEST_EXPRESSION})
    return _model(
        "Config",
        "One engine: its numbers, what holds its host memory, and what has to hold.",
        {
            "engine": _Key(engine, TOP["engine"]),
            "numbers": _Key(GenericAlias(dict, (number_name, number)), TOP["numbers"], None, True, _CLOSED),
            "tenants": _Key(GenericAlias(dict, (tenant_name, tenant)), TOP["tenants"], None, True, _CLOSED),
            "checks": _Key(GenericAlias(dict, (number_name, check)), TOP["checks"], None, True, _CLOSED),
            "budget": _Key(_budget_model(), TOP["budget"], None, True),
            "removed": _Key(GenericAlias(dict, (any_name, removed)), TOP["removed"], None, True),
        },
    )


@lru_cache(maxsize=1)
def _budget_model() -> type[BaseModel]:
    size = _leaf(read_number, {"type": ["number", "string"], "minLength": 1, "maxLength": LONGEST_EXPRESSION})
    text = _of_type(FieldType.TEXT)
    part_name = _leaf(read_part_name, {"type": "string", "pattern": NUMBER_NAME})

    def key(meanings: Mapping[str, str], name: str, key_type: Any, is_optional: bool = True) -> _Key:
        beside = _CLOSED if isinstance(key_type, GenericAlias) else {}
        return _Key(key_type, meanings[name], None, is_optional, beside)

    parts = GenericAlias(dict, (part_name, size))
    elsewhere = {name: key(ELSEWHERE, name, of, False) for name, of in {"at": text, "bytes": size}.items()}
    lends = {"to": key(LENDS, "to", text, False), "charges": key(LENDS, "charges", parts)}
    types = {
        "floor": size,
        "elsewhere": _model("Elsewhere", CONSUMER["elsewhere"], elsewhere),
        "cap": size,
        "ceiling": size,
        "grows": _of_type(FieldType.COUNT),
        "fixed": parts,
        "lends": _model("Lends", CONSUMER["lends"], lends),
        "units": parts,
    }
    consumer = _model("A consumer", BUDGET["consumers"], {name: key(CONSUMER, name, types[name]) for name in CONSUMER})
    types = {
        "of": text,
        "capacity": size,
        "claims": parts,
        "floors": parts,
        "consumers": GenericAlias(dict, (part_name, consumer)),
        "levers": parts,
        "assumptions": GenericAlias(dict, (part_name, text)),
    }
    required = ("capacity", "consumers")
    return _model(
        "Budget", TOP["budget"], {name: key(BUDGET, name, types[name], name not in required) for name in BUDGET}
    )


@lru_cache(maxsize=64)
def _tenant_model(kind_name: str) -> type[BaseModel]:
    kind = load_kind(kind_name)
    keys = {"kind": _Key(Literal[kind_name], TENANT["kind"])}
    try:
        for described in kind.fields:
            if described.name in TENANT:
                raise ValueError(f"`{described.name}` is a key that every tenant has")
            meaning = f"{described.meaning} {HOW[described.type]}"
            keys[described.name] = _Key(_of_type(described.type), meaning, described.default, described.may_be_missing)
        per = _leaf(lambda value: read_choice(value, ("rank", "host")), {"enum": ["rank", "host"]})
        keys["per"] = _Key(per, TENANT["per"], "rank")
        keys["allocator"] = _Key(_allocator_of(kind), TENANT["allocator"], may_be_missing=True)
        keys["detail"] = _Key(_of_type(FieldType.TEXT), TENANT["detail"], may_be_missing=True)
        for name in ("transient", "printed"):
            meaning = f"{TENANT[name]} {HOW[FieldType.SIZE]}"
            keys[name] = _Key(_of_type(FieldType.SIZE), meaning, may_be_missing=True)
        return _model(f"A tenant of kind {kind_name}", kind.meaning, keys)
    except Exception as error:
        raise BadRequest(f"the kind {kind_name} describes its fields wrongly: {in_one_line(error)}") from error


def _allocator_of(kind: TenantKind) -> Any:
    only = kind.only_allocator
    if only is None:
        return _leaf(read_allocator, SCHEMAS[FieldType.TEXT])
    return _leaf(lambda value: read_only_allocator(value, kind.kind, only), {"const": only})


def _model(title: str, meaning: str, keys: Mapping[str, _Key]) -> type[BaseModel]:
    """Make a model that knows these keys and no others."""
    from pydantic import ConfigDict, Field, create_model

    fields: dict[str, Any] = {}
    for name, key in keys.items():
        options: dict[str, Any] = {"alias": name, "description": key.meaning, "json_schema_extra": {**key.beside}}
        if key.may_be_missing:
            options["default_factory"] = dict
        elif key.default is not None:
            options["default"] = key.default
        # The discriminator needs its own name; the others must not meet pydantic's, such as `copy`.
        fields["kind" if name == "kind" else f"field_{name}"] = (key.type, Field(**options))
    config = ConfigDict(extra="forbid", title=title, json_schema_extra={"description": meaning})
    return create_model(title.replace(" ", "_"), __config__=config, **fields)


def _of_type(field_type: FieldType) -> Any:
    return _leaf(READERS[field_type], SCHEMAS[field_type])


def _leaf(read: Callable[[object], object], schema: dict[str, Any]) -> Any:
    """Make a type whose values are read by one of our readers, and whose schema is this."""
    from pydantic import PlainValidator, WithJsonSchema

    def validate(value: object) -> object:
        try:
            return read(value)
        except BadRequest as error:
            raise ValueError(error) from None

    return Annotated[Any, PlainValidator(validate), WithJsonSchema(schema)]
