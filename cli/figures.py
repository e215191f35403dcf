"""How a figure is written: the same everywhere, and an unknown never as a number."""

from __future__ import annotations

from pinprobe.probes.reading import Amount, Reading, Unreadable
from pinprobe.probes.units import Unit


def amount(value: Amount, unit: Unit, unknown: str = "?") -> str:
    """Write an amount in a column's unit."""
    return unit.of(value.bytes) if isinstance(value, Reading) else unknown


def raw(value: Amount) -> str:
    """Write an amount in bytes; an unknown is an empty cell."""
    return str(value.bytes) if isinstance(value, Reading) else ""


def ratio(value: float | Unreadable, unknown: str = "?") -> str:
    """Write a ratio with the three decimals that tell 1.000 from nearly so."""
    return unknown if isinstance(value, Unreadable) else f"{value:.3f}"
