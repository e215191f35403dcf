"""A clock that shows the trace's own time, and averages what was held over it."""

from __future__ import annotations


class TraceClock:
    """Calling it returns the time of the request at hand, in seconds of the trace; 0 before the first."""

    def __init__(self) -> None:
        self._now = 0.0
        self._begun: float | None = None
        self._areas: list[float] = []

    def __call__(self) -> float:
        """Return the time."""
        return self._now

    def pass_to(self, now_seconds: float, *amounts: int) -> None:
        """Let the time go on, during which there was so much of each amount; the same ones each time."""
        if self._begun is None:
            self._begun = self._now = now_seconds
            self._areas = [0.0] * len(amounts)
        for number, amount in enumerate(amounts):
            self._areas[number] += amount * (now_seconds - self._now)
        self._now = now_seconds

    def mean(self, number: int) -> float:
        """Return the mean of an amount, counted from 0, over the time that passed; 0 where none did."""
        passed = self._now - (self._begun or 0.0)
        return self._areas[number] / passed if passed else 0.0
