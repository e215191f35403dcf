"""The other end of one point of a sweep: what runs in a fresh process, since a library may hang or end it."""

from __future__ import annotations

from collections.abc import Sequence

from pinprobe.ledger.replay.replay import ReplayResult, replay
from pinprobe.ledger.replay.request import Request
from pinprobe.ledger.tenants.policies.policies import make_policy


class SweepServer:
    """The one call that a parent may make."""

    def replay(self, requests: Sequence[Request], policy: str, slots: int) -> ReplayResult:
        """Replay requests through a policy. Raises `BadRequest` where it can't be had at so many slots."""
        return replay(requests, make_policy(policy, slots))
