"""A wish is answered by the least value of a lever that does it, or by why no value does."""

from __future__ import annotations

import re
from fractions import Fraction
from pathlib import Path

import pytest

from pinprobe.ledger.budget.budget_model import BudgetModel
from pinprobe.ledger.budget.budget_report import report_budget
from pinprobe.ledger.budget.budget_wish import Answer, read_wish, solve
from pinprobe.ledger.budget.budget_words import answer_sentence
from pinprobe.ledger.config.registry import load_config
from pinprobe.ledger.config.shipped import find_config
from pinprobe.probes.errors import BadRequest
from tests.ledger.budgets import MIB, WHOLE


def shipped(name: str, **overrides: str) -> BudgetModel:
    return BudgetModel(load_config(find_config(name), overrides))


def answer(model: BudgetModel, lever: str, wish: str) -> Answer:
    return solve(model, lever, read_wish(wish, model))


def does_it(model: BudgetModel, lever: str, value: Fraction, result: str, wanted: int) -> bool:
    budget = model.at({lever: value})
    return budget.fits and budget.results()[result].value >= wanted


@pytest.mark.parametrize("wish", ["kv.tokens >= 700000", "kv >= 700,000 tokens", " kv.tokens  >=  700_000 "])
def test_of_four_slots_the_least_pool_for_a_number_of_tokens_is_found_to_a_mebibyte(wish: str) -> None:
    model = shipped("expert-tiered-4x200k")
    found = answer(model, "host_pool", wish)
    assert found.holds_now
    assert found.least is not None
    assert does_it(model, "host_pool", found.least.value, "kv.tokens", 700_000)
    assert not does_it(model, "host_pool", found.least.value - MIB, "kv.tokens", 700_000)
    assert answer_sentence(found) == (
        f"{wish.strip()}: host_pool = 8,848 MiB is the least that does it; 49,152 MiB does it already"
    )


def test_a_count_that_is_small_is_told_with_its_decimals_as_in_the_table() -> None:
    # 365,066 tokens are 1.8253 windows of 200,000: neither one of them nor two.
    sentence = answer_sentence(answer(shipped("expert-tiered-2x200k"), "host_pool", "kv >= 3 sessions"))
    assert "where kv.sessions are 1.82, since kv is at its cap" in sentence


def test_where_the_cache_is_at_its_cap_no_pool_does_it_and_the_cap_is_named() -> None:
    found = answer(shipped("expert-tiered-2x200k", slots="3"), "host_pool", "kv.tokens >= 700000")
    assert found.least is None
    sentence = answer_sentence(found)
    assert sentence.startswith("kv.tokens >= 700000: no value of host_pool does it; nearest is ")
    assert sentence.endswith("where kv.tokens are 556,322, since kv is at its cap, kv_cap = 4,604.4 MiB")


def test_another_lever_does_it() -> None:
    found = answer(shipped("expert-tiered-2x200k", slots="3"), "slots", "kv.tokens >= 700000")
    assert found.least is not None
    assert (int(found.least.value), found.least.is_size, int(found.now.value)) == (4, False, 3)
    assert answer_sentence(found) == (
        "kv.tokens >= 700000: slots = 4 is the least that does it, where it is 3 now; kv.tokens are 747,577 then"
    )


def test_what_holds_between_two_turns_alone_is_found() -> None:
    # More than 25 GiB of experts need a pool so small that the cache is nearly pushed out, and no smaller.
    model = shipped("expert-tiered-2x200k")
    found = answer(model, "host_pool", "experts > 25 GiB and kv >= 1 GiB")
    assert found.least is not None
    assert found.least.value == 4597 * MIB
    assert not model.at({"host_pool": 4596 * Fraction(MIB)}).fits


def test_a_budget_that_does_not_fit_is_told_what_makes_it() -> None:
    model = shipped("expert-fp8-native", host_pool="36_864 MiB")
    found = solve(model, "host_pool", None)
    assert found.least is not None
    assert model.at({"host_pool": found.least.value}).fits
    assert not model.at({"host_pool": found.least.value - MIB}).fits
    # All experts less what the card holds beside one sequence.
    assert found.least.value == pytest.approx((56.4 - 20) * 1024 * MIB + 200_000 * 3543 * MIB / 386_904, abs=2 * MIB)


def test_where_nothing_makes_it_fit_what_is_short_at_the_nearest_is_said() -> None:
    model = shipped("expert-fp8-native", host_pool="36_864 MiB", elastic="1 GiB")
    found = solve(model, "host_pool", None)
    assert found.least is None
    sentence = answer_sentence(found)
    assert sentence.startswith("the budget fits: no value of host_pool does it; with none does the budget fit, and ")
    assert sentence.endswith("kv: its floor is 1.789 GiB, and 1.000 GiB is left for it; 0.789 GiB is missing")


@pytest.mark.parametrize(
    ("wish", "because"),
    [
        ("kv.tokns >= 1", "--wish: no result is called `kv.tokns`; did you mean kv.tokens?"),
        ("vk >= 1 GiB", "--wish: no result and no number is called `vk`"),
        ("kv.tokens", "--wish: 'kv.tokens' compares nothing; a check is a comparison such as slots >= 8"),
        ("kv >= 64g", "'64g' is ambiguous"),
        ("kv >= 700,000 tokns", "'700,000 tokns' has an unknown unit 'tokns'"),
        ("kv.tokens >= __import__('os')", "can't stand in arithmetic"),
        ("", "--wish: nothing is written here"),
    ],
)
def test_a_wish_that_is_none_is_refused_in_one_line(wish: str, because: str) -> None:
    with pytest.raises(BadRequest) as refused:
        read_wish(wish, shipped("expert-tiered-4x200k"))
    assert because in str(refused.value)
    assert str(refused.value).isprintable()


def test_a_wish_may_speak_of_the_numbers_too() -> None:
    found = answer(shipped("expert-tiered-2x200k"), "slots", "kv.tokens >= 3 * window")
    assert found.least is not None
    assert found.least.value == 4  # three are just short of it, by what is charged for staging


def test_a_report_ends_with_0_where_it_fits_and_some_lever_does_it_and_with_1_elsewhere() -> None:
    def exit_code(name: str, *wishes: str, lever: str | None = None, **overrides: str) -> int:
        path = find_config(name)
        config = load_config(path, overrides)
        return report_budget(
            config, lambda changed: load_config(path, {**overrides, **changed}), wishes, lever
        ).exit_code

    assert exit_code("expert-tiered-2x200k") == 0
    assert exit_code("expert-tiered-2x200k", "kv.tokens >= 700000") == 0
    assert exit_code("expert-tiered-2x200k", "kv.tokens >= 700000", lever="host_pool") == 1
    assert exit_code("expert-tiered-2x200k", "kv >= 4 GiB", "unclaimed > 9 GiB") == 1
    assert exit_code("expert-fp8-native") == 0
    assert exit_code("expert-fp8-native", host_pool="36_864 MiB") == 1


@pytest.mark.parametrize(
    ("options", "because"),
    [
        ({"lever": "pool"}, "--lever: the budget has no lever `pool`; did you mean host_pool?"),
        ({"marginal": "slot"}, "--marginal: the config has no number `slot`; did you mean slots?"),
        ({"marginal": "host_pool"}, "`host_pool` is a size, 48 GiB"),
    ],
)
def test_a_lever_or_a_number_that_is_not_there_is_refused(options: dict[str, str], because: str) -> None:
    path = find_config("expert-tiered-4x200k")
    with pytest.raises(BadRequest) as refused:
        report_budget(load_config(path), lambda changed: load_config(path, changed), (), **options)
    assert because in str(refused.value)


def test_a_wish_that_divides_by_nothing_is_refused_where_no_lever_mends_that() -> None:
    path = find_config("expert-tiered-4x200k")

    def asked(wish: str) -> int:
        return report_budget(load_config(path), lambda changed: load_config(path, changed), (wish,)).exit_code

    with pytest.raises(BadRequest, match=r"^--wish: '1/0' divides by zero$"):
        asked("1/0 > 2")
    with pytest.raises(BadRequest, match=r"^--wish: 'kv / kv\.lent / 0' divides by zero"):
        asked("kv / kv.lent / 0 > 2")
    assert asked("1 / (slots - 4) > 0.5") == 0, "five slots do it, and only the four of now divide by zero"


@pytest.mark.parametrize(
    ("config", "lever", "wish", "objection"),
    [
        ("expert-tiered-2x200k", "slots", "kv.tokens >= 900000", "the config's check rows_fit fails then"),
        ("expert-tiered-4x200k", "slots", "kv.tokens >= 900000",
         "the config's checks minimum_covers_the_floor, rows_fit fail then"),
        ("expert-tiered-4x200k", "slots", "kv.tokens >= 700000", ""),
        ("expert-fp8-native", "host_pool", "kv.tokens >= 386904", ""),
    ],
)  # fmt: skip
def test_what_else_of_the_config_speaks_against_an_answer_is_said(
    config: str, lever: str, wish: str, objection: str
) -> None:
    path = find_config(config)
    report = report_budget(load_config(path), lambda changed: load_config(path, changed), (wish,), lever)
    (found,) = report.answers
    assert found.least is not None
    assert found.objection == objection
    assert answer_sentence(found).endswith(f"; but {objection}") == bool(objection)
    assert report.failing_checks == ()


def test_a_value_that_the_tenants_can_not_have_is_told_beside_the_answer(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(WHOLE, encoding="utf-8")
    report = report_budget(load_config(path), lambda changed: load_config(path, changed), ("experts >= 0",), "pool")
    (found,) = report.answers
    assert found.least is not None
    assert found.least.value == 0
    assert found.objection.startswith(f"the config is refused then: {path}:4:")


def test_a_lever_that_can_not_be_moved_by_its_step_says_why_and_the_budget_is_worked_out(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(WHOLE.replace("capacity: card", "capacity: card - (slots - 2) * card"), encoding="utf-8")
    report = report_budget(load_config(path), lambda changed: load_config(path, changed))
    assert [change.number for change in report.levers] == ["pool"]
    (said,) = report.stuck
    assert re.fullmatch(
        r"slots can't be moved to 3: .*c\.yaml:9:13: `budget\.capacity` comes to 0 B; it has to be more than 0", said
    )
    assert report.exit_code == 0


def test_checks_that_fail_as_the_config_is_are_in_the_report() -> None:
    path = find_config("expert-tiered-4x200k")
    config = load_config(path, {"slots": "5"})
    report = report_budget(config, lambda changed: load_config(path, {"slots": "5", **changed}))
    assert [check.name for check in report.failing_checks] == ["minimum_covers_the_floor", "rows_fit"]
