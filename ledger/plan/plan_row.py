"""`PlanRow`: what one tenant of a config would take, priced before a byte is taken."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

from pinprobe.ledger.config.expression_text import Quantity
from pinprobe.ledger.price import PriceList
from pinprobe.ledger.tenants.kinds import load_kind
from pinprobe.ledger.tenants.pool_shape import bound_regions
from pinprobe.ledger.tenants.region import region_bytes
from pinprobe.ledger.tenants.tenant import FieldType, TenantKind, TenantSpec
from pinprobe.probes.allocators.registered import RegisteredHugetlb
from pinprobe.probes.errors import BadRequest, PinprobeError, in_one_line

#: How a cost is known where nothing was measured: it is what is asked, and an allocator may take more.
THE_ASK = "the ask"
_GROWING = "retention_pool"


@dataclass(frozen=True, slots=True)
class WorkedOut:
    """A formula of the config under the name that it belongs to, and what it comes to."""

    name: str
    text: str
    quantity: Quantity


@dataclass(frozen=True)
class PlanRow:
    """One tenant. Every figure is of one copy, and the host holds `copies` of it, one for each rank or one in all.

    `cost_bytes` is what its request takes and `known` says how that is known: `measured`, `predicted` or `the ask`. Of
    one that grows while it serves (`is_bound`) both are of its bound, whether that is mapped at boot or not.
    `allocator` is who prices it: of memory that the engine's own function takes, that function. `from_pool` says that
    its pages come from the kernel's huge page pool. `transient_cost_bytes` is what its transient request takes beside
    what stays. `printed_bytes` is the engine's own figure where the config has it, and `short_bytes` by how much the
    cost of that is more than `cost_bytes`. `formulas` are those of its keys, before anything was scaled.
    """

    owner: str
    kind: str
    per: str
    copies: int
    allocator: str
    pageable: bool
    from_pool: bool
    is_bound: bool
    asked_bytes: int
    cost_bytes: int
    known: str
    transient_bytes: int
    transient_cost_bytes: int
    printed_bytes: int | None
    short_bytes: int
    detail: str
    formulas: tuple[WorkedOut, ...]

    @property
    def has_no_map(self) -> bool:
        """Whether a measured map could say more of it than what it asks."""
        return self.known == THE_ASK and not self.pageable and self.kind != "external"

    @property
    def host_bytes(self) -> int:
        """All that the host has to give for it at its worst moment: every copy, its transient, what is short."""
        return self.copies * (self.cost_bytes + self.transient_cost_bytes + self.short_bytes)


def priced_row(spec: TenantSpec, copies: int, prices: PriceList, scale: Fraction, page_size_bytes: int) -> PlanRow:
    """Price one tenant. No memory is taken, and no function of the engine's is imported.

    Raises `BadRequest` where its kind could not open what the config says.
    """
    kind = load_kind(spec.kind)
    asked, is_bound = _asked(kind, spec, scale)
    allocator = str(spec.fields["callable"]) if spec.kind == "external" else spec.allocator
    pageable = spec.allocator == "pageable"

    def cost(size_bytes: int) -> tuple[int, str]:
        if pageable:  # the kernel gives ordinary memory by the page, and nobody rounds it further
            return -(-size_bytes // page_size_bytes) * page_size_bytes, THE_ASK
        price = prices.price(allocator, size_bytes)
        return price.bytes, price.known

    cost_bytes, known = cost(asked)
    transient = -(-spec.transient_bytes * scale.numerator // scale.denominator)
    # The engine printed it of the whole, so there is nothing to compare with a part.
    printed = spec.printed_bytes if scale == 1 else None
    return PlanRow(
        owner=spec.name,
        kind=spec.kind,
        per=spec.per,
        copies=copies,
        allocator=allocator,
        pageable=pageable,
        from_pool=allocator == RegisteredHugetlb.name,
        is_bound=is_bound,
        asked_bytes=asked,
        cost_bytes=cost_bytes,
        known=known,
        transient_bytes=transient,
        transient_cost_bytes=cost(transient)[0] if transient else 0,
        printed_bytes=printed,
        short_bytes=0 if printed is None else max(0, cost(printed)[0] - cost_bytes),
        detail=spec.detail,
        formulas=tuple(_formulas(kind, spec)),
    )


def _asked(kind: TenantKind, spec: TenantSpec, scale: Fraction) -> tuple[int, bool]:
    try:
        # Also at a scale of 1: there a kind refuses what it could not open.
        scaled = kind.scaled(spec, scale)
        if spec.kind == _GROWING:
            return bound_regions(scaled) * region_bytes(scaled.layout("layout").row_bytes), True
        return int(kind.asked_bytes(scaled)), False
    except PinprobeError:
        raise
    except Exception as error:
        raise BadRequest(f"{spec.where}: its kind {spec.kind} can't price it: {in_one_line(error)}") from error


def _formulas(kind: TenantKind, spec: TenantSpec) -> Iterable[WorkedOut]:
    types = {field.name: field.type for field in kind.fields}
    sizes = {"transient": spec.transient_bytes, "printed": spec.printed_bytes}
    for name, text in spec.formulas.items():
        value = spec.fields.get(name, sizes.get(name))
        if isinstance(value, int):
            is_size = name in sizes or types.get(name) is FieldType.SIZE
            yield WorkedOut(name, text, Quantity(Fraction(value), is_size))
