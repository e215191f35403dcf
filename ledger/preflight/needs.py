"""What the tenants of a config need of a host, and by which of its limits each of them is bound."""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from pathlib import PurePosixPath

from pinprobe.ledger.config.config import Config
from pinprobe.ledger.plan.plan_row import PlanRow, priced_row
from pinprobe.ledger.price import PriceList
from pinprobe.ledger.tenants.tenant import TenantSpec
from pinprobe.probes.host_tree import THIS_HOST
from pinprobe.probes.limits.shared_memory import PLACE as SHARED_MEMORY


class Locking(Enum):
    """Whether memory is locked by mlock, which RLIMIT_MEMLOCK binds."""

    NEVER = "never"
    #: Where it may; where it may not, the memory is touched only, and the engine goes on.
    WHERE_ALLOWED = "where allowed"
    ALWAYS = "always"


@dataclass(frozen=True, slots=True)
class Way:
    """How memory is taken: by a GPU's driver or not, locked or not, registered in one call, out of the huge page pool.

    `wants_huge_pages` is true where transparent huge pages make it faster.
    """

    by_driver: bool
    locking: Locking
    registers: bool = False
    from_pool: bool = False
    wants_huge_pages: bool = False


_WAYS = {
    "pageable": Way(False, Locking.NEVER),
    "mlock": Way(False, Locking.ALWAYS),
    "torch-host": Way(False, Locking.WHERE_ALLOWED),
    "torch": Way(True, Locking.NEVER),
    "cupy": Way(True, Locking.NEVER),
    "registered": Way(True, Locking.NEVER, registers=True, wants_huge_pages=True),
    "registered-memfd": Way(True, Locking.NEVER, registers=True),
    "registered-hugetlb": Way(True, Locking.NEVER, registers=True, from_pool=True),
}
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
# `auto`, and what others wrote: pinned by a driver where there is one, else it may be locked.
_UNKNOWN = Way(True, Locking.WHERE_ALLOWED)


@dataclass(frozen=True)
class TenantNeed:
    """One tenant: its price, how its memory is taken, and what its files in /dev/shm take beside it."""

    row: PlanRow
    way: Way
    shared_memory_bytes: int

    @property
    def of_one_copy_bytes(self) -> int:
        """What one copy takes at its worst moment."""
        return self.row.cost_bytes + self.row.transient_cost_bytes + self.row.short_bytes

    @property
    def largest_call_bytes(self) -> int:
        """The largest single request of one copy."""
        return max(self.row.cost_bytes, self.row.transient_cost_bytes)


@dataclass(frozen=True)
class Claim:
    """Some tenants, and what they come to."""

    tenants: tuple[TenantNeed, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Their names, in the config's order."""
        return tuple(tenant.row.owner for tenant in self.tenants)

    @property
    def of_one_rank_bytes(self) -> int:
        """What each rank takes of its own."""
        return sum(tenant.of_one_copy_bytes for tenant in self.tenants if tenant.row.per == "rank")

    @property
    def once_bytes(self) -> int:
        """What the host holds once."""
        return sum(tenant.row.host_bytes for tenant in self.tenants if tenant.row.per != "rank")

    @property
    def on_the_host_bytes(self) -> int:
        """What all ranks take together."""
        return sum(tenant.row.host_bytes for tenant in self.tenants)

    @property
    def in_memory_bytes(self) -> int:
        """The same with the files in /dev/shm, which are memory too."""
        return self.on_the_host_bytes + sum(tenant.shared_memory_bytes for tenant in self.tenants)

    @property
    def in_one_process_bytes(self) -> int:
        """What one rank takes that also holds all that the host has once: limits of a process are held against it."""
        return self.of_one_rank_bytes + self.once_bytes

    @property
    def largest_call_bytes(self) -> int:
        """The largest single request."""
        return max((tenant.largest_call_bytes for tenant in self.tenants), default=0)


@dataclass(frozen=True)
class Needs:
    """All that a config needs. Without a config there are no tenants, and `engine` is empty.

    `fit_command` is the command that finds out what would fit.
    """

    engine: str = ""
    ranks: int = 0
    tenants: tuple[TenantNeed, ...] = ()
    fit_command: str = ""

    @property
    def is_empty(self) -> bool:
        """Whether there is no config to hold the host against."""
        return not self.engine

    def claim(self, wanted: Callable[[TenantNeed], bool]) -> Claim:
        """Return those tenants for which `wanted` is true."""
        return Claim(tuple(tenant for tenant in self.tenants if wanted(tenant)))


def needs_of(config: Config, prices: PriceList, name: str, page_size_bytes: int = THIS_HOST.page_size_bytes) -> Needs:
    """Price every tenant of a config. `name` is what stands for it on a command line, options and all.

    Takes no memory and imports nothing that the config names. Raises `BadRequest` as `priced_row` does.
    """
    tenants = tuple(
        TenantNeed(
            priced_row(spec, config.copies(spec), prices, Fraction(1), page_size_bytes),
            _WAYS.get(spec.allocator, _UNKNOWN),
            _overflow_in_shared_memory_bytes(spec),
        )
        for spec in config.tenants
    )
    number = _number_to_fit(tenants, config.numbers)
    command = f"pinprobe plan {name}{f' --fit {number}' if number else ''}"
    return Needs(config.engine, config.ranks, tenants, command)


def _overflow_in_shared_memory_bytes(spec: TenantSpec) -> int:
    folder = spec.fields.get("overflow_dir")
    size = spec.fields.get("overflow_bytes")
    if not isinstance(folder, str) or not isinstance(size, int):
        return 0
    return size if PurePosixPath(folder).is_relative_to(SHARED_MEMORY) else 0


def _number_to_fit(tenants: Iterable[TenantNeed], numbers: Container[str]) -> str | None:
    """Name the number of the config that the size of the largest tenant is worked out from."""
    largest = max(tenants, key=lambda tenant: tenant.row.host_bytes, default=None)
    for formula in largest.row.formulas if largest is not None else ():
        names = [name for name in _NAME.findall(formula.text) if name in numbers]
        if formula.quantity.is_size and names:
            return str(names[0])
    return None
