"""Replays requests through one arm with real memory: a pinned ring, a pool, and files, in a fresh process."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from fractions import Fraction
from itertools import islice

from pinprobe.ledger.replay.arm import Arm
from pinprobe.ledger.replay.arm_replay import Setting
from pinprobe.ledger.replay.arm_result import ArmResult
from pinprobe.ledger.replay.replay_folder import replay_folder
from pinprobe.ledger.replay.request import Request
from pinprobe.probes.errors import BadRequest
from pinprobe.probes.fresh_process import FreshProcess

# Requests are sent in pieces that take about so long, so that whoever watches sees it go on.
_SHORT_SECONDS, _LONG_SECONDS = 0.1, 0.5
_LARGEST_PIECE = 256


def replay_for_real(
    requests: Iterable[Request], arm: Arm, setting: Setting, scale: Fraction, watch: Callable[[int], None]
) -> ArmResult:
    """Replay requests in their order, and take the memory for it.

    Each savepoint that an arm would stage is stamped on the device, which is the processor here, staged into a ring
    over the arm's allocator, and copied out into the arm's pool; each that is read is brought back to the device and
    checked there to the last byte. `watch` is told how many requests are done. Every region of the pool's bound is held
    against the headroom before a byte is taken. The process dies with this one, and its memory and files go with it.

    `scale`, above 0 and at most 1, scales the bytes of a savepoint, to no less than a page, and no count: as many
    slots, regions and files as the arm has. `ArmResult.measured` is what was really taken, in rows of that scale. All
    other bytes of the result are of whole rows, counted from what really lay there; `pinned` is what was measured at a
    scale of 1, and else the ask.

    The time that policies and demand see is the trace's, and each copy has come to its end before the trace goes on.
    So without an overflow the result is the same each time, and its counters are those of `replay_arm`, but that two
    savepoints which cover the very same tokens are one here: the later one is `already_here`. Memory may differ: a pool
    that is mapped at boot and sized by demand holds its bound until it first gives regions back, and `pageable_bytes`
    says so, where `replay_arm` counts entries.

    The overflow is written at idle moments: one file at most after each savepoint, as far as a share of the trace's
    time allows it, judged by how long reading a file back takes here, which is less for a scaled row. `replay_arm`
    writes at once what is worth it by the rate that it is told.

    Raises `Refused` where the arm does not fit, `AllocatorUnavailable` where torch or the allocator can't be had,
    `BadRequest` for an arm or a trace that can't be replayed, and `ChildDied`.
    """
    if not 0 < scale <= 1:
        raise BadRequest(f"a savepoint can't be scaled by {scale}: give a scale above 0 and at most 1, such as 1/64")
    folder = None if arm.pool is None or arm.pool.overflow_bytes is None else arm.pool.overflow_folder
    with (
        replay_folder(folder) as own,
        FreshProcess("pinprobe.ledger.replay.real_replay_server:RealReplayServer", "replaying process") as process,
    ):
        process.call("open", arm, setting, scale, own)
        done, size, rest = 0, 1, iter(requests)
        while piece := list(islice(rest, size)):
            started = time.monotonic()
            process.call("replay", piece)
            took_seconds = time.monotonic() - started
            if took_seconds < _SHORT_SECONDS:
                size = min(2 * size, _LARGEST_PIECE)
            elif took_seconds > _LONG_SECONDS:
                size = max(1, size // 2)
            done += len(piece)
            watch(done)
        result: ArmResult = process.call("result")
        return result
