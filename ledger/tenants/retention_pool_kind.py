"""`retention_pool`: how a config gives a `RetentionPool` its bound."""

from __future__ import annotations

import contextlib
import itertools
from fractions import Fraction
from typing import TYPE_CHECKING, NoReturn

from pinprobe.ledger.tenants.region import region_bytes
from pinprobe.ledger.tenants.retention_pool import RetentionPool
from pinprobe.ledger.tenants.tenant import Field, FieldType, TenantSpec
from pinprobe.probes.errors import AllocationFailed, BadRequest, Refused
from pinprobe.probes.units import format_bytes

if TYPE_CHECKING:
    from pinprobe.ledger.ledger import HostPinnedLedger


class RetentionPoolKind:
    """A pool of at most `regions`, and of at most `bytes` where that is given too.

    With `mapped_at_boot` all of the bound is mapped when it is opened, or it is refused; without, each region is mapped
    when it is needed, and a savepoint for which there is no memory then is not kept.
    """

    kind = "retention_pool"
    meaning = "Pageable regions, each for one savepoint, kept by the prefix of tokens that it covers."
    fields = (
        Field("layout", FieldType.LAYOUT, "What a region holds: one savepoint, as the ring's slots do."),
        Field("regions", FieldType.COUNT, "How many savepoints it keeps at most."),
        Field("bytes", FieldType.SIZE, "How much memory its regions take at most.", may_be_missing=True),
        Field(
            "chunk_tokens", FieldType.COUNT, "Tokens of a prefill chunk: what covers less is not kept.", default=2048
        ),
        Field("shared", FieldType.FLAG, "Whether other processes of the user can map the regions.", default=False),
        Field("mapped_at_boot", FieldType.FLAG, "Whether all regions are mapped when it is opened.", default=True),
    )
    #: Nothing is transferred to a device from a region, so nothing of it has to be pinned.
    only_allocator: str | None = "pageable"

    def asked_bytes(self, spec: TenantSpec) -> int:
        """Return what is mapped when it is opened: all regions that the bound allows, or nothing."""
        return _bound_regions(spec) * _region_bytes(spec) if spec.fields["mapped_at_boot"] else 0

    def scaled(self, spec: TenantSpec, scale: Fraction) -> TenantSpec:
        """Return it with fewer regions, counted from what both bounds allow."""
        self.prepare(spec)
        return spec.with_fields(regions=_bound_regions(spec)).scaled("regions", scale)

    def prepare(self, spec: TenantSpec) -> None:
        """Raise `BadRequest` where the bound in bytes is below one region. There is nothing to load."""
        if _bound_regions(spec) < 1:
            raise BadRequest(
                f"{spec.where}: {spec.size('bytes'):,} B are less than one region, {_region_bytes(spec):,} B; give"
                " that or more, or leave `bytes` out"
            )

    def open(self, spec: TenantSpec, ledger: HostPinnedLedger, rank: int | None) -> RetentionPool:
        """Open the pool, with all of its regions mapped where the config says so.

        Raises `Refused` where they do not fit, and `AllocationFailed` where they fitted and could not be mapped all the
        same; then none is kept.
        """
        self.prepare(spec)
        if spec.fields["mapped_at_boot"]:
            _refuse_what_does_not_fit(spec, ledger, self.asked_bytes(spec))
        pool = RetentionPool(
            ledger,
            spec.layout("layout"),
            bound_regions=_bound_regions(spec),
            chunk_tokens=spec.size("chunk_tokens"),
            shared=bool(spec.fields["shared"]),
            owner=spec.name,
            detail=spec.detail_for(rank),
        )
        if spec.fields["mapped_at_boot"]:
            try:
                _map_all(spec, pool)
            except BaseException:
                pool.close()
                raise
        return pool


def _region_bytes(spec: TenantSpec) -> int:
    return region_bytes(spec.layout("layout").row_bytes)


def _bound_regions(spec: TenantSpec) -> int:
    regions = spec.size("regions")
    return min(regions, spec.size("bytes") // _region_bytes(spec)) if "bytes" in spec.fields else regions


class _Fits(Exception):
    """Raised in the place of taking memory."""


def _fits() -> NoReturn:
    raise _Fits


def _refuse_what_does_not_fit(spec: TenantSpec, ledger: HostPinnedLedger, asked_bytes: int) -> None:
    """Have the ledger judge all regions at once, before the first is mapped: they are reserved one by one."""
    try:
        with contextlib.suppress(_Fits):
            ledger.reserve(spec.name, asked_bytes, _fits, allocator="mmap", pageable=True)
    except Refused as refusal:
        how = f"{_bound_regions(spec):,} regions of {_region_bytes(spec):,} B were to be mapped at boot"
        raise Refused(f"{refusal}; {how}: give fewer regions, or mapped_at_boot: false", *refusal.args[1:]) from None


def _map_all(spec: TenantSpec, pool: RetentionPool) -> None:
    # Each is held until the last one is there, so that none is handed out twice.
    places = list(itertools.islice(iter(pool.take_place, None), pool.bound_regions))
    for place in places:
        pool.give_back(place)
    if len(places) < pool.bound_regions:
        raise AllocationFailed(
            f"{spec.where}: {len(places):,} of {pool.bound_regions:,} regions of {format_bytes(pool.region_bytes)}"
            " could be mapped: others were faster, or the kernel refused; give fewer regions, or mapped_at_boot: false"
        )
