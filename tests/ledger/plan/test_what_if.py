"""Alternatives to a config: what was meant by a line of assignments, and what the config is with them."""

from __future__ import annotations

from pathlib import Path

import pytest

from pinprobe.ledger.plan.what_if import AS_IT_IS, open_alternative, parse_alternative, with_printed_moved
from pinprobe.probes.errors import BadConfig, BadRequest
from tests.ledger.made_plans import GIB, config_of

CONFIG = """\
engine: {name: e, ranks: 2, allocator: torch}
numbers: {slots: 64, row: 154_927_104, prints: 5 GiB}
tenants:
  a.follows: {kind: buffer, count: slots, bytes: row}
  b.names_its_own: {kind: buffer, bytes: 4 GiB, allocator: torch, printed: prints}
  c.regions: {kind: retention_pool, regions: 2, layout: [{name: a, shape: [1], dtype: int8}]}
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    config_of(tmp_path, CONFIG)
    return tmp_path / "mine.yaml"


def test_a_comma_of_a_number_ends_no_assignment() -> None:
    alternative = parse_alternative(" row = 154,927,104 , slots=2*(3+1),allocator=registered ")
    assert alternative.overrides == {"row": "154,927,104", "slots": "2*(3+1)"}
    assert alternative.allocator == "registered"


@pytest.mark.parametrize(
    ("text", "because"),
    [
        ("", "sets nothing"),
        ("slots", "sets nothing"),
        ("slots=", "sets nothing"),
        ("=32", "sets nothing"),
        ("slots=1,slots=2", "sets slots twice"),
        ("allocator=tirch", "did you mean torch?"),
        ("allocator=", "sets nothing"),
    ],
)
def test_what_sets_nothing_or_twice_is_refused(text: str, because: str) -> None:
    with pytest.raises(BadRequest) as refused:
        parse_alternative(text)
    assert because in str(refused.value)
    assert "\n" not in str(refused.value)


def test_another_allocator_is_that_of_the_tenants_which_name_none(path: Path) -> None:
    config = open_alternative(path, {}, parse_alternative("slots=32,allocator=registered"))
    assert config.allocator == "registered"
    assert [tenant.allocator for tenant in config.tenants] == ["registered", "torch", "pageable"]
    assert config.numbers["slots"] == 32


def test_what_is_set_for_all_holds_beneath_an_alternative(path: Path) -> None:
    settings = {"slots": "8", "ranks": "3"}
    assert open_alternative(path, settings, AS_IT_IS).numbers["slots"] == 8
    config = open_alternative(path, settings, parse_alternative("slots=9"))
    assert config.numbers["slots"] == 9
    assert config.ranks == 3


def test_an_unknown_number_is_told_of_the_option_that_brought_it(path: Path) -> None:
    with pytest.raises(BadConfig) as refused:
        open_alternative(path, {"rown": "1"}, parse_alternative("slotz=1"))
    assert sorted(refused.value.problems) == [
        "--set rown: the config has no number `rown`; did you mean row?",
        "--what-if slotz: the config has no number `slotz`; did you mean slots?",
    ]


def test_an_engine_is_taken_to_print_as_much_more_as_it_did(path: Path) -> None:
    config = open_alternative(path, {}, AS_IT_IS)
    assert with_printed_moved(config, config) == config
    text = CONFIG.replace("bytes: 4 GiB", "bytes: 3 GiB")
    path.write_text(text, encoding="utf-8")
    smaller = open_alternative(path, {}, AS_IT_IS)
    assert with_printed_moved(smaller, config).tenants[1].printed_bytes == 4 * GIB
    # A figure that was given for the change is the engine's own.
    said = open_alternative(path, {}, parse_alternative("prints=6 GiB"))
    assert with_printed_moved(said, config).tenants[1].printed_bytes == 6 * GIB
