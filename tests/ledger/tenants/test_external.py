"""Memory that a function of the engine's own takes: found when it is opened, called once, booked as it is."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from pinprobe.ledger.ledger import HostPinnedLedger
from pinprobe.ledger.tenants.external import External
from pinprobe.ledger.tenants.tenant import TenantSpec
from pinprobe.probes.errors import AllocationFailed, BadRequest, PinprobeError, Refused

MIB = 2**20

ENGINE = """
import mmap

print("loading the engine")
taken = []

def take(asked_bytes):
    print("taking memory")
    memory = mmap.mmap(-1, asked_bytes, flags=mmap.MAP_SHARED | mmap.MAP_ANONYMOUS)
    for at in range(0, asked_bytes, mmap.PAGESIZE):
        memory[at] = 1
    taken.append(asked_bytes)
    return memory

class Pools:
    take = staticmethod(take)

def refuse(asked_bytes):
    raise MemoryError("no room\\nfor it")

def leave(asked_bytes):
    raise SystemExit(7)

def refuse_by_name(asked_bytes):
    from pinprobe.probes.errors import AllocationFailed
    raise AllocationFailed("the engine's own words")

NUMBER = 5
"""


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of a module that stands for an engine, not imported yet."""
    (tmp_path / "engine_under_test.py").write_text(ENGINE, encoding="utf-8")
    (tmp_path / "broken_engine.py").write_text("raise RuntimeError('no\\nlicence')\n", encoding="utf-8")
    (tmp_path / "leaving_engine.py").write_text("raise SystemExit('bye')\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    yield "engine_under_test"
    for name in ("engine_under_test", "broken_engine", "leaving_engine"):
        sys.modules.pop(name, None)


def spec(name: str, **others: Any) -> TenantSpec:
    fields = {"callable": name, "count": 4, "bytes": MIB, **others.pop("fields", {})}
    allocator, detail = others.pop("allocator", "auto"), others.pop("detail", "")
    return TenantSpec("weights.arena", "external", "rank", allocator, detail, fields, {}, "c.yaml:3:3")


class FakeLedger:
    """Stands in the place of a ledger where only what it is asked for matters: it calls, and books nothing."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []

    def reserve(self, owner: str, asked_bytes: int, allocate: Callable[[], object], **others: Any) -> object:
        self.calls.append({"owner": owner, "asked_bytes": asked_bytes, **others})
        return allocate()


def opened(fake: FakeLedger, tenant: TenantSpec, rank: int | None = None) -> Any:
    return External().open(tenant, cast(HostPinnedLedger, fake), rank)


def test_its_price_is_known_without_importing_anything(engine: str) -> None:
    assert External().asked_bytes(spec(f"{engine}:take")) == 4 * MIB
    assert engine not in sys.modules


def test_prepared_it_is_imported_and_has_taken_nothing(engine: str) -> None:
    External().prepare(spec(f"{engine}:take"))
    assert sys.modules[engine].taken == []


def test_the_function_is_called_once_with_all_the_bytes_through_the_ledger(
    engine: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fake = FakeLedger()
    opened(fake, spec(f"{engine}:take", detail="once"), rank=1)
    assert sys.modules[engine].taken == [4 * MIB]
    assert fake.calls == [
        {
            "owner": "weights.arena",
            "asked_bytes": 4 * MIB,
            "detail": f"4 x 1,048,576 B by {engine}:take, rank 1, once",
            "allocator": f"{engine}:take",
            "pageable": False,
        }
    ]
    # stdout is for data; what an engine prints while it loads or allocates is none.
    assert capsys.readouterr() == ("", "loading the engine\ntaking memory\n")


def test_an_attribute_of_an_attribute_is_found_and_pageable_memory_is_booked_as_such(engine: str) -> None:
    fake = FakeLedger()
    opened(fake, spec(f"{engine}:Pools.take", allocator="pageable"))
    assert fake.calls[0]["pageable"] is True
    assert fake.calls[0]["detail"] == f"4 x 1,048,576 B by {engine}:Pools.take"


@pytest.mark.parametrize(
    ("name", "because"),
    [
        ("no_such_engine:take", "no_such_engine can't be imported: ModuleNotFoundError"),
        ("no_such_engine:take", "PYTHONPATH names where to look"),
        ("engine_under_test.sub:take", "engine_under_test.sub can't be imported: ModuleNotFoundError"),
        ("broken_engine:take", "broken_engine can't be imported: RuntimeError: no"),
        ("leaving_engine:take", "leaving_engine can't be imported: SystemExit: bye"),
        ("engine_under_test:tke", "engine_under_test has no tke"),
        ("engine_under_test:Pools.tke", "engine_under_test has no Pools.tke"),
        ("engine_under_test:NUMBER", "engine_under_test:NUMBER is no function"),
    ],
)
def test_what_can_not_be_found_is_told_before_the_ledger_is_asked(engine: str, name: str, because: str) -> None:
    fake = FakeLedger()
    with pytest.raises(BadRequest, match=re.escape(because)) as refused:
        opened(fake, spec(name))
    assert str(refused.value).startswith("c.yaml:3:3: tenant weights.arena: ")
    with pytest.raises(BadRequest, match=re.escape(because)):
        External().prepare(spec(name))
    assert len(str(refused.value).splitlines()) == 1
    assert fake.calls == []


@pytest.mark.parametrize(
    ("attribute", "because"),
    [
        ("refuse", "did not take 4,194,304 B: MemoryError: no room"),
        ("leave", "did not take 4,194,304 B: SystemExit: 7"),
        ("refuse_by_name", "the engine's own words"),
    ],
)
def test_what_the_function_raises_is_told_in_one_line(engine: str, attribute: str, because: str) -> None:
    with pytest.raises(AllocationFailed, match=re.escape(because)) as refused:
        opened(FakeLedger(), spec(f"{engine}:{attribute}"))
    assert isinstance(refused.value, PinprobeError)
    assert len(str(refused.value).splitlines()) == 1


# -- through the real ledger


def test_what_it_takes_is_booked_until_it_is_closed(engine: str) -> None:
    ledger = HostPinnedLedger()
    tenant = External().open(spec(f"{engine}:take"), ledger, None)
    (row,) = (row for row in ledger.rows() if row.owner == "weights.arena")
    # The kernel has a mapping of its own for it, as large as it is.
    assert row.booked_bytes == row.asked_bytes == 4 * MIB
    tenant.close()
    tenant.close()
    assert not [row for row in ledger.rows() if row.owner == "weights.arena"]


def test_what_does_not_fit_is_refused_before_the_function_is_called(engine: str) -> None:
    huge = spec(f"{engine}:take", fields={"count": 2**20, "bytes": 2**30})
    with pytest.raises(Refused):
        External().open(huge, HostPinnedLedger(), None)
    assert sys.modules[engine].taken == []
