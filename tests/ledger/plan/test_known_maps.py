"""Where maps come from, and which of them prices what: given ones first, then those that this host kept."""

from __future__ import annotations

import json
import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from pinprobe.ledger.plan.known_maps import KnownMaps, allocators_of, unmapped_sentences
from pinprobe.ledger.plan.map_cache import MapCache
from pinprobe.ledger.plan.map_file import MapFile, map_from
from pinprobe.ledger.price import Price
from pinprobe.ledger.receipts.receipt import sweep_receipt
from pinprobe.probes.cache_folder import clear_cache
from pinprobe.probes.host_facts import HostFacts
from tests.ledger.made_plans import GIB, config_of, plan_of, swept
from tests.ledger.made_receipts import this_host
from tests.probes.simulated import Rule, exact, power_of_two


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PINPROBE_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache" / "maps"


@pytest.fixture
def host() -> HostFacts:
    return replace(this_host(), torch="2.13.0", torch_settings={})


def file_of(host: HostFacts, *names: str, source: str = "map.json", rule: Rule = power_of_two) -> MapFile:
    sweeps = [swept(rule, name) for name in names]
    return map_from(json.loads(json.dumps(sweep_receipt(sweeps, host, []))), source)


def learnt(host: HostFacts, *files: MapFile, names: tuple[str, ...]) -> KnownMaps:
    known = KnownMaps(files, MapCache(host), host)
    known.learn(names, measure=False)
    return known


def test_what_was_kept_is_found_again_and_prices(host: HostFacts, folder: Path) -> None:
    MapCache(host).keep("auto", swept(power_of_two, "torch"))
    known = learnt(host, names=("auto",))
    assert known.prices.price("auto", 5 * GIB) == Price(8 * GIB, "predicted")
    (found,) = known.maps
    assert (found.asked_as, found.allocator, found.point_count) == ("auto", "torch", 8)
    assert len(list(folder.iterdir())) == 1
    assert known.remarks == []


@pytest.mark.parametrize(
    "other",
    [
        {"torch": "2.14.1"},
        {"torch_settings": {"PYTORCH_ALLOC_CONF": "pinned_max_cached_size_mb:1"}},
        {"kernel": "7.0"},
        {"driver": "580"},
        {"page_size_bytes": 65536},
    ],
    ids=lambda other: next(iter(other)),
)
def test_a_map_is_of_one_torch_with_its_settings_on_one_host(host: HostFacts, other: dict[str, object]) -> None:
    MapCache(host).keep("torch", swept(power_of_two, "torch"))
    elsewhere = replace(host, **other)  # type: ignore[arg-type]  # each is of its field's type
    assert MapCache(elsewhere).find("torch") is None
    assert MapCache(host).find("torch") is not None
    assert MapCache(host).find("mlock") is None


@pytest.mark.parametrize("damage", [b"", b"{", b'{"schema": 1}', b"\xff"], ids=["empty", "cut", "other", "no text"])
def test_a_damaged_one_is_set_aside_and_said_so_once(host: HostFacts, folder: Path, damage: bytes) -> None:
    MapCache(host).keep("torch", swept(power_of_two, "torch"))
    (path,) = folder.iterdir()
    path.write_bytes(damage)
    known = learnt(host, names=("torch",))
    assert known.prices.price("torch", 5 * GIB) == Price(5 * GIB, "the ask")
    (remark,) = known.remarks
    assert str(path) in remark
    assert "was set aside" in remark
    (aside,) = folder.iterdir()
    assert aside.read_bytes() == damage
    assert learnt(host, names=("torch",)).remarks == []
    # And another can be kept in its place.
    MapCache(host).keep("torch", swept(power_of_two, "torch"))
    assert MapCache(host).find("torch") is not None


def test_a_folder_that_can_not_be_written_costs_the_keeping_alone(host: HostFacts, folder: Path) -> None:
    folder.parent.mkdir()
    folder.write_text("in the way", encoding="utf-8")
    cache = MapCache(host)
    cache.keep("torch", swept(power_of_two, "torch"))
    (remark,) = cache.remarks
    assert "the map of torch can't be kept" in remark
    assert folder.read_text(encoding="utf-8") == "in the way"
    assert cache.find("torch") is None


def test_a_reader_sees_a_whole_map_at_every_moment(host: HostFacts, folder: Path) -> None:
    cache = MapCache(host)
    sweep = swept(power_of_two, "torch")
    cache.keep("torch", sweep)

    def write() -> None:
        for _ in range(10):
            MapCache(host).keep("torch", sweep)

    writers = [threading.Thread(target=write) for _ in range(2)]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        assert cache.find("torch") is not None
    for writer in writers:
        writer.join()
    assert len(list(folder.iterdir())) == 1
    assert cache.remarks == []


def test_a_kept_map_is_the_users_alone_and_goes_with_the_cache(host: HostFacts, folder: Path) -> None:
    MapCache(host).keep("a/../b\n", swept(power_of_two, "torch"))
    (path,) = folder.iterdir()
    assert path.stat().st_mode & 0o077 == 0
    assert folder.stat().st_mode & 0o077 == 0
    assert os.path.commonpath([path, folder]) == str(folder)
    assert clear_cache() > 0
    assert not folder.exists()


def test_a_given_map_goes_before_a_kept_one(host: HostFacts) -> None:
    MapCache(host).keep("torch", swept(exact, "torch"))
    known = learnt(host, file_of(host, "torch"), names=("torch",))
    assert known.prices.price("torch", 5 * GIB) == Price(8 * GIB, "predicted")
    assert [found.origin for found in known.maps] == ["map.json"]


def test_auto_is_what_it_would_choose_first_of_what_was_mapped_and_that_is_said(host: HostFacts) -> None:
    known = learnt(host, file_of(host, "mlock", "torch", "registered"), names=("auto", "registered"))
    assert [found.allocator for found in known.maps] == ["torch", "registered"]
    assert known.prices.price("auto", 5 * GIB) == Price(8 * GIB, "predicted")
    assert known.remarks == ["auto is priced as torch, of which a map was given"]


def test_a_map_of_another_torch_or_of_other_settings_or_of_no_use_is_remarked(host: HostFacts) -> None:
    older = replace(host, torch="2.9.1")
    settings = replace(host, torch_settings={"PYTORCH_ALLOC_CONF": "a:1"})
    known = learnt(
        host,
        file_of(older, "torch", source="old.json"),
        file_of(settings, "mlock", source="set.json"),
        file_of(host, "cupy", source="idle.json"),
        names=("torch", "mlock"),
    )
    assert known.remarks == [
        "old.json was measured with torch 2.9.1; here is torch 2.13.0",
        "set.json was measured under other settings of torch than those set here",
        "idle.json maps no allocator that the config takes memory from; it is not used",
    ]


def test_settings_under_which_small_requests_say_little_of_large_ones_are_named(host: HostFacts) -> None:
    host = replace(host, torch_settings={"PYTORCH_ALLOC_CONF": "pinned_max_round_threshold_mb:128,max_split_size_mb:9"})
    MapCache(host).keep("torch", swept(power_of_two, "torch"))
    (remark,) = learnt(host, names=("torch",)).remarks
    assert remark.startswith("pinned_max_round_threshold_mb of torch's settings may have larger requests")


def test_only_pinned_tenants_of_our_own_allocators_have_a_map(tmp_path: Path, host: HostFacts) -> None:
    text = (
        "engine: {name: e, allocator: torch}\n"
        "tenants:\n"
        "  a: {kind: buffer, bytes: 5 GiB}\n"
        "  b: {kind: buffer, bytes: 1, allocator: pageable}\n"
        "  c: {kind: external, bytes: 1, callable: 'a:b'}\n"
        "  d: {kind: retention_pool, regions: 1, layout: [{name: a, shape: [1], dtype: int8}]}\n"
        "  e: {kind: buffer, bytes: 7 MiB, allocator: mlock}\n"
    )
    config = config_of(tmp_path, text)
    assert allocators_of(config) == ["torch", "mlock"]
    known = learnt(host, names=("torch", "mlock"))
    plan = plan_of(config, prices=known.prices)
    assert unmapped_sentences([plan, plan], known, "my config.yaml") == [
        f"no map of {name} is known here: its tenants are priced at what they ask, and it may take more;"
        " `pinprobe plan 'my config.yaml' --measure` makes one"
        for name in ("torch", "mlock")
    ]


def test_a_map_that_leaves_it_open_says_which_sweep_closes_that(tmp_path: Path, host: HostFacts) -> None:
    config = config_of(tmp_path, "engine: {name: e, allocator: torch}\ntenants: {a: {kind: buffer, bytes: 5 GiB}}\n")

    def odd(asked: int) -> int:  # no rule that is known
        return asked + 4096 * (asked // 1_000_000) ** 2

    known = learnt(host, file_of(host, "torch", rule=odd), names=("torch",))
    (sentence,) = unmapped_sentences([plan_of(config, prices=known.prices)], known, "c")
    assert "leaves it open" in sentence
    assert f"pinprobe sweep --allocator torch --slot-bytes {5 * GIB} --slots 1..4 --receipt FILE" in sentence


def test_where_only_an_alternative_has_no_map_the_command_measures_that(tmp_path: Path, host: HostFacts) -> None:
    known = learnt(host, names=("torch", "mlock"))
    plans = [
        plan_of(
            config_of(
                tmp_path, f"engine: {{name: e, allocator: {name}}}\ntenants: {{a: {{kind: buffer, bytes: 5 GiB}}}}\n"
            ),
            prices=known.prices,
        )
        for name in ("torch", "mlock")
    ]
    first, second = unmapped_sentences(plans, known, "c")
    assert "`pinprobe plan c --measure`" in first
    assert "`pinprobe plan c --what-if allocator=mlock --measure`" in second
