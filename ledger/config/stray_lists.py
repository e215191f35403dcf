"""Lists stand in the layouts of tenants, and nowhere else in a config: all others are told and left out."""

from __future__ import annotations

from collections.abc import Collection

from pinprobe.ledger.config.marked import Listing, Problems, Section
from pinprobe.ledger.tenants.kinds import kind_names, load_kind
from pinprobe.ledger.tenants.tenant import FieldType

STRAY_LIST = "a list can't stand here; only the layout of a tenant has lists"


def without_stray_lists(document: Section, problems: Problems) -> Section:
    """Return a config without the lists that can't stand where they do, each noted as a problem at its place.

    Of a tenant whose kind is not known nobody can say which of its keys is a layout: its lists are left out unsaid.
    """
    tenants = document.get("tenants")
    if not isinstance(tenants, Section):
        return _purged(document, problems)
    sections = {name: tenant for name, tenant in tenants.items() if isinstance(tenant, Section)}
    layouts = _layouts({str(tenant["kind"]) for tenant in sections.values() if "kind" in tenant})
    document = _purged(document, problems, but=("tenants",))
    document["tenants"] = kept = _purged(tenants, problems, but=sections)
    for name, tenant in sections.items():
        known = layouts.get(str(tenant.get("kind")))
        kept[name] = _purged(tenant, Problems() if known is None else problems, but=known or ())
    return document


def _purged(section: Section, problems: Problems, but: Collection[str] = ()) -> Section:
    """Return a section without its lists and those below it, but for some of its keys."""
    lists = {key: value for key, value in section.items() if isinstance(value, Listing) and key not in but}
    for stray in lists.values():
        problems.add(stray.place, STRAY_LIST)
    kept = section.without(*lists)
    for key, value in kept.items():
        if isinstance(value, Section) and key not in but:
            kept[key] = _purged(value, problems)
    return kept


def _layouts(kinds: set[str]) -> dict[str, list[str]]:
    """Return for each kind that is known and can be loaded which of its fields are layouts."""
    found = {}
    for name in kinds.intersection(kind_names()):
        try:
            found[name] = [field.name for field in load_kind(name).fields if field.type is FieldType.LAYOUT]
        except Exception:  # noqa: BLE001  # a kind of others that is broken is told when its tenants are looked at
            continue
    return found
