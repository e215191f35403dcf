"""When a copy that was started without blocking is complete: asked, never waited for.

A wait spins, and a spinning thread beside the one that launches work is paid for in decode speed.
"""

from __future__ import annotations

from typing import Any, Protocol


class Fence(Protocol):
    """What a staged copy leaves behind."""

    def is_done(self) -> bool:
        """Ask whether everything before it is complete. Returns at once."""

    def hold_back(self, stream: Any) -> None:
        """Have a device stream wait for it; the calling thread does not."""


class DoneFence:
    """The fence of a copy by this processor: complete when it was made."""

    def is_done(self) -> bool:
        """It is."""
        return True

    def hold_back(self, stream: Any) -> None:
        """There is nothing to wait for."""


class DeviceFence:
    """An event recorded on a device's stream, by torch."""

    def __init__(self, stream: Any) -> None:
        self._event = stream.record_event()

    def is_done(self) -> bool:
        """Query the event."""
        done: bool = self._event.query()
        return done

    def hold_back(self, stream: Any) -> None:
        """Put a wait for the event into the stream."""
        stream.wait_event(self._event)
