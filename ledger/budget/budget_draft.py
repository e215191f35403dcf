"""From the `budget` section of a config to a `BudgetSpec`: what is sound of it, for what is wrong is told already."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pinprobe.ledger.budget.budget_spec import BudgetSpec, ConsumerSpec, Elsewhere, Lending, Term
from pinprobe.ledger.config.arithmetic import parse_number
from pinprobe.ledger.config.marked import Place, Section
from pinprobe.ledger.config.scalars import read_number, read_text

#: Returns the section at a path without what is faulty in it; an empty one where there is none.
SoundSection = Callable[..., Section]


def read_budget(sound: SoundSection, place: Place) -> BudgetSpec:
    """Read the section. What has to be there and is not has a stand-in, since it was told and nobody will see it."""
    section = sound("budget")
    return BudgetSpec(
        of=read_text(section["of"]) if "of" in section else "the device",
        capacity=_term(section, "capacity", ("budget",)) or Term(parse_number("1"), "budget.capacity", place),
        claims=_terms(sound, "budget", "claims"),
        floors=_terms(sound, "budget", "floors"),
        consumers=tuple(
            _consumer(sound, name, consumer_place)
            for name, consumer_place in sound("budget", "consumers").sound_key_places.items()
        ),
        levers=_terms(sound, "budget", "levers"),
        assumptions={name: read_text(why) for name, why in sound("budget", "assumptions").items()},
        place=place,
    )


def _consumer(sound: SoundSection, name: str, place: Place) -> ConsumerSpec:
    path = ("budget", "consumers", name)
    section = sound(*path)
    return ConsumerSpec(
        name=name,
        floor=_term(section, "floor", path),
        elsewhere=_elsewhere(sound, path),
        cap=_term(section, "cap", path),
        ceiling=_term(section, "ceiling", path),
        grows=_term(section, "grows", path),
        fixed=_terms(sound, *path, "fixed"),
        lends=_lending(sound, path),
        units=_terms(sound, *path, "units"),
        place=place,
    )


def _elsewhere(sound: SoundSection, path: tuple[str, ...]) -> Elsewhere | None:
    section = sound(*path, "elsewhere")
    held = _term(section, "bytes", (*path, "elsewhere"))
    return None if held is None else Elsewhere(read_text(section["at"]) if "at" in section else "elsewhere", held)


def _lending(sound: SoundSection, path: tuple[str, ...]) -> Lending | None:
    section = sound(*path, "lends")
    return Lending(read_text(section["to"]), _terms(sound, *path, "lends", "charges")) if "to" in section else None


def _terms(sound: SoundSection, *path: str) -> Mapping[str, Term]:
    section = sound(*path)
    terms = {name: _term(section, name, path) for name in section}
    return {name: term for name, term in terms.items() if term is not None}


def _term(section: Section, name: str, path: tuple[str, ...]) -> Term | None:
    if name not in section:
        return None
    value = section[name]
    return Term(read_number(value), ".".join((*path, name)), value.place)
