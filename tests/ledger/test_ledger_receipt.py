"""The ledger's account as JSON: every figure of it, an unknown never a zero, and nothing that JSON does not have."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timezone
from fractions import Fraction
from pathlib import Path
from typing import Any, NoReturn

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pinprobe.ledger.booking import Account, Claim, RowState
from pinprobe.ledger.boot import Boot
from pinprobe.ledger.config.registry import load_config
from pinprobe.ledger.config.shipped import find_config, shipped_names
from pinprobe.ledger.ledger import HostPinnedLedger
from pinprobe.ledger.ledger_receipt import VERSION, ledger_receipt
from pinprobe.probes.headroom import Headroom, HeadroomSource
from pinprobe.probes.host_facts import HostFacts, read_host_facts
from pinprobe.probes.reading import Reading, Unreadable
from tests.ledger.test_printout import GIB, MIB, SLOT, UNREAD, account, retained, row, unattributed

FUZZ = settings(derandomize=True, deadline=None, max_examples=80)


@pytest.fixture(scope="module")
def host() -> HostFacts:
    return read_host_facts()


def strict(document: Mapping[str, Any]) -> dict[str, Any]:
    """What a strict reader makes of it: NaN and Infinity are no JSON, and every key is a text."""

    def refuse(constant: str) -> NoReturn:
        raise AssertionError(f"{constant} is not JSON")

    read: dict[str, Any] = json.loads(json.dumps(document, allow_nan=False), parse_constant=refuse)
    assert read == document
    return read


def receipt(made: Account, host: HostFacts, **others: Any) -> dict[str, Any]:
    return strict(ledger_receipt(made, host, ["pinprobe", "ledger", "c.yaml"], **others))


# -- the head


def test_it_says_what_it_is_when_it_was_made_and_on_which_host(host: HostFacts) -> None:
    document = receipt(account(row()), host, note="before the upgrade", scale="1/64")
    assert (document["schema"], document["version"]) == ("pinprobe.ledger", VERSION)
    assert document["command"] == ["pinprobe", "ledger", "c.yaml"]
    assert (document["note"], document["scale"]) == ("before the upgrade", "1/64")
    age = datetime.now(timezone.utc) - datetime.fromisoformat(document["measured_at"])
    assert 0 <= age.total_seconds() < 60
    # The same host as the kernel tells it.
    assert document["host"]["kernel"] == Path("/proc/sys/kernel/osrelease").read_text(encoding="utf-8").strip()
    total = re.search(r"^MemTotal:\s+(\d+) kB$", Path("/proc/meminfo").read_text(encoding="utf-8"), re.MULTILINE)
    assert total is not None
    assert document["host"]["memory_total"]["bytes"] == int(total[1]) * 1024


def test_without_a_config_that_is_null_and_nothing_was_set(host: HostFacts) -> None:
    document = receipt(account(), host)
    assert (document["config"], document["overrides"], document["scale"], document["note"]) == (None, {}, "1", "")


@pytest.mark.parametrize("name", shipped_names())
def test_the_config_is_in_it_as_it_was_written(host: HostFacts, name: str) -> None:
    config = load_config(find_config(name))
    document = receipt(account(), host, config=config.document, overrides={"slots": "16 * 2"})
    assert document["config"]["engine"]["name"] == name
    assert document["config"]["tenants"].keys() == {tenant.name for tenant in config.tenants}
    assert document["overrides"] == {"slots": "16 * 2"}


# -- rows and sums


def test_a_row_has_its_three_figures_its_ratio_and_what_speaks_for_them(host: HostFacts) -> None:
    (first,) = receipt(account(row()), host)["rows"]
    assert first["owner"] == "cache.savepoint_ring"
    assert (first["state"], first["pageable"], first["measured"]) == ("reserved", False, True)
    assert (first["asked_bytes"], first["booked_bytes"]) == (16 * SLOT, 4 * GIB)
    assert first["resident"] == {"bytes": 4 * GIB, "source": "smaps", "error_bytes": 0}
    assert first["ratio"] == pytest.approx(4 * GIB / (16 * SLOT))
    assert first["holds"] is True
    assert (first["allocator"], first["detail"]) == ("torch-host", "16 x 154,927,104 B")
    assert first["evidence"] == "mapping; statm agrees"


def test_the_sums_are_those_of_the_rows_each_counted_where_it_belongs(host: HostFacts) -> None:
    made = account(
        row("a.ring", asked=3 * GIB, booked=4 * GIB, resident=4 * GIB),
        row("b.pool", asked=GIB, booked=GIB, resident=GIB // 2, pageable=True),
        row("c.next", asked=2 * GIB, booked=3 * GIB, resident=Unreadable("being taken"), state=RowState.PENDING),
        retained(2 * GIB),
        unattributed(5 * MIB),
    )
    assert receipt(made, host)["sums"] == {
        "asked_bytes": 4 * GIB,
        "booked_bytes": 5 * GIB,
        "resident": {"bytes": 9 * GIB // 2, "source": "smaps, pagemap", "error_bytes": 0},
        "pinned_bytes": 9 * GIB,
        "pageable_bytes": GIB,
        "unattributed_bytes": 5 * MIB,
        "peak_bytes": 4 * GIB,
        "overstated_bytes": 4 * GIB,
    }


def test_what_could_not_be_read_has_its_reason_and_is_no_zero(host: HostFacts) -> None:
    made = replace(
        account(row(resident=UNREAD), unattributed(UNREAD)),
        process_resident=UNREAD,
        working_set_floor=UNREAD,
        overhead=UNREAD,
        headroom=Headroom((HeadroomSource("MemAvailable", UNREAD),)),
        control=None,
    )
    document = receipt(made, host)
    unread = {"unreadable": "no smaps here"}
    for first in document["rows"]:
        assert (first["resident"], first["holds"]) == (unread, unread)
    assert document["rows"][1]["ratio"] == {"unreadable": "nothing was asked"}
    for name in ("process_resident", "working_set_floor", "overhead"):
        assert document[name] == unread
    assert document["sums"]["resident"] == unread
    assert document["headroom"]["available"] == unread
    assert document["control"] is None


def test_what_does_not_hold_is_said_of_the_row_of_the_claim_and_of_the_whole(host: HostFacts) -> None:
    below = row("a.ring", asked=GIB, booked=GIB, resident=2 * GIB)
    claims = (Claim("a.ring", GIB, Reading(2 * GIB, "smaps")), Claim("b.gone", 5, UNREAD))
    document = receipt(account(below, claims=claims), host)
    assert document["holds"] is False
    assert document["rows"][0]["holds"] is False
    assert [(claim["owner"], claim["holds"]) for claim in document["claims"]] == [
        ("a.ring", False),
        ("b.gone", {"unreadable": "no smaps here"}),
    ]
    assert len(document["shortfalls"]) == 2
    assert all("a.ring" in line for line in document["shortfalls"])


def test_the_bounds_of_the_run_are_in_it(host: HostFacts) -> None:
    sources = (
        HeadroomSource("MemAvailable", Reading(30 * GIB, "meminfo")),
        HeadroomSource("memory cgroup", Reading(2 * GIB, "memory.max")),
    )
    made = replace(account(row()), headroom=Headroom(sources), keep_free_bytes=GIB, limit_bytes=8 * GIB)
    document = receipt(replace(made, book_reach="processes of user 0"), host)
    assert document["headroom"] == {
        "available": {"bytes": 2 * GIB, "source": "memory.max", "error_bytes": 0},
        "bound": "memory cgroup",
        "keep_free_bytes": GIB,
    }
    assert document["limit_bytes"] == 8 * GIB
    assert document["book_reach"] == "processes of user 0"


sizes = st.integers(0, 2**56)
amounts = st.builds(Reading, sizes, st.text(max_size=9), sizes) | st.builds(Unreadable, st.text(max_size=9))
rows_of_any_kind = st.builds(
    row,
    st.text(max_size=9),
    sizes,
    sizes,
    amounts,
    state=st.sampled_from(RowState),
    pageable=st.booleans(),
    measured=st.booleans(),
    detail=st.text(max_size=9),
)


@FUZZ
@given(rows=st.lists(rows_of_any_kind, max_size=5), amount=amounts, note=st.text(max_size=9))
def test_whatever_an_account_holds_it_is_strict_json_and_its_sums_add_up(
    host: HostFacts, rows: list[Any], amount: Any, note: str
) -> None:
    made = replace(account(*rows), process_resident=amount, working_set_floor=amount, overhead=amount)
    document = receipt(made, host, note=note)
    assert len(document["rows"]) == len(rows)
    reserved = [first for first in document["rows"] if first["state"] == "reserved"]
    for name in ("asked_bytes", "booked_bytes"):
        assert document["sums"][name] == sum(first[name] for first in reserved)
    unread = [first for first in reserved if "unreadable" in first["resident"]]
    assert ("unreadable" in document["sums"]["resident"]) == bool(unread)
    assert document["holds"] == (not document["shortfalls"])


# -- of a real ledger


def test_the_receipt_of_a_real_ledger_has_what_the_kernel_says(host: HostFacts, tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(
        "engine: {name: e, allocator: pageable}\ntenants: {a.pool: {kind: buffer, count: 4, bytes: 16 MiB}}\n",
        encoding="utf-8",
    )
    config = load_config(path)
    with Boot(config, Fraction(1, 2)) as boot, HostPinnedLedger() as ledger:
        boot.open(ledger)
        status = Path("/proc/self/status").read_text(encoding="utf-8")
        document = receipt(ledger.verify(), host, config=config.document, scale="1/2")
    (pool,) = [first for first in document["rows"] if first["state"] == "reserved"]
    assert (pool["asked_bytes"], pool["booked_bytes"], pool["resident"]["bytes"]) == (32 * MIB, 32 * MIB, 32 * MIB)
    resident = re.search(r"^VmRSS:\s+(\d+) kB$", status, re.MULTILINE)
    assert resident is not None
    assert document["process_resident"]["bytes"] == pytest.approx(int(resident[1]) * 1024, abs=2 * MIB)
    floor = document["process_resident"]["bytes"] - document["sums"]["resident"]["bytes"]
    assert document["working_set_floor"]["bytes"] == floor
    assert document["holds"] is True
