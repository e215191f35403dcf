"""`PoolShape`: what a config says of a retention pool, every number worked out."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pinprobe.ledger.tenants.policies.libcachesim_policy import PREFIX
from pinprobe.ledger.tenants.policies.policies import check_policy_name
from pinprobe.ledger.tenants.prefill_time import PrefillTime
from pinprobe.ledger.tenants.region import region_bytes
from pinprobe.ledger.tenants.savepoint_layout import SavepointLayout
from pinprobe.ledger.tenants.tenant import TenantSpec
from pinprobe.probes.errors import BadRequest


@dataclass(frozen=True)
class PoolShape:
    """At most `bound_regions` savepoints, each in a region; the smaller of a bound by count and one by bytes.

    `overflow_folder` and `overflow_bytes` are both None where nothing is written to disk; `prefill_time` is None where
    nobody said what prefill takes. `fixed_horizon_seconds` is for replays alone: a reuse horizon in the place of the
    one that is learned, to see what that is worth.
    """

    layout: SavepointLayout
    bound_regions: int
    min_regions: int
    policy: str
    is_sized_by_demand: bool
    chunk_tokens: int
    is_mapped_at_boot: bool
    is_shared: bool
    overflow_folder: Path | None
    overflow_bytes: int | None
    prefill_time: PrefillTime | None
    fixed_horizon_seconds: float | None = None

    @property
    def region_bytes(self) -> int:
        """What one region takes."""
        return region_bytes(self.layout.row_bytes)

    @classmethod
    def of(cls, spec: TenantSpec) -> PoolShape:
        """Read it from a tenant. Raises `BadRequest` where its fields make no pool."""
        layout, fields = spec.layout("layout"), spec.fields
        bound = bound_regions(spec)
        if bound < 1:
            raise BadRequest(
                f"{spec.where}: {spec.size('bytes'):,} B are less than one region,"
                f" {region_bytes(layout.row_bytes):,} B; give that or more, or leave `bytes` out"
            )
        if ("overflow_dir" in fields) != ("overflow_bytes" in fields):
            raise BadRequest(f"{spec.where}: give both overflow_dir and overflow_bytes, or neither: then none is kept")
        with told_of(spec):
            check_policy_name(str(fields["policy"]))
            if str(fields["policy"]).startswith(PREFIX):
                # Its library ends the process on some inputs, which a replay can bear and an engine can't.
                raise BadRequest(f"{fields['policy']} is there for replays to compare with; give a pool another policy")
            prefill_time = PrefillTime.parse(str(fields["prefill"])) if "prefill" in fields else None
        return cls(
            layout=layout,
            bound_regions=bound,
            min_regions=min(spec.size("min_regions"), bound),
            policy=str(fields["policy"]),
            is_sized_by_demand=bool(fields["sized_by_demand"]),
            chunk_tokens=spec.size("chunk_tokens"),
            is_mapped_at_boot=bool(fields["mapped_at_boot"]),
            is_shared=bool(fields["shared"]),
            overflow_folder=Path(str(fields["overflow_dir"])) if "overflow_dir" in fields else None,
            overflow_bytes=spec.size("overflow_bytes") if "overflow_bytes" in fields else None,
            prefill_time=prefill_time,
        )


def bound_regions(spec: TenantSpec) -> int:
    """Return how many regions both bounds of a tenant allow; 0 where its bytes are less than one."""
    regions = spec.size("regions")
    if "bytes" not in spec.fields:
        return regions
    return min(regions, spec.size("bytes") // region_bytes(spec.layout("layout").row_bytes))


@contextlib.contextmanager
def told_of(spec: TenantSpec) -> Iterator[None]:
    """Say of a bad request which tenant of the config made it."""
    try:
        yield
    except BadRequest as error:
        raise BadRequest(f"{spec.where}: {error}") from None
