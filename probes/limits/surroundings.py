"""What this process runs in, where that changes what the other figures mean: WSL, gVisor, a container."""

from __future__ import annotations

import re

from pinprobe.probes.host_tree import HostTree
from pinprobe.probes.limits.limit import Limit, LimitKind, Value, Words
from pinprobe.probes.reading import Reading, Unreadable

#: WSL2 stops pinning at about 1 to 2 GB: below the first nothing is known to fail, above the second nothing to pass.
WSL_SAFE_BYTES = 10**9
WSL_MOST_BYTES = 2 * 10**9

WSL, GVISOR, CONTAINER, PLAIN = "WSL2", "gVisor", "container", "no container"

_VERSION = "/proc/version"
_RELEASE = "/proc/sys/kernel/osrelease"
# gVisor answers with one and the same version, whatever runs below it.
_GVISOR = re.compile(r"^Linux version 4\.4\.0 #1 SMP Sun Jan 10 15:06:54 PST 2016\s*$")
_MARKS = ("/.dockerenv", "/run/.containerenv", "/run/systemd/container")
_CGROUP = re.compile(r"docker|kubepods|libpod|crio-|/lxc", re.ASCII)


def surroundings_limit(tree: HostTree) -> Limit:
    """Return which of them it is, the most telling first; `source` is the file that gives it away.

    For WSL the part `pinned_most` is about what its driver pins.
    """
    texts = {name: tree.text(name) for name in (_VERSION, _RELEASE, "/proc/self/cgroup")}
    readable = {name: text for name, text in texts.items() if isinstance(text, str)}
    parts: dict[str, Reading] = {}
    value: Value
    source = _VERSION
    wsl = [name for name in (_RELEASE, _VERSION) if re.search("microsoft|WSL", readable.get(name, ""), re.IGNORECASE)]
    mark = next((name for name in _MARKS if tree.has(name)), None)
    if wsl:
        source, value = wsl[0], Words(WSL)
        parts["pinned_most"] = Reading(WSL_MOST_BYTES, "about 1 to 2 GB")
    elif _GVISOR.match(readable.get(_VERSION, "")):
        value = Words(GVISOR)
    elif mark is not None:
        source, value = mark, Words(CONTAINER)
    elif _CGROUP.search(readable.get("/proc/self/cgroup", "")):
        source, value = "/proc/self/cgroup", Words(CONTAINER)
    elif _RELEASE in readable or _VERSION in readable:
        source, value = _RELEASE if _RELEASE in readable else _VERSION, Words(PLAIN)
    else:
        reasons = [text.reason for text in texts.values() if isinstance(text, Unreadable)]
        value = Unreadable("; ".join(reasons))
    return Limit(LimitKind.SURROUNDINGS, "surroundings", value, source, "all figures", parts)
