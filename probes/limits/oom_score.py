"""oom_score_adj of this process: how early the kernel's OOM killer, and every daemon that reads it, picks it."""

from __future__ import annotations

from pinprobe.probes.host_tree import HostTree
from pinprobe.probes.limits.limit import Limit, LimitKind, Value, Words
from pinprobe.probes.reading import Unreadable

_SOURCE = "/proc/self/oom_score_adj"


def oom_score_limit(tree: HostTree) -> Limit:
    """Return it, from -1000 (never picked) to 1000 (picked first). What a process starts inherits it."""
    text = tree.text(_SOURCE)
    value: Value
    if isinstance(text, Unreadable):
        value = text
    else:
        stripped = text.strip()
        digits = stripped.removeprefix("-")
        is_number = digits.isascii() and digits.isdigit() and len(digits) <= 4 and int(digits) <= 1000
        value = Words(stripped, int(stripped)) if is_number else Unreadable(f"{_SOURCE} reads {stripped[:40]!r}")
    return Limit(LimitKind.OOM_SCORE, "oom_score_adj", value, _SOURCE, "this process")
