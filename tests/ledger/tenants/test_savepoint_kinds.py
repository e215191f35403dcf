"""A ring and a pool as a config has them: priced without torch, opened whole or refused, scaled, and given back."""

from __future__ import annotations

import ctypes
import importlib
import mmap
import re
import resource
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path

import pytest

from pinprobe.ledger.booking import Row
from pinprobe.ledger.boot import Boot
from pinprobe.ledger.config.config import Config
from pinprobe.ledger.config.registry import load_config
from pinprobe.ledger.config.shipped import find_config
from pinprobe.ledger.ledger import HostPinnedLedger
from pinprobe.ledger.tenants.kinds import load_kind
from pinprobe.ledger.tenants.retention_pool import RetentionPool
from pinprobe.ledger.tenants.retention_pool_kind import RetentionPoolKind
from pinprobe.ledger.tenants.savepoint_ring import SavepointRing
from pinprobe.ledger.tenants.savepoint_ring_kind import SavepointRingKind
from pinprobe.ledger.tenants.tenant import TenantSpec
from pinprobe.probes.counters import read_statm
from pinprobe.probes.errors import AllocationFailed, AllocatorUnavailable, BadRequest, Refused
from pinprobe.probes.host_tree import THIS_HOST
from pinprobe.probes.reading import Reading
from tests.cli.conftest import Pinprobe
from tests.cli.ledger_process import book_files, with_book
from tests.ledger.tenants.foreign_package import install
from tests.ledger.tenants.test_buffer import KEEPING

MIB = 2**20
#: Two layers of a half MiB each, in whole pages; a region has a page more.
LAYOUT = "{layers: 2, attributes: {state: {shape: [128, 1024], dtype: float32}}}"
ROW_BYTES = MIB
REGION_BYTES = MIB + mmap.PAGESIZE

Configured = Callable[..., Config]


@pytest.fixture
def configured(tmp_path: Path) -> Configured:
    """A config with one tenant, `cache.it`, of the fields that are given."""

    def configure(kind: str, *, ranks: int = 1, engine_allocator: str = "pageable", **fields: object) -> Config:
        given = {"kind": kind, "layout": LAYOUT, **fields}
        path = tmp_path / "c.yaml"
        path.write_text(
            f"engine: {{name: e, ranks: {ranks}, allocator: {engine_allocator}}}\n"
            f"tenants:\n  cache.it: {{{', '.join(f'{key}: {value}' for key, value in given.items())}}}\n",
            encoding="utf-8",
        )
        return load_config(path)

    return configure


@pytest.fixture
def ring_spec(configured: Configured) -> Callable[..., TenantSpec]:
    """A ring for 4 sequences of 2 hand-outs, unless something else is given."""
    return lambda **fields: configured("savepoint_ring", **{"max_num_seqs": 4, **fields}).tenants[0]


@pytest.fixture
def pool_spec(configured: Configured) -> Callable[..., TenantSpec]:
    """A pool of 8 regions, unless something else is given."""
    return lambda **fields: configured("retention_pool", **{"regions": 8, **fields}).tenants[0]


@pytest.fixture
def ledger() -> Iterator[HostPinnedLedger]:
    with HostPinnedLedger() as ledger:
        ledger.calibrate()
        yield ledger


@pytest.fixture
def command(tmp_path: Path) -> Pinprobe:
    """The command, with a cache and a book of the host of its own."""
    return with_book(Pinprobe(tmp_path / "cache"), tmp_path / "book")


def owned(ledger: HostPinnedLedger) -> list[Row]:
    return [row for row in ledger.rows() if row.state.value != "unattributed"]


def resident_bytes() -> int:
    reading = read_statm(THIS_HOST)
    assert isinstance(reading, Reading)
    return reading.bytes


def locked_bytes() -> int:
    found = re.search(r"^VmLck:\s+(\d+) kB$", Path("/proc/self/status").read_text(encoding="utf-8"), re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024


def mapped_regions() -> list[int]:
    """The sizes of the memfds of regions that this process maps, as the kernel lists them."""
    lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    ranges = [line.split()[0].split("-") for line in lines if "/memfd:pinprobe-region" in line]
    return [int(end, 16) - int(start, 16) for start, end in ranges]


# -- prices


@pytest.mark.parametrize(
    ("fields", "slots"),
    [
        ({}, 8),
        ({"slots": "auto"}, 8),
        ({"slots": 32}, 32),
        ({"hand_outs": 3}, 12),
        ({"max_num_seqs": 1, "hand_outs": 1}, 1),
    ],
)
def test_a_ring_costs_its_slots_or_what_one_turn_hands_out(
    ring_spec: Callable[..., TenantSpec], fields: dict[str, object], slots: int
) -> None:
    assert SavepointRingKind().asked_bytes(ring_spec(**fields)) == slots * ROW_BYTES


@pytest.mark.parametrize(
    ("fields", "regions"),
    [
        ({}, 8),
        ({"bytes": 3 * REGION_BYTES}, 3),
        ({"bytes": 4 * REGION_BYTES - 1}, 3),
        ({"bytes": "1 GiB"}, 8),
        ({"mapped_at_boot": "false"}, 0),
        ({"layout": "[{name: a, shape: [1], dtype: int8}]", "regions": 1}, None),
    ],
)
def test_a_pool_costs_the_regions_that_its_smaller_bound_allows_or_nothing_before_they_are_needed(
    pool_spec: Callable[..., TenantSpec], fields: dict[str, object], regions: int | None
) -> None:
    asked = RetentionPoolKind().asked_bytes(pool_spec(**fields))
    # The smallest row takes a whole page too.
    assert asked == (2 * mmap.PAGESIZE if regions is None else regions * REGION_BYTES)


def test_nothing_that_only_reads_a_config_loads_torch() -> None:
    script = (
        f"import sys; sys.path[:] = {sys.path!r}\n"
        "from fractions import Fraction\n"
        "from pinprobe.ledger.config.checks import run_checks\n"
        "from pinprobe.ledger.config.registry import load_config\n"
        "from pinprobe.ledger.config.schema import json_schema\n"
        "from pinprobe.ledger.config.shipped import find_config\n"
        "from pinprobe.ledger.tenants.kinds import load_kind\n"
        "config = load_config(find_config('savepoint-split'))\n"
        "run_checks(config), json_schema()\n"
        "for spec in config.tenants:\n"
        "    kind = load_kind(spec.kind)\n"
        "    kind.asked_bytes(kind.scaled(spec, Fraction(1, 16)))\n"
        "print([name for name in ('torch', 'numpy', 'rich') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "[]\n"


# -- the ring


@pytest.mark.parametrize("rank", [None, 1])
def test_a_ring_is_opened_with_all_its_slots_and_gives_them_back(
    ring_spec: Callable[..., TenantSpec], ledger: HostPinnedLedger, rank: int | None
) -> None:
    pytest.importorskip("torch")
    kind, spec = SavepointRingKind(), ring_spec(slots=64, detail="both in one")
    kind.prepare(spec)
    before = resident_bytes()
    ring = kind.open(spec, ledger, rank)
    assert isinstance(ring, SavepointRing)
    assert ring.slots == 64
    assert resident_bytes() - before > 60 * MIB
    (row,) = owned(ledger)
    assert (row.owner, row.asked_bytes, row.pageable) == ("cache.it", 64 * ROW_BYTES, True)
    how = "64 slots x 1,048,576 B"
    assert row.detail == (f"{how}, both in one" if rank is None else f"{how}, rank 1, both in one")
    ring.close()
    ring.close()
    assert abs(resident_bytes() - before) < 4 * MIB
    assert owned(ledger) == []


def test_what_is_opened_is_a_ring_to_stage_in(ring_spec: Callable[..., TenantSpec], ledger: HostPinnedLedger) -> None:
    torch = pytest.importorskip("torch")
    ring = SavepointRingKind().open(ring_spec(), ledger, None)
    ticket = ring.stage({slab.name: torch.full(slab.shape, 7.0) for slab in ring.layout.slabs})
    assert ctypes.string_at(ring.address(ticket), ROW_BYTES) == struct.pack("f", 7.0) * (ROW_BYTES // 4)
    ring.close()


def test_a_ring_of_locked_memory_is_pinned_and_the_lock_goes_with_it(
    ring_spec: Callable[..., TenantSpec], ledger: HostPinnedLedger
) -> None:
    pytest.importorskip("torch")
    kind, spec = SavepointRingKind(), ring_spec(engine_allocator="mlock")
    try:
        kind.prepare(spec)
    except AllocatorUnavailable as error:
        pytest.skip(str(error))
    before = locked_bytes()
    ring = kind.open(spec, ledger, None)
    assert locked_bytes() - before == 8 * ROW_BYTES
    assert [(row.pageable, row.allocator) for row in owned(ledger)] == [(False, "mlock")]
    ring.close()
    assert locked_bytes() == before


@pytest.mark.parametrize(("limit_slots", "taken"), [(64, 32), (32, 32), (31, 31), (20, 20), (8, 8)])
def test_a_ring_takes_as_many_slots_as_fit_down_to_one_turns_worth(
    ring_spec: Callable[..., TenantSpec], limit_slots: int, taken: int
) -> None:
    pytest.importorskip("torch")
    with HostPinnedLedger(limit_bytes=limit_slots * ROW_BYTES) as ledger:
        ring = SavepointRingKind().open(ring_spec(slots=32), ledger, None)
        assert ring.slots == taken
        (row,) = owned(ledger)
        assert row.asked_bytes == row.booked_bytes == taken * ROW_BYTES
        wanted = "" if taken == 32 else ", of 32 that were wanted"
        assert row.detail == f"{taken} slots x 1,048,576 B{wanted}"
        ring.close()


@pytest.mark.parametrize("slots", ["auto", 8, 32])
def test_where_less_than_one_turns_worth_fits_the_ring_is_refused_before_a_byte_is_taken(
    ring_spec: Callable[..., TenantSpec], slots: object
) -> None:
    pytest.importorskip("torch")
    kind, spec = SavepointRingKind(), ring_spec(slots=slots)
    kind.prepare(spec)
    with HostPinnedLedger(limit_bytes=8 * ROW_BYTES - 1) as ledger:
        ledger.calibrate()
        before = resident_bytes()
        with pytest.raises(Refused, match=r"one turn hands out 8 slots, 8\.000 MiB") as no:
            kind.open(spec, ledger, None)
        assert (no.value.owner, no.value.asked_bytes) == ("cache.it", 8 * ROW_BYTES)
        assert abs(resident_bytes() - before) < 4 * MIB
        assert owned(ledger) == []


def test_fewer_slots_than_one_turn_hands_out_are_refused_with_both_figures(
    ring_spec: Callable[..., TenantSpec], ledger: HostPinnedLedger
) -> None:
    kind, spec = SavepointRingKind(), ring_spec(slots=7)
    assert kind.asked_bytes(spec) == 7 * ROW_BYTES  # a price it has all the same: the config can be read and checked
    steps: list[Callable[[], object]] = [
        lambda: kind.prepare(spec),
        lambda: kind.open(spec, ledger, None),
        lambda: kind.scaled(spec, Fraction(1, 8)),  # else 7/8 and 8/8 of a slot would both be one
    ]
    for step in steps:
        with pytest.raises(BadRequest) as refused:
            step()
        assert str(refused.value) == (
            f"{spec.place}: tenant cache.it: 7 slots (7.000 MiB) are fewer than one turn hands out, 4 sequences x 2"
            " hand-outs = 8 (8.000 MiB); give 8 or more, or slots: auto"
        )
    assert owned(ledger) == []


@pytest.mark.parametrize(
    ("fields", "scale", "slots"),
    [
        ({}, "1/8", 1),
        ({}, "1/3", 3),
        ({}, "1/1000", 1),
        ({"slots": 32}, "1/8", 4),
        ({"slots": 9}, "1/8", 2),
        ({"slots": 8}, "1/8", 1),
        ({"slots": 64}, "1/64", 1),
    ],
)
def test_a_scaled_ring_has_its_share_of_the_slots_and_of_a_turn(
    ring_spec: Callable[..., TenantSpec], fields: dict[str, object], scale: str, slots: int
) -> None:
    pytest.importorskip("torch")
    kind = SavepointRingKind()
    scaled = kind.scaled(ring_spec(**fields), Fraction(scale))
    assert kind.asked_bytes(scaled) == slots * ROW_BYTES
    # It can be opened, where one turn's share of the slots is all there is.
    turn = -(-8 * Fraction(scale).numerator // Fraction(scale).denominator)
    with HostPinnedLedger(limit_bytes=turn * ROW_BYTES) as ledger:
        ring = kind.open(scaled, ledger, None)
        assert ring.slots == min(slots, turn)
        ring.close()


def test_the_allocator_is_made_ready_once_for_all_ranks_and_keeps_nothing(
    configured: Configured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    module = install(folder, KEEPING, {"pinprobe.allocators": {"keeping": ":Keeping"}})
    config = configured("savepoint_ring", ranks=2, engine_allocator="keeping", max_num_seqs=1)
    with Boot(config) as boot, HostPinnedLedger() as ledger:
        assert importlib.import_module(module).told == [f"prepare {2 * ROW_BYTES}", "notes"]
        boot.open(ledger)
        assert [row.detail for row in owned(ledger)] == [
            f"2 slots x 1,048,576 B, rank {rank}" for rank in range(2)
        ]  # fmt: skip
        boot.close()
        assert owned(ledger) == []
    told = importlib.import_module(module).told[2:]
    assert told == [f"allocate {2 * ROW_BYTES}"] * 2 + ["release", "empty_cache"] * 2


def test_without_torch_a_ring_says_what_is_missing_and_a_pool_does_without(
    ring_spec: Callable[..., TenantSpec],
    pool_spec: Callable[..., TenantSpec],
    ledger: HostPinnedLedger,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)  # which is how Python says that it can't be imported
    spec = ring_spec()
    with pytest.raises(AllocatorUnavailable, match="can't be imported: ModuleNotFoundError") as absent:
        SavepointRingKind().prepare(spec)
    assert str(absent.value).startswith(f"{spec.place}: tenant cache.it: the slots of a ring are torch's tensors")
    assert absent.value.remedy == "`pip install torch`"
    RetentionPoolKind().open(pool_spec(), ledger, None).close()


# -- the pool


@pytest.mark.parametrize("rank", [None, 0])
def test_a_pool_is_opened_with_all_its_regions_mapped_and_gives_them_back(
    pool_spec: Callable[..., TenantSpec], ledger: HostPinnedLedger, rank: int | None
) -> None:
    before = resident_bytes()
    pool = RetentionPoolKind().open(pool_spec(regions=32, chunk_tokens=16), ledger, rank)
    assert isinstance(pool, RetentionPool)
    assert (pool.bound_regions, pool.chunk_tokens, pool.stats().held_regions) == (32, 16, 32)
    assert 32 * REGION_BYTES <= resident_bytes() - before < 40 * MIB
    rows = owned(ledger)
    assert {(row.owner, row.asked_bytes, row.booked_bytes, row.pageable) for row in rows} == {
        ("cache.it", REGION_BYTES, REGION_BYTES, True)
    }
    assert len(rows) == 32
    assert {row.detail for row in rows} == {"regions of one savepoint each" if rank is None else "rank 0"}
    pool.close()
    pool.close()
    assert abs(resident_bytes() - before) < 4 * MIB
    assert owned(ledger) == []


def test_shared_regions_are_memfds_and_private_ones_are_not(
    pool_spec: Callable[..., TenantSpec], ledger: HostPinnedLedger
) -> None:
    RetentionPoolKind().open(pool_spec(), ledger, None).close()
    pool = RetentionPoolKind().open(pool_spec(shared="true"), ledger, None)
    assert mapped_regions() == [REGION_BYTES] * 8
    pool.close()
    assert mapped_regions() == []


def test_without_a_map_at_boot_each_region_is_mapped_when_it_is_needed(
    pool_spec: Callable[..., TenantSpec], ledger: HostPinnedLedger
) -> None:
    pool = RetentionPoolKind().open(pool_spec(mapped_at_boot="false", shared="true", regions=2), ledger, None)
    assert (owned(ledger), mapped_regions()) == ([], [])
    places = []
    for count in (1, 2):
        places.append(pool.take_place([count] * 4096, "c"))
        assert mapped_regions() == [REGION_BYTES] * count
    assert pool.take_place([3] * 4096, "c") is None
    for place in places:
        assert place is not None
        pool.give_back(place)
    pool.close()
    assert (owned(ledger), mapped_regions()) == ([], [])


def test_the_smaller_of_both_bounds_holds(pool_spec: Callable[..., TenantSpec], ledger: HostPinnedLedger) -> None:
    for regions, size, bound in ((8, 3 * REGION_BYTES + 1, 3), (2, 3 * REGION_BYTES, 2)):
        pool = RetentionPoolKind().open(pool_spec(regions=regions, bytes=size), ledger, None)
        assert pool.bound_regions == len(owned(ledger)) == bound
        pool.close()


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"policy": "gitins"}, "no retention policy is called 'gitins'; did you mean gittins?"),
        ({"policy": "libcachesim:LRU"}, "is there for replays to compare with"),
        ({"prefill": "fast"}, "'fast' is no prefill time"),
        ({"overflow_dir": "/tmp"}, "give both overflow_dir and overflow_bytes, or neither"),
        ({"overflow_bytes": 2**20}, "give both overflow_dir and overflow_bytes, or neither"),
    ],
    ids=repr,
)
def test_a_pool_that_can_not_be_is_refused_with_its_place(
    pool_spec: Callable[..., TenantSpec], ledger: HostPinnedLedger, fields: dict[str, object], words: str
) -> None:
    spec = pool_spec(**fields)
    for step in (lambda: RetentionPoolKind().prepare(spec), lambda: RetentionPoolKind().open(spec, ledger, None)):
        with pytest.raises(BadRequest, match=re.escape(f"{spec.place}: tenant cache.it: ") + ".*" + re.escape(words)):
            step()
    assert owned(ledger) == []


def test_an_overflow_whose_folder_can_not_be_is_refused_and_nothing_stays_open(
    pool_spec: Callable[..., TenantSpec], ledger: HostPinnedLedger, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("in the way", encoding="utf-8")
    for folder in (tmp_path / "file", tmp_path / "no" / "such" / "parent"):
        spec = pool_spec(overflow_dir=str(folder), overflow_bytes=2**30)
        with pytest.raises(BadRequest, match=r"tenant cache\.it: "):
            RetentionPoolKind().open(spec, ledger, None)
    assert owned(ledger) == []


def test_a_pool_with_an_overflow_has_measured_its_drive_and_leaves_no_file(
    pool_spec: Callable[..., TenantSpec], ledger: HostPinnedLedger, tmp_path: Path
) -> None:
    spec = pool_spec(overflow_dir=str(tmp_path / "overflow"), overflow_bytes=2**30, prefill="0.00019")
    pool = RetentionPoolKind().open(spec, ledger, None)
    assert "MB/s, measured, reads" in pool.describe()
    assert "prefill of n tokens 0.00019*n s" in pool.describe()
    pool.close()
    assert [path for path in (tmp_path / "overflow").rglob("*") if path.suffix == ".row"] == []


def test_a_bound_below_one_region_is_refused_with_both_figures(
    pool_spec: Callable[..., TenantSpec], ledger: HostPinnedLedger
) -> None:
    kind, spec = RetentionPoolKind(), pool_spec(bytes=ROW_BYTES)  # room for the row, and none for its page
    steps: list[Callable[[], object]] = [
        lambda: kind.prepare(spec),
        lambda: kind.open(spec, ledger, None),
        lambda: kind.scaled(spec, Fraction(1, 8)),
    ]
    for step in steps:
        with pytest.raises(BadRequest) as refused:
            step()
        assert str(refused.value) == (
            f"{spec.place}: tenant cache.it: {ROW_BYTES:,} B are less than one region, {REGION_BYTES:,} B; give that or"
            " more, or leave `bytes` out"
        )


@pytest.mark.parametrize(
    ("fields", "scale", "regions"),
    [({}, "1/8", 1), ({}, "1/3", 3), ({}, "1/1000", 1), ({"bytes": 4 * REGION_BYTES}, "1/2", 2)],
)
def test_a_scaled_pool_has_its_share_of_the_regions(
    pool_spec: Callable[..., TenantSpec], ledger: HostPinnedLedger, fields: dict[str, object], scale: str, regions: int
) -> None:
    kind = RetentionPoolKind()
    scaled = kind.scaled(pool_spec(**fields), Fraction(scale))
    assert kind.asked_bytes(scaled) == regions * REGION_BYTES
    pool = kind.open(scaled, ledger, None)
    assert pool.bound_regions == regions
    pool.close()


def test_a_pool_that_does_not_fit_at_boot_is_refused_before_a_region_is_mapped(
    pool_spec: Callable[..., TenantSpec],
) -> None:
    with HostPinnedLedger(limit_bytes=8 * REGION_BYTES - 1) as ledger:
        ledger.calibrate()
        before, peak = resident_bytes(), ledger.peak_bytes
        with pytest.raises(Refused, match=r"8 regions of [0-9,]+ B were to be mapped at boot: give fewer") as no:
            RetentionPoolKind().open(pool_spec(shared="true"), ledger, None)
        assert (no.value.owner, no.value.asked_bytes) == ("cache.it", 8 * REGION_BYTES)
        assert no.value.largest_bytes == 8 * REGION_BYTES - 1
        assert (owned(ledger), mapped_regions(), ledger.peak_bytes) == ([], [], peak)
        assert abs(resident_bytes() - before) < 4 * MIB
        # One region fewer fits to the byte, and so does a pool that maps its regions later.
        RetentionPoolKind().open(pool_spec(regions=7), ledger, None).close()
        RetentionPoolKind().open(pool_spec(mapped_at_boot="false"), ledger, None).close()


def test_where_regions_fit_and_the_kernel_refuses_them_none_is_kept(
    pool_spec: Callable[..., TenantSpec], ledger: HostPinnedLedger
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = len(list(Path("/proc/self/fd").iterdir()))
    spec = pool_spec(shared="true", regions=64)
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 20, hard))  # too few descriptors for so many memfds
    try:
        with pytest.raises(AllocationFailed, match=r"tenant cache\.it: \d+ of 64 regions of .* could be mapped") as no:
            RetentionPoolKind().open(spec, ledger, None)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert str(no.value).isprintable()
    assert (owned(ledger), mapped_regions()) == ([], [])


def test_a_pool_is_pageable_whatever_the_engine_pins_with(configured: Configured, ledger: HostPinnedLedger) -> None:
    config = configured("retention_pool", engine_allocator="mlock", regions=2)
    assert config.tenants[0].allocator == "pageable"
    before = locked_bytes()
    with Boot(config) as boot:
        boot.open(ledger)
        assert locked_bytes() == before
        assert all(row.pageable for row in owned(ledger))


# -- the real command


@pytest.fixture
def split(tmp_path: Path) -> Callable[[str], str]:
    """The shipped config of both, its ring in memory of this allocator."""

    def write(allocator: str) -> str:
        path = tmp_path / "split.yaml"
        text = find_config("savepoint-split").read_text(encoding="utf-8")
        path.write_text(re.sub("(?m)^  allocator: auto", f"  allocator: {allocator}", text), encoding="utf-8")
        return str(path)

    return write


def test_both_boot_scaled_and_their_sums_are_shown(command: Pinprobe, split: Callable[[str], str]) -> None:
    pytest.importorskip("torch")
    done = command("ledger", split("mlock"), "--scale", "1/32", "--stats")
    if done.returncode == 3 and "RLIMIT_MEMLOCK" in done.stderr:
        pytest.skip(done.stderr.strip())
    assert (done.returncode, done.stderr) == (0, "")
    text = " ".join(done.stdout.split())
    assert "cache.savepoint_ring 0.144 GiB 0.144 GiB 0.144 GiB 1.000" in text
    assert "cache.retention_pool 0.289 GiB 0.289 GiB 0.289 GiB 1.000" in text
    assert "2 reservations: retention only, mmap; measured: mapping" in text
    assert "pinned 0.144 GiB: " in text
    assert "pageable 0.289 GiB: " in text
    assert "total 0.433 GiB, " in text
    # What each says of itself, and with --stats what it counted.
    assert "cache.savepoint_ring: ring of 1 slot; 96 slabs" in text
    assert "cache.savepoint_ring: 0 hand-outs, 0 laps" in text
    assert "cache.retention_pool: pool of at most 2 regions = 0.289 GiB" in text
    assert "cache.retention_pool: 0 offered; 2 regions held of a bound of 2" in text
    assert book_files(command) == []


def test_in_bytes_a_region_takes_a_page_more_than_a_slot(command: Pinprobe, split: Callable[[str], str]) -> None:
    pytest.importorskip("torch")
    document = command.json("ledger", split("pageable"), "--scale", "1/64")
    row_bytes = 154_927_104
    assert [(row["owner"], row["asked_bytes"], row["resident"]["bytes"]) for row in document["rows"][:2]] == [
        ("cache.savepoint_ring", row_bytes, row_bytes),
        ("cache.retention_pool", row_bytes + mmap.PAGESIZE, row_bytes + mmap.PAGESIZE),
    ]
    assert document["holds"] is True
    # What torch brings in with its first tensors was there before the ledger began.
    assert document["sums"]["unattributed_bytes"] < 4 * MIB
    assert document["config"]["tenants"]["cache.retention_pool"]["layout"]["attributes"]["conv_states"] == {
        "shape": [10240, 4],
        "dtype": "bfloat16",
    }


def test_a_ring_below_one_turns_worth_is_refused_by_the_command_in_one_line(command: Pinprobe) -> None:
    for scale in ("1", "1/32"):
        line = command.refused("ledger", "savepoint-ring-32", "--set", "slots=15", "--scale", scale, "--ignore-checks")
        assert "savepoint-ring-32.yaml:" in line
        assert "15 slots (2.164 GiB) are fewer than one turn hands out, 8 sequences x 2 hand-outs = 16" in line
    checked = command("check", "savepoint-ring-32", "--set", "slots=15")
    assert checked.returncode == 1
    assert "15 >= 16 does not hold, by 1" in checked.stdout


def test_the_ring_takes_as_many_as_fit_by_the_command_too(command: Pinprobe, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    path = tmp_path / "c.yaml"
    tenant = f"{{kind: savepoint_ring, slots: 64, max_num_seqs: 4, layout: {LAYOUT}}}"
    path.write_text(f"engine: {{name: e, allocator: pageable}}\ntenants: {{t: {tenant}}}\n", encoding="utf-8")
    document = command.json("ledger", str(path), "--limit", "24MiB")
    assert document["rows"][0]["detail"] == "24 slots x 1,048,576 B, of 64 that were wanted"
    path.write_text(path.read_text(encoding="utf-8").replace("slots: 64", "slots: auto"), encoding="utf-8")
    line = command.refused("ledger", str(path), "--limit", "7MiB", exit_code=1)
    assert "one turn hands out 8 slots" in line


def test_a_kind_is_made_anew_for_each_boot() -> None:
    assert load_kind("savepoint_ring") is not load_kind("savepoint_ring")
