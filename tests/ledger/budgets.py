"""Budgets for the tests, and the resolver that they are held against: written out as it was published."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path

from pinprobe.ledger.budget.budget import Budget
from pinprobe.ledger.budget.budget_model import BudgetModel
from pinprobe.ledger.config.registry import load_config
from pinprobe.ledger.config.shipped import find_config

MIB, GIB = 2**20, 2**30

#: The elastic resolver with every quantity a number of its own, in bytes, so that a test can move each.
RESOLVER = """\
engine: {name: resolver, ranks: 2}
numbers:
  elastic: 100 B
  plane: 80 B
  spare: 0 B
  largest_unit: 0 B
  host_room: 60 B
  kv_cap: 40 B
  one_sequence: 10 B
  roof: 80 B
tenants:
  experts.host_pool: {kind: buffer, bytes: host_room + 1}
budget:
  of: the cards
  capacity: elastic
  consumers:
    experts:
      floor: plane + spare
      elsewhere: {at: the host, bytes: host_room - 2 * largest_unit}
      ceiling: roof
      grows: 2
    kv: {floor: one_sequence, cap: kv_cap, grows: 1}
  levers: {host_room: 1, kv_cap: 1}
"""

#: Everything that the section can say.
WHOLE = """\
engine: {name: whole, ranks: 2}
numbers: {card: 24 GiB, weights: 6 GiB, pool: 4 GiB, slots: 2, slot_bytes: 1 GiB, guess: 1.5 GiB}
tenants:
  a.pool: {kind: buffer, bytes: pool}
  a.store: {kind: buffer, per: host, count: slots, bytes: 64 MiB}
  a.log: {kind: buffer, allocator: pageable, count: slots, bytes: 1 MiB}
budget:
  of: the cards
  capacity: card
  claims: {held: 512 MiB, drift: guess}
  floors: {weights: weights}
  consumers:
    experts:
      floor: 10 GiB
      elsewhere: {at: the host, bytes: pool}
      ceiling: 11 GiB
      grows: 2
    kv:
      floor: slot_bytes
      cap: slots * slot_bytes
      grows: 1
      fixed: {state: slots * 100 MiB}
      lends: {to: experts, charges: {ring: (10 GiB - experts) / 10 + 64 MiB}}
      units: {tokens: 1 MiB}
    scratch: {floor: 256 MiB}
  levers: {pool: 1 GiB, slots: 1}
  assumptions: {guess: nobody measured it}
"""


def model_of(text: str, folder: Path, overrides: Mapping[str, str] | None = None) -> BudgetModel:
    """Read a config of this text."""
    path = folder / "c.yaml"
    path.write_text(text, encoding="utf-8")
    return BudgetModel(load_config(path, overrides))


def shipped_budget(name: str, **overrides: str) -> Budget:
    return BudgetModel(load_config(find_config(name), overrides)).budget


def published(e: int, p: int, s: int, u: int, h: int, c: int, one: int, ceiling: int) -> tuple[int, int] | None:
    """What experts and cache get by the published resolver, or None where it can't serve both.

    F = min(P + s, P + s + 2u - H), at most E; the cache gets the smaller of C and max(E - F, one sequence's worth);
    then the experts grow to the smaller of max(ceiling, F) and E - cache. No experts are fewer than none.
    """
    floor = max(0, min(p + s, p + s + 2 * u - h))
    cache = min(c, max(e - min(floor, e), one))
    if floor + min(c, one) > e:
        return None
    return min(max(ceiling, floor), e - cache), cache


def fraction(**values: int) -> dict[str, Fraction]:
    """Values of numbers, as a model takes them."""
    return {name: Fraction(value) for name, value in values.items()}
