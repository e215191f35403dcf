"""How much may be written to disk beside serving, so that serving does not pay for it. Pure: the clock is an argument.

A drive that writes takes memory bandwidth and a processor from whoever serves. So writing may take a share of the time
that serving left over of late, as measured, and a write begins only if the whole of it fits into what is left of that
share; how long it will take is judged by what writes took beside serving, which is not the drive's best.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

from pinprobe.probes.errors import BadRequest

#: So many windows a measured rate is good for. Then it is unknown again: a drive that was slow once may not be now.
_RATE_WINDOWS = 6
#: So much of what a wholly idle window would allow has to be left for a write while no rate is known.
_TRIAL_SHARE = 0.1


@dataclass(frozen=True, slots=True)
class _Write:
    began: float
    ended: float
    size_bytes: int


class WriteBudget:
    """A budget of seconds for one writer. Not for several threads at once.

    A write begins only where what it will take, and what was spent on writing in the last `window_seconds`, are
    together at most `share` of what serving left idle of them. So one that takes longer than that share of a whole
    window never begins. Times are seconds of any one clock; one that is earlier than the latest that was told counts as
    that.

    >>> budget = WriteBudget(0.0, share=0.25, window_seconds=10.0)
    >>> budget.served(4.0, now=10.0)  # 6 seconds were idle: 1.5 for writing
    >>> budget.allowance_seconds(10.0)
    1.5
    >>> budget.may_begin(100, 10.0)  # no rate is known yet, and nothing was written: one may try
    True
    >>> budget.wrote(100, 1.0, 11.0)
    >>> budget.rate_bytes_per_second(11.0), budget.may_begin(100, 11.0), budget.may_begin(50, 11.0)
    (100.0, False, True)
    """

    def __init__(self, now: float, *, share: float = 0.25, window_seconds: float = 10.0) -> None:
        if not 0 < share <= 1:
            raise BadRequest(f"a share of {share} of the idle time is none: give one above 0 and at most 1")
        if not 0 < window_seconds < math.inf:
            raise BadRequest(f"a window of {window_seconds} seconds is none: give one above 0")
        self.share = share
        self.window_seconds = window_seconds
        self._began = self._latest = now
        self._busy: deque[tuple[float, float]] = deque()  # in order, and no two touch
        self._writes: deque[_Write] = deque()
        self._has_open = False

    def served(self, seconds: float, now: float) -> None:
        """Be told that serving took the last so many seconds. What several tell of the same time counts once."""
        now = self._at(now)
        start = now - max(0.0, seconds)
        while self._busy and self._busy[-1][1] >= start:
            start = min(start, self._busy.pop()[0])
        self._busy.append((start, now))
        while self._busy[0][1] < now - self.window_seconds:
            self._busy.popleft()

    def may_begin(self, size_bytes: int, now: float) -> bool:
        """Say whether a write of so many bytes may begin; where it may, `wrote` has to follow before another may."""
        now = self._at(now)
        if self._has_open:
            return False
        left = self.allowance_seconds(now)
        rate = self.rate_bytes_per_second(now)
        # Where no rate is known, one write may find it out; not two in one window.
        if rate is None:
            enough = _TRIAL_SHARE * self.share * self.window_seconds
            self._has_open = left >= enough and not self._spent_seconds(now)
        else:
            self._has_open = size_bytes / rate <= left
        return self._has_open

    def wrote(self, size_bytes: int, seconds: float, now: float) -> None:
        """Be told what a write took that ended just now; 0 B where it failed, which took its time all the same."""
        now = self._at(now)
        self._has_open = False
        self._writes.append(_Write(now - max(0.0, seconds), now, size_bytes))
        while self._writes[0].ended < now - _RATE_WINDOWS * self.window_seconds:
            self._writes.popleft()

    def allowance_seconds(self, now: float) -> float:
        """Return what may be spent on writing at this moment; below zero where a write took longer than expected."""
        now = self._at(now)
        return self.share * self._idle_seconds(now) - self._spent_seconds(now)

    def rate_bytes_per_second(self, now: float) -> float | None:
        """Return what writes reached of late, by their bytes over their seconds; None where that is not known."""
        since = self._at(now) - _RATE_WINDOWS * self.window_seconds
        recent = [write for write in self._writes if write.ended >= since and write.size_bytes]
        size_bytes = sum(write.size_bytes for write in recent)
        seconds = sum(write.ended - write.began for write in recent)
        return size_bytes / seconds if seconds > 0 else None

    def _at(self, now: float) -> float:
        self._latest = max(self._latest, now)
        return self._latest

    def _idle_seconds(self, now: float) -> float:
        # What was not watched was not measured as idle.
        start = max(self._began, now - self.window_seconds)
        busy = sum(max(0.0, end - max(start, begin)) for begin, end in self._busy)
        return max(0.0, now - start - busy)

    def _spent_seconds(self, now: float) -> float:
        start = now - self.window_seconds
        return sum(max(0.0, write.ended - max(start, write.began)) for write in self._writes)
