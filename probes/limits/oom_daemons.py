"""Daemons that kill before the kernel does: earlyoom and systemd-oomd, as far as this pid namespace shows them."""

from __future__ import annotations

import re
from itertools import pairwise

from pinprobe.probes.host_tree import HostTree
from pinprobe.probes.kernel_text import kilobyte_fields
from pinprobe.probes.limits.limit import Absent, Limit, LimitKind, Value, Words
from pinprobe.probes.reading import Reading, Unreadable

#: The names that the kernel knows them by, cut at 15 characters as all are.
DAEMONS = ("earlyoom", "systemd-oomd")
#: From which share of the memory on earlyoom kills where nobody told it otherwise.
EARLYOOM_PERCENT = 10

_PERCENT = re.compile(r"([0-9]{1,2})(?:\.[0-9]+)?(?:,.*)?", re.ASCII)


def oom_daemon_limit(tree: HostTree) -> Limit:
    """Return the daemons that run. Where earlyoom does, the part `kept_free` is what it has to see available."""
    processes = [name for name in tree.names("/proc") if name.isascii() and name.isdigit()]
    found = {comm: pid for pid in processes if (comm := _comm(tree, pid)) in DAEMONS}
    source = f"/proc/{next(iter(found.values()))}/comm" if found else "/proc/*/comm"
    parts: dict[str, Reading] = {}
    value: Value
    if not processes:
        value = Unreadable("/proc shows no process in this tree")
    elif not found:
        value = Absent("none seen")
    else:
        value = Words(", ".join(sorted(found)))
    if "earlyoom" in found:
        total = kilobyte_fields(tree.text("/proc/meminfo"), ["MemTotal"], "/proc/meminfo")["MemTotal"]
        if isinstance(total, Reading):
            percent = _earlyoom_percent(tree, found["earlyoom"])
            parts["kept_free"] = Reading(total.bytes * percent // 100, f"{percent} % of MemTotal")
    return Limit(LimitKind.OOM_DAEMON, "OOM daemons", value, source, "what they watch", parts)


def _comm(tree: HostTree, pid: str) -> str:
    text = tree.text(f"/proc/{pid}/comm")
    return "" if isinstance(text, Unreadable) else text.strip()


def _earlyoom_percent(tree: HostTree, pid: str) -> int:
    text = tree.text(f"/proc/{pid}/cmdline")
    words = [] if isinstance(text, Unreadable) else text.split("\0")
    for word, following in pairwise(words):
        value = following if word == "-m" else word[2:] if word.startswith("-m") else ""
        percent = _PERCENT.fullmatch(value)
        if percent:
            return int(percent[1])
    return EARLYOOM_PERCENT
