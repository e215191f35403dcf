"""`Plan`: what a config would take of a host, tenant by tenant, and whether that fits. Nothing is allocated for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction

from pinprobe.ledger.admission import Bound, headroom_bound
from pinprobe.ledger.config.checks import run_checks
from pinprobe.ledger.config.config import Config
from pinprobe.ledger.config.expression_text import Quantity
from pinprobe.ledger.plan.plan_row import PlanRow, WorkedOut, priced_row
from pinprobe.ledger.price import PriceList
from pinprobe.probes.headroom import Headroom
from pinprobe.probes.host_tree import THIS_HOST
from pinprobe.probes.reading import Unreadable

#: So many tenants are looked at for a size that fits: a search each, and the largest ones are what matters.
_MOST_SMALLER = 8


@dataclass(frozen=True, slots=True)
class Sums:
    """What some rows come to, in bytes, what is pinned and what is pageable apart.

    `transient_bytes` is what all of it takes for a while beside what stays, counted as if it were at the same moment;
    `short_bytes` by how much the engine's own figures are above what is planned.
    """

    asked_pinned_bytes: int
    pinned_bytes: int
    asked_pageable_bytes: int
    pageable_bytes: int
    transient_bytes: int
    short_bytes: int


@dataclass(frozen=True, slots=True)
class Smaller:
    """A tenant that alone could be made smaller, all else as it is, and the largest ask of one copy that then fits."""

    owner: str
    per: str
    asked_bytes: int
    largest_bytes: int


@dataclass(frozen=True)
class Plan:
    """A config, priced for one host.

    `overrides` is what was set for this plan, and `scale` the share of all counts that is planned. `room` is what the
    host can still give, less what is kept free; `pool_room` the same of the huge page pool where a tenant takes from
    it, else None. `failing_checks` names the checks of the config that do not hold, and `page_size_bytes` is what
    ordinary memory is given in.
    """

    engine: str
    ranks: int
    allocator: str
    overrides: Mapping[str, str]
    scale: Fraction
    rows: tuple[PlanRow, ...]
    formulas: tuple[WorkedOut, ...]
    room: Bound | Unreadable
    pool_room: Bound | Unreadable | None
    failing_checks: tuple[str, ...]
    page_size_bytes: int

    @property
    def of_one_rank(self) -> Sums:
        """What each rank holds of its own."""
        return _sums((row, 1) for row in self.rows if row.per == "rank")

    @property
    def of_the_host(self) -> Sums:
        """What the host holds: every rank's copies, and what it holds once."""
        return _sums((row, row.copies) for row in self.rows)

    @property
    def needed_bytes(self) -> int:
        """The peak that the host has to give, without what comes from the huge page pool."""
        return sum(row.host_bytes for row in self.rows if not row.from_pool)

    @property
    def pool_needed_bytes(self) -> int:
        """The peak that the huge page pool has to give."""
        return sum(row.host_bytes for row in self.rows if row.from_pool)

    @property
    def is_predicted(self) -> bool:
        """Whether any pinned cost is known other than by measurement."""
        return any(row.known != "measured" for row in self.rows if not row.pageable)

    @property
    def fits(self) -> bool | Unreadable:
        """Whether the host, and the pool where one is used, can give it; unknown where it can't be read."""
        answer = _fits(self.needed_bytes, self.room)
        if self.pool_room is None or answer is False:
            return answer
        of_pool = _fits(self.pool_needed_bytes, self.pool_room)
        return of_pool if isinstance(answer, bool) or of_pool is False else answer

    @property
    def exit_code(self) -> int:
        """0 where it fits, 1 where it does not, 3 where nobody can say."""
        return 3 if isinstance(self.fits, Unreadable) else 0 if self.fits else 1


def make_plan(
    config: Config,
    prices: PriceList,
    headroom: Headroom,
    *,
    overrides: Mapping[str, str] | None = None,
    scale: Fraction = Fraction(1),
    keep_free_bytes: int = 0,
    page_size_bytes: int = THIS_HOST.page_size_bytes,
) -> Plan:
    """Price every tenant of a config. Takes no memory and imports nothing that the config names.

    Raises `BadRequest` where a kind of tenant could not open what the config says of it.
    """
    rows = tuple(priced_row(tenant, config.copies(tenant), prices, scale, page_size_bytes) for tenant in config.tenants)
    takes_from_pool = any(row.from_pool for row in rows)
    return Plan(
        engine=config.engine,
        ranks=config.ranks,
        allocator=config.allocator,
        overrides=overrides or {},
        scale=scale,
        rows=rows,
        formulas=tuple(
            WorkedOut(name, text, Quantity(config.numbers[name], name in config.sizes))
            for name, text in config.formulas.items()
            if name in config.numbers
        ),
        room=headroom_bound(headroom, keep_free_bytes, 0, 0.0, from_pool=False),
        pool_room=headroom_bound(headroom, 0, 0, 0.0, from_pool=True) if takes_from_pool else None,
        failing_checks=tuple(result.name for result in run_checks(config) if not result.holds),
        page_size_bytes=page_size_bytes,
    )


def smaller_tenants(plan: Plan, prices: PriceList) -> tuple[Smaller, ...]:
    """Say of a plan that does not fit which tenants could each be made smaller so that it does; the largest first."""
    found = []
    for row in sorted(plan.rows, key=lambda row: -row.host_bytes)[:_MOST_SMALLER]:
        room = plan.pool_room if row.from_pool else plan.room
        if not isinstance(room, Bound):
            continue
        needed = plan.pool_needed_bytes if row.from_pool else plan.needed_bytes
        left = (room.room_bytes - (needed - row.copies * row.cost_bytes)) // row.copies
        whole_pages = left // plan.page_size_bytes * plan.page_size_bytes
        largest = whole_pages if row.pageable else prices.largest_request(row.allocator, max(0, left))
        if 0 < largest < row.asked_bytes:
            found.append(Smaller(row.owner, row.per, row.asked_bytes, largest))
    return tuple(found)


def _fits(needed_bytes: int, room: Bound | Unreadable) -> bool | Unreadable:
    return needed_bytes <= room.room_bytes if isinstance(room, Bound) else room


def _sums(rows: Iterable[tuple[PlanRow, int]]) -> Sums:
    counted = list(rows)
    pinned = [(row, copies) for row, copies in counted if not row.pageable]
    pageable = [(row, copies) for row, copies in counted if row.pageable]
    return Sums(
        asked_pinned_bytes=sum(copies * row.asked_bytes for row, copies in pinned),
        pinned_bytes=sum(copies * row.cost_bytes for row, copies in pinned),
        asked_pageable_bytes=sum(copies * row.asked_bytes for row, copies in pageable),
        pageable_bytes=sum(copies * row.cost_bytes for row, copies in pageable),
        transient_bytes=sum(copies * row.transient_cost_bytes for row, copies in counted),
        short_bytes=sum(copies * row.short_bytes for row, copies in counted),
    )
