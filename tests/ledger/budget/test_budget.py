"""The waterfall gives what three real boots printed, and refuses what a fourth one refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from pinprobe.ledger.budget.budget import Budget, Standing, StepKind
from pinprobe.ledger.budget.budget_change import compare_budgets
from pinprobe.ledger.budget.budget_model import BudgetModel
from pinprobe.ledger.budget.budget_words import lever_sentence, rule_of, share_sentences, shortfall_sentences
from pinprobe.ledger.config.registry import load_config
from pinprobe.ledger.config.shipped import find_config
from pinprobe.ledger.tenants.kinds import load_kind
from pinprobe.probes.errors import BadConfig, BadRequest
from tests.ledger.budgets import GIB, MIB, WHOLE, fraction, model_of, shipped_budget


@pytest.fixture
def whole(tmp_path: Path) -> BudgetModel:
    return model_of(WHOLE, tmp_path)


def words_of(budget: Budget, name: str) -> str:
    return " ".join(share_sentences(budget.share(name), budget))


# -- what was published


@pytest.mark.parametrize(
    ("config", "overrides", "experts_gib", "kv_gib", "tokens", "off_card_gib"),
    [
        ("expert-tiered-2x200k", {}, 23.73, 2.76, 365_204, 5.99),
        ("expert-tiered-2x200k", {"slots": "3"}, None, 4.20, 556_348, None),
        ("expert-tiered-2x200k", {"slots": "3", "host_pool": "45_568 MiB"}, None, 4.20, 556_348, None),
        ("expert-tiered-4x200k", {}, 20.72, 5.64, 747_492, 8.99),
        ("expert-tiered-4x200k", {"max_seqs": "4"}, 20.72, 5.64, 747_492, 8.99),
    ],
)
def test_the_boots_come_out_as_the_engine_printed_them_each_at_its_cap(
    config: str,
    overrides: dict[str, str],
    experts_gib: float | None,
    kv_gib: float,
    tokens: int,
    off_card_gib: float | None,
) -> None:
    budget = shipped_budget(config, **overrides)
    experts, kv = budget.share("experts"), budget.share("kv")
    assert budget.fits
    assert kv.standing is Standing.AT_CAP
    assert "at its cap" in words_of(budget, "kv")
    assert float(kv.units["tokens"]) == pytest.approx(tokens, rel=0.001)
    assert kv.own_bytes / GIB == pytest.approx(kv_gib, rel=0.005)
    if experts_gib is not None:
        assert experts.got_bytes / GIB == pytest.approx(experts_gib, rel=0.005)
        assert experts.away_bytes / GIB == pytest.approx(off_card_gib, rel=0.005)


@pytest.mark.parametrize(
    ("config", "overrides", "tokens"),
    [
        ("expert-tiered-2x200k", {}, 365_067),
        ("expert-tiered-2x200k", {"slots": "3"}, 556_322),
        ("expert-tiered-4x200k", {}, 747_578),
    ],
)
def test_the_tokens_are_those_that_were_worked_out_by_hand(config: str, overrides: dict[str, str], tokens: int) -> None:
    assert abs(float(shipped_budget(config, **overrides).share("kv").units["tokens"]) - tokens) < 1


def test_of_four_slots_the_staging_the_state_and_what_is_lent_are_the_printed_ones() -> None:
    kv = shipped_budget("expert-tiered-4x200k").share("kv")
    (ring,), (state,) = kv.charges, kv.fixed
    assert (ring.name, state.name) == ("staging_ring", "state")
    assert ring.size_bytes / MIB == pytest.approx(373.65, rel=0.001)
    assert state.size_bytes / MIB == pytest.approx(440.04, abs=0.01)
    assert kv.lent_bytes / GIB == pytest.approx(5.20, rel=0.001)
    assert kv.got_bytes == kv.own_bytes + ring.size_bytes
    assert float(kv.units["sessions"]) == pytest.approx(3.7, abs=0.05)


def test_two_pools_of_three_slots_give_the_same_kv_and_the_lever_moves_nothing() -> None:
    one = shipped_budget("expert-tiered-2x200k", slots="3")
    two = shipped_budget("expert-tiered-2x200k", slots="3", host_pool="45_568 MiB")
    assert one.results() == two.results()


def test_what_the_boots_leave_open_changes_nothing_up_to_36_gib() -> None:
    # Units of 18 GiB, two under way: the boots would print the same, so they say nothing of the lever.
    expected = shipped_budget("expert-tiered-2x200k", slots="3")
    at_most = shipped_budget("expert-tiered-2x200k", slots="3", largest_unit="18 GiB")
    assert at_most.share("experts").floor_bytes > 20 * GIB
    assert at_most.share("kv").units == expected.share("kv").units
    short = shipped_budget("expert-tiered-2x200k", slots="3", largest_unit="18.3 GiB").share("kv")
    assert short.got_bytes < expected.share("kv").got_bytes
    # Where a result is read as a floor, as 23.73 GiB was, the three-slot boot could not have had its 4.20 GiB.
    misread = shipped_budget("expert-tiered-2x200k", slots="3", largest_unit="18.94 GiB").share("kv")
    assert misread.got_bytes / GIB < 3.1


def test_room_beyond_the_cap_goes_to_the_experts_up_to_their_ceiling_and_is_then_unclaimed() -> None:
    tight = shipped_budget("expert-tiered-2x200k", slots="3")
    more = shipped_budget("expert-tiered-2x200k", slots="3", elastic="30 GiB")
    plenty = shipped_budget("expert-tiered-2x200k", slots="3", elastic="40 GiB")
    assert tight.unclaimed_bytes == more.unclaimed_bytes == 0
    grown = more.share("experts").got_bytes - tight.share("experts").got_bytes
    assert grown == pytest.approx(30 * GIB - 26.73 * GIB, abs=2)
    assert plenty.share("experts").standing is Standing.AT_CEILING
    assert plenty.share("experts").got_bytes == pytest.approx(29.72 * GIB, abs=1)
    assert plenty.unclaimed_bytes == plenty.capacity_bytes - sum(share.got_bytes for share in plenty.shares) > 5 * GIB
    # With all experts on the card there is nothing to stage, and every token of the cap is there.
    assert plenty.share("kv").charges[0].size_bytes == 0
    assert plenty.share("kv").units["tokens"] == 600_000


def test_what_is_lent_is_never_counted_as_free() -> None:
    for budget in (shipped_budget("expert-tiered-4x200k"), shipped_budget("expert-tiered-4x200k", elastic="50 GiB")):
        kv = budget.share("kv")
        assert kv.lent_bytes > 0
        assert sum(share.got_bytes for share in budget.shares) + budget.unclaimed_bytes == budget.capacity_bytes
        assert "lent to experts: lent, not free" in words_of(budget, "kv")


def test_the_native_payload_passes_with_40_gib_and_prints_its_cache() -> None:
    budget = shipped_budget("expert-fp8-native")
    kv = budget.share("kv")
    assert budget.fits
    assert (kv.got_bytes, kv.standing) == (3543 * MIB, Standing.AT_CAP)
    assert kv.units["tokens"] == 386_904
    assert float(kv.units["sessions"]) == pytest.approx(1.93, abs=0.005)
    assert dict(budget.spec.assumptions) == {"elastic": "not published for this payload"}


def test_the_native_payload_is_refused_a_pool_of_36_gib_since_it_fits_neither_the_cards_nor_the_host() -> None:
    budget = shipped_budget("expert-fp8-native", host_pool="36_864 MiB")
    assert not budget.fits
    step = budget.short_steps[0]
    assert (step.name, step.kind) == ("experts", StepKind.CONSUMER_FLOOR)
    assert step.short_bytes == pytest.approx(0.4 * GIB, abs=1)
    assert shortfall_sentences(budget)[0] == (
        "experts: 56.400 GiB in all, of which the host holds 36.000 GiB (host_pool); 20.400 GiB has to fit the cards,"
        " where 20.000 GiB is left for it. 0.400 GiB fits neither: what does not fit the cards must fit the host"
    )


@pytest.mark.parametrize("name", ["expert-fp8-native", "expert-tiered-2x200k", "expert-tiered-4x200k"])
def test_the_pool_is_one_number_for_the_tenants_and_for_the_budget(name: str) -> None:
    before = load_config(find_config(name))
    after = load_config(find_config(name), {"host_pool": "50 GiB"})
    assert "host_pool" in BudgetModel(before).spec.levers
    for config in (before, after):
        (pool,) = (tenant for tenant in config.tenants if tenant.name == "experts.host_pool")
        held = BudgetModel(config).budget.share("experts").held_bytes
        assert 0 <= load_kind(pool.kind).asked_bytes(pool) - held < 16_384
        assert held == config.numbers["host_pool"]


# -- the general thing


def test_claims_floors_and_consumers_take_in_this_order(whole: BudgetModel) -> None:
    budget = whole.budget
    assert [(step.kind.value, step.name, step.taken_bytes, step.left_bytes) for step in budget.steps] == [
        ("claim", "held", 512 * MIB, 24 * GIB - 512 * MIB),
        ("claim", "drift", 1536 * MIB, 22 * GIB),
        ("floor", "weights", 6 * GIB, 16 * GIB),
        ("consumer floor", "experts", 6 * GIB, 10 * GIB),
        ("consumer floor", "kv", GIB, 9 * GIB),
        ("consumer floor", "scratch", 256 * MIB, 9 * GIB - 256 * MIB),
        ("growth", "kv", GIB, 8 * GIB - 256 * MIB),
        ("growth", "experts", 5 * GIB, 3 * GIB - 256 * MIB),
    ]
    assert (budget.capacity_bytes, budget.elastic_bytes) == (24 * GIB, 16 * GIB)
    assert budget.unclaimed_bytes == 3 * GIB - 256 * MIB
    assert [share.standing for share in budget.shares] == [Standing.AT_CEILING, Standing.AT_CAP, Standing.AT_FLOOR]


def test_each_step_has_its_rule_in_the_words_of_the_config(whole: BudgetModel) -> None:
    assert [rule_of(step, whole.budget) for step in whole.budget.steps] == [
        "taken first: 512 MiB",
        "taken first: guess",
        "never grows: weights",
        "have to have 10 GiB, less what the host holds: pool",
        "has to have slot_bytes",
        "has to have 256 MiB",
        "grows to its cap slots * slot_bytes",
        "grow to their ceiling 11 GiB",
    ]


def test_a_charge_comes_back_when_nothing_is_lent_and_units_count_what_is_neither_charged_nor_fixed(
    whole: BudgetModel,
) -> None:
    kv = whole.budget.share("kv")
    assert kv.got_bytes == 2 * GIB
    # The experts are above 10 GiB, so only the constant part of the ring would be left: less a tenth of what is over.
    assert kv.charges[0].size_bytes == 0
    crowded = whole.at(fraction(card=16 * GIB)).share("kv")
    experts = whole.at(fraction(card=16 * GIB)).share("experts").got_bytes
    (ring,) = crowded.charges
    assert ring.size_bytes == -(-(10 * GIB - experts) // 10) + 64 * MIB
    assert crowded.own_bytes == crowded.got_bytes - ring.size_bytes
    assert crowded.lent_bytes == crowded.own_bytes - 200 * MIB
    assert crowded.units["tokens"] == crowded.lent_bytes / MIB


def test_a_cap_holds_a_floor_back_and_a_ceiling_does_not(tmp_path: Path) -> None:
    text = """\
engine: {name: e}
budget:
  capacity: 100
  consumers:
    capped: {floor: 40, cap: 30, grows: 1}
    domed: {floor: 40, ceiling: 30, grows: 1}
    both: {floor: 1, cap: 9, ceiling: 5, grows: 1}
    still: {floor: 2}
    rest: {grows: 2}
"""
    budget = model_of(text, tmp_path).budget
    assert {share.name: share.got_bytes for share in budget.shares} == {
        "capped": 30, "domed": 40, "both": 5, "still": 2, "rest": 23,
    }  # fmt: skip
    assert [share.standing for share in budget.shares] == [
        Standing.AT_CAP, Standing.AT_CEILING, Standing.AT_CEILING, Standing.AT_FLOOR, Standing.BETWEEN,
    ]  # fmt: skip
    assert budget.unclaimed_bytes == 0


def test_growth_goes_by_turns_and_equal_turns_by_the_order_of_the_file(tmp_path: Path) -> None:
    text = """\
engine: {name: e}
budget:
  capacity: 100
  consumers:
    late: {cap: 50, grows: 3}
    first: {cap: 30, grows: 1}
    second: {cap: 60, grows: 1}
"""
    shares = model_of(text, tmp_path).budget.shares
    assert {share.name: share.got_bytes for share in shares} == {"late": 10, "first": 30, "second": 60}


@pytest.mark.parametrize(
    ("card", "words"),
    [
        (GIB, "drift: 1.500 GiB of the cards has to be had and 0.500 GiB is left; 1.000 GiB is missing"),
        (4 * GIB, "weights: 6.000 GiB of the cards has to be had and 2.000 GiB is left; 4.000 GiB is missing"),
    ],
)
def test_claims_and_floors_that_do_not_fit_are_told_with_what_is_missing(
    whole: BudgetModel, card: int, words: str
) -> None:
    budget = whole.at(fraction(card=card))
    assert not budget.fits
    assert shortfall_sentences(budget)[0] == words
    assert budget.unclaimed_bytes == 0


def test_a_charge_beyond_what_may_be_charged_is_told(tmp_path: Path) -> None:
    text = WHOLE.replace("+ 64 MiB", "+ 64 MiB + guess * 4").replace("ceiling: 11 GiB", "ceiling: 10 GiB")
    budget = model_of(text, tmp_path).budget
    assert not budget.fits
    assert not budget.short_steps
    assert shortfall_sentences(budget) == [
        "kv: more is charged to it while it lends than it has beside its fixed parts; it got 2.000 GiB"
    ]
    assert budget.share("kv").lent_bytes == 0
    assert budget.share("kv").units["tokens"] == 0


def test_a_charge_beyond_all_that_a_consumer_got_is_told_where_no_part_of_it_is_fixed_too(tmp_path: Path) -> None:
    text = WHOLE.replace("fixed: {state: slots * 100 MiB}", "fixed: {}").replace("+ 64 MiB", "+ 3 GiB")
    text = text.replace("ceiling: 11 GiB", "ceiling: 10 GiB")
    budget = model_of(text, tmp_path).budget
    kv = budget.share("kv")
    assert kv.got_bytes == kv.charges[0].size_bytes == 2 * GIB
    assert kv.unpaid_bytes == GIB, "the ring takes 3 GiB of the 2 GiB, since all experts are on the card"
    assert budget.overcharged == (kv,)
    assert not budget.fits


def test_a_value_that_comes_to_nothing_sound_is_told_at_its_place(whole: BudgetModel, tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match=r"c\.yaml:9:13: `budget\.capacity`: comes to less than 0"):
        whole.at(fraction(card=-1))
    text = WHOLE.replace("(10 GiB - experts) / 10", "GIB / (experts - 11 GiB)").replace("GIB", "guess")
    with pytest.raises(BadConfig, match=r"`budget\.consumers\.kv\.lends\.charges\.ring`: .* divides by zero"):
        model_of(text, tmp_path)


def test_a_config_without_a_budget_says_so() -> None:
    with pytest.raises(BadRequest, match=r"has no `budget:` section, .* expert-tiered-2x200k has one"):
        BudgetModel(load_config(find_config("savepoint-split")))


# -- what a number moves


def sentence(model: BudgetModel, number: str, value: str) -> str:
    path = Path(model.config.path)
    return lever_sentence(compare_budgets(number, model.config, load_config(path, {number: value})))


def test_a_lever_that_frees_what_nobody_else_may_have_leaves_it_where_it_was() -> None:
    model = BudgetModel(load_config(find_config("expert-fp8-native")))
    assert sentence(model, "host_pool", "41 GiB") == (
        "+1 GiB of host_pool: floor of experts -1 GiB; kv already at its cap, so experts keep it;"
        " the host pins +2 GiB (experts.host_pool x 2)"
    )


def test_a_lever_that_makes_it_fit_says_what_each_gets() -> None:
    model = BudgetModel(load_config(find_config("expert-fp8-native"), {"host_pool": "36_864 MiB"}))
    assert sentence(model, "host_pool", "40 GiB") == (
        "+4 GiB of host_pool: floor of experts -4 GiB; experts -3,543 MiB;"
        " kv +3,543 MiB (+386,904 tokens); then it fits;"
        " the host pins +8 GiB (experts.host_pool x 2)"
    )


def test_a_lever_at_its_end_moves_nothing_and_says_why() -> None:
    model = BudgetModel(load_config(find_config("expert-tiered-4x200k")))
    assert sentence(model, "host_pool", "49 GiB") == (
        "+1 GiB of host_pool: nothing moves, since the floor of experts is 0 already;"
        " the host pins +2 GiB (experts.host_pool x 2)"
    )


def test_a_lever_that_has_no_say_in_a_floor_is_not_told_that_it_is_0() -> None:
    # The cache gets all there is and is short all the same, with four slots and with five.
    four, five = (
        load_config(find_config("expert-tiered-4x200k"), {"window": "10_000_000", "slots": slots}) for slots in "45"
    )
    assert lever_sentence(compare_budgets("slots", four, five)) == (
        "+1 of slots: nothing moves; the host pins +1,120 MiB (cache.checkpoint_store)"
    )


def test_one_more_slot_is_priced_on_the_host_and_on_the_card(whole: BudgetModel) -> None:
    after = load_config(Path(whole.config.path), {"slots": "3"})
    change = compare_budgets("slots", whole.config, after)
    assert [(host.tenant, host.copies, host.is_pinned, host.difference_bytes) for host in change.host] == [
        ("a.store", 1, True, 64 * MIB),
        ("a.log", 2, False, 2 * MIB),
    ]
    assert change.pinned_bytes == 64 * MIB
    moved = {result.name: result.difference.value for result in change.results}
    assert moved == {
        "kv.state": 100 * MIB,
        "kv": GIB,
        "kv.lent": GIB - 100 * MIB,
        "kv.tokens": 1024 - 100,
        "unclaimed": -GIB,
    }


def test_an_assumption_that_is_set_for_a_run_is_none_any_more(tmp_path: Path) -> None:
    assert model_of(WHOLE, tmp_path).assumed(["guess", "card"]) == ("guess",)
    assert model_of(WHOLE, tmp_path, {"guess": "1 GiB"}).assumed(["guess", "card"]) == ()
    worked_out = WHOLE.replace("card: 24 GiB", "card: 22.5 GiB + guess")
    assert model_of(worked_out, tmp_path).assumed(["card"]) == ("guess",)
