"""`buffer`: a count of equal pieces in one reservation, with an allocator: the plainest tenant."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from pinprobe.ledger.tenants.from_allocator import reserve_from
from pinprobe.ledger.tenants.ready_allocators import ReadyAllocators
from pinprobe.ledger.tenants.tenant import Field, FieldType, TenantSpec

if TYPE_CHECKING:
    from pinprobe.ledger.ledger import HostPinnedLedger
    from pinprobe.ledger.reservation import Reservation
    from pinprobe.probes.allocators.allocator import Allocation, Allocator


class OpenBuffer:
    """A buffer whose memory is taken."""

    def __init__(self, reservation: Reservation[Allocation], allocator: Allocator) -> None:
        self.reservation = reservation
        self._allocator = allocator

    def close(self) -> None:
        """Give it back, and have the allocator keep nothing of it."""
        self.reservation.release()
        self._allocator.empty_cache()


class Buffer:
    """`count` pieces of `bytes` each, asked for at once."""

    kind = "buffer"
    meaning = "A count of equal pieces, taken from an allocator in one reservation."
    fields = (
        Field("count", FieldType.COUNT, "How many pieces.", default=1),
        Field("bytes", FieldType.SIZE, "The size of one piece."),
    )
    only_allocator: str | None = None

    def __init__(self) -> None:
        self._ready = ReadyAllocators()

    def asked_bytes(self, spec: TenantSpec) -> int:
        """Return count x bytes."""
        return spec.size("count") * spec.size("bytes")

    def scaled(self, spec: TenantSpec, scale: Fraction) -> TenantSpec:
        """Return it with fewer pieces."""
        return spec.scaled("count", scale)

    def prepare(self, spec: TenantSpec) -> None:
        """Make the allocator ready, and have it load what it needs."""
        self._ready.get(spec.allocator, self.asked_bytes(spec))

    def open(self, spec: TenantSpec, ledger: HostPinnedLedger, rank: int | None) -> OpenBuffer:
        """Reserve it with the allocator that the config names."""
        asked = self.asked_bytes(spec)
        allocator = self._ready.get(spec.allocator, asked)
        detail = spec.detail_for(rank, f"{spec.size('count'):,} x {spec.size('bytes'):,} B")
        return OpenBuffer(reserve_from(allocator, ledger, spec.name, asked, detail), allocator)
