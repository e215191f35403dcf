"""A second reader of JSON Schema: as much of draft 2020-12 as the schema of configs uses, and no more."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
}
#: What says nothing about whether a value is right.
_WORDS = {"$schema", "$defs", "title", "description", "default", "discriminator"}


def faults(value: Any, schema: dict[str, Any], root: dict[str, Any], path: str = "") -> list[str]:
    """Return the paths at which a value breaks a schema, each with the keyword. An unknown keyword is an error."""
    found: list[str] = []
    for keyword, rule in schema.items():
        if keyword == "$ref":
            found += faults(value, root["$defs"][rule.removeprefix("#/$defs/")], root, path)
        elif keyword == "oneOf":
            if sum(not faults(value, option, root, path) for option in rule) != 1:
                found.append(f"{path}: oneOf")
        elif keyword in _CHECKS:
            if not _CHECKS[keyword](value, rule):
                found.append(f"{path}: {keyword}")
        elif keyword not in _WORDS | {"properties", "patternProperties", "additionalProperties", "items"}:
            raise AssertionError(f"the keyword {keyword} is not known to this reader")
    if isinstance(value, dict):
        for key, item in value.items():
            found += _key_faults(key, item, schema, root, f"{path}/{key}")
    if isinstance(value, list) and "items" in schema:
        for at, item in enumerate(value):
            found += faults(item, schema["items"], root, f"{path}/{at}")
    return found


def _key_faults(key: str, item: Any, schema: dict[str, Any], root: dict[str, Any], path: str) -> list[str]:
    rules = [rule for name, rule in schema.get("properties", {}).items() if name == key]
    rules += [rule for pattern, rule in schema.get("patternProperties", {}).items() if re.search(pattern, key)]
    if not rules:
        others = schema.get("additionalProperties", True)
        return [] if others is True else [path] if others is False else faults(item, others, root, path)
    return [fault for rule in rules for fault in faults(item, rule, root, path)]


def _has_type(value: Any, names: str | list[str]) -> bool:
    names = [names] if isinstance(names, str) else names
    if isinstance(value, bool):  # which Python takes for an int
        return "boolean" in names
    return any(isinstance(value, _TYPES[name]) for name in names)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


_CHECKS: dict[str, Callable[[Any, Any], bool]] = {
    "type": _has_type,
    "const": lambda value, rule: value == rule,
    "enum": lambda value, rule: value in rule,
    "required": lambda value, rule: not isinstance(value, dict) or set(rule) <= set(value),
    "minimum": lambda value, rule: not _is_number(value) or value >= rule,
    "exclusiveMinimum": lambda value, rule: not _is_number(value) or value > rule,
    "minLength": lambda value, rule: not isinstance(value, str) or len(value) >= rule,
    "maxLength": lambda value, rule: not isinstance(value, str) or len(value) <= rule,
    "minProperties": lambda value, rule: not isinstance(value, dict) or len(value) >= rule,
    "minItems": lambda value, rule: not isinstance(value, list) or len(value) >= rule,
    "maxItems": lambda value, rule: not isinstance(value, list) or len(value) <= rule,
    "pattern": lambda value, rule: not isinstance(value, str) or re.search(rule, value) is not None,
}
