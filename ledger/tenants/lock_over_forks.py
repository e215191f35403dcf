"""A lock that no forked child finds held by a thread that it does not have."""

from __future__ import annotations

import os
import threading
import weakref

# For so long a fork waits for a lock, which others hold for a few milliseconds. A handler of a signal that came to
# whoever holds it would wait for ever; then its child has a lock that stays held.
_PATIENCE_SECONDS = 1.0

_locks: weakref.WeakSet[threading.Lock] = weakref.WeakSet()
_held: list[threading.Lock] = []
# Over each fork, so that of two threads that fork each lets go of its own.
_forking = threading.RLock()


def lock_over_forks() -> threading.Lock:
    """Return a new lock, which each fork of Python's waits for: a child finds it free, and what it guards whole."""
    lock = threading.Lock()
    _locks.add(lock)
    return lock


def _before() -> None:
    _forking.acquire()
    _held.extend(lock for lock in list(_locks) if lock.acquire(timeout=_PATIENCE_SECONDS))


def _after() -> None:
    while _held:
        _held.pop().release()
    _forking.release()


os.register_at_fork(before=_before, after_in_parent=_after, after_in_child=_after)
