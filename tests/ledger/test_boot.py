"""All tenants of a config: opened in its order, one copy a rank, all of them or none, and closed together."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from fractions import Fraction
from pathlib import Path

import pytest

from pinprobe.ledger.boot import Boot
from pinprobe.ledger.config.config import Config
from pinprobe.ledger.config.registry import load_config
from pinprobe.ledger.ledger import HostPinnedLedger
from pinprobe.probes.counters import read_statm
from pinprobe.probes.errors import AllocationFailed, AllocatorUnavailable, BadRequest, PinprobeError, Refused
from pinprobe.probes.host_tree import THIS_HOST
from pinprobe.probes.reading import Reading
from tests.ledger.tenants.foreign_package import install

MIB = 2**20

# A kind whose every step is written down, and whose tenants can be told to fail at one of them.
TELLING = """
import mmap
from pinprobe.ledger.tenants.tenant import Field, FieldType

told = []

class Open:
    def __init__(self, reservation, spec):
        self.reservation, self.spec = reservation, spec

    def close(self):
        told.append(f"close {self.spec.name}")
        self.reservation.release()
        if self.spec.fields["fails"] == "close":
            raise RuntimeError("no\\nlicence")

class Telling:
    kind = "telling"
    meaning = "Memory that tells what is done with it."
    fields = (
        Field("pieces", FieldType.COUNT, "How many MiB.", default=1),
        Field("fails", FieldType.TEXT, "Where it fails.", default="never"),
    )
    only_allocator = None

    def asked_bytes(self, spec):
        return spec.size("pieces") << 20

    def scaled(self, spec, scale):
        return spec

    def prepare(self, spec):
        told.append(f"prepare {spec.name}")
        if spec.fields["fails"] == "prepare":
            raise RuntimeError("no\\nlicence")

    def open(self, spec, ledger, rank):
        told.append(f"open {spec.name} {rank}")
        return Open(ledger.reserve(spec.name, self.asked_bytes(spec), lambda: self.take(spec)), spec)

    def take(self, spec):
        if spec.fields["fails"] == "open":
            raise RuntimeError("no\\nlicence")
        memory = mmap.mmap(-1, self.asked_bytes(spec))
        for at in range(0, self.asked_bytes(spec), mmap.PAGESIZE):
            memory[at] = 1
        return memory
"""


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """Register the kind above, and return what tells what was done with its tenants."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    module = install(folder, TELLING, {"pinprobe.tenants": {"telling": ":Telling"}})
    return lambda: list(importlib.import_module(module).told)


@pytest.fixture
def configured(tmp_path: Path) -> Callable[..., Config]:
    """A config of pageable memory with these tenants, a line each."""

    def configure(*tenants: str, ranks: int = 1) -> Config:
        head = f"engine: {{name: e, ranks: {ranks}, allocator: pageable}}\ntenants:\n"
        path = tmp_path / "c.yaml"
        path.write_text(head + "".join(f"  {tenant}\n" for tenant in tenants), encoding="utf-8")
        return load_config(path)

    return configure


@pytest.fixture
def ledger() -> Iterator[HostPinnedLedger]:
    with HostPinnedLedger() as ledger:
        ledger.calibrate()
        yield ledger


def owners(ledger: HostPinnedLedger) -> list[str]:
    return [row.owner for row in ledger.rows() if row.state.value != "unattributed"]


def resident_bytes() -> int:
    reading = read_statm(THIS_HOST)
    assert isinstance(reading, Reading)
    return reading.bytes


BUFFER = "kind: buffer, bytes: 4 MiB"


# -- opening and closing


def test_they_are_made_ready_first_opened_in_order_and_closed_from_the_last(
    told: Callable[[], list[str]], configured: Callable[..., Config], ledger: HostPinnedLedger
) -> None:
    with Boot(configured("a.a: {kind: telling}", "c.c: {kind: telling}", "b.b: {kind: telling}")) as boot:
        assert told() == ["prepare a.a", "prepare c.c", "prepare b.b"]
        boot.open(ledger)
        assert told()[3:] == ["open a.a None", "open c.c None", "open b.b None"]
        assert owners(ledger) == ["a.a", "c.c", "b.b"]
        boot.close()
        boot.close()
    assert told()[6:] == ["close b.b", "close c.c", "close a.a"]
    assert owners(ledger) == []


def test_the_memory_is_really_taken_and_is_gone_at_the_end_also_after_an_error(
    configured: Callable[..., Config], ledger: HostPinnedLedger
) -> None:
    before = resident_bytes()
    taken = 0
    with suppress(KeyboardInterrupt), Boot(configured("a.a: {kind: buffer, bytes: 64 MiB}")) as boot:
        boot.open(ledger)
        taken = resident_bytes() - before
        raise KeyboardInterrupt
    assert taken > 60 * MIB
    assert abs(resident_bytes() - before) < 4 * MIB
    assert owners(ledger) == []


def test_a_config_without_tenants_asks_for_nothing(
    configured: Callable[..., Config], tmp_path: Path, ledger: HostPinnedLedger
) -> None:
    (tmp_path / "c.yaml").write_text("engine: {name: e}\n", encoding="utf-8")
    with Boot(load_config(tmp_path / "c.yaml")) as boot:
        assert boot.asked_bytes == 0
        boot.open(ledger)
    assert owners(ledger) == []


# -- ranks


def test_what_is_held_per_rank_is_opened_for_each_and_what_is_per_host_once(
    told: Callable[[], list[str]], configured: Callable[..., Config], ledger: HostPinnedLedger
) -> None:
    config = configured(
        "a.pool: {kind: telling, pieces: 3}", "b.weights: {kind: telling, per: host, pieces: 2}", ranks=2
    )
    with Boot(config) as boot:
        assert boot.asked_bytes == 8 * MIB
        assert told() == ["prepare a.pool", "prepare b.weights"]
        boot.open(ledger)
        assert told()[2:] == ["open a.pool 0", "open a.pool 1", "open b.weights None"]
        assert sum(row.asked_bytes for row in ledger.verify().reserved) == boot.asked_bytes


def test_where_one_process_is_all_there_is_no_rank_is_named(
    told: Callable[[], list[str]], configured: Callable[..., Config], ledger: HostPinnedLedger
) -> None:
    with Boot(configured("a.pool: {kind: telling, per: rank}")) as boot:
        boot.open(ledger)
    assert told()[1] == "open a.pool None"


# -- scaling


@pytest.mark.parametrize(
    ("count", "scale", "scaled"),
    [
        (64, "1/64", 1),
        (64, "1", 64),
        (65, "1/64", 2),
        (3, "1/1000", 1),
        (16, "3/4", 12),
        (10, "0.25", 3),
        (1, "1/2", 1),
    ],
)
def test_counts_are_scaled_rounded_up_and_never_below_one(
    configured: Callable[..., Config], count: int, scale: str, scaled: int
) -> None:
    config = configured(f"a.a: {{kind: buffer, count: {count}, bytes: 4096}}", ranks=3)
    assert Boot(config, Fraction(scale)).asked_bytes == 3 * scaled * 4096
    assert config.tenants[0].fields["count"] == count


def test_a_kind_that_has_nothing_to_scale_is_left_as_it_is(
    told: Callable[[], list[str]], configured: Callable[..., Config]
) -> None:
    config = configured("a.a: {kind: telling, pieces: 8}", "b.b: {kind: buffer, count: 8, bytes: 1 MiB}")
    assert Boot(config, Fraction(1, 8)).asked_bytes == 9 * MIB


# -- what fails


def test_where_one_does_not_fit_those_before_it_are_given_back(
    configured: Callable[..., Config], ledger: HostPinnedLedger
) -> None:
    before = resident_bytes()
    with Boot(configured("a.a: {kind: buffer, bytes: 64 MiB}", "b.b: {kind: buffer, bytes: 1024 TiB}")) as boot:
        with pytest.raises(Refused) as refused:
            boot.open(ledger)
        assert refused.value.owner == "b.b"
        assert owners(ledger) == []
        assert abs(resident_bytes() - before) < 4 * MIB


def test_what_can_not_be_loaded_is_told_before_there_is_a_ledger(
    told: Callable[[], list[str]], configured: Callable[..., Config]
) -> None:
    missing = "b.b: {kind: external, bytes: 1 MiB, callable: 'no_such_engine:take'}"
    with pytest.raises(BadRequest, match=r"c\.yaml:4:3: tenant b\.b: no_such_engine can't be imported"):
        Boot(configured("a.a: {kind: telling}", missing))
    assert told() == ["prepare a.a"]


def test_an_allocator_that_this_machine_has_not_is_told_before_there_is_a_ledger(
    configured: Callable[..., Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusing = (
        "from pinprobe.probes.errors import AllocatorUnavailable\n"
        "class Absent:\n"
        "    name = counter = 'VmRSS'\n"
        "    notes = allocated_bytes = allocate = empty_cache = print\n"
        "    @classmethod\n"
        "    def prepare(cls, largest_bytes):\n"
        "        raise AllocatorUnavailable('there is no driver', 'install one')\n"
    )
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    install(folder, refusing, {"pinprobe.allocators": {"absent": ":Absent"}})
    with pytest.raises(AllocatorUnavailable, match="there is no driver; install one"):
        Boot(configured("a.a: {kind: buffer, bytes: 1 MiB, allocator: absent}"))


def test_where_one_fails_to_open_none_stays_open(
    told: Callable[[], list[str]], configured: Callable[..., Config], ledger: HostPinnedLedger
) -> None:
    config = configured("a.a: {kind: telling}", "b.b: {kind: telling, fails: open}", "c.c: {kind: telling}")
    with pytest.raises(Exception, match="no"), Boot(config) as boot:
        boot.open(ledger)
    assert told()[3:] == ["open a.a None", "open b.b None", "close a.a"]
    assert owners(ledger) == []


def test_where_one_fails_to_close_the_others_are_closed_and_it_is_told(
    told: Callable[[], list[str]], configured: Callable[..., Config], ledger: HostPinnedLedger
) -> None:
    config = configured("a.a: {kind: telling}", "b.b: {kind: telling, fails: close}", "c.c: {kind: telling}")
    boot = Boot(config)
    boot.open(ledger)
    with pytest.raises(Exception, match="no"):
        boot.close()
    assert told()[-3:] == ["close c.c", "close b.b", "close a.a"]
    assert owners(ledger) == []


def test_an_allocator_that_says_no_is_heard_and_none_stays_open(
    told: Callable[[], list[str]], configured: Callable[..., Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = (
        "from pinprobe.probes.errors import AllocationFailed\ndef take(n): raise AllocationFailed('out of slots')\n"
    )
    (tmp_path / "site" / "engine_that_says_no.py").write_text(engine, encoding="utf-8")
    saying_no = "b.b: {kind: external, bytes: 1 MiB, callable: 'engine_that_says_no:take'}"
    with HostPinnedLedger() as ledger, Boot(configured("a.a: {kind: telling}", saying_no)) as boot:
        with pytest.raises(AllocationFailed, match="out of slots"):
            boot.open(ledger)
        assert owners(ledger) == []
    assert told()[-1] == "close a.a"


@pytest.mark.parametrize("step", ["prepare", "open", "close"])
def test_what_the_code_of_others_raises_is_told_in_one_line_with_the_tenant(
    told: Callable[[], list[str]], configured: Callable[..., Config], ledger: HostPinnedLedger, step: str
) -> None:
    config = configured(f"a.pool: {{kind: telling, fails: {step}}}")
    with pytest.raises(PinprobeError, match="RuntimeError: no") as caught, Boot(config) as boot:
        boot.open(ledger)
    assert re.search(r"\ba\.pool\b", str(caught.value))
    assert str(caught.value).isprintable()
