"""Replays requests through a retention policy at a fixed number of slots, without a byte of savepoints."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass

from pinprobe.ledger.replay.request import Request
from pinprobe.ledger.tenants.policies.policy import Policy, Savepoint


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """What came of it. Tokens are *spared* that a request did not have to prefill, since a savepoint was read.

    * `hits`: requests that read a savepoint, of `requests`.
    * `offered`: savepoints that were offered: kept, which is one of `writes` each, `refused`, or `resident` already.
    * `evictions`: entries that went for others.
    """

    policy: str
    slots: int
    requests: int
    hits: int
    prompt_tokens: int
    spared_tokens: int
    offered: int
    writes: int
    refused: int
    resident: int
    evictions: int

    def __post_init__(self) -> None:
        assert self.writes + self.refused + self.resident == self.offered, self
        assert 0 <= self.writes - self.evictions <= self.slots, self
        assert self.hits <= self.requests, self
        assert self.spared_tokens <= self.prompt_tokens, self

    @property
    def token_hit_rate(self) -> float:
        """The share of all prompts' tokens that was spared."""
        return self.spared_tokens / self.prompt_tokens if self.prompt_tokens else 0.0


def replay(requests: Iterable[Request], policy: Policy) -> ReplayResult:
    """Replay requests in their order, and count.

    What a request reads is found in the trace, which knows all savepoints, and not by what the policy still remembers
    of them: so a policy spares no token by what it says. One that evicts what is not resident, or keeps more than its
    slots, fails an assertion.
    """
    seen: dict[int, Request] = {}  # by savepoint its first request
    resident: set[int] = set()
    counts = dict.fromkeys(
        ("requests", "hits", "prompt_tokens", "spared_tokens", "offered", "writes", "refused", "resident", "evictions"),
        0,
    )
    for request in requests:
        counts["requests"] += 1
        counts["prompt_tokens"] += request.prompt_tokens
        read = _nearest(request, seen, resident)
        if read is not None:
            counts["hits"] += 1
            counts["spared_tokens"] += seen[read].savepoint_tokens
        known = _nearest(request, seen, policy)
        if known is not None:
            policy.read(known, request.at_seconds)
        seen.setdefault(request.savepoint, request)
        if not request.savepoint_tokens:
            continue
        counts["offered"] += 1
        if request.savepoint in resident:
            counts["resident"] += 1
            continue
        parent = None if known == request.savepoint else known
        decision = policy.offer(Savepoint(request.savepoint, parent, request.savepoint_tokens), request.at_seconds)
        if decision.evicted is not None:
            counts["evictions"] += 1
            resident.remove(decision.evicted)  # type: ignore[arg-type]  # keys come back as they were given
        counts["writes" if decision.is_kept else "refused"] += 1
        if decision.is_kept:
            resident.add(request.savepoint)
        assert len(resident) == policy.resident_count <= policy.slots, policy.name
    return ReplayResult(policy.name, policy.slots, **counts)


def _nearest(request: Request, seen: Mapping[int, Request], within: Container[int]) -> int | None:
    """Return the longest savepoint within something that is a prefix of a request's prompt."""
    savepoint = request.parent
    while savepoint is not None and savepoint not in within:
        savepoint = seen[savepoint].parent
    return savepoint
