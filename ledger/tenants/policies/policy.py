"""What a retention policy is to whoever keeps savepoints: a pool with real memory, or a replay with none.

A policy never sees a byte. It knows nodes of a prefix tree by opaque keys, and is told what is read and what is
offered; it answers which newcomer is kept, and which resident entry goes for it. A class that implements `Policy` is
made with its number of slots. It is deterministic, bounded in memory, and not for several threads at once: whoever
keeps the savepoints calls it under a lock of theirs.

The nodes that a policy knows are the resident entries, and those that went and that it still watches. The longest
prefix of a prompt *that the policy knows* is what a caller names, as the node that is read and as the parent of what is
offered; `key in policy` says whether it knows one.
"""

from __future__ import annotations

from collections.abc import Container, Hashable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from pinprobe.probes.errors import BadRequest

Key: TypeAlias = Hashable

#: After so many offers what was counted before counts half, so that a policy follows its load as it changes.
HALVED_EVERY = 16_000


@dataclass(frozen=True, slots=True)
class Savepoint:
    """A savepoint that is offered: `tokens` of a prompt, and the longest prefix of these that the policy knows.

    `parent` is None where it knows none, and never the savepoint itself.
    """

    key: Key
    parent: Key | None
    tokens: int


@dataclass(frozen=True, slots=True)
class Decision:
    """What becomes of a savepoint that was offered.

    `evicted` is the resident entry that goes for it. `forgotten` is a node that the policy knew until now and does not
    know any more; it may be the evicted one.
    """

    is_kept: bool
    evicted: Key | None = None
    forgotten: Key | None = None


#: It has a place already, or there was one free.
KEPT = Decision(is_kept=True)
REFUSED = Decision(is_kept=False)


class Policy(Protocol):
    """Decides what stays in a number of slots.

    `now_seconds` is the value of a clock that never runs backwards, the same in all calls. `held` are entries that are
    being read, which can't go at this moment.

    `slots` is set by the keeper, at any time: to anything from 0 up to what the policy was made with, which also bounds
    what it remembers, and never above. Nothing goes because of that alone. Where more are resident than there are
    slots, the keeper calls `evict` until there are not; an offer never adds to the surplus, and takes none off it.
    """

    name: str
    slots: int

    @property
    def resident_count(self) -> int:
        """How many entries it counts as resident: never more than its slots, once a surplus was evicted."""

    def __contains__(self, key: object) -> bool:
        """Say whether it knows a node, resident or not."""

    def read(self, key: Key, now_seconds: float) -> None:
        """Learn that a request came whose longest known prefix is `key`, whether it is resident or not."""

    def offer(self, savepoint: Savepoint, now_seconds: float, held: Container[Key] = ()) -> Decision:
        """Decide about a newcomer. Where it is kept it counts as resident from here on. At most one goes for it."""

    def evict(self, now_seconds: float, held: Container[Key] = ()) -> Key | None:
        """Let the entry go that is worth least, because there are to be fewer; None where there is none to go.

        `key in policy` says whether it still knows the entry.
        """

    def next_to_go(self, now_seconds: float, held: Container[Key] = ()) -> Key | None:
        """Say which entry `evict` would let go, and let none go. None also from a policy that can't say beforehand."""

    def remove(self, key: Key) -> None:
        """Learn that a resident entry is gone, for a reason that is not the policy's. Anything else is no news."""


def checked_slots(slots: int) -> int:
    """Return a number of slots that a policy can work with. Raises `BadRequest` where there is not one."""
    if slots < 1:
        raise BadRequest(f"a policy of {slots} slots keeps nothing; give it 1 or more")
    return slots
