"""Whatever the numbers: nothing is negative, all adds up, growing stops, and it is the published resolver."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from pinprobe.ledger.budget.budget import Budget, StepKind
from pinprobe.ledger.budget.budget_model import BudgetModel
from pinprobe.ledger.budget.budget_wish import read_wish, solve
from tests.ledger.budgets import RESOLVER, WHOLE, fraction, model_of, published

MANY = settings(derandomize=True, deadline=None, max_examples=150, suppress_health_check=list(HealthCheck))
FEW = settings(derandomize=True, deadline=None, max_examples=15, suppress_health_check=list(HealthCheck))

_SIZES = st.integers(0, 200)
_NUMBERS = st.fixed_dictionaries(
    {
        "elastic": st.integers(1, 200),
        "plane": _SIZES,
        "spare": st.integers(0, 20),
        "largest_unit": st.integers(0, 20),
        "host_room": _SIZES,
        "kv_cap": _SIZES,
        "one_sequence": st.integers(0, 40),
        "roof": _SIZES,
    }
)


@pytest.fixture(scope="module")
def resolver(tmp_path_factory: pytest.TempPathFactory) -> BudgetModel:
    return model_of(RESOLVER, tmp_path_factory.mktemp("resolver"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> BudgetModel:
    return model_of(WHOLE, tmp_path_factory.mktemp("whole"))


def look_at(budget: Budget) -> None:
    """What holds of every budget, whether it fits or not."""
    left = budget.capacity_bytes
    for step in budget.steps:
        assert 0 <= step.taken_bytes <= step.wanted_bytes
        left -= step.taken_bytes
        assert step.left_bytes == left >= 0
    assert budget.unclaimed_bytes == left
    firm = sum(step.taken_bytes for step in budget.steps if step.kind in (StepKind.CLAIM, StepKind.FLOOR))
    assert budget.elastic_bytes == budget.capacity_bytes - firm
    assert sum(share.got_bytes for share in budget.shares) + left == budget.elastic_bytes
    for share in budget.shares:
        assert 0 <= share.lent_bytes <= share.own_bytes <= share.got_bytes
        assert share.got_bytes <= (share.got_bytes if share.cap_bytes is None else share.cap_bytes)
        if share.ceiling_bytes is not None:
            assert share.got_bytes <= max(share.ceiling_bytes, share.floor_bytes)
        assert all(count >= 0 for count in share.units.values())
        assert share.got_bytes >= share.floor_bytes or not budget.fits
    assert all(quantity.value >= 0 for quantity in budget.results().values())


@given(numbers=_NUMBERS)
@example(numbers={"elastic": 20, "plane": 56, "spare": 0, "largest_unit": 0, "host_room": 36, "kv_cap": 3,
                  "one_sequence": 1, "roof": 56})  # fmt: skip
@MANY
def test_it_is_the_published_resolver_wherever_that_serves_both(resolver: BudgetModel, numbers: dict[str, int]) -> None:
    budget = resolver.at(fraction(**numbers))
    look_at(budget)
    n = numbers
    expected = published(
        n["elastic"], n["plane"], n["spare"], n["largest_unit"], n["host_room"], n["kv_cap"], n["one_sequence"],
        n["roof"],
    )  # fmt: skip
    if n["host_room"] < 2 * n["largest_unit"]:
        # Less than nothing is held: the published floor is then P + s, and so it is here.
        assert budget.share("experts").floor_bytes == n["plane"] + n["spare"]
    assert budget.fits is (expected is not None)
    if expected is not None:
        assert (budget.share("experts").got_bytes, budget.share("kv").got_bytes) == expected


@given(numbers=_NUMBERS)
@MANY
def test_more_of_the_pool_never_takes_from_the_cache_nor_raises_the_floor(
    resolver: BudgetModel, numbers: dict[str, int]
) -> None:
    budgets = [resolver.at(fraction(**{**numbers, "host_room": room})) for room in range(0, 200, 20)]
    for less, more in pairwise(budgets):
        assert more.share("experts").floor_bytes <= less.share("experts").floor_bytes
        assert more.share("kv").got_bytes >= less.share("kv").got_bytes
        assert more.unclaimed_bytes >= less.unclaimed_bytes
        assert more.fits >= less.fits


@given(card=st.integers(0, 40 * 2**30), pool=st.integers(0, 16 * 2**30), slots=st.integers(0, 20))
@MANY
def test_with_claims_charges_and_fixed_parts_all_adds_up_too(
    whole: BudgetModel, card: int, pool: int, slots: int
) -> None:
    look_at(whole.at(fraction(card=card, pool=pool, slots=slots)))


_SMALL = st.fixed_dictionaries({name: st.integers(1 if name == "elastic" else 0, 50) for name in (
    "elastic", "plane", "spare", "largest_unit", "host_room", "kv_cap", "one_sequence", "roof"
)})  # fmt: skip


@given(numbers=_SMALL, wanted=st.integers(0, 60), result=st.sampled_from(["kv", "experts", "unclaimed"]))
@FEW
def test_the_answer_is_the_least_of_all_values(
    resolver: BudgetModel, numbers: dict[str, int], wanted: int, result: str
) -> None:
    model = BudgetModel(replace(resolver.config, numbers=fraction(**numbers)))
    for lever in ("host_room", "kv_cap"):
        answer = solve(model, lever, read_wish(f"{result} >= {wanted}", model))
        tried = ((value, model.at({lever: Fraction(value)})) for value in range(220))
        does_it = (value for value, budget in tried if budget.fits and budget.results()[result].value >= wanted)
        assert (None if answer.least is None else answer.least.value) == next(does_it, None)


def test_reading_a_path_is_not_needed_again(whole: BudgetModel) -> None:
    Path(whole.config.path).unlink()
    assert whole.at(fraction(card=20 * 2**30)).capacity_bytes == 20 * 2**30
