"""From a draft to a `Config`: the numbers worked out, whatever their order, and the tenants' fields with them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from graphlib import CycleError, TopologicalSorter
from typing import Any

from pinprobe.ledger.budget.budget import work_out
from pinprobe.ledger.budget.budget_check import BudgetCheck
from pinprobe.ledger.config.arithmetic import Formula, parse_number
from pinprobe.ledger.config.config import Check, Config
from pinprobe.ledger.config.draft import Draft, DraftNumber, DraftTenant
from pinprobe.ledger.config.expression_text import Quantity, shown
from pinprobe.ledger.config.layout_draft import DraftLayout
from pinprobe.ledger.config.layout_resolve import LayoutResolver
from pinprobe.ledger.config.marked import Node, Place, Problems, Scalar, Section, near, quoted
from pinprobe.ledger.config.quantity_text import write_quantity
from pinprobe.ledger.config.scalars import plain_value
from pinprobe.ledger.tenants.tenant import Field, FieldType, FieldValue, TenantSpec
from pinprobe.probes.errors import BadRequest, in_one_line
from pinprobe.probes.units import LARGEST_SIZE_BYTES

#: More processes of one engine than any host runs.
MOST_RANKS = 4096
#: So many unknown names of one expression are told: looking for near ones takes time, and a few show the matter.
_MOST_UNKNOWN = 3


def resolve(draft: Draft, document: Section, source: str, overrides: Mapping[str, str], problems: Problems) -> Config:
    """Work out a draft, or raise `BadConfig` with every problem, those that are known already included."""
    numbers = {**draft.numbers, **_overridden(draft, overrides, problems)}
    work = _Work(numbers, draft.removed, problems, draft.are_numbers_known)
    work.all_numbers()
    ranks = work.count(numbers["ranks"].formula, numbers["ranks"].place, _label("ranks"), MOST_RANKS)
    for check in draft.checks:
        work.tell_unknown(check.condition.names, check.place, f"`checks.{check.name}`")
    layouts = LayoutResolver(work.count, problems)
    tenants = [_tenant(tenant, draft.allocator, work, layouts) for tenant in draft.tenants]
    if draft.budget is not None:
        BudgetCheck(work.quantity, work.count, work.tell_unknown, numbers, problems).tell(draft.budget)
    problems.raise_any()
    assert ranks is not None
    if draft.budget is not None:
        work_out(draft.budget, work.known)  # what is charged shows only then: it stands on what each consumer got
    formulas = {name: number.formula for name, number in numbers.items() if number.formula is not None}
    return Config(
        path=source,
        engine=draft.engine,
        ranks=ranks,
        allocator=draft.allocator,
        numbers={name: quantity.value for name, quantity in work.known.items() if name != "ranks"},
        formulas={name: formula.text for name, formula in formulas.items() if not formula.is_literal},
        tenants=tuple(tenants),
        checks=tuple(Check(check.name, check.text, str(check.place)) for check in draft.checks),
        document=_with_overrides(_plain(document), overrides),
        sizes=frozenset(name for name, quantity in work.known.items() if quantity.is_size),
        budget=None if draft.budget is None else draft.budget.without_assumptions(overrides),
    )


def _overridden(draft: Draft, overrides: Mapping[str, str], problems: Problems) -> dict[str, DraftNumber]:
    numbers = {}
    for name, text in overrides.items():
        place = Place(0, 0, f"--set {shown(name)[1:-1]}")
        if name in draft.removed:
            problems.add(place, draft.removed[name])
        elif name not in draft.numbers:
            problems.add(place, f"the config has no number {quoted(name)}; {near(name, draft.numbers)}")
        else:
            try:
                numbers[name] = DraftNumber(parse_number(text), place)
            except BadRequest as error:
                problems.add(place, str(error))
                numbers[name] = DraftNumber(None, place)
    return numbers


@dataclass
class _Work:
    """The numbers, those that are worked out so far, and where to tell what is wrong."""

    numbers: Mapping[str, DraftNumber]
    removed: Mapping[str, str]
    problems: Problems
    are_all_known: bool
    known: dict[str, Quantity] = field(default_factory=dict)

    def all_numbers(self) -> None:
        """Work out every number that can be; what stands on one that can't be is passed over silently."""
        for name in self._in_order():
            number = self.numbers[name]
            quantity = self.quantity(number.formula, number.place, _label(name))
            if quantity is not None:
                # A count of bytes that is written as a plain number is told by its name.
                is_size = quantity.is_size or name.endswith("_bytes")
                self.known[name] = replace(quantity, is_size=is_size)

    def _in_order(self) -> list[str]:
        graph = {name: self._needs(number.formula) for name, number in self.numbers.items()}
        while True:
            try:
                return list(TopologicalSorter(graph).static_order())
            except CycleError as error:
                cycle: list[str] = error.args[1][:0:-1]
                first = cycle.index(min(cycle, key=lambda name: self.numbers[name].place))
                cycle = [*cycle[first:], *cycle[: first + 1]]
                place = self.numbers[cycle[0]].place
                way = " needs ".join(cycle if len(cycle) < 10 else [*cycle[:5], "...", *cycle[-4:]])
                self.problems.add(place, f"these numbers stand on each other: {way}; give one of them a value")
                # What needs them stays in the order, and finds them missing.
                graph = {
                    name: [need for need in needs if need not in cycle]
                    for name, needs in graph.items()
                    if name not in cycle
                }

    def _needs(self, formula: Formula | None) -> list[str]:
        return [name for name in formula.names if name in self.numbers] if formula is not None else []

    def quantity(self, formula: Formula | None, place: Place, what: str) -> Quantity | None:
        """Work out a formula. Where that can't be, tell why and return None."""
        if formula is None or self.tell_unknown(formula.names, place, what):
            return None
        if not all(name in self.known for name in formula.names):
            return None
        try:
            return formula.quantity(self.known)
        except BadRequest as error:
            self.problems.add(place, f"{what}: {error}")
            return None

    def tell_unknown(self, names: Iterable[str], place: Place, what: str) -> bool:
        """Tell the names that the config does not have; return whether there is one."""
        unknown = [name for name in names if name not in self.numbers]
        for name in unknown[:_MOST_UNKNOWN] if self.are_all_known else ():
            if name in self.removed:
                self.problems.add(place, f"{what}: {self.removed[name]}")
            else:
                self.problems.add(place, f"{what}: no number is called {quoted(name)}; {near(name, self.numbers)}")
        return bool(unknown)

    def count(self, formula: Formula | None, place: Place, what: str, most: int = LARGEST_SIZE_BYTES) -> int | None:
        """Work out a whole number of 1 or more."""
        quantity = self.quantity(formula, place, what)
        if formula is None or quantity is None:
            return None
        if quantity.is_size:
            self.problems.add(place, f"{what}: {_comes_to(formula, quantity)}, a size, where a count is wanted")
        elif quantity.value.denominator != 1 or quantity.value < 1:
            self.problems.add(place, f"{what}: {_comes_to(formula, quantity)}; a count is whole, and 1 or more")
        elif quantity.value > most:
            self.problems.add(place, f"{what}: {_comes_to(formula, quantity)}; {most:,} is the most")
        else:
            return int(quantity.value)
        return None

    def size(self, formula: Formula, place: Place, what: str) -> int | None:
        """Work out a size, a part of a byte counted whole: an engine prints 44.47 GiB and means no fewer."""
        quantity = self.quantity(formula, place, what)
        if quantity is None:
            return None
        if quantity.value <= 0:
            self.problems.add(place, f"{what}: {_comes_to(formula, quantity)}; a size is more than 0")
        elif quantity.value > LARGEST_SIZE_BYTES:
            reason = "more than any address space holds (2**56 bytes)"
            self.problems.add(place, f"{what}: {_comes_to(formula, quantity)}, {reason}")
        else:
            return math.ceil(quantity.value)
        return None


def _label(name: str) -> str:
    return quoted("engine.ranks" if name == "ranks" else f"numbers.{name}")


def _comes_to(formula: Formula, quantity: Quantity) -> str:
    return shown(formula.text) if formula.is_literal else f"{shown(formula.text)} is {write_quantity(quantity)}"


def _tenant(tenant: DraftTenant, allocator: str, work: _Work, layouts: LayoutResolver) -> TenantSpec:
    fields: dict[str, FieldValue] = {}
    formulas = {}
    for described in tenant.kind.fields:
        value = tenant.fields.get(described.name)
        found: FieldValue | None
        if isinstance(value, Formula):
            found = _field(described, value, tenant, work)
            if not value.is_literal:
                formulas[described.name] = value.text
        elif isinstance(value, DraftLayout):
            found = layouts.resolve(value, f"tenants.{tenant.name}.{described.name}")
        else:
            found = value
        if found is not None:
            fields[described.name] = found
    sizes = {}
    for name, formula in tenant.sizes.items():
        size = work.size(formula, tenant.places[name], quoted(f"tenants.{tenant.name}.{name}"))
        if size is not None:
            sizes[name] = size
        if not formula.is_literal:
            formulas[name] = formula.text
    spec = TenantSpec(
        tenant.name,
        tenant.kind_name,
        tenant.per,
        tenant.allocator or tenant.kind.only_allocator or allocator,
        tenant.detail,
        fields,
        formulas,
        str(tenant.place),
        transient_bytes=sizes.get("transient", 0),
        printed_bytes=sizes.get("printed"),
    )
    if tenant.is_whole and len(fields) == len(tenant.fields):
        _tell_too_large(tenant, spec, work.problems)
    return spec


def _field(described: Field, formula: Formula, tenant: DraftTenant, work: _Work) -> int | None:
    place = tenant.places[described.name]
    what = quoted(f"tenants.{tenant.name}.{described.name}")
    return (work.size if described.type is FieldType.SIZE else work.count)(formula, place, what)


def _tell_too_large(tenant: DraftTenant, spec: TenantSpec, problems: Problems) -> None:
    what = quoted(f"tenants.{tenant.name}")
    try:
        asked = int(tenant.kind.asked_bytes(spec))
    except Exception as error:  # noqa: BLE001  # a kind of others may raise whatever it likes; it is told
        problems.add(tenant.place, f"{what}: its kind {tenant.kind_name} can't price it: {in_one_line(error)}")
        return
    if asked > LARGEST_SIZE_BYTES:
        problems.add(tenant.place, f"{what} asks for {asked:,} B, more than any address space holds (2**56 bytes)")


def _plain(section: Section) -> dict[str, Any]:
    return {key: _plain_node(value) for key, value in section.items()}


def _plain_node(node: Node) -> Any:
    if isinstance(node, Scalar):
        return plain_value(node)
    return _plain(node) if isinstance(node, Section) else [_plain_node(value) for value in node]


def _with_overrides(document: dict[str, Any], overrides: Mapping[str, str]) -> dict[str, Any]:
    place = Place(0, 0, "--set")
    for name, text in overrides.items():
        section = document["engine"] if name == "ranks" else document["numbers"]
        section[name] = plain_value(Scalar(text.strip(), place))
    return document
