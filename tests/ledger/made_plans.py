"""Configs, maps and hosts for the tests of plans: written to files, or made over simulated allocators."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction
from pathlib import Path

from pinprobe.ledger.config.config import Config
from pinprobe.ledger.config.registry import load_config
from pinprobe.ledger.plan.plan import Plan, make_plan
from pinprobe.ledger.price import PriceList
from pinprobe.probes.allowance import Allowance
from pinprobe.probes.headroom import Headroom, HeadroomSource
from pinprobe.probes.reading import Amount, Reading
from pinprobe.probes.sweep import Sweep
from pinprobe.probes.walk import walk
from tests.probes.simulated import PAGE, Rule, SimulatedBench, exact, power_of_two

KIB, MIB, GIB = 2**10, 2**20, 2**30
SLOT = 154_927_104


def host_with(available: Amount | int) -> Headroom:
    """A host of which one source says what it leaves."""
    amount = Reading(available, "the test") if isinstance(available, int) else available
    return Headroom((HeadroomSource("the test", amount),))


def swept(rule: Rule, name: str, slots: Iterable[int] = range(1, 9), slot_bytes: int = 3_000_000) -> Sweep:
    """A map of a simulated allocator, as the walk makes it."""
    return walk(lambda: SimulatedBench(rule), name, slot_bytes, slots, Allowance(2**50, "the test"), PAGE)


def prices_of(**rules: Rule) -> PriceList:
    """Prices by simulated allocators, by their names with `_` for `-`."""
    prices = PriceList()
    for name, rule in rules.items():
        prices.add(swept(rule, name.replace("_", "-")))
    return prices


#: torch rounds to a power of two, and registered memory is exact.
PRICES = prices_of(torch=power_of_two, registered=exact)
UNKNOWN = PriceList()


def config_of(folder: Path, text: str, overrides: Mapping[str, str] | None = None) -> Config:
    """Read a config of this text."""
    path = folder / "mine.yaml"
    path.write_text(text, encoding="utf-8")
    return load_config(path, overrides)


def plan_of(
    config: Config, available: Amount | int = 2**60, prices: PriceList = PRICES, scale: Fraction = Fraction(1)
) -> Plan:
    """Plan for a host that leaves so much."""
    return make_plan(config, prices, host_with(available), scale=scale, page_size_bytes=PAGE)
