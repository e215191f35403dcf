"""`Arm`: one way to keep savepoints, as a config has it: a ring, and a pool where there is one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from pinprobe.ledger.config.config import Config
from pinprobe.ledger.tenants.pool_shape import PoolShape
from pinprobe.ledger.tenants.savepoint_layout import SavepointLayout
from pinprobe.ledger.tenants.savepoint_ring_kind import wanted_slots
from pinprobe.ledger.tenants.tenant import TenantSpec
from pinprobe.probes.errors import BadRequest, printable
from pinprobe.probes.units import format_bytes


@dataclass(frozen=True)
class Arm:
    """A ring of `ring_slots`, which keeps what it staged as long as no lap passes, and a pool that keeps the rest.

    Where there is a pool the ring is for staging alone, and nothing is read from it.
    """

    name: str
    allocator: str
    ring_slots: int
    ring_layout: SavepointLayout
    pool: PoolShape | None

    @property
    def ring_bytes(self) -> int:
        """What the ring asks for, pinned."""
        return self.ring_slots * self.ring_layout.row_bytes

    @property
    def chunk_tokens(self) -> int:
        """Savepoints that cover less are not kept; a ring alone takes all."""
        return self.pool.chunk_tokens if self.pool else 1

    def described(self) -> Mapping[str, str]:
        """Return what arms may differ in, by name."""
        pool = self.pool
        told = {"ring": f"{self.ring_slots} slots", "allocator": self.allocator, "pool": "none"}
        if pool is not None:
            told |= {
                "pool": f"{pool.bound_regions} regions",
                "sized by demand": f"from {pool.min_regions}" if pool.is_sized_by_demand else "no",
                "policy": pool.policy,
                "chunk": f"{pool.chunk_tokens:,} tokens",
                "overflow": "off" if pool.overflow_bytes is None else format_bytes(pool.overflow_bytes),
            }
        return told

    def with_pool(self, **changes: object) -> Arm:
        """Return it with some of its pool's fields changed. It has to have one."""
        assert self.pool is not None
        return replace(self, pool=replace(self.pool, **changes))  # type: ignore[arg-type]


def arm_of(config: Config) -> Arm:
    """Read an arm from a config. Raises `BadRequest` where it has not one ring and at most one pool."""
    rings = [tenant for tenant in config.tenants if tenant.kind == "savepoint_ring"]
    pools = [tenant for tenant in config.tenants if tenant.kind == "retention_pool"]
    if len(rings) != 1 or len(pools) > 1:
        raise BadRequest(
            f"{printable(config.path)}: an arm has one savepoint_ring and at most one retention_pool; there are"
            f" {len(rings)} and {len(pools)}"
        )
    return Arm(config.engine, rings[0].allocator, _slots(rings[0]), rings[0].layout("layout"), _pool(pools))


def _slots(ring: TenantSpec) -> int:
    slots = wanted_slots(ring)
    if slots < 1:
        raise BadRequest(f"{ring.where}: a ring of {slots} slots stages nothing")
    return slots


def _pool(pools: list[TenantSpec]) -> PoolShape | None:
    return PoolShape.of(pools[0]) if pools else None


def differences(arms: list[Arm]) -> dict[str, tuple[str, ...]]:
    """Return what is not the same in all arms: by name, what each of them has, in their order."""
    told = [arm.described() for arm in arms]
    names = dict.fromkeys(name for each in told for name in each)
    values = {name: tuple(each.get(name, "none") for each in told) for name in names}
    return {name: each for name, each in values.items() if len(set(each)) > 1}
