"""How a config divides memory that several consumers share: formulas, read and checked, and nothing worked out."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace

from pinprobe.ledger.config.arithmetic import Formula
from pinprobe.ledger.config.marked import Place


@dataclass(frozen=True)
class Term:
    """One quantity of the section: its formula, the dotted key it stands at, and its place in the file."""

    formula: Formula
    key: str
    place: Place

    @property
    def text(self) -> str:
        """It as it was written."""
        return self.formula.text


@dataclass(frozen=True)
class Elsewhere:
    """What another place holds of a consumer, so that its floor here falls by as much."""

    at: str
    held: Term


@dataclass(frozen=True)
class Lending:
    """Who uses a consumer's memory while it is empty, and what is charged to it as long as that is so."""

    to: str
    charges: Mapping[str, Term]


@dataclass(frozen=True)
class ConsumerSpec:
    """One consumer of the elastic rest. None stands for what it does not have: no floor, no cap, no turn to grow."""

    name: str
    floor: Term | None
    elsewhere: Elsewhere | None
    cap: Term | None
    ceiling: Term | None
    grows: Term | None
    fixed: Mapping[str, Term]
    lends: Lending | None
    units: Mapping[str, Term]
    place: Place


@dataclass(frozen=True)
class BudgetSpec:
    """The whole section. `levers` gives the step of each lever, `assumptions` the reason of each, both by number."""

    of: str
    capacity: Term
    claims: Mapping[str, Term]
    floors: Mapping[str, Term]
    consumers: tuple[ConsumerSpec, ...]
    levers: Mapping[str, Term]
    assumptions: Mapping[str, str]
    place: Place

    def without_assumptions(self, names: Collection[str]) -> BudgetSpec:
        """Return it without the assumptions on these numbers: what was set for a run is no assumption of the file's."""
        return replace(self, assumptions={name: why for name, why in self.assumptions.items() if name not in names})

    def all_charges(self) -> Iterator[Term]:
        """Every charge; they alone may name consumers."""
        for consumer in self.consumers:
            if consumer.lends is not None:
                yield from consumer.lends.charges.values()
