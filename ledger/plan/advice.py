"""What other ways of pinning would take in the place of a config's own, and which of them is worth it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Effect:
    """One tenant under one way of pinning, in bytes of one copy, and what all copies save together.

    `known` says how `cost_bytes` is known: `measured`, `predicted` or `the ask`. `seconds` is what pinning one copy
    takes, measured or in proportion to the largest request that was measured; None where nothing was.
    """

    owner: str
    copies: int
    asked_bytes: int
    before_bytes: int
    before_known: str
    cost_bytes: int
    known: str
    seconds: float | None
    seconds_known: str

    @property
    def saved_bytes(self) -> int:
        """By how much less the host has to give; negative where it is more."""
        return self.copies * (self.before_bytes - self.cost_bytes)


@dataclass(frozen=True)
class Way:
    """One way of pinning that was tried: another allocator, or one key of torch's settings.

    `settings` are the environment variables to set, none for an allocator. `warning` says why it must not be used: a
    block smaller than its request; `reason` why it could not be tried, or changes nothing here; `caveat` why it is no
    match for the config's own way, whatever it saves. They are empty where all is well. `notes` are for its readers.
    """

    name: str
    kind: str
    settings: tuple[tuple[str, str], ...]
    effects: tuple[Effect, ...]
    notes: tuple[str, ...] = ()
    warning: str = ""
    reason: str = ""
    caveat: str = ""

    @property
    def saved_bytes(self) -> int:
        """What the host saves with all tenants that it applies to."""
        return sum(effect.saved_bytes for effect in self.effects)

    @property
    def cost_bytes(self) -> int:
        """What all copies of these tenants take."""
        return sum(effect.copies * effect.cost_bytes for effect in self.effects)

    @property
    def seconds(self) -> float | None:
        """What pinning one copy of each takes, one after the other."""
        each = [effect.seconds for effect in self.effects if effect.seconds is not None]
        return sum(each) if len(each) == len(self.effects) and each else None

    @property
    def known(self) -> str:
        """How the least known of its costs is known."""
        kinds = {effect.known for effect in self.effects}
        return next((kind for kind in ("the ask", "predicted", "measured") if kind in kinds), "")

    @property
    def is_usable(self) -> bool:
        """Whether it was tried and nothing speaks against it."""
        return bool(self.effects) and not self.warning and not self.reason


@dataclass(frozen=True)
class Advice:
    """The config as it is, and every other way that was tried: those that save most first, and unsafe ones last."""

    config: str
    engine: str
    scale: str
    as_it_is: Way
    ways: tuple[Way, ...]

    @property
    def recommended(self) -> Way | None:
        """The usable way without a caveat that saves most, if one saves anything and its costs are no mere asks.

        Where the config's own way is unsafe, the best of the others, whatever it takes.
        """
        fit = (way for way in self.ways if way.is_usable and not way.caveat and way.known != "the ask")
        return next((way for way in fit if way.saved_bytes > 0 or self.as_it_is.warning), None)

    @property
    def exit_code(self) -> int:
        """1 where the config's own way hands out blocks that are smaller than their requests; else 0."""
        return 1 if self.as_it_is.warning else 0


def ranked(ways: Iterable[Way]) -> tuple[Way, ...]:
    """Put ways in the order in which they are shown: usable ones by what they save, the quicker first; then the rest.

    What is unsafe comes after all that is usable, however much it would save, and then what could not be tried.
    """

    def place(way: Way) -> tuple[int, int, float, str]:
        group = 0 if way.is_usable else 1 if way.warning else 2
        return group, -way.saved_bytes, way.seconds if way.seconds is not None else float("inf"), way.name

    return tuple(sorted(ways, key=place))
