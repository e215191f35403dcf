from __future__ import annotations

import json
from dataclasses import dataclass

import pytest

from pinprobe.ledger.receipts.receipt import as_json, sweep_receipt
from pinprobe.probes.allowance import Allowance
from pinprobe.probes.counters import Counters
from pinprobe.probes.host_facts import read_host_facts
from pinprobe.probes.reading import Reading, Unreadable
from pinprobe.probes.walk import walk
from tests.probes.simulated import PAGE, SimulatedBench, power_of_two


def test_an_unknown_can_t_be_mistaken_for_a_number() -> None:
    assert as_json(Unreadable("no such line")) == {"unreadable": "no such line"}
    assert as_json(Reading(0, "statm", 4096)) == {"bytes": 0, "source": "statm", "error_bytes": 4096}
    assert as_json(Counters({"VmPin": Unreadable("no such line")})) == {"VmPin": {"unreadable": "no such line"}}


def test_a_value_without_a_json_form_is_refused_and_not_guessed() -> None:
    @dataclass(frozen=True)
    class Holder:
        value: object

    with pytest.raises(TypeError, match="bytearray"):
        as_json(Holder(bytearray(b"x")))


def test_a_sweep_carries_its_host_and_says_of_each_point_how_it_is_known() -> None:
    sweep = walk(
        lambda: SimulatedBench(power_of_two), "simulated", 154_927_104, range(1, 17), Allowance(2**31, "the test"), PAGE
    )
    document = json.loads(json.dumps(sweep_receipt([sweep], read_host_facts(), ["pinprobe", "sweep"])))
    assert (document["schema"], document["version"]) == ("pinprobe.sweep", 1)
    assert document["host"]["kernel"]
    (written,) = document["sweeps"]
    states = [point["state"] for point in written["points"]]
    assert states == ["measured"] * 13 + ["predicted"] * 3
    assert written["points"][-1]["resident"] == {"unreadable": "predicted"}
    assert [cliff["slots"] for cliff in written["cliffs"]] == [2, 4, 7, 14]
    assert [cliff["measured"] for cliff in written["cliffs"]] == [True, True, True, False]
    assert written["rule"]["fitting"] == ["the next power of two"]
