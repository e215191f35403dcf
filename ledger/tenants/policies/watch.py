"""What is known of a node of the prefix tree by watching it, and the spell in which it is watched."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pinprobe.ledger.tenants.policies.read_rates import Group

#: Nodes further back are not told apart: what was continued twice is seldom read again, however far back it is.
MOST_DISTANCE = 2


@dataclass(eq=False, slots=True)
class Watch:
    """A node's spell lasts from its creation to its first read, and then from each read to the next.

    `pace` and `onward_pace` are in octaves of seconds (`octaves`): the usual gap between the reads of the line that
    ends in this node, and with its own last gap counted in, for those that continue it. None where there was no gap.
    `distance` is how many nodes it is from the newest end of its line: `MOST_DISTANCE` stands for all further ones.
    `was_left_behind` says that another line began later from where its line did.
    """

    began_seconds: float = 0.0
    age_bin: int = 0
    read_count: int = 0
    pace: float | None = None
    onward_pace: float | None = None
    distance: int = 0
    was_left_behind: bool = False
    group: Group | None = None

    def read(self, now_seconds: float) -> None:
        """Count a read, and the gap before it in the line's pace: half of it is this gap, half all those before."""
        gap = octaves(max(0.0, now_seconds - self.began_seconds))
        self.onward_pace = gap if self.pace is None else (gap + self.pace) / 2
        self.read_count += 1


def octaves(amount: float) -> float:
    """Return how often an amount doubles from 1 on, where nothing counts as 1.

    >>> octaves(0), octaves(3), octaves(1023)
    (0.0, 2.0, 10.0)
    """
    return math.log2(amount + 1)
