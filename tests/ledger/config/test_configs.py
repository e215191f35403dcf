"""The configs that come along say what was published, key by key, and are found by their names."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path

import pytest

from pinprobe.ledger.config.checks import assert_checks, run_checks
from pinprobe.ledger.config.config import Config
from pinprobe.ledger.config.registry import load_config
from pinprobe.ledger.config.shipped import find_config, shipped_names
from pinprobe.ledger.tenants.kinds import load_kind
from pinprobe.probes.errors import BadConfig, BadRequest

MIB = 2**20
ROW_BYTES = 154_927_104
#: A row and the page that says what lies in it, where pages are of 4,096 B.
REGION_BYTES = ROW_BYTES + 4096


def shipped(name: str, overrides: Mapping[str, str] | None = None) -> Config:
    return load_config(find_config(name), overrides)


def asked_bytes(config: Config) -> dict[str, int]:
    """What each tenant asks of the host, all ranks together."""
    return {
        tenant.name: load_kind(tenant.kind).asked_bytes(tenant) * config.copies(tenant) for tenant in config.tenants
    }


def test_seven_come_along() -> None:
    assert shipped_names() == [
        "expert-fp8-native",
        "expert-tiered-2x200k",
        "expert-tiered-4x200k",
        "savepoint-ring-32",
        "savepoint-ring-64",
        "savepoint-split",
        "savepoint-split-demand",
    ]


@pytest.mark.parametrize("name", shipped_names())
def test_each_is_named_for_its_engine_and_its_checks_hold(name: str) -> None:
    config = shipped(name)
    assert config.engine == name
    assert config.checks
    assert_checks(config)


@pytest.mark.parametrize("name", shipped_names())
def test_every_key_is_explained_where_it_first_stands(name: str) -> None:
    seen: set[str] = set()
    before = ""
    for line in find_config(name).read_text(encoding="utf-8").splitlines():
        match = re.match(r"\s*([\w.]+):", line)
        if match and match[1] not in seen:
            seen.add(match[1])
            is_tenant = "." in match[1]  # its `kind` and `detail` explain it
            assert is_tenant or "#" in line or before.lstrip().startswith("#"), line
        before = line
    assert len(seen) > 10


@pytest.mark.parametrize(("name", "slots", "mib"), [("savepoint-ring-32", 32, 4728), ("savepoint-ring-64", 64, 9456)])
def test_a_ring_alone_asks_for_slots_times_the_row(name: str, slots: int, mib: int) -> None:
    config = shipped(name)
    (ring,) = config.tenants
    assert (ring.name, ring.kind, ring.allocator) == ("cache.savepoint_ring", "savepoint_ring", "auto")
    assert (ring.fields["slots"], ring.layout("layout").row_bytes) == (slots, ROW_BYTES)
    assert asked_bytes(config) == {"cache.savepoint_ring": mib * MIB}  # as the engine's own boot line has it


def test_split_they_are_a_pinned_ring_of_16_and_a_pageable_pool_of_64() -> None:
    config = shipped("savepoint-split")
    assert asked_bytes(config) == {"cache.savepoint_ring": 2364 * MIB, "cache.retention_pool": 64 * REGION_BYTES}
    ring, pool = config.tenants
    assert (ring.allocator, pool.allocator) == ("auto", "pageable")
    assert (ring.fields["slots"], ring.size("max_num_seqs") * ring.size("hand_outs")) == ("auto", 16)
    assert ring.layout("layout") == pool.layout("layout")
    # What a turn hands out is what the ring has, whichever of its numbers is set anew.
    assert asked_bytes(shipped(config.engine, {"max_num_seqs": "4"}))[ring.name] == 8 * ROW_BYTES


@pytest.mark.parametrize("name", [name for name in shipped_names() if name.startswith("savepoint-")])
def test_a_savepoint_has_96_slabs_and_a_row_of_154_927_104_bytes(name: str) -> None:
    for tenant in shipped(name).tenants:
        layout = tenant.layout("layout")
        assert (len(layout.slabs), layout.row_bytes, layout.payload_bytes) == (96, ROW_BYTES, ROW_BYTES)


def test_sized_by_demand_the_pool_has_31_regions_of_a_row_and_a_page_within_its_bound() -> None:
    config = shipped("savepoint-split-demand")
    assert config.numbers["row_bytes"] == ROW_BYTES
    assert config.numbers["bound_bytes"] == 31 * REGION_BYTES == 4_802_867_200
    assert asked_bytes(config) == {"cache.savepoint_ring": 2364 * MIB, "cache.retention_pool": 4_802_867_200}
    # More regions than the bound in bytes holds are not taken, and the check says so before.
    assert asked_bytes(shipped(config.engine, {"regions": "32"})) == asked_bytes(config)
    (failing,) = (result for result in run_checks(shipped(config.engine, {"regions": "32"})) if not result.holds)
    assert failing.name == "pool_keeps_its_bound"
    assert failing.sentence.endswith("does not hold, by 147.75 MiB")


@pytest.mark.parametrize(
    ("name", "floor_mib", "minimum_mib"),
    [("expert-tiered-2x200k", 148_920, 150_000), ("expert-tiered-4x200k", 161_848, 162_000)],
)
def test_the_floor_of_an_expert_host_is_the_published_one_and_what_its_tenants_ask_for(
    name: str, floor_mib: int, minimum_mib: int
) -> None:
    config = shipped(name)
    assert config.ranks == 2
    assert config.numbers["floor"] == floor_mib * MIB
    assert config.numbers["minimum"] == minimum_mib * MIB
    assert config.numbers["target"] == 204_800 * MIB
    assert sum(asked_bytes(config).values()) == floor_mib * MIB
    assert ("cache.checkpoint_store" in asked_bytes(config)) is (name == "expert-tiered-4x200k")


@pytest.mark.parametrize(
    ("name", "printed", "short_by"),
    [("expert-tiered-2x200k", "44.47 GiB", "138.56 MiB"), ("expert-tiered-4x200k", "48.59 GiB", "1,056.32 MiB")],
)
def test_with_what_the_engine_prints_the_minimum_is_short_and_by_how_much_is_said(
    name: str, printed: str, short_by: str
) -> None:
    config = shipped(name, {"host_pool": printed})
    failing = [result for result in run_checks(config) if not result.holds]
    assert [result.name for result in failing] == ["minimum_covers_the_floor"]
    assert failing[0].sentence.endswith(f"does not hold, by {short_by}")
    with pytest.raises(AssertionError, match=re.escape(short_by)):
        assert_checks(config)
    # The tenants still ask for no less than that, and for no more than a byte a piece above it.
    over = sum(asked_bytes(config).values()) - config.numbers["floor"]
    assert 0 <= over <= 2 * config.numbers["pieces"]


@pytest.mark.parametrize("name", ["expert-tiered-2x200k", "expert-tiered-4x200k"])
def test_a_setting_of_the_older_version_is_refused(name: str) -> None:
    for stale in ("vram_reserve_mib", "vram_expert_cache_mib"):
        with pytest.raises(BadConfig, match=rf"`{stale}` was removed in 2\.0; use host_pool in its stead"):
            shipped(name, {stale: "1"})


@pytest.mark.parametrize("name", shipped_names())
def test_each_can_be_scaled_down_to_a_thousandth(name: str) -> None:
    config = shipped(name)
    for tenant in config.tenants:
        kind = load_kind(tenant.kind)
        whole, scaled = kind.asked_bytes(tenant), kind.asked_bytes(kind.scaled(tenant, Fraction(1, 1000)))
        # A thousandth, rounded up to a whole piece, slot or region.
        piece = REGION_BYTES if "layout" in tenant.fields else tenant.size("bytes")
        assert whole / 1000 <= scaled <= whole / 1000 + piece


def test_a_file_that_exists_wins_over_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_config("savepoint-split").is_absolute()
    (tmp_path / "savepoint-split").write_text("engine: {name: mine}", encoding="utf-8")
    assert load_config(find_config("savepoint-split")).engine == "mine"


@pytest.mark.parametrize(
    ("name", "because"),
    [
        ("savepoint-slpit", "did you mean savepoint-split?"),
        ("configs/savepoint-slpit.yaml", "did you mean savepoint-split?"),
        ("mine.yaml", "those that come along are expert-fp8-native"),
        ("../pyproject", "those that come along are"),
        ("", "those that come along are"),
        ("a\0b", "those that come along are"),
    ],
)
def test_a_name_that_is_none_is_refused_with_the_near_one(
    name: str, because: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadRequest, match=re.escape(because)) as refused:
        find_config(name)
    assert str(refused.value).isprintable()


def test_they_are_reached_through_the_package() -> None:
    import pinprobe

    folder = Path(os.path.realpath(Path(pinprobe.__file__).parent / "configs"))
    assert sorted(path.stem for path in folder.glob("*.yaml")) == shipped_names()
