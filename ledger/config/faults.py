"""What the models found wrong with a config, in our own words and at the place where it stands."""

from __future__ import annotations

from typing import Any

from pinprobe.ledger.budget.budget_keys import known_keys
from pinprobe.ledger.config.draft import KeyPath
from pinprobe.ledger.config.keys import ENGINE, REMOVED, TENANT, TOP
from pinprobe.ledger.config.layout_draft import BadLayout
from pinprobe.ledger.config.marked import Place, Problems, Scalar, Section, near, quoted
from pinprobe.ledger.tenants.kinds import kind_names, load_kind


class Fault:
    """One error of pydantic's: its type, the path of keys it speaks of, and its context.

    `path` leads through the config, without what pydantic puts between.
    """

    def __init__(self, document: Section, error_type: str, location: KeyPath, context: dict[str, Any]) -> None:
        self._document = document
        self._type = error_type
        error = context.get("error")
        cause = error.args[0] if isinstance(error, ValueError) else ""
        self._reason = str(cause)
        self._in_layout = cause.faults if isinstance(cause, BadLayout) else None
        self._is_key = location[-1] == "[key]"
        if self._is_key:
            location = location[:-1]
        # Behind a tenant's name stands the kind by which it was judged.
        self._kind = location[2] if location[0] == "tenants" and len(location) > 2 else ""
        self.path = location[:2] + location[3:] if self._kind else location

    def tell(self, problems: Problems) -> None:
        """Note it, unless it says no more than what was noted when the file was read."""
        *above, last = self.path
        section, place = self._find(tuple(above))
        value = section.get(last)
        name = quoted(".".join(self.path))
        if self._in_layout is not None:
            for fault in self._in_layout:
                problems.add(fault.place, f"{quoted('.'.join(self.path) + fault.below)}{fault.words}")
        elif self._type == "missing":
            if last not in section.broken:
                where = quoted(".".join(above)) if above else "the config"
                problems.add(place, f"{where} lacks {quoted(last)}: {self._known()[last]}")
        elif self._type == "extra_forbidden":
            problems.add(section.key_places[last], f"{name} is not known; {near(last, self._known())}")
        elif self._is_key:
            problems.add(section.key_places[last], f"{name}: {self._reason}")
        elif isinstance(value, Section) and self._type != "value_error":
            self._tell_of_kind(value, section.key_places[last], name, problems)
        elif value is not None:
            reason = self._reason or "has keys of its own; write them indented below it, or in {}"
            problems.add(value.place, f"{name}: {reason}" if self._reason else f"{name} {reason}")

    def _tell_of_kind(self, tenant: Section, place: Place, name: str, problems: Problems) -> None:
        kind = tenant.get("kind")
        if isinstance(kind, Scalar):
            problems.add(kind.place, f"no kind of tenant is called {quoted(kind)}; {near(kind, kind_names())}")
        elif "kind" not in tenant.broken:
            problems.add(place, f"{name} lacks `kind`, a word; known are {', '.join(kind_names())}")

    def _find(self, path: KeyPath) -> tuple[Section, Place]:
        """Return the section at a path, and the place of its key."""
        section, place = self._document, self._document.place
        for key in path:
            found = section[key]
            assert isinstance(found, Section)
            section, place = found, section.key_places[key]
        return section, place

    def _known(self) -> dict[str, str]:
        """The keys that are known beside the one that this is about, with what each is for."""
        if self._kind:
            return {**{field.name: field.meaning for field in load_kind(self._kind).fields}, **TENANT}
        if self.path[0] == "budget" and len(self.path) > 1:
            return {**known_keys(self.path[1:])}
        return {"engine": ENGINE, "removed": REMOVED}[self.path[0]] if len(self.path) > 1 else TOP
