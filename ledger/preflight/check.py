"""`Check`: one limit of a host, held against what is bound by it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from pinprobe.ledger.preflight.needs import Claim
from pinprobe.probes.limits.limit import Absent, Limit, LimitKind, Value
from pinprobe.probes.reading import Reading, Unreadable
from pinprobe.probes.units import format_bytes


class State(str, Enum):
    """How a check came out. Only what a tenant is bound by can be an error."""

    OK = "ok"
    ADVICE = "advice"
    ERROR = "error"
    UNREADABLE = "unreadable"


@dataclass(frozen=True, slots=True)
class Check:
    """One limit, what is needed under it, and what to do where that does not fit.

    `need_bytes` is None where no tenant of the config is bound by it; else `tenants` names those that are. `reason` is
    a sentence, and `remedy` a command to copy where there is one. Both are empty where there is nothing to say.
    """

    kind: LimitKind | None
    name: str
    state: State
    value: Value
    need_bytes: int | None
    binds: str
    tenants: tuple[str, ...]
    source: str
    reason: str = ""
    remedy: str = ""


def exit_code_of(checks: Iterable[Check]) -> int:
    """Return 1 where a check fails, 3 where one that binds a tenant can't be read, else 0."""
    states = [(check.state, bool(check.tenants)) for check in checks]
    if any(state is State.ERROR for state, _ in states):
        return 1
    return 3 if (State.UNREADABLE, True) in states else 0


def told(
    limit: Limit,
    state: State,
    reason: str = "",
    remedy: str = "",
    claim: Claim | None = None,
    need_bytes: int | None = None,
) -> Check:
    """Make a check of a limit. Those of the claim are bound by it, with all they take unless `need_bytes` is given."""
    names = claim.names if claim is not None else ()
    if need_bytes is None and claim is not None and names:
        need_bytes = claim.on_the_host_bytes
    return Check(
        kind=limit.kind,
        name=limit.name,
        state=state,
        value=limit.value,
        need_bytes=need_bytes if names else None,
        binds=limit.binds,
        tenants=names,
        source=limit.source,
        reason=reason,
        remedy=remedy,
    )


def held_against(limit: Limit, claim: Claim, need_bytes: int, reason: str, remedy: str) -> Check:
    """Hold what is needed against a limit that is a number of bytes; `reason` and `remedy` are for where it fails.

    Without anyone in the claim nothing can fail.
    """
    value = limit.value
    if isinstance(value, Unreadable):
        return told(limit, State.UNREADABLE, value.reason, claim=claim, need_bytes=need_bytes)
    if isinstance(value, Absent):
        return told(limit, State.OK)
    if claim.names and isinstance(value, Reading) and need_bytes > value.bytes:
        return told(limit, State.ERROR, reason, remedy, claim, need_bytes)
    return told(limit, State.OK, claim=claim, need_bytes=need_bytes)


def amount_of(limit: Limit) -> int | None:
    """Return a limit's bytes, where it is a number of bytes."""
    return limit.value.bytes if isinstance(limit.value, Reading) else None


def short_of(limit: Limit, need_bytes: int) -> str:
    """Say what is needed and what is there.

    >>> limit = Limit(LimitKind.SWAP, "swap", Reading(2**30, "meminfo"), "/proc/meminfo", "")
    >>> short_of(limit, 3 * 2**30)
    '3.000 GiB are needed and 1.000 GiB are left, 2.000 GiB short'
    """
    left = amount_of(limit) or 0
    return (
        f"{format_bytes(need_bytes)} are needed and {format_bytes(left)} are left,"
        f" {format_bytes(max(0, need_bytes - left))} short"
    )
