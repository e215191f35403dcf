"""docs/output.md explains every key of a plan's document and of advice, and no others."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from pinprobe.ledger.plan.advice import Advice, Effect, Way
from pinprobe.ledger.plan.advice_receipt import advice_receipt
from pinprobe.ledger.plan.known_maps import KnownMap
from pinprobe.ledger.plan.plan import smaller_tenants
from pinprobe.ledger.plan.plan_fit import find_fit
from pinprobe.ledger.plan.plan_receipt import PlanRun, plan_receipt
from pinprobe.probes.allowance import Allowance
from tests.ledger.made_plans import GIB, MIB, PRICES, config_of, plan_of
from tests.ledger.made_receipts import this_host
from tests.test_docs import DOCUMENT, keys_of, section

CONFIG = """\
engine: {name: mine, ranks: 2, allocator: torch}
numbers: {slots: 8, slot_bytes: 3 MiB, all: slots * slot_bytes}
tenants:
  cache.ring: {kind: buffer, count: slots, bytes: slot_bytes, transient: 1 MiB, printed: 33 MiB}
  cache.pool: {kind: buffer, per: host, bytes: 2 * slot_bytes, detail: kept, allocator: registered}
checks: {enough: slots >= 9}
"""


def plan_document(folder: Path) -> dict[str, Any]:
    config = config_of(folder, CONFIG)
    plan = plan_of(config, 130 * MIB)
    fit = find_fit("slots", config, lambda expression: plan_of(config_of(folder, CONFIG, {"slots": expression}), 2**60))
    known = KnownMap("auto", "torch", "map.json", "2026", 3)
    assert plan.exit_code == 1
    smaller = smaller_tenants(plan, PRICES)
    assert smaller
    run = PlanRun(config.path, (("as it is", plan),), smaller, fit, (known,), ("a remark",))
    return plan_receipt(run, this_host(), ["pinprobe", "plan"])


def advice_document(folder: Path) -> dict[str, Any]:
    effect = Effect("cache.ring", 2, MIB, 2 * MIB, "measured", MIB, "measured", 0.1, "measured")
    own = Way("torch", "allocator", (), (effect,), ("a note",))
    other = Way("pinned_a:1", "setting", (("PYTORCH_ALLOC_CONF", "pinned_a:1"),), (effect,))
    advice = Advice("c.yaml", "mine", "1", own, (other,))
    return advice_receipt(advice, Allowance(GIB, "the test"), this_host(), ["pinprobe", "advise"])


@pytest.mark.parametrize(("schema", "make"), [("pinprobe.plan", plan_document), ("pinprobe.advise", advice_document)])
def test_the_section_of_a_document_explains_its_keys_and_no_others(schema: str, make: Any, tmp_path: Path) -> None:
    made = make(tmp_path)
    assert made["schema"] == schema
    assert json.loads(json.dumps(made, allow_nan=False)) == made
    own, keys = section(f"`{schema}`"), set(keys_of(made))
    head = DOCUMENT.read_text(encoding="utf-8").partition("\n## ")[0]
    explained, common = (
        set(re.findall(r"`([a-z_]+)`", text)) | set(re.findall(r'"([a-z_]+)"', text)) for text in (own, head)
    )
    keys -= {"PYTORCH_ALLOC_CONF"}  # the user's own
    assert keys - explained - common == set()
    assert explained - keys - {"measured", "predicted", "allocator", "setting", "unreadable"} == set()
