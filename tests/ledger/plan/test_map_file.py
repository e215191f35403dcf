"""A sweep's JSON is read back as it was measured, and a file that somebody damaged is told in one line."""

from __future__ import annotations

import copy
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pinprobe.ledger.plan.map_file import map_from, read_map
from pinprobe.ledger.price import PriceList
from pinprobe.ledger.receipts.receipt import sweep_receipt
from pinprobe.ledger.receipts.whole_file import LARGEST_FILE_BYTES
from pinprobe.probes.errors import BadRequest
from pinprobe.probes.sweep import PointState, Sweep
from tests.ledger.made_plans import GIB, MIB, SLOT, swept
from tests.ledger.made_receipts import this_host
from tests.probes.simulated import exact, power_of_two

FUZZ = settings(derandomize=True, deadline=None, max_examples=200)
RECEIPTS = Path(__file__).parents[3] / "docs" / "receipts"


def document(*names_and_rules: Any) -> dict[str, Any]:
    """The document of a sweep over simulated allocators, as a strict reader of JSON gets it."""
    sweeps = [swept(rule, name, range(1, 17), SLOT) for name, rule in names_and_rules or (("torch", power_of_two),)]
    made: dict[str, Any] = json.loads(json.dumps(sweep_receipt(sweeps, this_host(), [])))
    return made


def test_what_was_measured_prices_as_it_did_before_it_was_written() -> None:
    found = map_from(document(("torch", power_of_two), ("registered", exact)), "map.json")
    assert [sweep.allocator for sweep in found.sweeps] == ["torch", "registered"]
    read, direct = PriceList(), PriceList()
    for sweep in found.sweeps:
        read.add(sweep)
    for name, rule in (("torch", power_of_two), ("registered", exact)):
        direct.add(swept(rule, name, range(1, 17), SLOT))
    for name in ("torch", "registered"):
        for asked in (1, SLOT, 8 * SLOT, 9 * SLOT + 1, 64 * SLOT):
            assert read.price(name, asked) == direct.price(name, asked)


@pytest.mark.parametrize(("name", "allocator"), [("cpu-sweep-torch-host", "torch-host"), ("h200-sweep", "torch")])
def test_the_receipts_of_real_sweeps_are_maps(name: str, allocator: str) -> None:
    found = read_map(RECEIPTS / f"{name}.json")
    prices = PriceList()
    for sweep in found.sweeps:
        prices.add(sweep)
    for slots, block in ((1, GIB // 4), (16, 4 * GIB), (27, 4 * GIB), (28, 8 * GIB)):
        price = prices.price(allocator, slots * SLOT)
        assert (price.bytes, price.known) == (block, "measured")
    assert isinstance(found.torch, str)
    assert found.remarks == ()


def test_a_block_smaller_than_its_request_is_remarked_and_prices_nothing() -> None:
    made = document()
    point = made["sweeps"][0]["points"][4]
    point.update(state=PointState.BROKEN.value, reason="handed a block of 1 B to a request for 2 B")
    found = map_from(made, "map.json")
    assert found.remarks == ("map.json: torch handed a block of 1 B to a request for 2 B: memory is not safe with it",)
    assert len([point for point in found.sweeps[0].points if point.state is PointState.MEASURED]) == 15


def told(content: bytes | str, tmp_path: Path) -> str:
    path = tmp_path / "map.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(BadRequest) as refused:
        read_map(path)
    message = str(refused.value)
    assert "\n" not in message
    assert message.startswith(str(path))
    assert message.endswith("; make the map anew: pinprobe sweep --slot-bytes SIZE --receipt FILE")
    assert "pinprobe ledger" not in message
    return message


@pytest.mark.parametrize(
    ("content", "because"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"[]", "where keys with values are wanted"),
        (b"null", "where keys with values are wanted"),
        (b"\xff\xfe", "no UTF-8"),
        (b'{"schema": "pinprobe.ledger"}', "is 'pinprobe.ledger', where a map has 'pinprobe.sweep'"),
        (b'{"schema": "pinprobe.sweep", "version": 2}', "is 2, and this pinprobe reads 1 to 1"),
        (b'{"schema": "pinprobe.sweep", "version": 0}', "is 0"),
        (b'{"schema": "pinprobe.sweep", "schema": 1}', "stands twice"),
        (b"[" * 100_000, "nested"),
    ],
    ids=["empty", "cut", "list", "null", "no text", "ledger", "newer", "version 0", "twice", "deep"],
)
def test_what_is_no_map_is_told_in_one_line(tmp_path: Path, content: bytes, because: str) -> None:
    assert because in told(content, tmp_path)


@pytest.mark.parametrize(
    ("keys", "value", "because"),
    [
        (("sweeps",), [], "holds no sweep"),
        (("sweeps", 0, "control_fault"), "it reads 1.2", "nothing in it counts as measured"),
        (("sweeps", 0, "points"), [], "holds no measured point"),
        (("sweeps", 0, "page_size_bytes"), 0, "no size of pages"),
        (("sweeps", 0, "page_size_bytes"), 5000, "no size of pages"),
        (("sweeps", 0, "page_size_bytes"), 2**40, "no size of pages"),
        (("sweeps", 0, "points", 0, "state"), "guessed", "none of measured, broken promise"),
        (("sweeps", 0, "points", 0, "asked_bytes"), 0, "nothing is measured of that"),
        (("sweeps", 0, "points", 0, "asked_bytes"), -1, "can't be negative"),
        (("sweeps", 0, "points", 0, "asked_bytes"), 1.5, "where a whole number is wanted"),
        (("sweeps", 0, "points", 0, "asked_bytes"), 2**63, "more than any address space"),
        (("sweeps", 0, "points", 0, "block", "bytes"), 1, "1 B for 154,927,104 B asked"),
        (("sweeps", 0, "points", 0, "block"), None, "where keys with values are wanted"),
        (("sweeps", 0, "allocator"), None, "where a text is wanted"),
        (("host", "torch_settings"), [], "where keys with values are wanted"),
    ],
)
def test_a_value_that_can_not_be_is_told_with_its_key(tmp_path: Path, keys: Any, value: Any, because: str) -> None:
    made = document()
    place = made
    for key in keys[:-1]:
        place = place[key]
    place[keys[-1]] = value
    message = told(json.dumps(made), tmp_path)
    assert because in message
    assert str(keys[0]) in message


def test_a_map_that_is_not_there_or_no_file_or_too_large_is_told(tmp_path: Path) -> None:
    for path, because in (
        (tmp_path / "none", "no such file"),
        (tmp_path, "is a folder"),
        (Path("a\0b"), "can't be read"),
    ):
        with pytest.raises(BadRequest, match=because):
            read_map(path)
    huge = tmp_path / "huge"
    with huge.open("wb") as file:
        os.truncate(file.fileno(), LARGEST_FILE_BYTES + 1)
    with pytest.raises(BadRequest, match="larger than 64 MiB"):
        read_map(huge)


_DOCUMENT = document()


def places(value: Any, way: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every way to a value of a document, those of two points out of all."""
    inner = value.items() if isinstance(value, dict) else enumerate(value[:2]) if isinstance(value, list) else ()
    return [way, *(place for key, each in inner for place in places(each, (*way, key)))][0 if way else 1 :]


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
    max_leaves=4,
)


@FUZZ
@given(place=st.sampled_from(places(_DOCUMENT)), value=_JSON, is_gone=st.booleans())
def test_any_damage_is_a_bad_request_or_leaves_a_map_that_prices_soundly(place: Any, value: Any, is_gone: bool) -> None:
    made = copy.deepcopy(_DOCUMENT)
    inner: Any = made
    for key in place[:-1]:
        inner = inner[key]
    if is_gone and isinstance(inner, dict):
        del inner[place[-1]]
    else:
        inner[place[-1]] = value
    message = "map.json"
    sweeps: tuple[Sweep, ...] = ()
    try:
        sweeps = map_from(made, "map.json").sweeps
    except BadRequest as error:
        message = str(error)
    assert message.startswith("map.json")
    assert "\n" not in message
    prices = PriceList()
    for sweep in sweeps:
        prices.add(sweep)
        assert prices.price(sweep.allocator, 3 * MIB).bytes >= 3 * MIB
