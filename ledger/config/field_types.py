"""What a field of a tenant may hold, type by type: how it is written, how it is read, and its JSON Schema."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pinprobe.ledger.config.arithmetic import Formula
from pinprobe.ledger.config.expression_text import LONGEST_EXPRESSION
from pinprobe.ledger.config.keys import LAYOUT, SLAB
from pinprobe.ledger.config.layout_draft import MOST_SIZES, DraftLayout, read_layout
from pinprobe.ledger.config.scalars import (
    CALLABLE,
    LONGEST_TEXT,
    read_auto_count,
    read_callable,
    read_flag,
    read_number,
    read_text,
)
from pinprobe.ledger.tenants.savepoint_layout import ITEM_BYTES
from pinprobe.ledger.tenants.tenant import FieldType

#: How a value of each type is written, for the schema and for messages.
HOW = {
    FieldType.SIZE: "Bytes, an IEC size such as 148 MiB, or arithmetic that gives bytes; part of a byte counts whole.",
    FieldType.COUNT: "A whole number of 1 or more, or arithmetic that gives one.",
    FieldType.AUTO_COUNT: "The word auto, a whole number of 1 or more, or arithmetic that gives one.",
    FieldType.TEXT: "One line of text.",
    FieldType.FLAG: "true or false.",
    FieldType.CALLABLE: "A function as package.module:attribute.",
    FieldType.LAYOUT: "A list of slabs, or a geometry: so many layers with the same attributes.",
}

READERS: Mapping[FieldType, Callable[[object], Formula | DraftLayout | bool | str]] = {
    FieldType.SIZE: read_number,
    FieldType.COUNT: read_number,
    FieldType.AUTO_COUNT: read_auto_count,
    FieldType.TEXT: read_text,
    FieldType.FLAG: read_flag,
    FieldType.CALLABLE: read_callable,
    FieldType.LAYOUT: read_layout,
}

_COUNT = {"type": ["integer", "string"], "minimum": 1, "minLength": 1, "maxLength": LONGEST_EXPRESSION}
_TEXT = {"type": ["string", "number"], "minLength": 1, "maxLength": LONGEST_TEXT}


def _keys(meanings: Mapping[str, str], schemas: Mapping[str, dict[str, Any]], required: list[str]) -> dict[str, Any]:
    """Describe keys, each with what it is for."""
    properties = {name: {"description": meanings[name], **schema} for name, schema in schemas.items()}
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


_SHAPE = {"type": "array", "minItems": 1, "maxItems": MOST_SIZES, "items": _COUNT}
_TYPE = {"enum": list(ITEM_BYTES)}
_ATTRIBUTES = {
    "type": "object",
    "minProperties": 1,
    "additionalProperties": _keys(SLAB, {"shape": _SHAPE, "dtype": _TYPE}, ["shape", "dtype"]),
}

SCHEMAS: Mapping[FieldType, dict[str, Any]] = {
    FieldType.SIZE: {
        "type": ["number", "string"],
        "exclusiveMinimum": 0,
        "minLength": 1,
        "maxLength": LONGEST_EXPRESSION,
    },
    FieldType.COUNT: _COUNT,
    FieldType.AUTO_COUNT: _COUNT,
    FieldType.TEXT: _TEXT,
    FieldType.FLAG: {"type": "boolean"},
    FieldType.CALLABLE: {"type": "string", "pattern": CALLABLE, "maxLength": LONGEST_TEXT},
    FieldType.LAYOUT: {
        "oneOf": [
            {
                "type": "array",
                "minItems": 1,
                "items": _keys(SLAB, {"name": _TEXT, "shape": _SHAPE, "dtype": _TYPE}, ["name", "shape", "dtype"]),
            },
            _keys(
                LAYOUT,
                {"layers": _COUNT, "attributes": _ATTRIBUTES, "align": _COUNT},
                ["layers", "attributes"],
            ),
        ]
    },
}
