"""Hosts to preflight: the whole texts of a saved host, and what a test changes in them or puts beside them."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from pinprobe.ledger.config.registry import load_config
from pinprobe.ledger.config.shipped import find_config
from pinprobe.ledger.preflight.book_check import BookSeen
from pinprobe.ledger.preflight.check import Check
from pinprobe.ledger.preflight.needs import Needs, needs_of
from pinprobe.ledger.preflight.preflight import check_limits
from pinprobe.ledger.price import PriceList
from pinprobe.probes.host_tree import HostTree
from pinprobe.probes.limits.limit import Absent
from pinprobe.probes.limits.read_limits import read_limits

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
MIB, GIB = 2**20, 2**30
#: What a test may write into a host: a text, or None for what is taken away, a folder too.
Texts = Mapping[str, "str | None"]

TTM = "/sys/module/ttm/parameters/pages_limit"
#: What every host with an AMD GPU has. Its files are made up, in the form that the driver prints them.
AMD: Texts = {
    "/sys/module/amdgpu/version": "6.12.12\n",
    TTM: "33554432\n",
    "/sys/class/drm/card1/device/mem_info_gtt_total": f"{128 * GIB}\n",
    "/sys/class/drm/card1/device/mem_info_gtt_used": "15306752\n",
}
#: The line of a real H200's driver.
NVIDIA = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (nixbld@)\n"
NO_BOOK = BookSeen("", Absent("none in this test"))
#: What a host has beside a saved one's texts, so that all that is not there is absent, and not merely unseen.
_ALSO: Texts = {
    "/sys/module/kernel/parameters/panic": "0\n",
    "/sys/class/drm/version": "drm 1.1.0 20060810\n",
    "/proc/self/environ": "PATH=/usr/bin\0HOME=/root\0",
    "/proc/1/comm": "systemd\n",
}
_needs: dict[tuple[str, int], Needs] = {}
# Texts that no limit is read from; hundreds of hosts are made.
_UNREAD = re.compile(r"/(smaps.*|maps|numa_maps|vmstat|cpuinfo|pressure/.*|cgroups|README.txt|memory.swap.*)$")


def made_host(folder: Path, texts: Texts, saved: str = "cgroup_v2") -> HostTree:
    """A saved host in a folder of its own, with some texts rewritten, added or taken away."""
    root = Path(tempfile.mkdtemp(dir=folder)) / saved
    write_into(root, {**_saved(saved), **_ALSO, **texts})
    return HostTree(root, page_size_bytes=4096)


@lru_cache
def _saved(saved: str) -> Texts:
    files = [path for path in sorted((FIXTURES / saved).rglob("*")) if path.is_file()]
    names = {path: f"/{path.relative_to(FIXTURES / saved)}" for path in files}
    return {name: path.read_text(encoding="utf-8") for path, name in names.items() if not _UNREAD.search(name)}


def write_into(root: Path, texts: Texts) -> None:
    for name, text in texts.items():
        path = root / name.lstrip("/")
        if text is None:
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def saved_text(name: str, saved: str = "cgroup_v2") -> str:
    """A text of a saved host."""
    return (FIXTURES / saved / name.lstrip("/")).read_text(encoding="utf-8")


def meminfo(**lines: int) -> str:
    """The saved host's /proc/meminfo, some of its lines set to so many bytes."""
    text = saved_text("/proc/meminfo")
    for name, size in lines.items():
        text, count = re.subn(rf"^({name}:\s+)[0-9]+ kB$", rf"\g<1>{size // 1024} kB", text, flags=re.MULTILINE)
        assert count == 1, f"/proc/meminfo has no line {name}"
    return text


def large_host(total_bytes: int) -> Texts:
    """What makes a host of so much memory, nearly all of it free, in no cgroup that limits it."""
    lines = meminfo(MemTotal=total_bytes, MemFree=total_bytes * 95 // 100, MemAvailable=total_bytes * 96 // 100)
    return {"/proc/meminfo": lines, "/proc/self/cgroup": "0::/\n"}


def needs_from(folder: Path, tenants: str, ranks: int = 1) -> Needs:
    """What a config of these tenants needs, each priced at its ask. `folder` is where the config is written first."""
    key = (tenants, ranks)
    if key not in _needs:
        path = folder / "mine.yaml"
        path.write_text(f"engine: {{name: mine, ranks: {ranks}}}\ntenants: {{{tenants}}}\n", encoding="utf-8")
        _needs[key] = needs_of(load_config(path), PriceList(), "mine.yaml")
    return _needs[key]


def needs_of_shipped(name: str) -> Needs:
    """What a config that comes along needs."""
    return needs_of(load_config(find_config(name)), PriceList(), name)


def buffer(size: str, allocator: str, per: str = "rank") -> str:
    """One tenant."""
    return f"cache.store: {{kind: buffer, bytes: {size}, allocator: {allocator}, per: {per}}}"


def checked(tree: HostTree, needs: Needs, book: BookSeen = NO_BOOK) -> dict[str, Check]:
    """Every check by its name; of several by one name the first."""
    found: dict[str, Check] = {}
    for check in check_limits(read_limits(tree), needs, book):
        found.setdefault(check.name, check)
    return found
