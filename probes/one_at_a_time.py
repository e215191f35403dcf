"""Lets one measurement of this user run at a time.

Each takes a share of the headroom that it finds; two that look at the same moment would each take it, and together more
than there is.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator

from pinprobe.probes.cache_folder import cache_folder

_PULSE_SECONDS = 0.2


@contextlib.contextmanager
def one_at_a_time(waiting: Callable[[], None]) -> Iterator[None]:
    """Hold the lock of this user's cache folder; `waiting` is called once where another holds it.

    The kernel lets go of it with the process, however that ends. Where the folder can't be written there is no lock.
    """
    try:
        cache_folder().mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(cache_folder() / "measuring.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        yield
        return
    try:
        is_told = False
        while not _locked(descriptor):
            if not is_told:
                waiting()
                is_told = True
            time.sleep(_PULSE_SECONDS)
        yield
    finally:
        os.close(descriptor)


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
