"""`libcachesim:S3FIFO` and others: the general cache policies of the library libCacheSim, as baselines for a replay.

They see what a general cache sees: a read of a resident entry is a hit, and a savepoint that is offered is a miss which
is filled. What they can't express:

* that one savepoint is the prefix of another, and how many tokens it spares: each entry counts one of a size, so that
  the library's GDSF is one of equal costs;
* entries that are held: where one of these would go it goes and comes back as a new entry, and another goes as well;
* fewer slots than a cache was made with, but by evicting before there is need. The library evicts at a hit or by itself
  in some policies (LIRS, Cacheus); these are refused when they are made, as those are that don't fill all slots.

Policies that draw lots (Random, LHD, LeCaR, Hyperbolic) share one generator in a process: a replay is repeated only by
a process that does nothing else with them. The library ends the process where it finds a fault of its own, so that a
trial in a child process comes first. A pool that serves should have one of our own policies: some of the library's
(0.3.5: Hyperbolic, LFUDA) end the process when an entry is removed that they did not evict, which no replay does.
"""

from __future__ import annotations

import functools
import importlib
import subprocess
import sys
from collections.abc import Container
from typing import Any

from pinprobe.ledger.tenants.policies.policy import KEPT, REFUSED, Decision, Key, Savepoint, checked_slots
from pinprobe.probes.errors import BadRequest

#: What the names of these policies begin with.
PREFIX = "libcachesim:"

_TRIAL_SECONDS = 120
# A child's word for: it keeps less than its slots, or lets go of more than one entry for a newcomer, or of one unasked.
_UNFIT = 7
# Reads and offers that come again near and far, from a generator that is the same everywhere.
_TRIAL = """
import sys
sys.path[:] = eval(sys.argv[3])
from pinprobe.ledger.tenants.policies.libcachesim_policy import Cache
name, slots = sys.argv[1], int(sys.argv[2])
cache, lot = Cache(name, slots), 1
for turn in range(6 * slots + 200):
    lot = lot * 1103515245 + 12345 & 0x7FFFFFFF
    number = turn if lot >> 16 & 1 or turn < slots else turn - lot % (2 * slots)
    if number not in cache and len(cache) >= slots:
        cache.evict()
    cache.use(number)
    if len(cache) != min(slots, turn + 1) or not turn % slots and not cache.is_true():
        sys.exit(7)
"""
# These ask each read when the next one comes.
_KNOW_THE_FUTURE = ("Belady", "BeladySize")


class Cache:
    """A cache of the library that holds entries of one size, and which ones these are.

    The library does not say what it evicted. So it is asked for each entry whether it is still there, the one first
    that has been there for longest, at half a microsecond each.
    """

    def __init__(self, algorithm: str, slots: int) -> None:
        library = importlib.import_module("libcachesim")
        # Without its own word for it the library would set aside a table of 16 million places.
        self._cache: Any = getattr(library, algorithm)(slots, hashpower=max(4, (2 * slots).bit_length()))
        self._request: Any = library.Request(obj_size=1)
        self._keys: dict[Key, int] = {}

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, key: object) -> bool:
        return key in self._keys

    def use(self, key: Key) -> None:
        """Read an entry, which is there afterwards if the library accepts it."""
        number = self._request.obj_id = hash(key) & (2**63 - 1)
        self._cache.get(self._request)
        if self._has(number):
            self._keys[key] = number

    def evict(self) -> Key | None:
        """Have one go; None where there is none, which the library must not be asked then: it would end the process."""
        if not self._keys:
            return None
        for _ in range(len(self._keys) + 1):  # S3FIFO may need a few to move entries on before one goes
            self._cache.evict(self._request)
            if self._cache.get_n_obj() < len(self._keys):
                break
        gone = next((key for key, number in self._keys.items() if not self._has(number)), None)
        self._keys.pop(gone, None)
        return gone

    def remove(self, key: Key) -> None:
        """Take one out; one that is not here is no error."""
        number = self._keys.pop(key, None)
        if number is not None:
            self._cache.remove(number)

    def is_true(self) -> bool:
        """Say whether the library has all that it is taken to have, and counts no more."""
        return self._cache.get_n_obj() == len(self._keys) and all(map(self._has, self._keys.values()))

    def _has(self, number: int) -> bool:
        self._request.obj_id = number
        return self._cache.find(self._request, False) is not None


class LibcachesimPolicy:
    """A policy of the library. Knows resident entries; what it remembers of others is the library's."""

    def __init__(self, algorithm: str, slots: int) -> None:
        """Try the policy in a child process, and make it.

        Raises `BadRequest` where the library is not installed, where it has no such policy, and where that can't keep
        so many entries.
        """
        self.name = PREFIX + algorithm
        self.slots = checked_slots(slots)
        _check(algorithm)
        _try_out(algorithm, slots)
        self._cache = Cache(algorithm, slots)

    @property
    def resident_count(self) -> int:
        """How many entries are resident."""
        return len(self._cache)

    def __contains__(self, key: object) -> bool:
        return key in self._cache

    def read(self, key: Key, now_seconds: float) -> None:
        """Hit it."""
        self._cache.use(key)

    def offer(self, savepoint: Savepoint, now_seconds: float, held: Container[Key] = ()) -> Decision:
        """Keep it, unless all others are held or the library refuses it."""
        if savepoint.key in self._cache:
            return KEPT
        evicted = None
        if len(self._cache) >= self.slots:
            evicted = self.evict(now_seconds, held)
            if evicted is None:
                return REFUSED
        self._cache.use(savepoint.key)
        return Decision(is_kept=savepoint.key in self._cache, evicted=evicted, forgotten=evicted)

    def evict(self, now_seconds: float, held: Container[Key] = ()) -> Key | None:
        """Let the entry go that the library says; those that are held come back, as new ones."""
        held_back = []
        while (gone := self._cache.evict()) is not None and gone in held:
            held_back.append(gone)
        for key in held_back:
            self._cache.use(key)
        return gone

    def next_to_go(self, now_seconds: float, held: Container[Key] = ()) -> Key | None:
        """Return None: the library does not say it beforehand."""
        return None

    def remove(self, key: Key) -> None:
        """Take it out."""
        self._cache.remove(key)


def _check(algorithm: str) -> None:
    try:
        library = importlib.import_module("libcachesim")
    except ImportError:
        raise BadRequest(
            f'{PREFIX}{algorithm} needs the library libcachesim; install it: pip install "pinprobe[policies]"'
        ) from None
    known = sorted(
        name
        for name, kind in vars(library).items()
        if isinstance(kind, type) and issubclass(kind, library.CacheBase) and kind is not library.CacheBase
        if name not in _KNOW_THE_FUTURE
    )
    if algorithm not in known:
        raise BadRequest(f"libcachesim has no policy {algorithm!r}; it has {', '.join(known)}")


@functools.cache
def _try_out(algorithm: str, slots: int) -> None:
    """Raise `BadRequest` where a policy can't keep so many entries of one size, one going for each that comes."""
    command = [sys.executable, "-I", "-c", _TRIAL, algorithm, str(slots), repr(sys.path)]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_TRIAL_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise BadRequest(
            f"libcachesim's {algorithm} took over {_TRIAL_SECONDS} s for a trial of {slots} slots; take fewer"
        ) from None
    if done.returncode:
        why = "" if done.returncode == _UNFIT else f" (its trial ended with {done.returncode})"
        raise BadRequest(
            f"libcachesim's {algorithm} can't keep {slots} savepoints of one size, with one going for each that comes"
            f"{why}; give it more slots, or take another policy"
        )
