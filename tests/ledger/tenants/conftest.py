"""A ledger of its own for each test of a tenant, a ring on it, and both ways in which a pool's regions may lie."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pinprobe.ledger.ledger import HostPinnedLedger
from pinprobe.ledger.tenants.savepoint_ring import SavepointRing
from tests.ledger.tenants.prepared_allocators import prepared
from tests.ledger.tenants.savepoint_rows import MIXED


@pytest.fixture
def ledger() -> Iterator[HostPinnedLedger]:
    with HostPinnedLedger(wait_seconds=0) as ledger:
        ledger.calibrate()
        yield ledger


@pytest.fixture
def ring(ledger: HostPinnedLedger) -> Iterator[SavepointRing]:
    """Three slots of ordinary memory."""
    ring = SavepointRing(ledger, MIXED, 3, prepared("pageable"))
    yield ring
    ring.close()


@pytest.fixture(params=[False, True], ids=["private", "shared"])
def shared(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)
