"""The retention policies by name: our own, and those that others add by the entry point group `pinprobe.policies`.

To add one here, write a file beside this one and a line in `_OWN`. `libcachesim:` and the name of a policy there stands
for one of that library's, where it is installed.
"""

from __future__ import annotations

import difflib
import importlib
from importlib.metadata import EntryPoint, entry_points

from pinprobe.ledger.tenants.policies.foreign_policy import ForeignPolicy
from pinprobe.ledger.tenants.policies.libcachesim_policy import PREFIX, LibcachesimPolicy
from pinprobe.ledger.tenants.policies.policy import Policy, checked_slots
from pinprobe.probes.errors import BadRequest, PinprobeError, in_one_line

ENTRY_POINT_GROUP = "pinprobe.policies"

_OWN = {
    "lru": "pinprobe.ledger.tenants.policies.lru:Lru",
    "gdsf": "pinprobe.ledger.tenants.policies.gdsf:Gdsf",
    "chain": "pinprobe.ledger.tenants.policies.chain:Chain",
    "gittins": "pinprobe.ledger.tenants.policies.gittins:Gittins",
}
_PARTS = ("name", "slots", "resident_count", "__contains__", "read", "offer", "evict", "next_to_go", "remove")


def policy_names() -> list[str]:
    """Return every known name, without loading any; libcachesim's are not listed, since only the library knows them."""
    return [*_OWN, *sorted(_theirs())]


def check_policy_name(name: str) -> None:
    """Raise `BadRequest` where no policy is called that, with the nearest name that is known.

    What libcachesim has is found out where one of its policies is made.
    """
    known = policy_names()
    if name not in known and not name.startswith(PREFIX):
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"
        raise BadRequest(f"no retention policy is called {name!r}; {hint}")


def make_policy(name: str, slots: int) -> Policy:
    """Make the policy called `name` for so many slots.

    Raises `BadRequest` where the name is unknown, where there is no slot, or where a policy of others can't be made.
    """
    check_policy_name(name)
    checked_slots(slots)
    if name.startswith(PREFIX):
        return LibcachesimPolicy(name.removeprefix(PREFIX), slots)
    if name in _OWN:
        module, _, attribute = _OWN[name].partition(":")
        own: Policy = getattr(importlib.import_module(module), attribute)(slots)
        return own
    entry = _theirs()[name]
    try:
        made: Policy = entry.load()(slots)
    except PinprobeError:
        raise
    except (Exception, SystemExit) as error:
        # Foreign code: whatever it raises, the answer is that this one is not to be had.
        reason = f"the retention policy {name} ({entry.value}) can't be made: {in_one_line(error)}"
        raise BadRequest(reason) from error
    missing = [part for part in _PARTS if not hasattr(made, part)]
    if missing:
        raise BadRequest(f"the retention policy {name} ({entry.value}) has no {missing[0]}")
    return ForeignPolicy(made, f"{name} ({entry.value})")


def _theirs() -> dict[str, EntryPoint]:
    return {
        entry.name: entry
        for entry in entry_points(group=ENTRY_POINT_GROUP)
        if entry.name.isprintable() and entry.name not in _OWN and not entry.name.startswith(PREFIX)
    }
