"""A config, read and resolved: an engine's numbers, its tenants and its checks, as frozen values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from pinprobe.ledger.budget.budget_spec import BudgetSpec
from pinprobe.ledger.tenants.tenant import TenantSpec


@dataclass(frozen=True, slots=True)
class Check:
    """A named boolean expression over the config's numbers. `place` is `file:line:column`."""

    name: str
    expression: str
    place: str


@dataclass(frozen=True)
class Config:
    """One engine.

    `numbers` are resolved, sizes in bytes; `formulas` gives the text of those that were worked out from others. `sizes`
    names those that count bytes: written with an IEC suffix, or worked out from such, or with a name in `_bytes`.
    `document` is the file as plain values, for receipts and for comparing two of them: what was set for this run in its
    place, whole numbers and flags as such, everything else as the text that was written. `budget` says how shared
    memory is divided, if the file does; of its assumptions those are left out that were set for this run.
    """

    path: str
    engine: str
    ranks: int
    allocator: str
    numbers: Mapping[str, Fraction]
    formulas: Mapping[str, str]
    tenants: tuple[TenantSpec, ...]
    checks: tuple[Check, ...]
    document: Mapping[str, Any]
    sizes: frozenset[str] = frozenset()
    budget: BudgetSpec | None = None

    def copies(self, tenant: TenantSpec) -> int:
        """How often the host holds a tenant."""
        return self.ranks if tenant.per == "rank" else 1
