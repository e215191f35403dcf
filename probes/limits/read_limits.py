"""Every limit of a host in one go, in the order in which a table shows them. A new source is a line here."""

from __future__ import annotations

from pinprobe.probes.host_tree import HostTree
from pinprobe.probes.limits.cgroups import cgroup_limits
from pinprobe.probes.limits.gtt import gtt_limits
from pinprobe.probes.limits.huge_page_mode import huge_page_mode
from pinprobe.probes.limits.hugepages import hugepage_limits
from pinprobe.probes.limits.limit import Limit
from pinprobe.probes.limits.memlock import memlock_limit
from pinprobe.probes.limits.memory import memory_limit
from pinprobe.probes.limits.numa import numa_limit
from pinprobe.probes.limits.oom_daemons import oom_daemon_limit
from pinprobe.probes.limits.oom_score import oom_score_limit
from pinprobe.probes.limits.overcommit import overcommit_limit
from pinprobe.probes.limits.registration import registration_limit
from pinprobe.probes.limits.shared_memory import shared_memory_limit
from pinprobe.probes.limits.started_ranks import started_ranks_limit
from pinprobe.probes.limits.surroundings import surroundings_limit
from pinprobe.probes.limits.swap import swap_limit
from pinprobe.probes.limits.ttm import ttm_limits


def read_limits(tree: HostTree) -> tuple[Limit, ...]:
    """Ask every source once. Nothing is taken but, on this host, a moment's lock for the proof of RLIMIT_MEMLOCK."""
    return (
        memory_limit(tree),
        *cgroup_limits(tree),
        overcommit_limit(tree),
        numa_limit(tree),
        memlock_limit(tree),
        *hugepage_limits(tree),
        *ttm_limits(tree),
        *gtt_limits(tree),
        registration_limit(tree),
        shared_memory_limit(tree),
        huge_page_mode(tree),
        swap_limit(tree),
        oom_daemon_limit(tree),
        oom_score_limit(tree),
        started_ranks_limit(tree),
        surroundings_limit(tree),
    )
