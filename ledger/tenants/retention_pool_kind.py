"""`retention_pool`: how a config gives a `RetentionPool` its bound, its policy and its overflow."""

from __future__ import annotations

import contextlib
from fractions import Fraction
from typing import TYPE_CHECKING, NoReturn

from pinprobe.ledger.tenants.disk_overflow import DiskOverflow
from pinprobe.ledger.tenants.pool_shape import PoolShape, bound_regions, told_of
from pinprobe.ledger.tenants.region import region_bytes
from pinprobe.ledger.tenants.retention_pool import RetentionPool
from pinprobe.ledger.tenants.tenant import Field, FieldType, TenantSpec
from pinprobe.probes.errors import AllocationFailed, Refused
from pinprobe.probes.units import format_bytes

if TYPE_CHECKING:
    from pinprobe.ledger.ledger import HostPinnedLedger


class RetentionPoolKind:
    """A pool of at most `regions`, and of at most `bytes` where that is given too.

    With `mapped_at_boot` all of the bound is mapped when it is opened, or it is refused; without, each region is mapped
    when it is needed, and where there is no memory for one its savepoint takes the place of another. With
    `sized_by_demand` regions that live conversations do not want go back. Nothing is written to disk unless both an
    `overflow_dir` and `overflow_bytes` are given.
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
        Field(
            "policy",
            FieldType.TEXT,
            "Who decides which savepoint goes: gittins, chain, gdsf, lru, or one of another package.",
            default="gittins",
        ),
        Field(
            "sized_by_demand",
            FieldType.FLAG,
            "Whether it keeps as many as live conversations will read next.",
            default=False,
        ),
        Field("min_regions", FieldType.COUNT, "How many it keeps at least, where demand sizes it.", default=1),
        Field("overflow_dir", FieldType.TEXT, "A folder for savepoints that memory can't hold.", may_be_missing=True),
        Field(
            "overflow_bytes",
            FieldType.SIZE,
            "How much its files take at most, those of all processes together.",
            may_be_missing=True,
        ),
        Field(
            "prefill",
            FieldType.TEXT,
            "What prefill takes: seconds a token, or of n tokens a*n+b*n^2. Without it nothing is worth a file.",
            may_be_missing=True,
        ),
    )
    #: Nothing is transferred to a device from a region, so nothing of it has to be pinned.
    only_allocator: str | None = "pageable"

    def asked_bytes(self, spec: TenantSpec) -> int:
        """Return what is mapped when it is opened: all regions that the bound allows, or nothing."""
        mapped = bound_regions(spec) if spec.fields["mapped_at_boot"] else 0
        return mapped * region_bytes(spec.layout("layout").row_bytes)

    def scaled(self, spec: TenantSpec, scale: Fraction) -> TenantSpec:
        """Return it with fewer regions, counted from what both bounds allow."""
        self.prepare(spec)
        return spec.with_fields(regions=bound_regions(spec)).scaled("regions", scale)

    def check(self, spec: TenantSpec) -> None:
        """Raise `BadRequest` where its fields make no pool."""
        PoolShape.of(spec)

    def prepare(self, spec: TenantSpec) -> None:
        """Raise `BadRequest` as `check` does. There is nothing to load."""
        self.check(spec)

    def open(self, spec: TenantSpec, ledger: HostPinnedLedger, rank: int | None) -> RetentionPool:
        """Open the pool, with all of its regions mapped where the config says so.

        Raises `Refused` where they do not fit, and `AllocationFailed` where they fitted and could not be mapped all the
        same; then none is kept. Raises `BadRequest` where the overflow's folder can't be used.
        """
        shape = PoolShape.of(spec)
        if shape.is_mapped_at_boot:
            _refuse_what_does_not_fit(spec, shape, ledger)
        with contextlib.ExitStack() as undo:
            overflow = None
            if shape.overflow_folder is not None and shape.overflow_bytes is not None:
                with told_of(spec):
                    overflow = DiskOverflow(shape.overflow_folder, shape.layout, shape.overflow_bytes)
                undo.callback(overflow.close)
            pool = RetentionPool(
                ledger,
                shape.layout,
                bound_regions=shape.bound_regions,
                min_regions=shape.min_regions,
                policy=shape.policy,
                is_sized_by_demand=shape.is_sized_by_demand,
                chunk_tokens=shape.chunk_tokens,
                shared=shape.is_shared,
                owner=spec.name,
                detail=spec.detail_for(rank),
                overflow=overflow,
                prefill_time=shape.prefill_time,
            )
            undo.callback(pool.close)
            if shape.is_mapped_at_boot:
                _map_all(spec, pool)
            pool.measure_overflow()
            undo.pop_all()
            return pool


class _Fits(Exception):
    """Raised in the place of taking memory."""


def _fits() -> NoReturn:
    raise _Fits


def _refuse_what_does_not_fit(spec: TenantSpec, shape: PoolShape, ledger: HostPinnedLedger) -> None:
    """Have the ledger judge all regions at once, before the first is mapped: they are reserved one by one."""
    try:
        with contextlib.suppress(_Fits):
            asked_bytes = shape.bound_regions * shape.region_bytes
            ledger.reserve(spec.name, asked_bytes, _fits, allocator="mmap", pageable=True)
    except Refused as refusal:
        how = f"{shape.bound_regions:,} regions of {shape.region_bytes:,} B were to be mapped at boot"
        raise Refused(f"{refusal}; {how}: give fewer regions, or mapped_at_boot: false", *refusal.args[1:]) from None


def _map_all(spec: TenantSpec, pool: RetentionPool) -> None:
    mapped = pool.map_ahead(pool.bound_regions)
    if mapped < pool.bound_regions:
        raise AllocationFailed(
            f"{spec.where}: {mapped:,} of {pool.bound_regions:,} regions of {format_bytes(pool.region_bytes)}"
            " could be mapped: others were faster, or the kernel refused; give fewer regions, or mapped_at_boot: false"
        )
