"""What bounds pinned memory alone: RLIMIT_MEMLOCK, huge page pools, AMD's TTM and GTT, the ceiling of one call."""

from __future__ import annotations

from dataclasses import replace

from pinprobe.ledger.preflight.check import Check, State, amount_of, held_against, short_of, told
from pinprobe.ledger.preflight.needs import Claim, Locking, Needs, TenantNeed
from pinprobe.probes.limits.limit import Absent, Limit
from pinprobe.probes.limits.ttm import PAGE_BYTES
from pinprobe.probes.reading import Reading, Unreadable
from pinprobe.probes.units import LARGEST_SIZE_BYTES, format_bytes

#: The kernel's own RLIMIT_MEMLOCK since Linux 5.16.
DEFAULT_MEMLOCK_BYTES = 8 * 2**20

_MIB = 2**20
_NOT_CUDA = "it binds mlock, RDMA and io_uring, and not what a GPU driver pins"


def check_memlock(limit: Limit, needs: Needs, has_driver: bool) -> Check:
    """Hold what one process locks by mlock against what it may. A GPU driver's pinning is not bound by it.

    Where a driver is there (`has_driver`), what would else be locked is pinned by that.
    """
    must = needs.claim(lambda tenant: tenant.way.locking is Locking.ALWAYS)
    may = needs.claim(
        lambda tenant: tenant.way.locking is Locking.WHERE_ALLOWED and not (tenant.way.by_driver and has_driver)
    )
    left = amount_of(limit)
    tried = f"{limit.note}; " if limit.note else ""
    if must.names:
        need = _locked_bytes(limit, must)
        reason = f"{short_of(limit, need)} in one process; {tried}{_NOT_CUDA}"
        check = held_against(limit, must, need, reason, _raise_memlock(limit, needs))
        return replace(check, reason=f"{tried}{_NOT_CUDA}") if tried and check.state is State.OK else check
    if left is not None and may.names and _locked_bytes(limit, may) > left:
        reason = f"{', '.join(may.names)}: touched and not locked, where no GPU driver pins it; {_NOT_CUDA}"
        return told(limit, State.ADVICE, reason, _raise_memlock(limit, needs))
    soft = limit.parts.get("soft")
    if left is not None and soft is not None and needs.is_empty and soft.bytes <= DEFAULT_MEMLOCK_BYTES:
        reason = f"hardly anything may be locked; {tried}{_NOT_CUDA}"
        return told(limit, State.ADVICE, reason, _raise_memlock(limit, needs))
    if isinstance(limit.value, Unreadable):
        return told(limit, State.UNREADABLE, limit.value.reason)
    return told(limit, State.OK, f"{tried}{_NOT_CUDA}" if tried else "")


def check_hugepages(limit: Limit, needs: Needs) -> Check:
    """Hold what is asked of the pool against its free pages; what nobody asks of it is missing elsewhere."""
    page, default = limit.parts.get("page"), limit.parts.get("default_page")
    is_asked = page is None or default is None or page.bytes == default.bytes
    claim = needs.claim(lambda tenant: tenant.way.from_pool and is_asked)
    page_bytes = page.bytes if page is not None else 2 * _MIB
    need = sum(-(-tenant.of_one_copy_bytes // page_bytes) * page_bytes * tenant.row.copies for tenant in claim.tenants)
    left, total = amount_of(limit), limit.parts.get("total")
    have = 0 if total is None or left is None else total.bytes - left  # in use, or promised
    if claim.names and isinstance(limit.value, Absent):
        return told(limit, State.ERROR, f"tenants take from a pool, and {limit.value.reason}", "", claim, need)
    if left is not None and not claim.names and left and not needs.is_empty:
        words = f"{format_bytes(left)} lie in the pool, which no tenant takes from and MemAvailable does without"
        return told(limit, State.ADVICE, words, f"echo {have // page_bytes} | sudo tee {_pool_file(limit, page_bytes)}")
    remedy = f"echo {(have + need) // page_bytes} | sudo tee {_pool_file(limit, page_bytes)}"
    return held_against(limit, claim, need, f"{short_of(limit, need)}, in pages of {format_bytes(page_bytes)}", remedy)


def ttm_claim(needs: Needs) -> Claim:
    """Return what a GPU's driver pins."""
    return needs.claim(_by_driver)


def check_ttm(limit: Limit, needs: Needs, target_bytes: int | None) -> Check:
    """Hold what AMD's driver pins on the whole host against pages_limit."""
    if not limit.applies:
        return told(limit, State.OK, limit.note)
    claim = ttm_claim(needs)
    need = claim.on_the_host_bytes
    of, used = limit.parts.get("limit"), limit.parts.get("used")
    total = limit.parts.get("memory_total")
    most = total.bytes if total is not None else LARGEST_SIZE_BYTES
    target_bytes = target_bytes if (target_bytes or 0) <= most else None
    wanted = ttm_wanted_bytes(need, used.bytes if used is not None else 0, target_bytes)
    # More than the host has can be written there, and mends nothing.
    remedy = f"echo {wanted // PAGE_BYTES} | sudo tee {limit.source}" if wanted <= most else needs.fit_command
    reason = (
        f"{short_of(limit, need)}; the kernel sets it to half of the memory at every boot, and what is pinned beyond it"
        " fails while it loads"
    )
    is_default = of is not None and total is not None and of.bytes <= total.bytes // 2
    if needs.is_empty and is_default and isinstance(limit.value, Reading):
        words = "half of the memory, as the kernel sets it at every boot; an engine that pins more dies while it loads"
        return told(limit, State.ADVICE, words, f"echo PAGES | sudo tee {limit.source}")
    return held_against(limit, claim, need, reason, remedy)


def ttm_wanted_bytes(need_bytes: int, used_bytes: int, target_bytes: int | None) -> int:
    """Return what pages_limit is to be: the target, where one was given that is enough, else the need in whole MiB."""
    enough = -(-(need_bytes + used_bytes) // _MIB) * _MIB
    return max(enough, target_bytes or 0)


def check_gtt(limit: Limit, needs: Needs) -> Check:
    """Compare one rank with the GTT of a card. Advice at most: how much a driver maps is its affair."""
    claim = needs.claim(_by_driver)
    need, left = claim.of_one_rank_bytes, amount_of(limit)
    if isinstance(limit.value, Unreadable):
        return told(limit, State.UNREADABLE, limit.value.reason)
    if left is not None and need > left:
        mib = -(-need // _MIB)
        reason = f"one rank pins {format_bytes(need)} and its card addresses {format_bytes(left)} of the host's memory"
        return told(
            limit, State.ADVICE, reason, f"echo 'options amdgpu gttsize={mib}' | sudo tee /etc/modprobe.d/gtt.conf"
        )
    return told(limit, State.OK)


def check_registration(limit: Limit, needs: Needs) -> Check:
    """Hold the largest single request against what one call registers. A tenant is registered in one call."""
    registering = needs.claim(lambda tenant: tenant.way.registers)
    may = needs.claim(lambda tenant: tenant.way.by_driver and not tenant.way.registers)
    ceiling = amount_of(limit)
    need = registering.largest_call_bytes
    cuts = "take it in several tenants, cut where no copy crosses: a copy from one registration into the next fails"
    if isinstance(limit.value, Unreadable):
        return told(limit, State.UNREADABLE, limit.value.reason, claim=registering, need_bytes=need)
    if ceiling is None or max(need, may.largest_call_bytes) < ceiling:
        return told(limit, State.OK, claim=registering, need_bytes=need)
    if need >= ceiling and limit.applies:
        reason = f"one call registers less than {format_bytes(ceiling)} and {format_bytes(need)} are asked; {cuts}"
        return told(limit, State.ERROR, reason, needs.fit_command, registering, need)
    size = max(need, may.largest_call_bytes)
    reason = f"{format_bytes(size)} are asked at once, and registering {format_bytes(ceiling)} in one call fails"
    return told(limit, State.ADVICE, f"{reason} ({limit.note}); {cuts}", needs.fit_command)


def _by_driver(tenant: TenantNeed) -> bool:
    return tenant.way.by_driver and not tenant.way.from_pool


def _locked_bytes(limit: Limit, claim: Claim) -> int:
    # The kernel counts whole pages for each mapping.
    page = limit.parts["page"].bytes if "page" in limit.parts else 1
    return sum(-(-tenant.of_one_copy_bytes // page) * page for tenant in claim.tenants)


def memlock_wanted_bytes(limit: Limit, needs: Needs) -> int | None:
    """Return what the soft limit has to be for what one process locks; None, for all it can be, without a config."""
    soft, left = limit.parts.get("soft"), amount_of(limit)
    if needs.is_empty or soft is None or left is None:
        return None
    must = needs.claim(lambda tenant: tenant.way.locking is Locking.ALWAYS)
    may = needs.claim(lambda tenant: tenant.way.locking is Locking.WHERE_ALLOWED)
    return max(soft.bytes - left, 0) + _locked_bytes(limit, must if must.names else may)


def _raise_memlock(limit: Limit, needs: Needs) -> str:
    wanted, hard = memlock_wanted_bytes(limit, needs), limit.parts.get("hard")
    if wanted is None:
        return "ulimit -l unlimited" if hard is None else "sudo prlimit --pid $$ --memlock=unlimited"
    if hard is None or wanted <= hard.bytes:
        return f"ulimit -l {-(-wanted // 1024)}"
    return f"sudo prlimit --pid $$ --memlock={wanted}:{wanted}"


def _pool_file(limit: Limit, page_bytes: int) -> str:
    if limit.source.startswith("/sys/"):
        return limit.source
    return f"/sys/kernel/mm/hugepages/hugepages-{page_bytes // 1024}kB/nr_hugepages"
