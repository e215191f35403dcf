"""What a config would take, priced before a byte is: against published figures, field reports and plain sums."""

from __future__ import annotations

import sys
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pinprobe.ledger.admission import Bound
from pinprobe.ledger.config.registry import load_config
from pinprobe.ledger.config.shipped import find_config
from pinprobe.ledger.plan.plan import Plan, make_plan, smaller_tenants
from pinprobe.ledger.price import PriceList
from pinprobe.probes.errors import BadRequest
from pinprobe.probes.headroom import Headroom, HugepagePool
from pinprobe.probes.reading import Reading, Unreadable
from tests.ledger.made_plans import GIB, MIB, PRICES, SLOT, UNKNOWN, config_of, host_with, plan_of, swept
from tests.probes.simulated import PAGE, power_of_two

FUZZ = settings(derandomize=True, deadline=None, max_examples=25)
GB = 10**9


def one(asked: str, **keys: str) -> str:
    """A config of one tenant that torch pins."""
    more = "".join(f", {key}: {value}" for key, value in keys.items())
    return (
        f"engine: {{name: e, ranks: 4, allocator: torch}}\ntenants: {{pool: {{kind: buffer, bytes: {asked}{more}}}}}\n"
    )


# -- what was published


@pytest.mark.parametrize(("name", "floor_mib"), [("expert-tiered-2x200k", 148_920), ("expert-tiered-4x200k", 161_848)])
def test_the_floors_of_the_expert_configs_come_out(name: str, floor_mib: int) -> None:
    plan = plan_of(load_config(find_config(name)), 204_800 * MIB, UNKNOWN)
    assert plan.of_the_host.asked_pinned_bytes == floor_mib * MIB
    assert plan.needed_bytes == floor_mib * MIB
    assert {row.known for row in plan.rows} == {"the ask"}
    (floor,) = (formula for formula in plan.formulas if formula.name == "floor")
    assert floor.quantity.value == floor_mib * MIB
    assert floor.quantity.is_size


@pytest.mark.parametrize(
    ("printed", "configured_mib", "short_mib"), [("44.47 GiB", 44_928, 609.28), ("48.59 GiB", 49_152, 604.16)]
)
def test_an_engine_that_prints_more_than_is_configured_is_told_by_how_much(
    tmp_path: Path, printed: str, configured_mib: int, short_mib: float
) -> None:
    text = one(f"{configured_mib} MiB", printed="engine_prints").replace("ranks: 4", "ranks: 2")
    plan = plan_of(config_of(tmp_path, f"numbers: {{engine_prints: {printed}}}\n{text}"), prices=UNKNOWN)
    (row,) = plan.rows
    assert row.short_bytes == pytest.approx(short_mib * MIB, abs=1)
    assert plan.of_the_host.short_bytes == 2 * row.short_bytes
    assert plan.needed_bytes == 2 * (configured_mib * MIB + row.short_bytes)
    assert [(each.name, each.text) for each in row.formulas] == [("printed", "engine_prints")]


def test_what_is_printed_is_priced_too_and_a_block_that_holds_it_is_not_short(tmp_path: Path) -> None:
    assert plan_of(config_of(tmp_path, one("44_928 MiB", printed="44.47 GiB"))).rows[0].short_bytes == 0
    assert plan_of(config_of(tmp_path, one("64 GiB", printed="65 GiB"))).rows[0].short_bytes == 64 * GIB
    assert plan_of(config_of(tmp_path, one("64 GiB", printed="1 GiB"))).rows[0].short_bytes == 0


@pytest.mark.parametrize(
    ("slots", "block_gib"), [(1, 0.25), (8, 2), (16, 4), (27, 4), (28, 8), (32, 8), (56, 16), (64, 16)]
)
def test_a_ring_costs_the_block_that_it_was_seen_to_take(slots: int, block_gib: float) -> None:
    config = load_config(find_config("savepoint-ring-64"), {"slots": str(slots), "max_num_seqs": "1", "hand_outs": "1"})
    assert make_plan(config, PRICES, host_with(2**60)).rows[0].known == "the ask"  # of `auto` nobody has a map yet
    prices = PriceList()
    prices.add(swept(power_of_two, "torch", range(1, 65), SLOT), "auto")
    (row,) = make_plan(config, prices, host_with(2**60)).rows
    assert (row.asked_bytes, row.cost_bytes, row.known) == (slots * SLOT, block_gib * GIB, "measured")


# -- what happened to people


@pytest.mark.parametrize(("asked_gb", "exit_code"), [(40, 1), (30, 0)])
def test_four_ranks_that_each_pin_40_gb_are_refused_where_30_fit(tmp_path: Path, asked_gb: int, exit_code: int) -> None:
    plan = plan_of(config_of(tmp_path, one(str(asked_gb * GB))), 256 * GB)
    assert plan.exit_code == exit_code
    # At what is asked both would fit: it is the blocks of all ranks together that do not.
    assert 4 * asked_gb * GB < 256 * GB
    assert plan.needed_bytes == 4 * (64 if asked_gb == 40 else 32) * GIB
    if exit_code:
        (smaller,) = smaller_tenants(plan, PRICES)
        assert (smaller.per, smaller.asked_bytes, smaller.largest_bytes) == ("rank", 40 * GB, 32 * GIB)


@pytest.mark.parametrize("asked_gib", [161, 173])
def test_ranks_that_each_take_half_of_what_is_free_are_counted_together(tmp_path: Path, asked_gib: int) -> None:
    plan = plan_of(config_of(tmp_path, one(f"{asked_gib} GiB")), 440 * GIB, UNKNOWN)
    assert plan.needed_bytes == 4 * asked_gib * GIB
    assert plan.exit_code == 1
    (smaller,) = smaller_tenants(plan, UNKNOWN)
    assert smaller.largest_bytes == 110 * GIB


def test_weights_of_147_gib_that_take_261_are_refused_before_the_first_is_pinned(tmp_path: Path) -> None:
    sizes = ["2.25 GiB"] * 43 + ["1.125 GiB"] * 43 + ["0.5625 GiB"] * 3
    tenants = "".join(f"  w.n{at}: {{kind: buffer, bytes: {size}}}\n" for at, size in enumerate(sizes))
    config = config_of(tmp_path, f"engine: {{name: e, allocator: torch}}\ntenants:\n{tenants}")
    plan = plan_of(config, 196 * GIB)
    sums = plan.of_the_host
    assert sums.asked_pinned_bytes / GIB == pytest.approx(146.7, abs=0.2)
    assert sums.pinned_bytes / GIB == 43 * 4 + 43 * 2 + 3 * 1  # about 260
    assert sums.asked_pinned_bytes < 196 * GIB
    assert plan.exit_code == 1
    # And an allocator that does not round fits.
    exact = config_of(tmp_path, f"engine: {{name: e, allocator: registered}}\ntenants:\n{tenants}")
    assert plan_of(exact, 196 * GIB).exit_code == 0


@pytest.mark.parametrize(("asked", "gib"), [("4 GiB", 4), ("4 GiB + 1", 8), ("4.1 GiB", 8), ("5 GiB", 8)])
def test_exactly_a_power_of_two_stays_and_a_byte_more_doubles(tmp_path: Path, asked: str, gib: int) -> None:
    (row,) = plan_of(config_of(tmp_path, one(asked))).rows
    assert (row.cost_bytes, row.known) == (gib * GIB, "predicted")


# -- what counts


def test_a_transient_is_priced_and_counted_beside_what_stays_for_every_copy(tmp_path: Path) -> None:
    plan = plan_of(config_of(tmp_path, one("5 GiB", transient="3 GiB")))
    (row,) = plan.rows
    assert (row.cost_bytes, row.transient_bytes, row.transient_cost_bytes) == (8 * GIB, 3 * GIB, 4 * GIB)
    assert plan.of_the_host.pinned_bytes == 32 * GIB
    assert plan.needed_bytes == 4 * (8 + 4) * GIB
    assert plan_of(config_of(tmp_path, one("5 GiB", transient="3 GiB")), 47 * GIB).exit_code == 1
    assert plan_of(config_of(tmp_path, one("5 GiB", transient="3 GiB")), 48 * GIB).exit_code == 0


@pytest.mark.parametrize("mapped", ["true", "false"])
def test_a_retention_pool_counts_with_its_bound_whether_it_is_mapped_at_boot_or_not(
    tmp_path: Path, mapped: str
) -> None:
    layout = "layout: [{name: a, shape: [154927104], dtype: uint8}]"
    pool = f"{{kind: retention_pool, regions: 31, mapped_at_boot: {mapped}, {layout}}}"
    plan = plan_of(config_of(tmp_path, f"engine: {{name: e}}\ntenants: {{pool: {pool}}}\n"))
    (row,) = plan.rows
    assert (row.pageable, row.is_bound, row.cost_bytes) == (True, True, 31 * (SLOT + 4096))
    assert (plan.of_the_host.pinned_bytes, plan.of_the_host.pageable_bytes) == (0, 4_802_867_200)
    assert not plan.is_predicted


def test_no_function_of_the_engines_is_imported_and_its_memory_is_priced_at_what_it_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "engine_of_a_plan.py").write_text("raise SystemExit(9)\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    tenant = "{kind: external, bytes: 5 GiB, callable: 'engine_of_a_plan:take'}"
    plan = plan_of(config_of(tmp_path, f"engine: {{name: e, allocator: torch}}\ntenants: {{t: {tenant}}}\n"))
    (row,) = plan.rows
    assert (row.cost_bytes, row.known, row.has_no_map) == (5 * GIB, "the ask", False)
    assert "engine_of_a_plan" not in sys.modules


def test_pinned_and_pageable_per_rank_and_per_host_stand_apart(tmp_path: Path) -> None:
    text = (
        "engine: {name: e, ranks: 3, allocator: torch}\n"
        "tenants:\n"
        "  a: {kind: buffer, bytes: 3 GiB}\n"
        "  b: {kind: buffer, bytes: 5 GiB, per: host}\n"
        "  c: {kind: buffer, bytes: 100, allocator: pageable}\n"
    )
    plan = plan_of(config_of(tmp_path, text))
    rank, host = plan.of_one_rank, plan.of_the_host
    assert (rank.asked_pinned_bytes, rank.pinned_bytes) == (3 * GIB, 4 * GIB)
    assert (rank.asked_pageable_bytes, rank.pageable_bytes) == (100, PAGE)
    assert (host.asked_pinned_bytes, host.pinned_bytes) == (14 * GIB, 20 * GIB)
    assert host.pageable_bytes == 3 * PAGE
    assert plan.needed_bytes == 20 * GIB + 3 * PAGE


def test_what_comes_from_the_huge_page_pool_is_held_against_that_pool_alone(tmp_path: Path) -> None:
    config = config_of(tmp_path, one("1 GiB", allocator="registered-hugetlb"))
    for pool_bytes, exit_code in ((4 * GIB, 0), (4 * GIB - 1, 1)):
        host = Headroom(host_with(0).sources, (HugepagePool(2 * MIB, Reading(pool_bytes, "the test")),))
        plan = make_plan(config, UNKNOWN, host)
        assert (plan.needed_bytes, plan.pool_needed_bytes, plan.exit_code) == (0, 4 * GIB, exit_code)
    assert make_plan(config, UNKNOWN, host_with(2**60)).exit_code == 3  # a pool that can't be read is no pool of 0


def test_headroom_that_can_not_be_read_is_neither_enough_nor_too_little(tmp_path: Path) -> None:
    plan = plan_of(config_of(tmp_path, one("1 GiB")), Unreadable("the test says so"))
    assert plan.fits == Unreadable("the test says so")
    assert plan.exit_code == 3
    assert smaller_tenants(plan, PRICES) == ()


def test_what_is_kept_free_is_not_there_to_be_taken(tmp_path: Path) -> None:
    config = config_of(tmp_path, one("1 GiB"))
    assert make_plan(config, UNKNOWN, host_with(5 * GIB), keep_free_bytes=GIB).exit_code == 0
    plan = make_plan(config, UNKNOWN, host_with(5 * GIB), keep_free_bytes=GIB + 1)
    assert plan.exit_code == 1
    assert isinstance(plan.room, Bound)
    assert "are kept free" in plan.room.words


def test_a_ring_that_could_not_be_opened_is_refused_and_a_check_that_fails_is_named() -> None:
    with pytest.raises(BadRequest, match=r"8 slots .* are fewer than one turn hands out"):
        plan_of(load_config(find_config("savepoint-ring-64"), {"slots": "8"}))
    plan = plan_of(load_config(find_config("expert-tiered-2x200k"), {"minimum": "1 GiB"}))
    assert "minimum_covers_the_floor" in plan.failing_checks


def test_of_a_part_the_transient_is_a_part_and_what_was_printed_says_nothing(tmp_path: Path) -> None:
    config = config_of(tmp_path, one("2 GiB", count="4", transient="6 GiB", printed="9 GiB"))
    (row,) = plan_of(config, scale=Fraction(1, 4)).rows
    assert (row.asked_bytes, row.transient_bytes) == (2 * GIB, 6 * GIB // 4)
    assert (row.printed_bytes, row.short_bytes) == (None, 0)


def test_a_scaled_plan_has_the_counts_of_a_scaled_boot() -> None:
    plan = plan_of(load_config(find_config("savepoint-split")), scale=Fraction(1, 64))
    assert [row.asked_bytes for row in plan.rows] == [SLOT, SLOT + 4096]


# -- whatever is asked


@st.composite
def configs(draw: st.DrawFn) -> str:
    ranks = draw(st.integers(1, 5))
    tenants = []
    for at in range(draw(st.integers(1, 4))):
        keys = {"bytes": draw(st.integers(1, 2**33)), "count": draw(st.integers(1, 40))}
        words = {"per": draw(st.sampled_from(["rank", "host"]))}
        words["allocator"] = draw(st.sampled_from(["torch", "registered", "pageable", "mlock"]))
        if draw(st.booleans()):
            keys["transient"] = draw(st.integers(1, 2**33))
        if draw(st.booleans()):
            keys["printed"] = draw(st.integers(1, 2**36))
        pairs = ", ".join(f"{key}: {value}" for key, value in {**keys, **words}.items())
        tenants.append(f"  t{at}: {{kind: buffer, {pairs}}}\n")
    return f"engine: {{name: e, ranks: {ranks}}}\ntenants:\n{''.join(tenants)}"


@FUZZ
@given(text=configs(), available=st.integers(0, 2**40))
def test_no_cost_is_below_its_ask_and_the_sum_is_that_of_the_copies(
    tmp_path_factory: pytest.TempPathFactory, text: str, available: int
) -> None:
    folder = tmp_path_factory.mktemp("plan")
    plan = plan_of(config_of(folder, text), available)
    for row in plan.rows:
        assert row.cost_bytes >= row.asked_bytes
        assert row.copies == (plan.ranks if row.per == "rank" else 1)
        assert row.transient_cost_bytes >= row.transient_bytes
        if row.printed_bytes is not None:
            assert row.cost_bytes + row.short_bytes >= row.printed_bytes
    sums = plan.of_the_host
    parts = sums.pinned_bytes + sums.pageable_bytes + sums.transient_bytes + sums.short_bytes
    assert plan.needed_bytes == parts == sum(row.host_bytes for row in plan.rows)
    assert (plan.exit_code == 0) == (parts <= available)
    _each_smaller_size_fits_and_the_next_does_not(folder, text, plan, available)


def _each_smaller_size_fits_and_the_next_does_not(folder: Path, text: str, plan: Plan, available: int) -> None:
    """Plan anew with each size that is said to be the largest that fits."""
    for smaller in smaller_tenants(plan, PRICES) if plan.fits is False else ():
        line = next(line for line in text.splitlines() if line.startswith(f"  {smaller.owner}:"))
        keys = dict(pair.split(": ") for pair in line.partition("{")[2].rstrip("}").split(", "))
        if "printed" in keys:  # which counts by itself, however little is asked
            continue
        for size_bytes, exit_code in ((smaller.largest_bytes, 0), (smaller.largest_bytes + PAGE, 1)):
            changed = {**keys, "count": "1", "bytes": str(size_bytes)}
            pairs = ", ".join(f"{key}: {value}" for key, value in changed.items())
            anew = text.replace(line, f"  {smaller.owner}: {{{pairs}}}")
            assert plan_of(config_of(folder, anew), available).exit_code == exit_code
