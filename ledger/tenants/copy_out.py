"""Copies staged savepoints from the ring into the pool, on a thread of its own, beside whoever launches work.

It asks the fence and never waits for it, sleeps between two looks, and copies by one memmove, so that the interpreter's
lock is let go of once for a whole savepoint. The ring does not wait for it either: a slot that was handed out again
while it was being copied shows by its generation, and what was copied is thrown away.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import threading
import time
from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from pinprobe.ledger.tenants.lock_over_forks import lock_over_forks
from pinprobe.ledger.tenants.retention_pool import RetentionPool
from pinprobe.ledger.tenants.savepoint_ring import SavepointRing, StaleTicket, Ticket
from pinprobe.probes.errors import BadRequest, in_one_line

_log = logging.getLogger("pinprobe")
# Each look takes the interpreter's lock from whoever computes; a slot lives for a whole lap, so there is time.
_SHORTEST_PAUSE_SECONDS = 0.006
_LONGEST_PAUSE_SECONDS = 0.02


@dataclass(frozen=True)
class _Work:
    ticket: Ticket
    tokens: array[int]
    conversation: str


class CopyOut:
    """The worker between one ring and one pool. `submit` is for any thread; `close` ends it."""

    def __init__(self, ring: SavepointRing, pool: RetentionPool) -> None:
        self._ring = ring
        self._pool = pool
        self._waiting: deque[_Work] = deque()
        self._changed = threading.Condition(lock_over_forks())
        self._is_ending = False
        self._is_copying = False
        self._thread = threading.Thread(target=self._run, name="pinprobe-copy-out", daemon=True)
        self._thread.start()

    def submit(self, ticket: Ticket, tokens: Sequence[int], conversation: str) -> None:
        """Have a staged savepoint kept, that covers `tokens`; returns at once.

        Tokens in an `array("q")` cost the least: others are turned into one while the interpreter's lock is held.
        Raises `BadRequest` where they are no whole numbers of 64 bits.

        Every offer ends in one counter of the pool: promoted, lost_the_race, failed,
        no_region, refused or below_floor.
        """
        try:
            words = array("q", tokens)  # the caller's own may change meanwhile
        except (TypeError, OverflowError) as error:
            raise BadRequest(f"tokens are whole numbers of 64 bits: {in_one_line(error)}") from None
        if not self._pool.offer(len(words)):
            return
        with self._changed:
            if not self._is_ending:
                self._waiting.append(_Work(ticket, words, conversation))
                self._changed.notify()
                return
        self._pool.lose()

    def drain(self, seconds: float) -> bool:
        """Wait until everything that was submitted has come to its end, at most so long; say whether it has."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._waiting and not self._is_copying, timeout=seconds)

    def close(self, drain_seconds: float = 0.0) -> None:
        """End the worker: wait so long for what is left, and drop the rest as lost. A second call does nothing."""
        if drain_seconds:
            self.drain(drain_seconds)
        with self._changed:
            self._is_ending = True
            dropped = len(self._waiting)
            self._waiting.clear()
            self._changed.notify_all()
        for _ in range(dropped):
            self._pool.lose()
        self._thread.join()

    def _run(self) -> None:
        pause = _SHORTEST_PAUSE_SECONDS
        settled_seconds = time.monotonic()
        while True:
            # Counted from the last time and not from the last savepoint: else one that comes each half second would
            # keep the pool from ever being settled.
            idle_seconds = self._pool.idle_seconds
            left = None if idle_seconds is None else settled_seconds + idle_seconds - time.monotonic()
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._is_ending, left)
                if self._is_ending:
                    return
                work = self._next_ready()
                self._is_copying = work is not None
            if work is None and idle_seconds is not None and time.monotonic() >= settled_seconds + idle_seconds:
                self._use_idle_moment()
                settled_seconds = time.monotonic()
                continue
            if work is None:
                # Nothing is staged yet: look again after a pause that grows, for a device that has more to do.
                time.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
                continue
            pause = _SHORTEST_PAUSE_SECONDS
            started = time.perf_counter()
            try:
                self._copy(work)
            except Exception as error:  # noqa: BLE001  # one savepoint that can't be kept must not end the thread
                self._tell(error)
            self._pool.served(time.perf_counter() - started)
            with self._changed:
                self._is_copying = False
                self._changed.notify_all()

    def _next_ready(self) -> _Work | None:
        """Take the first savepoint out of the queue that can be copied now, or that is lost already."""
        for work in list(self._waiting):
            try:
                is_ready = self._ring.is_staged(work.ticket) or not self._ring.is_live(work.ticket)
            except Exception as error:  # noqa: BLE001  # a device that can't be asked any more
                self._waiting.remove(work)
                self._tell(error)
                continue
            if is_ready:
                self._waiting.remove(work)
                return work
        self._changed.notify_all()
        return None

    def _use_idle_moment(self) -> None:
        try:
            self._pool.settle()
        except Exception as error:  # noqa: BLE001  # a pool that can't shrink must not end the thread
            _log.error("a pool could not be brought to its size: %s", in_one_line(error))

    def _tell(self, error: Exception) -> None:
        _log.error("a savepoint could not be kept: %s", in_one_line(error))
        self._pool.lose(by_error=True)

    def _copy(self, work: _Work) -> None:
        if not self._ring.is_live(work.ticket):
            self._pool.lose()
            return
        place = self._pool.take_place(work.tokens, work.conversation)
        if place is None:
            return
        try:
            place.region.begin()
            with contextlib.suppress(StaleTicket), self._ring.reading(work.ticket) as address:
                ctypes.memmove(place.region.address, address, self._ring.layout.row_bytes)
            # Asked after the last byte: the ring raises the generation before the first byte of the next savepoint.
            if self._ring.is_live(work.ticket):
                self._pool.publish(place)
                return
        except BaseException:
            self._pool.give_back(place)
            raise
        self._pool.give_back(place, lost_the_race=True)
