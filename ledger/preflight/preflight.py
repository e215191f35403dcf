"""The checks of one host, for one config or for none: limits that were read, held against what tenants need."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from pinprobe.ledger.preflight import memory_checks, pinning_checks, setting_checks
from pinprobe.ledger.preflight.book_check import BookSeen, check_book
from pinprobe.ledger.preflight.check import Check, amount_of
from pinprobe.ledger.preflight.needs import Needs
from pinprobe.probes.limits.limit import Absent, Limit, LimitKind


def check_limits(
    limits: Sequence[Limit], needs: Needs, book: BookSeen, target_bytes: int | None = None
) -> tuple[Check, ...]:
    """Hold every limit against what the tenants need that are bound by it; the host's book comes last.

    `target_bytes` is what TTM's limit is to be raised to where it has to be raised. Reads nothing and takes nothing.
    """
    memory = [limit for limit in limits if limit.kind is LimitKind.MEMORY]
    left = next((amount for limit in memory if (amount := amount_of(limit)) is not None), None)
    has_driver = any(limit.kind is LimitKind.REGISTRATION and not isinstance(limit.value, Absent) for limit in limits)
    promised = book.promised_bytes
    judges: dict[LimitKind, Callable[[Limit], Check]] = {
        LimitKind.MEMORY: lambda limit: memory_checks.check_memory(limit, needs, promised),
        LimitKind.CGROUP: lambda limit: memory_checks.check_cgroup(limit, needs, promised),
        LimitKind.OVERCOMMIT: lambda limit: memory_checks.check_overcommit(limit, needs),
        LimitKind.NUMA: lambda limit: memory_checks.check_numa(limit, needs),
        LimitKind.SHARED_MEMORY: lambda limit: memory_checks.check_shared_memory(limit, needs),
        LimitKind.MEMLOCK: lambda limit: pinning_checks.check_memlock(limit, needs, has_driver),
        LimitKind.HUGEPAGES: lambda limit: pinning_checks.check_hugepages(limit, needs),
        LimitKind.TTM: lambda limit: pinning_checks.check_ttm(limit, needs, target_bytes),
        LimitKind.GTT: lambda limit: pinning_checks.check_gtt(limit, needs),
        LimitKind.REGISTRATION: lambda limit: pinning_checks.check_registration(limit, needs),
        LimitKind.HUGE_PAGE_MODE: lambda limit: setting_checks.check_huge_page_mode(limit, needs),
        LimitKind.SWAP: lambda limit: setting_checks.check_swap(limit, needs),
        LimitKind.OOM_DAEMON: lambda limit: setting_checks.check_oom_daemon(limit, needs, left),
        LimitKind.OOM_SCORE: lambda limit: setting_checks.check_oom_score(limit, needs),
        LimitKind.RANKS: lambda limit: setting_checks.check_ranks(limit, needs),
        LimitKind.SURROUNDINGS: lambda limit: setting_checks.check_surroundings(limit, needs),
    }
    return (*(judges[limit.kind](limit) for limit in _worth_showing(limits)), check_book(book, needs))


def _worth_showing(limits: Iterable[Limit]) -> list[Limit]:
    """Leave out huge page pools that are empty and of no size that would be asked for."""
    return [limit for limit in limits if not _is_idle_pool(limit)]


def _is_idle_pool(limit: Limit) -> bool:
    page, default = limit.parts.get("page"), limit.parts.get("default_page")
    is_other = page is not None and default is not None and page.bytes != default.bytes
    return limit.kind is LimitKind.HUGEPAGES and is_other and amount_of(limit) == 0
