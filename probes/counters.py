"""The counters the kernel keeps of one process: VmRSS and its parts from status, statm, and the sum over smaps.

`status` and `statm` cost microseconds at any size. `smaps_rollup` walks the page tables: exact on every kernel, and 10
to 17 ms for each GiB of small pages.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pinprobe.probes.host_tree import HostTree
from pinprobe.probes.kernel_text import is_count, kilobyte_fields
from pinprobe.probes.reading import Amount, Reading, Unreadable

#: The lines of /proc/PID/status that tell of memory. VmRSS = RssAnon + RssFile + RssShmem (these three since Linux
#: 4.5); hugetlb pages are in none of them. VmPin counts what drivers pinned through the kernel's own account (RDMA,
#: io_uring).
STATUS_FIELDS = ("VmRSS", "RssAnon", "RssFile", "RssShmem", "VmLck", "VmPin", "HugetlbPages", "VmPTE", "VmSize")

_STATM_FIELDS = 7  # always; fewer means that the text was cut, and its last number with it


@dataclass(frozen=True)
class Counters:
    """Amounts by the kernel's own names, plus `statm` for its resident field."""

    by_name: Mapping[str, Amount]

    def __getitem__(self, name: str) -> Amount:
        return self.by_name.get(name, Unreadable(f"no counter is called {name}"))

    def __sub__(self, earlier: Counters) -> Counters:
        return Counters({name: amount - earlier[name] for name, amount in self.by_name.items()})


def read_counters(tree: HostTree, pid: int | str = "self", error_bytes: int = 0) -> Counters:
    """Read status and statm of a process.

    `error_bytes` is how far a single RSS counter may be off on this kernel (`pinprobe.probes.exactness` finds it out);
    VmRSS and statm, being sums of three of them, get three times that.
    """
    status = tree.text(f"/proc/{pid}/status")
    fields = kilobyte_fields(status, STATUS_FIELDS, "status", 0)
    for name, counters_summed in {"VmRSS": 3, "RssAnon": 1, "RssFile": 1, "RssShmem": 1}.items():
        amount = fields[name]
        if isinstance(amount, Reading):
            fields[name] = Reading(amount.bytes, amount.source, counters_summed * error_bytes)
    return Counters({**fields, "statm": read_statm(tree, pid, 3 * error_bytes)})


def read_statm(tree: HostTree, pid: int | str = "self", error_bytes: int = 0) -> Amount:
    """Read the resident pages of a process from statm, in bytes."""
    return _statm_field(tree, pid, 1, error_bytes)


def read_mapped(tree: HostTree, pid: int | str = "self") -> Amount:
    """Read how much address space a process has mapped, from statm, in bytes. RLIMIT_AS is held against this figure."""
    return _statm_field(tree, pid, 0, 0)


def _statm_field(tree: HostTree, pid: int | str, index: int, error_bytes: int) -> Amount:
    text = tree.text(f"/proc/{pid}/statm")
    if isinstance(text, Unreadable):
        return text
    fields = text.split()
    if len(fields) != _STATM_FIELDS or not is_count(fields[index]):
        return Unreadable(f"/proc/{pid}/statm reads {text.strip()[:40]!r}")
    return Reading(int(fields[index]) * tree.page_size_bytes, "statm", error_bytes)


def read_smaps_rollup(tree: HostTree, pid: int | str = "self") -> Amount:
    """Read the resident bytes of a process by walking its page tables (Linux 4.14 and later)."""
    text = tree.text(f"/proc/{pid}/smaps_rollup")
    return kilobyte_fields(text, ["Rss"], "smaps_rollup")["Rss"]
