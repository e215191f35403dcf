"""vm.overcommit_memory: whether the kernel promises more memory than it has. In mode 2 it refuses that."""

from __future__ import annotations

from pinprobe.probes.host_tree import HostTree
from pinprobe.probes.kernel_text import kilobyte_fields
from pinprobe.probes.limits.limit import Limit, LimitKind, Value, Words
from pinprobe.probes.reading import Reading, Unreadable

_SOURCE = "/proc/sys/vm/overcommit_memory"
_MEMINFO = "/proc/meminfo"
_NAMES = {"0": "0, heuristic", "1": "1, always"}
_STRICT = "2"


def overcommit_limit(tree: HostTree) -> Limit:
    """Return the mode; in mode 2, what may still be mapped, and the `limit` and what is `used` of it as parts."""
    text = tree.text(_SOURCE)
    parts: dict[str, Reading] = {}
    value: Value
    if isinstance(text, Unreadable):
        value = text
    elif text.strip() in _NAMES:
        value = Words(_NAMES[text.strip()], int(text))
    elif text.strip() == _STRICT:
        fields = kilobyte_fields(tree.text(_MEMINFO), ["CommitLimit", "Committed_AS"], _MEMINFO)
        limit, used = fields["CommitLimit"], fields["Committed_AS"]
        left = limit - used
        value = Reading(max(0, left.bytes), left.source) if isinstance(left, Reading) else left
        parts = {name: part for name, part in (("limit", limit), ("used", used)) if isinstance(part, Reading)}
    else:
        value = Unreadable(f"{_SOURCE} reads {text.strip()[:40]!r}")
    return Limit(LimitKind.OVERCOMMIT, "overcommit", value, _SOURCE, "mappings, in mode 2", parts)
