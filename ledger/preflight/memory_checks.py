"""What bounds all memory, pinned or not: the host, memory cgroups, overcommit, a cpuset, files in /dev/shm."""

from __future__ import annotations

import shlex

from pinprobe.ledger.preflight.check import Check, State, amount_of, held_against, short_of, told
from pinprobe.ledger.preflight.needs import Claim, Needs, TenantNeed
from pinprobe.probes.limits.limit import Limit
from pinprobe.probes.reading import Reading, Unreadable
from pinprobe.probes.units import format_bytes

#: What Docker gives a container that asks for nothing, and Kubernetes too. Engines of several ranks need more.
SMALL_SHARED_MEMORY_BYTES = 64 * 2**20

_V1_LIMIT, _HIERARCHICAL = "memory.limit_in_bytes", "hierarchical_memory_limit"
_UNIT_ENDINGS = (".service", ".scope", ".slice")


def check_memory(limit: Limit, needs: Needs, promised_bytes: int) -> Check:
    """Hold all but what comes from a huge page pool against what the host has left, less what others are promised."""
    claim = needs.claim(_takes_memory)
    need = claim.in_memory_bytes + promised_bytes
    total = limit.parts.get("total")
    remedy = "ps -eo rss,pid,comm --sort=-rss | head"
    if promised_bytes:
        remedy = "pinprobe host"
    if total is not None and claim.in_memory_bytes > total.bytes:
        remedy = needs.fit_command
    reason = _reason(limit, needs, claim, promised_bytes)
    return held_against(limit, claim, need, reason, remedy)


def check_cgroup(limit: Limit, needs: Needs, promised_bytes: int) -> Check:
    """Hold the same against one memory cgroup; pinned memory is charged to it like any other."""
    claim = needs.claim(_takes_memory)
    need = claim.in_memory_bytes + promised_bytes
    reason = _reason(limit, needs, claim, promised_bytes)
    left, of = amount_of(limit), limit.parts.get("limit")
    remedy = "" if left is None or of is None else _raise_cgroup(limit.source, of.bytes + need - left)
    return held_against(limit, claim, need, reason, remedy or needs.fit_command)


def check_overcommit(limit: Limit, needs: Needs) -> Check:
    """Hold it against what the kernel still promises in mode 2; in the other modes it promises anything."""
    claim = needs.claim(_takes_memory)
    need = claim.in_memory_bytes
    remedy = "sudo sysctl vm.overcommit_memory=0"
    if needs.is_empty and isinstance(limit.value, Reading):
        words = "mode 2 refuses every mapping beyond its limit, whatever memory is free"
        return told(limit, State.ADVICE, words, remedy)
    is_strict = isinstance(limit.value, (Reading, Unreadable))
    reason = f"{short_of(limit, need)}; vm.overcommit_memory is 2, where no more is mapped than the limit"
    return held_against(limit, claim if is_strict else Claim(()), need, reason, remedy)


def check_numa(limit: Limit, needs: Needs) -> Check:
    """Hold it against the nodes that a cpuset allows; on a host of several, each rank against one node.

    Only what such nodes have in all is certain enough to refuse by.
    """
    claim = needs.claim(_takes_memory)
    need = claim.on_the_host_bytes
    if isinstance(limit.value, Unreadable):
        return told(limit, State.UNREADABLE, limit.value.reason)
    left = {name: part.bytes for name, part in limit.parts.items() if name != "total"}
    total = limit.parts.get("total")
    spread = f"numactl --interleave={','.join(left) or 'all'} COMMAND"
    if limit.applies and claim.names and total is not None and need > total.bytes:
        reason = f"{format_bytes(need)} are needed, and {limit.note}, which have {format_bytes(total.bytes)} in all"
        return told(limit, State.ERROR, reason, _other_nodes(), claim)
    if limit.applies and claim.names and need > (amount_of(limit) or 0):
        reason = f"{short_of(limit, need)}; {limit.note}"
        return told(limit, State.ADVICE, reason, _other_nodes(), claim)
    if len(left) > 1 and claim.of_one_rank_bytes > max(left.values()):
        reason = (
            f"one rank takes {format_bytes(claim.of_one_rank_bytes)}, and no node has more than"
            f" {format_bytes(max(left.values()))} left: a part of it will be remote"
        )
        return told(limit, State.ADVICE, reason, spread, claim)
    if len(left) > 1 and needs.ranks and needs.ranks % len(left):
        reason = f"{needs.ranks} ranks on {len(left)} nodes: some node serves more of them than another"
        return told(limit, State.ADVICE, reason, spread, claim)
    return told(limit, State.OK, claim=claim if limit.applies else None)


def check_shared_memory(limit: Limit, needs: Needs) -> Check:
    """Hold the files that tenants keep in /dev/shm against its size. It binds no memfd and nothing that is pinned."""
    claim = needs.claim(lambda tenant: tenant.shared_memory_bytes > 0)
    need = sum(tenant.shared_memory_bytes for tenant in claim.tenants)
    total, left = limit.parts.get("total"), amount_of(limit)
    used = 0 if total is None or left is None else total.bytes - left
    wanted = max(need + used, 2**30)
    remedy = f"sudo mount -o remount,size={-(-wanted // 2**20)}m /dev/shm"
    if isinstance(limit.value, Reading) and not claim.names:
        is_small = total is not None and total.bytes <= SMALL_SHARED_MEMORY_BYTES
        if is_small and (needs.is_empty or needs.ranks > 1):
            words = "what a container gets that asks for nothing; ranks that talk through it need more"
            return told(limit, State.ADVICE, words, remedy)
    if claim.names and not isinstance(limit.value, (Reading, Unreadable)):
        words = "tenants keep files in /dev/shm, and it is not mounted"
        return told(limit, State.ERROR, words, f"sudo mount -t tmpfs -o size={-(-wanted // 2**20)}m tmpfs /dev/shm",
                    claim, need)  # fmt: skip
    return held_against(limit, claim, need, f"{short_of(limit, need)} for files of the overflow", remedy)


def _takes_memory(tenant: TenantNeed) -> bool:
    return not tenant.way.from_pool


def _other_nodes() -> str:
    return "grep Mems_allowed_list /proc/self/status"


def _reason(limit: Limit, needs: Needs, claim: Claim, promised_bytes: int) -> str:
    words = short_of(limit, claim.in_memory_bytes + promised_bytes)
    if promised_bytes:
        words += f"; {format_bytes(promised_bytes)} of it others in the host's book are about to take"
    left = amount_of(limit)
    if left is not None and needs.ranks > 1 and claim.of_one_rank_bytes:
        each = (left - promised_bytes - claim.once_bytes) // needs.ranks
        beside = f" beside the {format_bytes(claim.once_bytes)} that the host holds once" if claim.once_bytes else ""
        fits = f"at most {format_bytes(each)}{beside} would fit" if each > 0 else f"nothing fits{beside}"
        words += f"; each of {needs.ranks} ranks takes {format_bytes(claim.of_one_rank_bytes)}, and {fits}"
    return words


def _raise_cgroup(source: str, wanted_bytes: int) -> str:
    """Return the command that raises the limit that `source` is the file of; none where that lies out of sight."""
    if source.endswith(_HIERARCHICAL):
        return ""  # an ancestor's, which this container can't see
    folder, _, file = source.rpartition("/")
    unit = folder.rpartition("/")[2]
    # A whole MiB, which people can read.
    wanted_mib = -(-wanted_bytes // 2**20)
    if unit.endswith(_UNIT_ENDINGS) and file != _V1_LIMIT:
        key = "MemoryHigh" if file == "memory.high" else "MemoryMax"
        return f"sudo systemctl set-property {shlex.quote(unit)} {key}={wanted_mib}M"
    return f"echo {wanted_mib * 2**20} | sudo tee {shlex.quote(source)}"
