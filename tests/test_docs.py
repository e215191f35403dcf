"""docs/output.md names the keys that the documents really have, all of them."""

from __future__ import annotations

import re
from pathlib import Path

from pinprobe.ledger.receipt import sweep_receipt, trial_receipt
from pinprobe.probes.allowance import Allowance
from pinprobe.probes.host_facts import read_host_facts
from pinprobe.probes.trial import run_trial
from pinprobe.probes.walk import walk
from tests.probes.simulated import PAGE, SimulatedBench, power_of_two

DOCUMENT = Path(__file__).parent.parent / "docs" / "output.md"
PLENTY = Allowance(2**40, "the test")


def test_every_key_is_explained() -> None:
    bench = SimulatedBench(power_of_two)
    host = read_host_facts()
    swept = sweep_receipt([walk(lambda: bench, "simulated", 1_000_000, [1, 2, 3], PLENTY, PAGE)], host, [])
    tried = trial_receipt(run_trial(bench, "simulated", 1_000_000, PLENTY, PAGE), host, [])
    (sweep,) = swept["sweeps"]
    explained = set(re.findall(r"`([a-z_]+)`", DOCUMENT.read_text(encoding="utf-8")))
    keys = {*swept, *tried, *sweep, *sweep["points"][0], *sweep["cliffs"][0], *sweep["rule"], *tried["pinned"]}
    assert keys - explained == {"page_size_bytes"}


def test_the_states_are_those_of_the_code() -> None:
    from pinprobe.probes.sweep import PointState

    text = DOCUMENT.read_text(encoding="utf-8")
    for state in PointState:
        assert f"`{state.value}`" in text
