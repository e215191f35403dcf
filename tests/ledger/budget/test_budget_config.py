"""What a `budget:` section may say: every mistake is told in one line at its place, by the reader and by the schema."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pinprobe.ledger.budget.budget_check import MOST_PARTS
from pinprobe.ledger.budget.budget_keys import BUDGET, CONSUMER, ELSEWHERE, LENDS
from pinprobe.ledger.budget.budget_model import BudgetModel
from pinprobe.ledger.budget.budget_report import report_budget
from pinprobe.ledger.config.config import Config
from pinprobe.ledger.config.registry import load_config
from pinprobe.ledger.config.schema import json_schema
from pinprobe.ledger.config.shipped import find_config
from pinprobe.probes.errors import BadConfig, BadRequest
from tests.ledger.budgets import WHOLE, model_of
from tests.ledger.schema_reader import faults

#: Refused by the schema too, each with the line that the reader has for it.
WRONG_KEYS = [
    ("budget: 5", "3:9: `budget` has keys of its own; write them indented below it, or in {}"),
    ("budget: {consumers: {}}", f"3:1: `budget` lacks `capacity`: {BUDGET['capacity']}"),
    ("budget: {capacity: a}", f"3:1: `budget` lacks `consumers`: {BUDGET['consumers']}"),
    ("budget: {capacity: a, consumers: {}, levr: {}}", "3:38: `budget.levr` is not known; did you mean levers?"),
    ("budget: {capacity: a, consumers: {kv: {flor: 1}}}",
     "3:40: `budget.consumers.kv.flor` is not known; did you mean floor?"),
    ("budget: {capacity: a, consumers: {kv: 5}}",
     "3:39: `budget.consumers.kv` has keys of its own; write them indented below it, or in {}"),
    ("budget: {capacity: a, consumers: {1kv: {}}}",
     "3:35: `budget.consumers.1kv`: a name is a letter, then letters, digits and _, 100 characters at most"),
    ("budget: {capacity: a, consumers: {kv: {elsewhere: {at: there}}}}",
     f"3:40: `budget.consumers.kv.elsewhere` lacks `bytes`: {ELSEWHERE['bytes']}"),
    ("budget: {capacity: a, consumers: {kv: {lends: {charges: {}}}}}",
     f"3:40: `budget.consumers.kv.lends` lacks `to`: {LENDS['to']}"),
    ("budget: {capacity: a, consumers: {kv: {units: 5}}}",
     "3:47: `budget.consumers.kv.units` has keys of its own; write them indented below it, or in {}"),
    ("budget: {capacity: a, consumers: {kv: {grows: 0}}}",
     "3:47: `budget.consumers.kv.grows`: '0'; a count is whole, and 1 or more"),
    ("budget: {capacity: [1], consumers: {}}", "3:20: a list can't stand here; only the layout of a tenant has lists"),
]  # fmt: skip
#: What only shows when the names and the values are known.
WRONG_VALUES = [
    ("budget: {capacity: b, consumers: {}}",
     "3:20: `budget.capacity`: no number is called `b`; known are a, slots, ranks"),
    ("budget: {capacity: a - a, consumers: {}}", "3:20: `budget.capacity` comes to 0 B; it has to be more than 0"),
    ("budget: {capacity: 64g, consumers: {}}",
     "3:20: `budget.capacity`: '64g' is ambiguous (powers of 1000 or of 1024?): write 64GiB, or plain bytes"),
    ("budget: {capacity: a / 0, consumers: {}}", "3:20: `budget.capacity`: 'a / 0' divides by zero"),
    ("budget: {capacity: a, claims: {drift: 0 - a}, consumers: {}}",
     "3:39: `budget.claims.drift` comes to -1 GiB; it has to be 0 or more"),
    ("budget: {capacity: a, consumers: {kv: {units: {tokens: 0}}}}",
     "3:56: `budget.consumers.kv.units.tokens` comes to 0; it has to be more than 0"),
    ("budget: {capacity: a, consumers: {slots: {}}}",
     "3:35: `budget.consumers.slots`: a number is called that too; call one differently"),
    ("budget: {capacity: a, consumers: {unclaimed: {}}}",
     "3:35: `budget.consumers.unclaimed`: what is left over is called that; call it differently"),
    ("budget: {capacity: a, consumers: {kv: {lends: {to: kv}}}}",
     "3:35: `budget.consumers.kv` lends to `kv`, which is no other consumer; known are none"),
    ("budget: {capacity: a, consumers: {kv: {lends: {to: experts}}, expert: {}}}",
     "3:35: `budget.consumers.kv` lends to `experts`, which is no other consumer; did you mean expert?"),
    ("budget: {capacity: a, consumers: {e: {}, kv: {lends: {to: e, charges: {ring: a - f}}}}}",
     "3:78: `budget.consumers.kv.lends.charges.ring`: no number is called `f`; known are a, slots, ranks"),
    ("budget: {capacity: a, consumers: {kv: {floor: kv}}}",
     "3:47: `budget.consumers.kv.floor`: no number is called `kv`; known are a, slots, ranks"),
    ("budget: {capacity: a, consumers: {kv: {fixed: {state: 1}, units: {state: 1}}}}",
     "3:74: `budget.consumers.kv.units.state`: another part of kv is called that too; call one differently"),
    ("budget: {capacity: a, consumers: {kv: {units: {lent: 1}}}}",
     "3:54: `budget.consumers.kv.units.lent`: a result of every consumer is called that too; call one differently"),
    ("budget: {capacity: a, consumers: {}, levers: {sluts: 1}}",
     "3:54: `budget.levers.sluts`: no number is called `sluts`; did you mean slots?"),
    ("budget: {capacity: a, consumers: {}, levers: {slots: 0}}",
     "3:54: `budget.levers.slots` comes to 0; it has to be more than 0"),
    ("budget: {capacity: a, consumers: {}, assumptions: {b: unknown}}",
     "3:1: `budget.assumptions.b`: no number is called `b`; known are a, slots, ranks"),
]  # fmt: skip
HEAD = "engine: {name: e}\nnumbers: {a: 1 GiB, slots: 2}\n"

Read = Callable[[str], Config]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    def read(text: str) -> Config:
        path = tmp_path / "c.yaml"
        path.write_text(text, encoding="utf-8")
        return load_config(path)

    return read


def schema_faults(text: str) -> list[str]:
    schema = json_schema()
    return faults(yaml.safe_load(text), schema, schema)


@pytest.mark.parametrize(("text", "problem"), [*WRONG_KEYS, *WRONG_VALUES], ids=lambda text: text[-40:])
def test_what_is_wrong_is_told_in_one_line_at_its_place(read: Read, tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(BadConfig) as refused:
        read(HEAD + text)
    assert [line.removeprefix(f"{tmp_path}/c.yaml:") for line in refused.value.problems] == [problem]


@pytest.mark.parametrize("text", [text for text, _ in WRONG_KEYS], ids=lambda text: text[-40:])
def test_the_schema_refuses_wrong_keys_too(text: str) -> None:
    assert schema_faults(HEAD + text)


def test_all_that_the_section_can_say_is_right_by_both_and_nothing_of_it_is_lost(read: Read) -> None:
    assert schema_faults(WHOLE) == []
    spec = read(WHOLE).budget
    assert spec is not None
    assert (spec.of, spec.capacity.text, list(spec.claims), list(spec.floors)) == (
        "the cards", "card", ["held", "drift"], ["weights"],
    )  # fmt: skip
    experts, kv, scratch = spec.consumers
    assert experts.elsewhere is not None
    assert (experts.elsewhere.at, experts.elsewhere.held.text) == ("the host", "pool")
    assert kv.lends is not None
    assert (kv.lends.to, list(kv.lends.charges), list(kv.fixed), list(kv.units)) == (
        "experts", ["ring"], ["state"], ["tokens"],
    )  # fmt: skip
    assert (scratch.cap, scratch.ceiling, scratch.grows, scratch.lends) == (None, None, None, None)
    assert (list(spec.levers), dict(spec.assumptions)) == (["pool", "slots"], {"guess": "nobody measured it"})


def test_every_mistake_of_the_section_is_told_at_once(read: Read) -> None:
    text = (
        f"{HEAD}budget: {{capacity: b, claims: {{x: 0 - a}}, consumers: {{kv: {{flor: 1, cap: c}}}}, levers: {{d: 1}}}}"
    )
    with pytest.raises(BadConfig) as refused:
        read(text)
    assert len(refused.value.problems) == 5


def test_more_parts_than_any_table_shows_are_refused(read: Read) -> None:
    claims = ", ".join(f"c{number}: 1" for number in range(MOST_PARTS + 1))
    with pytest.raises(BadConfig, match=f"`budget.claims` has {MOST_PARTS + 1} entries; {MOST_PARTS} are the most"):
        read(f"{HEAD}budget: {{capacity: a, claims: {{{claims}}}, consumers: {{}}}}")


def test_a_removed_number_in_the_section_is_told_with_what_replaces_it(read: Read) -> None:
    text = f"{HEAD}budget: {{capacity: old, consumers: {{}}}}\nremoved: {{old: {{since: '2.0', instead: a}}}}\n"
    with pytest.raises(BadConfig, match=r"`budget\.capacity`: `old` was removed in 2\.0; use a in its stead"):
        read(text)


def test_a_config_may_have_a_budget_and_no_tenants(read: Read, tmp_path: Path) -> None:
    model = model_of(f"{HEAD}budget: {{capacity: a, consumers: {{kv: {{grows: 1}}}}}}", tmp_path)
    assert model.budget.share("kv").got_bytes == 2**30
    assert model.budget.spec.of == "the device"


def test_every_key_has_its_words_in_the_schema() -> None:
    schema = json_schema()
    for title, keys in (("Budget", BUDGET), ("A_consumer", CONSUMER), ("Elsewhere", ELSEWHERE), ("Lends", LENDS)):
        parts = schema["$defs"][title]["properties"]
        whole = {name: schema["$defs"][part["$ref"].rpartition("/")[2]] if "$ref" in part else part
                 for name, part in parts.items()}  # fmt: skip
        assert {name: part["description"] for name, part in whole.items()} == keys


# -- whatever stands there

_REAL = [
    find_config(name).read_text(encoding="utf-8").partition("\nbudget:")[2].encode()
    for name in ("expert-fp8-native", "expert-tiered-4x200k")
] + [WHOLE.partition("\nbudget:")[2].encode()]
_WHERE_FROM = [
    find_config(name).read_text(encoding="utf-8").partition("\nbudget:")[0].encode() + b"\nbudget:"
    for name in ("expert-fp8-native", "expert-tiered-4x200k")
] + [WHOLE.partition("\nbudget:")[0].encode() + b"\nbudget:"]
_PUT = st.one_of(
    st.binary(max_size=6),
    st.sampled_from([b"1", b"0", b"-1", b"experts", b"kv", b"a", b"1 TiB", b"/ 0", b"{}", b"[1]", b"~", b"floor: 1"]),
)


@settings(derandomize=True, deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))
@given(which=st.integers(0, 2), cuts=st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 20), _PUT), max_size=4))
def test_a_damaged_section_is_worked_out_or_refused_line_by_line(
    tmp_path: Path, which: int, cuts: list[tuple[int, int, bytes]]
) -> None:
    content = _REAL[which]
    for at, length, put in cuts:
        at %= len(content) + 1
        content = content[:at] + put + content[at + length :]
    path = tmp_path / "c.yaml"
    path.write_bytes(_WHERE_FROM[which] + content)
    try:
        config = load_config(path)
        report = report_budget(config, lambda changed: load_config(path, changed))
    except BadRequest as error:
        refusal = str(error)
    else:
        refusal = ""
        assert sum(share.got_bytes for share in report.budget.shares) <= report.budget.capacity_bytes
        assert BudgetModel(config).budget.results() == report.budget.results()
    assert all(line.isprintable() and len(line) < 900 for line in refusal.splitlines())
