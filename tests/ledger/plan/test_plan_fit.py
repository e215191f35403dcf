"""The largest value that fits, against trying every value; and what is said where a search can't know."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pinprobe.ledger.config.config import Config
from pinprobe.ledger.config.shipped import find_config
from pinprobe.ledger.plan.plan import Plan
from pinprobe.ledger.plan.plan_fit import Fit, find_fit
from pinprobe.ledger.plan.what_if import AS_IT_IS, open_alternative
from pinprobe.probes.errors import BadRequest, CouldNotMeasure
from pinprobe.probes.reading import Amount, Unreadable
from tests.ledger.made_plans import GIB, KIB, MIB, PRICES, UNKNOWN, config_of, plan_of

FUZZ = settings(derandomize=True, deadline=None, max_examples=12)

CONFIG = """\
engine: {name: e, ranks: 2, allocator: torch}
numbers: {slots: 4, row: 3 MiB, small: 2 KiB, idle: 7, divisor: 4, wave: 5}
tenants:
  ring: {kind: buffer, count: slots, bytes: row}
  rest: {kind: buffer, per: host, bytes: 1 GiB / divisor, allocator: registered}
"""


def fit_of(path: Path, name: str, available: Amount | int) -> Fit:
    config = open_alternative(path, {}, AS_IT_IS)

    def plan_at(expression: str) -> Plan:
        return plan_of(open_alternative(path, {name: expression}, AS_IT_IS), available)

    return find_fit(name, config, plan_at)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    config_of(tmp_path, CONFIG)
    return tmp_path / "mine.yaml"


def test_the_largest_count_fills_the_block_that_still_fits(path: Path) -> None:
    # 0.25 GiB for the rest; two ranks with a block of 64 MiB each hold 21 slots of 3 MiB, and the next would take 128.
    fit = fit_of(path, "slots", 256 * MIB + 128 * MIB)
    assert (fit.value, fit.unit_bytes, fit.expression) == (21, None, "21")
    assert fit.plan is not None
    assert fit.plan.needed_bytes == 256 * MIB + 128 * MIB
    assert isinstance(fit.beyond, Plan)
    assert fit.beyond.needed_bytes == 256 * MIB + 256 * MIB
    assert fit.is_monotone
    assert not fit.is_idle


def test_a_size_is_searched_by_the_mib_and_a_small_one_by_the_byte(path: Path) -> None:
    fit = fit_of(path, "row", 256 * MIB + 128 * MIB)
    assert (fit.value, fit.unit_bytes, fit.expression) == (16, MIB, "16 MiB")  # four of them in a block of 64 MiB
    text = CONFIG.replace("bytes: row", "bytes: small")
    path.write_text(text, encoding="utf-8")
    fit = fit_of(path, "small", 256 * MIB + 16 * KIB)
    assert (fit.value, fit.unit_bytes, fit.expression) == (2 * KIB, 1, "2048 B")


def test_ranks_are_a_number_too(path: Path) -> None:
    fit = fit_of(path, "ranks", 256 * MIB + 5 * 16 * MIB)
    assert fit.value == 5


def test_where_none_fits_the_least_that_the_config_takes_is_named(path: Path) -> None:
    fit = fit_of(path, "slots", 256 * MIB)
    assert (fit.value, fit.plan) == (None, None)
    assert isinstance(fit.beyond, Plan)
    assert fit.beyond.overrides == {}
    assert fit.beyond.needed_bytes == 256 * MIB + 2 * 4 * MIB


def test_values_below_what_the_config_takes_do_not_hide_those_that_fit() -> None:
    path = find_config("savepoint-ring-64")
    config = open_alternative(path, {"max_num_seqs": "9"}, AS_IT_IS)

    def plan_at(expression: str) -> Plan:
        changed = open_alternative(path, {"max_num_seqs": "9", "slots": expression}, AS_IT_IS)
        return plan_of(changed, 20 * 154_927_104, UNKNOWN)

    # Fewer than 18 are refused, and 32 and 64 do not fit: what fits lies between two powers of two.
    fit = find_fit("slots", config, plan_at)
    assert fit.value == 20


def test_where_the_config_takes_no_larger_value_its_reason_stands_in_for_what_binds(path: Path) -> None:
    fit = fit_of(path, "ranks", 2**60)
    assert fit.value == 4096
    assert isinstance(fit.beyond, str)
    assert "4,096 is the most" in fit.beyond


def test_a_number_that_changes_nothing_is_said_to(path: Path) -> None:
    fit = fit_of(path, "idle", 2**60)
    assert fit.is_idle
    assert fit.beyond is None
    assert fit_of(path, "idle", 0).value is None


def test_where_the_plan_shrinks_as_the_number_grows_that_is_said(path: Path) -> None:
    fit = fit_of(path, "divisor", 256 * MIB)
    assert fit.value is not None
    assert not fit.is_monotone


def test_an_unknown_number_is_refused_with_the_nearest(path: Path) -> None:
    with pytest.raises(BadRequest, match="--fit: the config has no number `slotz`; did you mean slots"):
        fit_of(path, "slotz", 1)


def test_without_headroom_there_is_no_answer(path: Path) -> None:
    with pytest.raises(CouldNotMeasure, match="--headroom SIZE"):
        fit_of(path, "slots", Unreadable("the test says so"))


@FUZZ
@given(available=st.integers(0, 2 * GIB), configured=st.integers(1, 300))
@example(available=256 * MIB + 8 * MIB, configured=300)
def test_no_value_that_was_tried_by_hand_is_larger_and_fits(
    tmp_path_factory: pytest.TempPathFactory, available: int, configured: int
) -> None:
    path = tmp_path_factory.mktemp("fit") / "mine.yaml"
    path.write_text(CONFIG.replace("slots: 4", f"slots: {configured}"), encoding="utf-8")
    config = open_alternative(path, {}, AS_IT_IS)
    plan_at = _counted(config, available)
    by_hand = [value for value in range(1, 330) if plan_at(str(value)).fits is True]
    fit = find_fit("slots", config, plan_at)
    assert fit.value == (max(by_hand) if by_hand else None)


def _counted(config: Config, available: int) -> Callable[[str], Plan]:
    """Plan with a count of slots put straight into the tenant, since reading the file anew takes milliseconds."""
    from dataclasses import replace

    ring, rest = config.tenants
    known: dict[str, Plan] = {}

    def plan_at(expression: str) -> Plan:
        if expression not in known:
            changed = replace(config, tenants=(ring.with_fields(count=int(expression)), rest))
            known[expression] = plan_of(changed, available, PRICES)
        return known[expression]

    return plan_at
