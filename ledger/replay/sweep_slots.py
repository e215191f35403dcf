"""Retention policies at several numbers of slots, beside what keeping everything would spare."""

from __future__ import annotations

import importlib
import os
import signal
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from pinprobe.ledger.replay.replay import ReplayResult, replay
from pinprobe.ledger.replay.request import Request
from pinprobe.ledger.tenants.policies.libcachesim_policy import PREFIX
from pinprobe.ledger.tenants.policies.policies import make_policy, policy_names
from pinprobe.probes.errors import BadRequest, ChildDied
from pinprobe.probes.fresh_process import FreshProcess

#: Stands for every policy that is known by name.
ALL = "all"
#: Stands for the general policies of the library of that name.
LIBRARY = PREFIX.rstrip(":")

# Those that know the future are no policies to be had, and one has its decisions made by its caller.
_NO_GENERAL_POLICY = ("CacheBase", "Belady", "BeladySize", "PluginCache")

# Many times what a request takes any of the library's policies that returns at all.
_LEAST_PATIENCE_SECONDS, _PATIENCE_SECONDS_A_REQUEST = 20.0, 0.001


@dataclass(frozen=True, slots=True)
class Unfit:
    """A policy that can't be had at a number of slots, and why."""

    policy: str
    slots: int
    reason: str


@dataclass(frozen=True)
class SlotSweep:
    """What each policy came to at each number of slots, as far as it was replayed.

    `everything` is what no policy can better: all savepoints kept. `ended` says why points are missing; None where none
    is but those in `unfit`.
    """

    policies: tuple[str, ...]
    slots: tuple[int, ...]
    points: tuple[ReplayResult, ...]
    everything: ReplayResult
    unfit: tuple[Unfit, ...] = ()
    ended: str | None = None

    def at(self, policy: str, slots: int) -> ReplayResult | None:
        """Return one point; None where it was not replayed."""
        return next((point for point in self.points if (point.policy, point.slots) == (policy, slots)), None)

    @property
    def shown_policies(self) -> tuple[str, ...]:
        """The policies that have a point at all."""
        known = {point.policy for point in self.points}
        return tuple(name for name in self.policies if name in known)


def policies_for(words: Sequence[str], least_slots: int) -> tuple[str, ...]:
    """Return the policies that are meant, each once: names, `all`, and `libcachesim` for that library's general ones.

    Raises `BadRequest` where one that is called by its name can't be had at `least_slots`, or where the library is
    asked for and not installed.
    """
    names: dict[str, None] = {}
    for word in words:
        if word == ALL:
            names |= dict.fromkeys(policy_names())
        elif word == LIBRARY:
            names |= dict.fromkeys(_general_policies())
        elif word not in names:
            make_policy(word, least_slots)
            names[word] = None
    return tuple(names)


def sweep_slots(
    requests: Sequence[Request],
    policies: Sequence[str],
    slots: Sequence[int],
    watch: Callable[[str, int, int], object] = lambda policy, slots, done: None,
) -> SlotSweep:
    """Replay requests through every policy at every number of slots, with a savepoint at each prompt's end.

    `watch` is told what begins and how many points are done. A policy that can't be had at a number of slots is noted
    and left out there. Ctrl-C ends it, and what was done by then is returned.
    """
    distinct = len({request.savepoint for request in requests})
    everything = replay(requests, make_policy("lru", max(1, distinct)))
    points: list[ReplayResult] = []
    unfit: list[Unfit] = []
    ended = None
    try:
        for policy in policies:
            for count in slots:
                watch(policy, count, len(points) + len(unfit))
                try:
                    # Under the name that it was asked by, which may not be the one that it gives itself.
                    points.append(replace(_point(requests, policy, count), policy=policy))
                except (BadRequest, ChildDied) as error:
                    unfit.append(Unfit(policy, count, str(error)))
    except KeyboardInterrupt as interrupt:
        if not points:
            raise
        ended = str(interrupt) or "interrupted"
    return SlotSweep(tuple(policies), tuple(slots), tuple(points), everything, tuple(unfit), ended)


def _point(requests: Sequence[Request], policy: str, slots: int) -> ReplayResult:
    if not policy.startswith(PREFIX):
        return replay(requests, make_policy(policy, slots))
    # A process for each point: some of the library's policies never return, some end the process, and those that draw
    # lots draw the same ones in a fresh process only.
    patience_seconds = _LEAST_PATIENCE_SECONDS + len(requests) * _PATIENCE_SECONDS_A_REQUEST
    with FreshProcess("pinprobe.ledger.replay.sweep_server:SweepServer", f"replay through {policy}") as process:
        timer = threading.Timer(patience_seconds, os.kill, (process.pid, signal.SIGKILL))
        timer.daemon = True
        timer.start()
        try:
            result: ReplayResult = process.call("replay", requests, policy, slots)
        except ChildDied:
            if timer.is_alive():
                raise
            raise ChildDied(f"it did not come to an end within {patience_seconds:.0f} s and was ended") from None
        finally:
            timer.cancel()
    return result


def _general_policies() -> list[str]:
    try:
        library = importlib.import_module(LIBRARY)
    except ImportError:
        raise BadRequest(
            f'the policies of {LIBRARY} need that library; install it: pip install "pinprobe[policies]"'
        ) from None
    kinds = {name: kind for name, kind in vars(library).items() if isinstance(kind, type)}
    found = [name for name, kind in kinds.items() if issubclass(kind, library.CacheBase)]
    return [PREFIX + name for name in sorted(found) if name not in _NO_GENERAL_POLICY]
