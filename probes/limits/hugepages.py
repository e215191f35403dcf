"""The kernel's huge page pools: room for memory that is asked of them, and for nothing else."""

from __future__ import annotations

import re

from pinprobe.probes.headroom import HugepagePool, read_headroom
from pinprobe.probes.host_tree import HostTree
from pinprobe.probes.kernel_text import kilobyte_fields, single_number
from pinprobe.probes.limits.limit import Absent, Limit, LimitKind
from pinprobe.probes.reading import Reading, Unreadable

_FOLDER = "/sys/kernel/mm/hugepages"
_MEMINFO = "/proc/meminfo"
_BINDS = "what asks for it"
_COUNT = r"^HugePages_{}: +([0-9]{{1,20}})$"


def hugepage_limits(tree: HostTree) -> tuple[Limit, ...]:
    """Return a limit for each pool, whose value is what nobody has or was promised.

    Its parts are the size of a `page`, what is set aside in all (`total`), and the page size that is asked for by
    default (`default_page`). A tree without `/sys` has the default pool in /proc/meminfo.
    """
    default = kilobyte_fields(tree.text(_MEMINFO), ["Hugepagesize"], _MEMINFO)["Hugepagesize"]
    pools = read_headroom(tree).pools
    if pools:
        return tuple(_pool_limit(tree, pool, default) for pool in pools)
    return (_default_pool(tree, default),)


def _pool_limit(tree: HostTree, pool: HugepagePool, default: Reading | Unreadable) -> Limit:
    source = f"{_FOLDER}/hugepages-{pool.page_bytes // 1024}kB/nr_hugepages"
    count = single_number(tree.text(source), source)
    parts = {"page": Reading(pool.page_bytes, source)}
    if isinstance(count, Reading):
        parts["total"] = Reading(count.bytes * pool.page_bytes, source)
    if isinstance(default, Reading):
        parts["default_page"] = default
    return Limit(LimitKind.HUGEPAGES, _name(pool.page_bytes), pool.free, source, _BINDS, parts)


def _default_pool(tree: HostTree, default: Reading | Unreadable) -> Limit:
    text = tree.text(_MEMINFO)
    if isinstance(default, Unreadable):
        # A kernel built without huge pages has none of these lines.
        is_absent = isinstance(text, str) and "Hugepagesize" not in text and "MemTotal" in text
        value = Absent("the kernel has no pools") if is_absent else default
        return Limit(LimitKind.HUGEPAGES, "hugepages", value, _MEMINFO, _BINDS)
    if default.bytes == 0:
        return Limit(LimitKind.HUGEPAGES, "hugepages", Unreadable(f"{_MEMINFO} has pages of 0 B"), _MEMINFO, _BINDS)
    page = default.bytes
    counts = [re.search(_COUNT.format(name), str(text), re.MULTILINE) for name in ("Free", "Rsvd", "Total")]
    free, reserved, total = (None if count is None else int(count[1]) * page for count in counts)
    parts = {"page": default, "default_page": default}
    if total is not None:
        parts["total"] = Reading(total, _MEMINFO)
    if free is None:
        left: Reading | Unreadable = Unreadable(f"{_MEMINFO} has no line HugePages_Free that is a count")
    else:
        left = Reading(max(0, free - (reserved or 0)), _MEMINFO)
    return Limit(LimitKind.HUGEPAGES, _name(page), left, _MEMINFO, _BINDS, parts)


def _name(page_bytes: int) -> str:
    size = f"{page_bytes // 2**30} GiB" if page_bytes % 2**30 == 0 else f"{page_bytes // 1024:,} KiB"
    return f"hugepages {f'{page_bytes // 2**20} MiB' if 'KiB' in size and page_bytes % 2**20 == 0 else size}"
