"""How much memory a measurement may take: a share of the headroom, so that it is never itself the shortage."""

from __future__ import annotations

from dataclasses import dataclass

from pinprobe.probes.errors import CouldNotMeasure
from pinprobe.probes.headroom import Headroom
from pinprobe.probes.reading import Unreadable
from pinprobe.probes.units import format_bytes

DEFAULT_SHARE = 2 / 3
_AT_MOST = "--at-most"


@dataclass(frozen=True, slots=True)
class Allowance:
    """The most that may be resident at once, and what it was derived from."""

    bytes: int
    origin: str

    def refuse_beyond(self, asked_bytes: int, what: str) -> None:
        """Raise `CouldNotMeasure` where a request alone is more than is allowed."""
        if asked_bytes > self.bytes:
            option = _AT_MOST if self.origin.startswith(_AT_MOST) else "--share"
            raise CouldNotMeasure(
                f"{what} asks for {format_bytes(asked_bytes)}, and {format_bytes(self.bytes)} may be taken"
                f" ({self.origin}); ask for less, or raise {option}"
            )


def allow(headroom: Headroom, share: float = DEFAULT_SHARE, at_most_bytes: int | None = None) -> Allowance:
    """Return the share of the binding source's headroom, or `at_most_bytes` where that is less.

    Raises `CouldNotMeasure` where no source is readable and the caller gives no bound of his own.
    """
    binding = headroom.binding
    if isinstance(binding.available, Unreadable):
        if at_most_bytes is None:
            raise CouldNotMeasure(f"the headroom is {binding.available}; give --at-most SIZE to measure within a bound")
        return Allowance(at_most_bytes, f"{_AT_MOST}; the headroom is unreadable")
    shared = int(binding.available.bytes * share)
    if at_most_bytes is not None and at_most_bytes < shared:
        return Allowance(at_most_bytes, _AT_MOST)
    of_what = f"{format_bytes(binding.available.bytes)} that {binding.name} leaves"
    return Allowance(shared, f"{share:.{0 if share >= 0.01 else 2}%} of the {of_what}")


def allow_beside(headroom: Headroom, held_bytes: int, share: float, at_most_bytes: int | None = None) -> Allowance:
    """Return what a measurement may hold in all, that holds `held_bytes` already: its headroom is without them."""
    now = allow(headroom, share, at_most_bytes)
    return Allowance(now.bytes + int(share * held_bytes), f"{now.origin}, while {held_bytes:,} B are held")
