"""What a number is worth nothing without: the machine, the kernel, the versions and settings it was measured under."""

from __future__ import annotations

import os
import platform
import re
from dataclasses import dataclass
from typing import TypeAlias

from pinprobe import __version__
from pinprobe.probes.allocators.torch_settings import SETTINGS_NAMES
from pinprobe.probes.exactness import Exactness, find_exactness
from pinprobe.probes.headroom import Headroom, read_headroom
from pinprobe.probes.host_tree import THIS_HOST, HostTree
from pinprobe.probes.installed_torch import find_installed_torch
from pinprobe.probes.kernel_text import kilobyte_fields
from pinprobe.probes.reading import Amount, Unreadable

Fact: TypeAlias = str | Unreadable


@dataclass(frozen=True, slots=True)
class ProcessFacts:
    """The measuring process as psutil sees it."""

    user: str
    effective_cpu_count: int
    oom_score_adj: Fact


@dataclass(frozen=True, slots=True)
class HostFacts:
    """The host and the software of one measurement. Sizes are in bytes; what could not be read says why."""

    pinprobe: str
    python: str
    kernel: Fact
    machine: str
    cpu_count: int
    page_size_bytes: int
    memory_total: Amount
    transparent_hugepages: Fact
    shared_memory_hugepages: Fact
    memlock_limit: Fact
    cgroup: Fact
    driver: Fact
    torch: Fact
    torch_settings: dict[str, str]
    counters: Exactness
    headroom: Headroom
    process: ProcessFacts | Unreadable


def read_host_facts(tree: HostTree = THIS_HOST) -> HostFacts:
    """Gather the facts of this host; costs a few milliseconds and imports neither torch nor a driver."""
    torch = find_installed_torch()
    return HostFacts(
        pinprobe=__version__,
        python=platform.python_version(),
        kernel=_line(tree, "/proc/sys/kernel/osrelease"),
        machine=platform.machine(),
        cpu_count=os.cpu_count() or 1,
        page_size_bytes=tree.page_size_bytes,
        memory_total=kilobyte_fields(tree.text("/proc/meminfo"), ["MemTotal"], "/proc/meminfo")["MemTotal"],
        transparent_hugepages=_chosen(tree, "/sys/kernel/mm/transparent_hugepage/enabled"),
        shared_memory_hugepages=_chosen(tree, "/sys/kernel/mm/transparent_hugepage/shmem_enabled"),
        memlock_limit=_memlock_limit(tree),
        cgroup=_cgroup(tree),
        driver=_line(tree, "/proc/driver/nvidia/version"),
        torch=torch.version if not isinstance(torch, Unreadable) else torch,
        torch_settings={name: os.environ[name] for name in SETTINGS_NAMES if name in os.environ},
        counters=find_exactness(tree),
        headroom=read_headroom(tree),
        process=_process_facts(tree),
    )


def _line(tree: HostTree, name: str) -> Fact:
    text = tree.text(name)
    if isinstance(text, Unreadable):
        return text
    return text.split("\n")[0].strip() or Unreadable(f"{name} is empty")


def _chosen(tree: HostTree, name: str) -> Fact:
    """Read a choice of the kernel's, where the chosen word stands in brackets."""
    text = tree.text(name)
    if isinstance(text, Unreadable):
        return text
    match = re.search(r"\[(\S+)\]", text)
    return match[1] if match else Unreadable(f"{name} reads {text.strip()[:40]!r}")


def _memlock_limit(tree: HostTree) -> Fact:
    text = tree.text("/proc/self/limits")
    if isinstance(text, Unreadable):
        return text
    match = re.search(r"^Max locked memory +([0-9]+|unlimited) +([0-9]+|unlimited) +bytes", text, re.MULTILINE)
    return f"soft {match[1]}, hard {match[2]}" if match else Unreadable("/proc/self/limits names no locked memory")


def _cgroup(tree: HostTree) -> Fact:
    text = tree.text("/proc/self/cgroup")
    if isinstance(text, Unreadable):
        return text
    wanted = []
    for line in text.split("\n"):
        number, _, rest = line.partition(":")
        controllers = rest.partition(":")[0]
        if (number == "0" and rest.startswith(":")) or "memory" in controllers.split(","):
            wanted.append(line)
    return "; ".join(wanted) or Unreadable("/proc/self/cgroup names no memory cgroup")


def _process_facts(tree: HostTree) -> ProcessFacts | Unreadable:
    import psutil  # 15 ms, and only the commands that measure need it

    try:
        process = psutil.Process()
        with process.oneshot():
            return ProcessFacts(
                process.username(), len(process.cpu_affinity()), _line(tree, "/proc/self/oom_score_adj")
            )
    except (psutil.Error, OSError) as error:
        return Unreadable(f"psutil: {error}")
