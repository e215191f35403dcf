"""The kinds of tenants by name: our own, and those that others add by the entry point group `pinprobe.tenants`.

To add one here, write a file beside this one and a line in `_OWN`.
"""

from __future__ import annotations

import importlib
from importlib.metadata import EntryPoint, entry_points

from pinprobe.ledger.tenants.tenant import TenantKind
from pinprobe.probes.errors import BadRequest, in_one_line

ENTRY_POINT_GROUP = "pinprobe.tenants"

_OWN = {
    "buffer": "pinprobe.ledger.tenants.buffer:Buffer",
    "external": "pinprobe.ledger.tenants.external:External",
    "savepoint_ring": "pinprobe.ledger.tenants.savepoint_ring_kind:SavepointRingKind",
    "retention_pool": "pinprobe.ledger.tenants.retention_pool_kind:RetentionPoolKind",
}
_PARTS = ("kind", "meaning", "fields", "only_allocator", "asked_bytes", "scaled", "prepare", "open")


def kind_names() -> list[str]:
    """Return every known kind, without loading any."""
    return [*_OWN, *sorted(_theirs())]


def load_kind(name: str) -> TenantKind:
    """Return a kind by its name. Raises `BadRequest` where it is unknown or can't be loaded."""
    if name in _OWN:
        module, _, attribute = _OWN[name].partition(":")
        own: TenantKind = getattr(importlib.import_module(module), attribute)()
        return own
    entry = _theirs().get(name)
    if entry is None:
        raise BadRequest(f"no kind of tenant is called {name!r}; known are {', '.join(kind_names())}")
    try:
        loaded: TenantKind = entry.load()()
    except (Exception, SystemExit) as error:
        reason = f"the kind {name} ({entry.value}) can't be loaded: {in_one_line(error)}"
        raise BadRequest(reason) from error
    missing = [part for part in _PARTS if not hasattr(loaded, part)]
    if missing:
        raise BadRequest(f"the kind {name} ({entry.value}) has no {missing[0]}")
    return loaded


def _theirs() -> dict[str, EntryPoint]:
    return {
        entry.name: entry
        for entry in entry_points(group=ENTRY_POINT_GROUP)
        if entry.name.isprintable() and entry.name not in _OWN
    }
