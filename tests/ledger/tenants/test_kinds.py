"""The kinds of tenants by name: our own, and those of others, whole and broken."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import pytest

from pinprobe.ledger.boot import Boot
from pinprobe.ledger.config.registry import load_config
from pinprobe.ledger.ledger import HostPinnedLedger
from pinprobe.ledger.tenants.buffer import Buffer
from pinprobe.ledger.tenants.external import External
from pinprobe.ledger.tenants.kinds import ENTRY_POINT_GROUP, kind_names, load_kind
from pinprobe.ledger.tenants.retention_pool_kind import RetentionPoolKind
from pinprobe.ledger.tenants.savepoint_ring_kind import SavepointRingKind
from pinprobe.probes.errors import BadRequest
from tests.ledger.tenants.foreign_package import install

PAGES = """
import mmap
from pinprobe.ledger.tenants.tenant import Field, FieldType

class Open:
    def __init__(self, reservation):
        self.close = reservation.release

class Pages:
    kind = "pages"
    meaning = "Pages of memory that processes share."
    fields = (Field("pages", FieldType.COUNT, "How many pages."),)
    only_allocator = None

    def asked_bytes(self, spec):
        return spec.size("pages") * mmap.PAGESIZE

    def scaled(self, spec, scale):
        return spec.scaled("pages", scale)

    def prepare(self, spec):
        pass

    def open(self, spec, ledger, rank):
        return Open(ledger.reserve(spec.name, self.asked_bytes(spec), lambda: self.take(self.asked_bytes(spec))))

    def take(self, size):
        memory = mmap.mmap(-1, size)
        for at in range(0, size, mmap.PAGESIZE):
            memory[at] = 1
        return memory
"""


OWN = {
    "buffer": Buffer,
    "external": External,
    "savepoint_ring": SavepointRingKind,
    "retention_pool": RetentionPoolKind,
}


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Install a package that registers one kind, for the length of a test; returns the name of its module."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def put(source: str = PAGES, name: str = "pages", target: str = ":Pages") -> str:
        return install(tmp_path, source, {ENTRY_POINT_GROUP: {name: target}})

    return put


# -- names


def test_our_own_come_first_and_each_is_what_it_is_called() -> None:
    assert kind_names()[:4] == list(OWN)
    for name, own in OWN.items():
        kind = load_kind(name)
        assert isinstance(kind, own)
        assert kind.kind == name
        assert kind.meaning.endswith(".")
        assert all(field.meaning.endswith(".") for field in kind.fields)


def test_each_load_makes_one_anew_so_that_no_two_configs_share_what_is_ready() -> None:
    assert load_kind("buffer") is not load_kind("buffer")


@pytest.mark.parametrize("wrong", ["", "Buffer", "bufer", "buffer\nbuffer", "\x1b[31m"])
def test_an_unknown_kind_is_refused_in_one_line_with_those_that_are_known(wrong: str) -> None:
    with pytest.raises(BadRequest, match="known are buffer, external") as refused:
        load_kind(wrong)
    assert str(refused.value).isprintable()


def test_naming_the_kinds_loads_none_of_them() -> None:
    script = (
        f"import sys; sys.path[:] = {sys.path!r}\n"
        "from pinprobe.ledger.tenants.kinds import kind_names\n"
        "kind_names()\n"
        "heavy = ('tenants.buffer', 'tenants.external', '_kind', 'savepoint_ring', 'allocators.registry')\n"
        "print([name for name in sys.modules if name.endswith(heavy) or name == 'torch'])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "[]\n"


# -- others' kinds


def test_a_kind_of_another_package_is_found_by_its_name(installed: Callable[..., str]) -> None:
    module = installed()
    assert kind_names()[-1] == "pages"
    assert type(load_kind("pages")).__module__ == module


def test_it_is_not_imported_before_it_is_wanted(installed: Callable[..., str]) -> None:
    module = installed()
    assert "pages" in kind_names()
    load_kind("buffer")
    assert module not in sys.modules


def test_it_is_configured_scaled_and_booked_like_our_own(installed: Callable[..., str], tmp_path: Path) -> None:
    installed()
    path = tmp_path / "c.yaml"
    path.write_text("engine: {name: e}\ntenants:\n  a.pool: {kind: pages, pages: 2048}\n", encoding="utf-8")
    with Boot(load_config(path), Fraction(1, 2)) as boot, HostPinnedLedger() as ledger:
        boot.open(ledger)
        (row,) = ledger.verify().reserved
    # The kernel's word: the mapping is 1,024 pages, and all of them are resident.
    assert (row.owner, row.asked_bytes, row.booked_bytes) == ("a.pool", 4 * 2**20, 4 * 2**20)
    assert getattr(row.resident, "bytes", row.resident) == 4 * 2**20


def test_another_package_can_not_take_the_name_of_one_of_ours(installed: Callable[..., str]) -> None:
    installed(name="buffer")
    assert kind_names().count("buffer") == 1
    assert isinstance(load_kind("buffer"), Buffer)


def test_a_name_that_can_not_be_printed_is_no_name(installed: Callable[..., str]) -> None:
    installed(name="red\x1b[31m")
    assert all(name.isprintable() for name in kind_names())


_BROKEN = {
    "an import that fails": ("import no_such_module_anywhere\n", ":Pages"),
    "an error of several lines": ("raise RuntimeError('first line\\nsecond line')\n", ":Pages"),
    "an import that leaves": ("raise SystemExit(7)\n", ":Pages"),
    "no such class": ("", ":Pages"),
    "a syntax error": ("def\n", ":Pages"),
    "a class that can't be made": ("class Pages:\n    def __init__(self): raise OSError(2, 'no driver')\n", ":Pages"),
    "a class that wants arguments": ("class Pages:\n    def __init__(self, size): pass\n", ":Pages"),
    "a class without open": (PAGES.replace("def open", "def opened"), ":Pages"),
    "a class without scaled": (PAGES.replace("def scaled", "def scales"), ":Pages"),
    "a class that says nothing of its allocator": (PAGES.replace("only_allocator", "allocator"), ":Pages"),
    "a module in the place of a class": ("", ""),
    "a module that is not there": ("", "_and_more:Pages"),
}


@pytest.mark.parametrize("kind", _BROKEN)
def test_a_broken_one_is_refused_in_one_line_that_names_it_and_where_it_is_from(
    installed: Callable[..., str], kind: str
) -> None:
    source, target = _BROKEN[kind]
    module = installed(source, target=target)
    with pytest.raises(BadRequest) as refused:
        load_kind("pages")
    assert str(refused.value).startswith(f"the kind pages ({module}{target}) ")
    assert str(refused.value).isprintable()


def test_a_broken_one_does_not_hinder_the_others(installed: Callable[..., str]) -> None:
    installed("raise RuntimeError('broken')\n")
    assert "pages" in kind_names()
    assert isinstance(load_kind("buffer"), Buffer)
