"""What a pool keeps that follows its demand, and of how many bytes, beside a pool without a bound.

Runs on a generated drive of agents, or on the traces that are named: `python benchmarks/demand.py [TRACE...]`. Limit:
at its own bound the default policy keeps at least 97 % of the hit rate of a pool that lets nothing go. A reuse horizon
that is frozen at 25.5 s, which fits one other load, is there for contrast.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pinprobe.ledger.config.registry import load_config
from pinprobe.ledger.config.shipped import find_config
from pinprobe.ledger.replay.any_trace import read_any_trace
from pinprobe.ledger.replay.arm import Arm, arm_of
from pinprobe.ledger.replay.arm_replay import Setting, replay_arm
from pinprobe.ledger.replay.request import Request
from pinprobe.ledger.replay.scenario import make_scenario

LEAST_SHARE = 0.97
FROZEN_SECONDS = 25.5
DEFAULT = "gittins"
GIB = 2**30


def main() -> None:
    """Measure and print."""
    loads = {path: read_any_trace(Path(path)) for path in sys.argv[1:]}
    if not loads:
        loads["10,000 requests of generated agents"] = make_scenario("agentic", 10_000, seed=1)
    shipped = arm_of(load_config(find_config("savepoint-split-demand"))).with_pool(
        bound_regions=1024, min_regions=1, chunk_tokens=1, is_mapped_at_boot=False
    )
    for name, requests in loads.items():
        print(f"{name}: {len(requests):,} requests; savepoints of {shipped.ring_layout.row_bytes:,} B")
        print(f"{'pool':<34}{'hit rate':>9}{'share':>8}{'entries':>9}{'mean GiB':>10}{'peak GiB':>10}{'horizon':>10}")
        everything = show("nothing ever goes", requests, shipped.with_pool(
            policy="lru", is_sized_by_demand=False, bound_regions=len(requests)
        ), None)  # fmt: skip
        for policy in ("lru", "chain", "gittins"):
            share = show(f"{policy}, by demand", requests, shipped.with_pool(policy=policy), everything) / everything
            if policy == DEFAULT:
                print(f"{'':<34}{'limit':>9}{LEAST_SHARE:>8.1%}  {'ok' if share >= LEAST_SHARE else 'OVER'}")
            frozen = shipped.with_pool(policy=policy, fixed_horizon_seconds=FROZEN_SECONDS)
            show(f"{policy}, horizon frozen at {FROZEN_SECONDS} s", requests, frozen, everything)


def show(name: str, requests: list[Request], arm: Arm, everything: float | None) -> float:
    """Replay an arm and print its line; return its hit rate."""
    result = replay_arm(requests, arm, Setting())
    demand = result.demand
    horizon = demand.reuse_horizon_seconds if demand is not None and arm.pool and arm.pool.is_sized_by_demand else None
    share = result.token_hit_rate / (everything or result.token_hit_rate)
    print(
        f"{name:<34}{result.token_hit_rate:>9.4f}{share:>8.1%}{result.mean_entries:>9.1f}"
        f"{result.mean_pageable_bytes / GIB:>10.2f}{result.pageable_bytes / GIB:>10.2f}"
        f"{'' if horizon is None else f'{horizon:.1f} s':>10}"
    )
    return result.token_hit_rate


if __name__ == "__main__":
    main()
