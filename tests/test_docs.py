"""docs/output.md names the keys that the documents really have, all of them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from pinprobe.ledger.book.book_entry import BookRow
from pinprobe.ledger.book.host_book import HostBook
from pinprobe.ledger.book.host_receipt import host_receipt
from pinprobe.ledger.booking import RowState
from pinprobe.ledger.budget.budget_receipt import budget_receipt
from pinprobe.ledger.budget.budget_report import report_budget
from pinprobe.ledger.config.check_receipt import check_receipt
from pinprobe.ledger.config.checks import run_checks
from pinprobe.ledger.config.config import Config
from pinprobe.ledger.config.registry import load_config
from pinprobe.ledger.preflight.check import State
from pinprobe.ledger.preflight.needs import Needs
from pinprobe.ledger.preflight.preflight import check_limits
from pinprobe.ledger.preflight.preflight_receipt import PreflightRun, preflight_receipt
from pinprobe.ledger.preflight.raise_failing import Raise
from pinprobe.ledger.receipts.diff_receipt import diff_receipt
from pinprobe.ledger.receipts.receipt import sweep_receipt, trial_receipt
from pinprobe.ledger.receipts.receipt_diff import Presence, find_increases
from pinprobe.ledger.replay.replay_receipt import replay_receipt
from pinprobe.probes.allowance import Allowance
from pinprobe.probes.host_facts import read_host_facts
from pinprobe.probes.limits.read_limits import read_limits
from pinprobe.probes.trial import run_trial
from pinprobe.probes.walk import walk
from tests.ledger.budgets import WHOLE
from tests.ledger.made_receipts import CONFIG, Document, diff_of, document, real_document, row
from tests.ledger.preflight.made_hosts import NO_BOOK, made_host
from tests.ledger.replay.made_runs import whole_run
from tests.probes.simulated import PAGE, SimulatedBench, power_of_two

DOCUMENT = Path(__file__).parent.parent / "docs" / "output.md"
PLENTY = Allowance(2**40, "the test")
ALLOWED = Fraction(1, 100)
#: Below these keys stand names that are the user's own, the host's facts, or counters.
NAMES_OF_OTHERS = ("host", "numbers", "overrides", "counts", "hits", "rejected")


def test_every_key_is_explained() -> None:
    bench = SimulatedBench(power_of_two)
    host = read_host_facts()
    swept = sweep_receipt([walk(lambda: bench, "simulated", 1_000_000, [1, 2, 3], PLENTY, PAGE)], host, [])
    tried = trial_receipt(run_trial(bench, "simulated", 1_000_000, PLENTY, PAGE), host, [])
    (sweep,) = swept["sweeps"]
    explained = set(re.findall(r"`([a-z_]+)`", DOCUMENT.read_text(encoding="utf-8")))
    keys = {*swept, *tried, *sweep, *sweep["points"][0], *sweep["cliffs"][0], *sweep["rule"], *tried["pinned"]}
    assert keys - explained == {"page_size_bytes"}


def ledger_document(folder: Path) -> Document:
    return real_document(folder)


def host_document(folder: Path) -> Document:
    with HostBook(folder / "book") as book:
        book.write([BookRow("cache.ring", 1, 2)])
        return host_receipt(book.read(), str(folder), book.reach, read_host_facts(), [], 0)


def check_document(folder: Path) -> Document:
    path = folder / "mine.yaml"
    path.write_text(CONFIG, encoding="utf-8")
    config = load_config(path)
    return check_receipt(config, run_checks(config), [])


def diff_document(folder: Path) -> Document:
    old, new = (
        document(row("a", 1, allocator="mlock"), config={"numbers": {"slots": 1}}),
        document(row("a", 2), config={}),
    )
    found = diff_of(old, new)
    return diff_receipt(found, find_increases(found, ALLOWED), ALLOWED, [])


def budget_document(folder: Path) -> Document:
    path = folder / "whole.yaml"
    path.write_text(WHOLE, encoding="utf-8")

    def load(changed: Mapping[str, str]) -> Config:
        return load_config(path, {"card": "12 GiB", **changed})

    return budget_receipt(report_budget(load({}), load, ["kv >= 3 GiB"], marginal="slots"), [])


def replay_document(folder: Path) -> Document:
    return replay_receipt(whole_run(), read_host_facts(), [])


def preflight_document(folder: Path) -> Document:
    tree = made_host(folder, {})
    checks = check_limits(read_limits(tree), Needs(), NO_BOOK)
    run = PreflightRun("", "", "", (), checks, (Raise("ttm pages_limit", None, "no"),))
    return preflight_receipt(run, read_host_facts(), [])


def keys_of(value: Any) -> Iterator[str]:
    """Every key of a document, but those that are names of others and the parts of amounts."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from () if key in NAMES_OF_OTHERS or (key == "config" and isinstance(inner, dict)) else keys_of(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from keys_of(inner)


def section(title: str) -> str:
    """What stands below a title, up to the next."""
    return DOCUMENT.read_text(encoding="utf-8").partition(f"\n## {title}\n")[2].partition("\n## ")[0]


@pytest.mark.parametrize(
    ("schema", "make"),
    [
        ("pinprobe.ledger", ledger_document),
        ("pinprobe.host", host_document),
        ("pinprobe.preflight", preflight_document),
        ("pinprobe.check", check_document),
        ("pinprobe.budget", budget_document),
        ("pinprobe.diff", diff_document),
        ("pinprobe.replay", replay_document),
    ],
)
def test_the_section_of_a_document_explains_its_keys_and_no_others(schema: str, make: Any, tmp_path: Path) -> None:
    made = make(tmp_path)
    assert made["schema"] == schema
    keys = set(keys_of(made))
    head = DOCUMENT.read_text(encoding="utf-8").partition("\n## ")[0]
    common = {*re.findall(r"`([a-z_]+)`", head), *re.findall(r'"([a-z_]+)"', head)}
    own = section(f"`{schema}`")
    explained = {*re.findall(r"`([a-z_]+)`", own), *re.findall(r'"([a-z_]+)"', own)}
    assert keys - explained - common == set()
    # A key that is gone must not be explained any more; a state is a value and no key.
    values = (
        {state.value for state in State}
        | {state.value for state in RowState}
        | {presence.value for presence in Presence}
    )
    assert explained - keys - values == set()


def test_the_states_are_those_of_the_code() -> None:
    from pinprobe.probes.sweep import PointState

    text = DOCUMENT.read_text(encoding="utf-8")
    for state in PointState:
        assert f"`{state.value}`" in text
    for title, words in (("`pinprobe.ledger`", RowState), ("`pinprobe.diff`", Presence)):
        for word in words:
            assert f"`{word.value}`" in section(title)
