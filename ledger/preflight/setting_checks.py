"""What refuses nothing and still decides how a host behaves: swap, huge page mode, OOM killers, ranks, surroundings."""

from __future__ import annotations

from pinprobe.ledger.preflight.check import Check, State, told
from pinprobe.ledger.preflight.needs import Needs
from pinprobe.probes.limits.limit import Limit, Words
from pinprobe.probes.limits.surroundings import CONTAINER, GVISOR, WSL, WSL_SAFE_BYTES
from pinprobe.probes.reading import Reading, Unreadable
from pinprobe.probes.units import format_bytes


def check_swap(limit: Limit, needs: Needs) -> Check:
    """Advise where pageable tenants may be swapped out; what is pinned never is."""
    if isinstance(limit.value, Unreadable):
        return told(limit, State.UNREADABLE, limit.value.reason)
    pageable = needs.claim(lambda tenant: tenant.row.pageable)
    if isinstance(limit.value, Reading) and limit.value.bytes and pageable.names:
        reason = f"under pressure {', '.join(pageable.names)} may be swapped out, and is read back from disk then"
        return told(limit, State.ADVICE, reason, "sudo swapoff -a")
    return told(limit, State.OK)


def check_huge_page_mode(limit: Limit, needs: Needs) -> Check:
    """Advise where memory that is registered could have huge pages and has none: then pinning takes longer."""
    if isinstance(limit.value, Unreadable):
        return told(limit, State.UNREADABLE, limit.value.reason)
    fast = needs.claim(lambda tenant: tenant.way.wants_huge_pages)
    if isinstance(limit.value, Words) and limit.value.text == "never" and (fast.names or needs.is_empty):
        reason = "without huge pages registering memory takes about half as long again"
        return told(limit, State.ADVICE, reason, f"echo madvise | sudo tee {limit.source}")
    return told(limit, State.OK)


def check_oom_daemon(limit: Limit, needs: Needs, left_bytes: int | None) -> Check:
    """Advise where a daemon kills before memory is short. `left_bytes` is what the host has left, as far as is known.

    The daemons of a host are not seen from a container.
    """
    if isinstance(limit.value, Unreadable):
        return told(limit, State.UNREADABLE, limit.value.reason)
    if not isinstance(limit.value, Words):
        return told(limit, State.OK)
    kept = limit.parts.get("kept_free")
    if kept is None:
        reason = f"{limit.value} kills by memory pressure in the cgroups that ask for it"
        return told(limit, State.ADVICE, reason, "oomctl")
    need = needs.claim(lambda tenant: not tenant.way.from_pool).on_the_host_bytes
    reason = f"earlyoom kills where less than {format_bytes(kept.bytes)} are available ({kept.source})"
    if left_bytes is not None and need and left_bytes - need < kept.bytes:
        reason += f", and this config leaves {format_bytes(max(0, left_bytes - need))}"
    return told(limit, State.ADVICE, reason, "sudo systemctl stop earlyoom")


def check_oom_score(limit: Limit, needs: Needs) -> Check:
    """Advise where this process, and so what it starts, is picked before others."""
    if isinstance(limit.value, Unreadable):
        return told(limit, State.UNREADABLE, limit.value.reason)
    if isinstance(limit.value, Words) and (limit.value.number or 0) > 0:
        reason = "the OOM killer picks this process before others, and what it starts inherits that"
        return told(limit, State.ADVICE, reason, "sudo choom -n 0 -p $$")
    return told(limit, State.OK)


def check_ranks(limit: Limit, needs: Needs) -> Check:
    """Advise where a launcher started another number of ranks here than the config has."""
    if isinstance(limit.value, Unreadable):
        return told(limit, State.UNREADABLE, limit.value.reason)
    started = limit.value.number if isinstance(limit.value, Words) else None
    if started is not None and needs.ranks and started != needs.ranks:
        of_one = needs.claim(lambda tenant: True).of_one_rank_bytes
        reason = (
            f"{started} ranks were started on this host ({limit.note}) and the config has {needs.ranks}: it counts"
            f" {format_bytes(needs.ranks * of_one)} for what {started} ranks take, {format_bytes(started * of_one)}"
        )
        return told(limit, State.ADVICE, reason)
    return told(limit, State.OK)


def check_surroundings(limit: Limit, needs: Needs) -> Check:
    """Say where the other figures mean something else. WSL2 pins little, and that binds what its driver pins."""
    if isinstance(limit.value, Unreadable):
        return told(limit, State.UNREADABLE, limit.value.reason)
    name = limit.value.text if isinstance(limit.value, Words) else ""
    if name == WSL:
        return _check_wsl(limit, needs)
    if name == GVISOR:
        return told(limit, State.ADVICE, "the figures of /proc are the sandbox's own, and its host may have less")
    if name == CONTAINER:
        return told(limit, State.OK, "MemAvailable is the whole host's here; the cgroup is this container's")
    return told(limit, State.OK)


def _check_wsl(limit: Limit, needs: Needs) -> Check:
    claim = needs.claim(lambda tenant: tenant.way.by_driver)
    most = limit.parts["pinned_most"].bytes
    need = claim.on_the_host_bytes
    reason = "WSL2 stops at about 1 to 2 GB of memory that a GPU driver pins"
    if need > most:
        remedy = needs.fit_command
        return told(limit, State.ERROR, f"{reason}, and {format_bytes(need)} are needed", remedy, claim)
    if need > WSL_SAFE_BYTES or needs.is_empty:
        return told(limit, State.ADVICE, reason, claim=claim)
    return told(limit, State.OK, claim=claim)
