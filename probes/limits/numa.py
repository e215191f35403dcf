"""NUMA: which nodes this process may take memory from, and what each of them has left.

A cpuset can keep a process to some nodes; then the memory of the others is not there for it, whatever MemAvailable says
of the whole host.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from pinprobe.probes.host_tree import HostTree
from pinprobe.probes.limits.limit import Limit, LimitKind, Value, Words
from pinprobe.probes.reading import Reading, Unreadable

_SOURCE = "/proc/zoneinfo"
_NODE = re.compile(r"^Node ([0-9]{1,5}), zone ", re.ASCII)
# Free pages, and file cache that would be dropped; a zone's other lines tell of memory that is in use.
_LEFT = re.compile(r"^ +(pages free|nr_zone_inactive_file|nr_zone_active_file) +([0-9]{1,18})$", re.ASCII)
_MANAGED = re.compile(r"^ +managed +([0-9]{1,18})$", re.ASCII)
_ALLOWED = re.compile(r"^Mems_allowed_list:\s*([0-9,-]{1,4096})$", re.MULTILINE | re.ASCII)


def numa_limit(tree: HostTree) -> Limit:
    """Return what the nodes that this process may use have left, free or in file cache, by the kernel's zones.

    That is a figure to compare nodes by, no more: some kernels free pages late and count them in no zone until then.
    The parts are what each usable node has left, by its number, and what all of these have in all (`total`), which is
    certain. `applies` is true where a cpuset keeps the process from some nodes. A host of one node has no such figure.
    """
    nodes = _nodes(tree)
    allowed = _allowed(tree)
    parts: dict[str, Reading] = {}
    applies, note = False, ""
    value: Value
    if isinstance(nodes, Unreadable):
        value = nodes
    elif isinstance(allowed, Unreadable):
        value = allowed
    elif len(nodes) == 1:
        value = Words("1 node", 1)
    else:
        usable = [node for node in nodes if node in allowed]
        parts = {str(node): Reading(nodes[node].left_bytes, _SOURCE) for node in usable}
        applies = len(usable) < len(nodes)
        note = f"of {len(nodes)} nodes this process may use {', '.join(parts) or 'none'}" if applies else ""
        value = Reading(sum(nodes[node].left_bytes for node in usable), _SOURCE)
        parts["total"] = Reading(sum(nodes[node].total_bytes for node in usable), _SOURCE)
    return Limit(LimitKind.NUMA, "NUMA nodes", value, _SOURCE, "all, by cpuset", parts, applies, note)


@dataclass
class _Node:
    left_bytes: int = 0
    total_bytes: int = 0


def _nodes(tree: HostTree) -> dict[int, _Node] | Unreadable:
    text = tree.text(_SOURCE)
    if isinstance(text, Unreadable):
        return text
    nodes: dict[int, _Node] = {}
    node = None
    for line in text.split("\n"):
        head = _NODE.match(line)
        if head:
            node = nodes.setdefault(int(head[1]), _Node())
            continue
        if node is None:
            continue
        if left := _LEFT.match(line):
            node.left_bytes += int(left[2]) * tree.page_size_bytes
        elif managed := _MANAGED.match(line):
            node.total_bytes += int(managed[1]) * tree.page_size_bytes
    # A node without memory is one for its CPUs alone.
    found = {number: node for number, node in nodes.items() if node.total_bytes}
    return found or Unreadable(f"{_SOURCE} has no zone with pages")


def _allowed(tree: HostTree) -> frozenset[int] | Unreadable:
    status = tree.text("/proc/self/status")
    if isinstance(status, Unreadable):
        return status
    found = _ALLOWED.search(status)
    if found is None:
        return Unreadable("/proc/self/status has no line Mems_allowed_list")
    nodes: set[int] = set()
    for part in found[1].split(","):
        first, dash, last = part.partition("-")
        if not first.isdigit() or (dash and not last.isdigit()) or int(last or first) > 99_999:
            return Unreadable(f"/proc/self/status: Mems_allowed_list reads {found[1][:40]!r}")
        nodes.update(range(int(first), int(last or first) + 1))
    return frozenset(nodes)
