"""The JSON Schema says of configs what the reader says, and explains each key with the kinds' own words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from pinprobe.ledger.config.registry import load_config
from pinprobe.ledger.config.schema import json_schema
from pinprobe.ledger.config.shipped import find_config, shipped_names
from pinprobe.ledger.tenants.kinds import kind_names, load_kind
from pinprobe.probes.errors import BadConfig
from tests.ledger.schema_reader import faults

ENGINE = "engine: {name: e}\n"


def pool(layout: str, **others: str) -> str:
    """The tenants of a config: one pool of this layout."""
    fields = {"kind": "retention_pool", "regions": "1", "layout": layout, **others}
    return f"tenants: {{t: {{{', '.join(f'{name}: {value}' for name, value in fields.items())}}}}}"


def schema_faults(text: str) -> list[str]:
    """What the schema says of a config, as an editor would read it."""
    schema = json_schema()
    return faults(yaml.safe_load(text), schema, schema)


@pytest.mark.parametrize("name", shipped_names())
def test_every_shipped_config_is_right_by_the_schema(name: str) -> None:
    assert schema_faults(find_config(name).read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "text",
    [
        "numbers: {}",
        "engine: {}",
        "engine: {name: e, rank: 2}",
        "engine: {name: e, ranks: 0}",
        "engine: {name: e, ranks: 1.5}",
        ENGINE + "tenant: {}",
        ENGINE + "numbers: {1a: 1}",
        ENGINE + "numbers: {a: yes}",
        ENGINE + "numbers: {a: [1]}",
        ENGINE + "numbers: {a: ''}",
        ENGINE + "tenants: {A: {kind: buffer, bytes: 1}}",
        ENGINE + "tenants: {t: {kind: bufer, bytes: 1}}",
        ENGINE + "tenants: {t: {bytes: 1}}",
        ENGINE + "tenants: {t: {kind: buffer}}",
        ENGINE + "tenants: {t: {kind: buffer, bytes: 0}}",
        ENGINE + "tenants: {t: {kind: buffer, bytes: 1, cuont: 1}}",
        ENGINE + "tenants: {t: {kind: buffer, bytes: 1, callable: 'a:b'}}",
        ENGINE + "tenants: {t: {kind: buffer, bytes: 1, per: node}}",
        ENGINE + "tenants: {t: {kind: external, bytes: 1}}",
        ENGINE + "tenants: {t: {kind: external, bytes: 1, callable: a.b}}",
        ENGINE + "tenants: {t: {kind: buffer, bytes: 1, layout: [{name: a, shape: [1], dtype: int8}]}}",
        ENGINE + pool("[]"),
        ENGINE + pool("large"),
        ENGINE + pool("[a]"),
        ENGINE + pool("[{name: a, shape: [1]}]"),
        ENGINE + pool("[{name: a, shape: [], dtype: int8}]"),
        ENGINE + pool("[{name: a, shape: [0], dtype: int8}]"),
        ENGINE + pool("[{name: a, shape: [1, 1, 1, 1, 1, 1, 1, 1, 1], dtype: int8}]"),
        ENGINE + pool("[{name: a, shape: 1, dtype: int8}]"),
        ENGINE + pool("[{name: a, shape: [1], dtype: int9}]"),
        ENGINE + pool("[{name: a, shape: [1], dtype: int8, at: 1}]"),
        ENGINE + pool("{layers: 1}"),
        ENGINE + pool("{layers: 1, attributes: {}}"),
        ENGINE + pool("{layers: 0, attributes: {a: {shape: [1], dtype: int8}}}"),
        ENGINE + pool("{layers: 1, attributes: {a: {shape: [1]}}}"),
        ENGINE + pool("{layers: 1, attributes: {a: {shape: [1], dtype: int8, name: a}}}"),
        ENGINE + pool("{layers: 1, attributes: {a: {shape: [1], dtype: int8}}, name: a}"),
        ENGINE + pool("[{name: a, shape: [1], dtype: int8}]", allocator="mlock"),
        ENGINE + pool("[{name: a, shape: [1], dtype: int8}]", mapped_at_boot="8"),
        ENGINE + "tenants: {t: {kind: savepoint_ring, max_num_seqs: 8}}",
        ENGINE + "checks: {a: 1}",
        ENGINE + "removed: {a: {since: 1}}",
    ],
)
def test_what_the_schema_refuses_is_refused_by_the_reader_too(tmp_path: Path, text: str) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(text, encoding="utf-8")
    assert schema_faults(text)
    with pytest.raises(BadConfig):
        load_config(path)


@pytest.mark.parametrize(
    "layout",
    [
        "[{name: a, shape: [1], dtype: int8}, {name: b, shape: [n, 2 * 3, 1_000], dtype: float32}]",
        "{layers: n, attributes: {a: {shape: [1], dtype: int8}}}",
        "{layers: 48, align: 4096, attributes: {a: {shape: [n], dtype: int8}, b: {shape: [1, 2], dtype: bool}}}",
    ],
)
def test_both_forms_of_a_layout_are_right_by_the_schema_and_by_the_reader(tmp_path: Path, layout: str) -> None:
    text = f"{ENGINE}numbers: {{n: 3}}\n{pool(layout, bytes='1 GiB', allocator='pageable')}"
    assert schema_faults(text) == []
    path = tmp_path / "c.yaml"
    path.write_text(text, encoding="utf-8")
    assert load_config(path).tenants[0].layout("layout").row_bytes > 0


def definition(kind: str) -> dict[str, Any]:
    """The part of the schema that describes tenants of one kind."""
    (found,) = (
        part for part in json_schema()["$defs"].values() if part["properties"].get("kind", {}).get("const") == kind
    )
    return dict(found)


@pytest.mark.parametrize("name", ["buffer", "external", "savepoint_ring", "retention_pool"])
def test_a_kind_is_described_by_its_own_fields(name: str) -> None:
    kind, described = load_kind(name), definition(name)
    assert described["description"] == kind.meaning
    for field in kind.fields:
        assert described["properties"][field.name]["description"].startswith(field.meaning)
        assert described["properties"][field.name].get("default") == field.default
        must_be_given = field.default is None and not field.may_be_missing
        assert (field.name in described["required"]) is must_be_given
    assert set(described["properties"]) == {field.name for field in kind.fields} | {
        "kind", "per", "allocator", "detail", "transient", "printed",
    }  # fmt: skip


def test_every_known_kind_is_in_it_and_it_names_its_draft() -> None:
    schema = json_schema()
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert [definition(name)["additionalProperties"] for name in kind_names()] == [False] * len(kind_names())
    assert json.loads(json.dumps(schema)) == schema


def test_every_key_of_a_config_is_explained() -> None:
    def unexplained(schema: dict[str, Any], path: str) -> list[str]:
        found = []
        for name, part in schema.get("properties", {}).items():
            if "$ref" in part:
                part = json_schema()["$defs"][part["$ref"].rpartition("/")[2]]
            if not part.get("description", "").endswith("."):
                found.append(f"{path}{name}")
        return found

    def inside(schema: dict[str, Any], path: str) -> list[str]:
        """The same of every part of a key's own schema."""
        found = unexplained(schema, path)
        for part in (*schema.get("oneOf", ()), *schema.get("properties", {}).values()):
            found += inside(part, f"{path}.")
        for keyword in ("items", "additionalProperties"):
            found += inside(schema[keyword], f"{path}{keyword}.") if isinstance(schema.get(keyword), dict) else []
        return found

    schema = json_schema()
    assert unexplained(schema, "") == []
    assert inside(definition("savepoint_ring")["properties"]["layout"], "layout") == []
    assert [path for name, part in schema["$defs"].items() for path in unexplained(part, f"{name}.")] == []
