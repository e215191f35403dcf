"""`transient` and `printed`: sizes that a tenant of any kind may give beside those of its kind."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from pinprobe.ledger.config.schema import json_schema
from pinprobe.ledger.tenants.kinds import kind_names
from pinprobe.probes.errors import BadConfig
from tests.ledger.made_plans import GIB, MIB, config_of
from tests.ledger.schema_reader import faults

ENGINE = "engine: {name: e, ranks: 2}\nnumbers: {pool: 3 GiB, prints: 3.5 GiB}\n"


def buffer(**keys: str) -> str:
    pairs = "".join(f", {key}: {value}" for key, value in keys.items())
    return f"{ENGINE}tenants: {{t: {{kind: buffer, bytes: pool{pairs}}}}}\n"


def test_they_are_sizes_and_formulas_like_any_other(tmp_path: Path) -> None:
    (tenant,) = config_of(tmp_path, buffer(transient="pool / 2", printed="prints")).tenants
    assert (tenant.transient_bytes, tenant.printed_bytes) == (3 * GIB // 2, 7 * GIB // 2)
    assert tenant.formulas == {"bytes": "pool", "transient": "pool / 2", "printed": "prints"}
    (tenant,) = config_of(tmp_path, buffer(transient="148 MiB")).tenants
    assert (tenant.transient_bytes, tenant.printed_bytes) == (148 * MIB, None)
    assert "transient" not in tenant.formulas
    (tenant,) = config_of(tmp_path, buffer()).tenants
    assert (tenant.transient_bytes, tenant.printed_bytes) == (0, None)


def test_what_is_set_changes_them_too(tmp_path: Path) -> None:
    (tenant,) = config_of(tmp_path, buffer(printed="prints"), {"prints": "4 GiB"}).tenants
    assert tenant.printed_bytes == 4 * GIB


@pytest.mark.parametrize("key", ["transient", "printed"])
@pytest.mark.parametrize(
    ("value", "because"),
    [
        ("0", "a size is more than 0"),
        ("-1 MiB", "a size is more than 0"),
        ("64g", "ambiguous"),
        ("pool - pool", "a size is more than 0"),
        ("poool", "did you mean pool?"),
        ("100_000 TiB", "more than any address space holds"),
        ("", "it has no value"),
    ],
)
def test_one_that_is_no_size_is_told_with_its_place(tmp_path: Path, key: str, value: str, because: str) -> None:
    with pytest.raises(BadConfig) as refused:
        config_of(tmp_path, buffer(**{key: value}))
    (problem,) = refused.value.problems
    assert because in problem
    assert f"tenants.t.{key}" in problem
    assert problem.startswith(f"{tmp_path / 'mine.yaml'}:3:")


@pytest.mark.parametrize("kind", kind_names())
def test_the_schema_knows_them_for_every_kind(kind: str) -> None:
    models = [model for model in json_schema()["$defs"].values() if model.get("title") == f"A tenant of kind {kind}"]
    assert models
    for model in models:
        assert {"transient", "printed"} <= model["properties"].keys()
        assert not {"transient", "printed"} & set(model["required"])


def test_the_schema_takes_what_the_reader_takes() -> None:
    schema = json_schema()
    assert faults(yaml.safe_load(buffer(transient="1 MiB", printed="prints")), schema, schema) == []
    assert faults(yaml.safe_load(buffer(printed="[1]")), schema, schema) != []
