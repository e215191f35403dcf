"""Reserves memory through a ledger from one of pinprobe's own allocators, so that each tenant says it once."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pinprobe.ledger.ledger import HostPinnedLedger
    from pinprobe.ledger.reservation import Reservation
    from pinprobe.probes.allocators.allocator import Allocation, Allocator


def reserve_from(
    allocator: Allocator, ledger: HostPinnedLedger, owner: str, asked_bytes: int, detail: str
) -> Reservation[Allocation]:
    """Reserve `asked_bytes`; what kind of memory it is follows from the allocator. Raises `Refused`."""
    return ledger.reserve(
        owner,
        asked_bytes,
        lambda: allocator.allocate(asked_bytes),
        free=lambda allocation: allocation.release(),
        detail=detail,
        allocator=allocator.name,
        pageable=allocator.name == "pageable",
        from_pool=allocator.counter == "HugetlbPages",
    )
