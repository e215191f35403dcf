"""What a decision of each retention policy costs, and how many requests a second a replay gets through with it.

A decision is a request: what is read, what is offered, and what goes for it. The drive is one of agents and one of a
flood of prompts that never come again, so that entries come and go all the time; a policy is measured once its slots
are full. Limits in the median: gittins at 1,000 slots 300 us, all others 20 us at any number.
"""

from __future__ import annotations

import itertools
import statistics
import sys
import time

from pinprobe.ledger.replay.replay import replay
from pinprobe.ledger.replay.request import Request
from pinprobe.ledger.replay.scenario import make_scenario
from pinprobe.ledger.tenants.policies.policies import make_policy
from pinprobe.ledger.tenants.policies.policy import Policy, Savepoint

POLICIES = ("lru", "gdsf", "chain", "gittins")
SLOTS = (100, 1_000, 10_000)
REQUESTS = 6_000
LIMIT_US = 20.0
GITTINS_LIMIT_US = 300.0


class Timed:
    """A policy, and how long it took over each request."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.seconds: list[float] = []

    def decide(self, request: Request, parents: dict[int, int | None]) -> None:
        """Read and offer, as a replay does, with the time that the policy took for both."""
        known = request.parent
        while known is not None and known not in self.policy:
            known = parents[known]
        savepoint = Savepoint(
            request.savepoint, None if known == request.savepoint else known, request.savepoint_tokens
        )
        started = time.perf_counter()
        if known is not None:
            self.policy.read(known, request.at_seconds)
        self.policy.offer(savepoint, request.at_seconds)
        self.seconds.append(time.perf_counter() - started)


def mixed(count: int) -> list[Request]:
    """Return requests of two drives in one row, in the order of their times."""
    agents = make_scenario("agentic", count // 2, seed=1)
    flood = make_scenario("one-shot-flood", count - len(agents), seed=1)
    apart = len(agents)
    moved = (
        Request(
            request.at_seconds,
            request.savepoint + apart,
            None if request.parent is None else request.parent + apart,
            request.savepoint_tokens,
            request.prompt_tokens,
            request.output_tokens,
            request.conversation,
        )
        for request in flood
    )
    return sorted(itertools.chain(agents, moved), key=lambda request: request.at_seconds)


def main() -> int:
    missed = False
    print(f"{'policy':>10}{'slots':>8}{'median':>10}{'99th':>10}{'limit':>9}{'replay':>14}")
    for slots in SLOTS:
        requests = mixed(REQUESTS + 2 * slots)
        for name in POLICIES:
            timed, parents = Timed(make_policy(name, slots)), dict[int, int | None]()
            for request in requests:
                timed.decide(request, parents)
                parents.setdefault(request.savepoint, request.parent)
            assert timed.policy.resident_count == slots, "the drive does not fill the slots"
            microseconds = [seconds * 1e6 for seconds in timed.seconds[-REQUESTS:]]
            median, late = statistics.median(microseconds), statistics.quantiles(microseconds, n=100)[98]
            limit = LIMIT_US if name != "gittins" else GITTINS_LIMIT_US if slots == 1_000 else None
            is_over = limit is not None and median > limit
            missed |= is_over
            started = time.perf_counter()
            replay(requests, make_policy(name, slots))
            rate = len(requests) / (time.perf_counter() - started)
            figures = f"{median:>7.1f} us{late:>7.0f} us{'' if limit is None else f'{limit:.0f} us':>9}{rate:>12,.0f}/s"
            print(f"{name:>10}{slots:>8,}{figures}{'   OVER' if is_over else ''}", flush=True)
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
