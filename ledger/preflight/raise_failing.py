"""`--raise`: sets what may be set of the limits that fail, and says by name what it does not set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pinprobe.ledger.preflight.check import Check, State
from pinprobe.ledger.preflight.needs import Needs
from pinprobe.ledger.preflight.pinning_checks import memlock_wanted_bytes, ttm_claim, ttm_wanted_bytes
from pinprobe.probes.errors import CheckFailed
from pinprobe.probes.host_tree import THIS_HOST, HostTree
from pinprobe.probes.limits.limit import Limit, LimitKind
from pinprobe.probes.limits.raising import Raised, raise_memlock, raise_pages_limit
from pinprobe.probes.reading import Reading


@dataclass(frozen=True, slots=True)
class Raise:
    """One limit that `--raise` looked at: what it set, or the `refusal` in a line."""

    name: str
    raised: Raised | None
    refusal: str = ""


def raise_failing(
    tree: HostTree, limits: Sequence[Limit], checks: Sequence[Check], needs: Needs, target_bytes: int | None
) -> tuple[Raise, ...]:
    """Raise TTM's limit and this process's memlock as far as is needed, and refuse every other check that fails.

    A TTM limit that is enough and below a `target_bytes` that was given is raised too. Each raise stands for itself.
    """
    by_limit = {(check.name, check.source): check for check in checks}
    outcomes = []
    for limit in limits:
        check = by_limit.get((limit.name, limit.source))
        if check is None:
            continue
        is_raisable = limit.kind in (LimitKind.TTM, LimitKind.MEMLOCK)
        if is_raisable and _is_short(limit, check, needs, target_bytes):
            outcomes.append(_tried(tree, limit, needs, target_bytes))
        elif check.state is State.ERROR and not is_raisable:
            remedy = f"; {check.remedy}" if check.remedy else ""
            refusal = f"{check.name} is not raised: preflight sets only TTM's pages_limit and RLIMIT_MEMLOCK{remedy}"
            outcomes.append(Raise(check.name, None, refusal))
    return tuple(outcomes)


def _is_short(limit: Limit, check: Check, needs: Needs, target_bytes: int | None) -> bool:
    if not limit.applies or not isinstance(limit.value, Reading):
        return False
    if limit.kind is LimitKind.MEMLOCK:
        return check.state in (State.ERROR, State.ADVICE)
    of = limit.parts.get("limit")
    is_below_target = target_bytes is not None and of is not None and of.bytes < target_bytes
    return check.state is State.ERROR or is_below_target


def _tried(tree: HostTree, limit: Limit, needs: Needs, target_bytes: int | None) -> Raise:
    try:
        if limit.kind is LimitKind.TTM:
            return Raise(limit.name, _raise_ttm(tree, limit, needs, target_bytes))
        if tree != THIS_HOST:
            raise CheckFailed(f"{limit.name} is not raised: it is this process's own, and --root reads another's")
        return Raise(limit.name, raise_memlock(memlock_wanted_bytes(limit, needs)))
    except CheckFailed as error:
        return Raise(limit.name, None, str(error))


def _raise_ttm(tree: HostTree, limit: Limit, needs: Needs, target_bytes: int | None) -> Raised:
    used = limit.parts["used"].bytes if "used" in limit.parts else 0
    wanted = ttm_wanted_bytes(ttm_claim(needs).on_the_host_bytes, used, target_bytes)
    total = limit.parts.get("memory_total")
    if total is not None and wanted > total.bytes:
        raise CheckFailed(
            f"{limit.name} is not raised to {wanted // 2**20:,} MiB: the host has {total.bytes // 2**20:,} MiB in all;"
            f" {needs.fit_command or 'give a smaller --target'}"
        )
    return raise_pages_limit(tree, limit.name.partition(" ")[0], wanted)
