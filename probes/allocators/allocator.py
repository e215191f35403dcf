"""What an allocator is to the probes: a way to get memory whose cost is to be known.

A class that implements `Allocator` is prepared in the parent process and used in a measuring process of its own: the
object that `prepare` returns is pickled on the way, so it holds names and paths, and loads what it needs (a library, a
runtime) at its first use there. It is used on one thread.
"""

from __future__ import annotations

from typing import Protocol, TypeVar, runtime_checkable

_Self = TypeVar("_Self", bound="Allocator")  # typing.Self is not in Python 3.10


@runtime_checkable
class Allocation(Protocol):
    """Memory that an allocator handed out, resident as far as the allocator makes it so."""

    @property
    def address(self) -> int:
        """Where it begins."""

    @property
    def note(self) -> str:
        """How it was made resident, in a word or two: `locked`, `touched`."""

    def release(self) -> None:
        """Give it back to its allocator, which may keep the block. A second call does nothing."""


@runtime_checkable
class Allocator(Protocol):
    """A way to get memory.

    `counter` is the line of /proc/self/status that its pages move (`RssAnon`, `RssShmem`, `HugetlbPages`), or `VmRSS`
    where that is not known: other threads disturb VmRSS, seldom the rest.
    """

    name: str
    counter: str

    @classmethod
    def prepare(cls: type[_Self], largest_bytes: int) -> _Self:
        """Return an allocator that can serve requests of up to `largest_bytes`, having taken no memory for them.

        Raises `AllocatorUnavailable`, saying what is missing and what would bring it.
        """

    def notes(self) -> tuple[str, ...]:
        """What a reader of its figures has to know: a version never tried, a setting that is not reproduced."""

    def allocated_bytes(self) -> int | None:
        """Bytes of all its blocks, in use and kept, by its own account; None where it keeps none.

        A second source for a block, never the first: an account may count what was asked, or forget.
        """

    def allocate(self, asked_bytes: int) -> Allocation:
        """Get memory of at least `asked_bytes`. Raises `AllocationFailed`; then nothing was kept."""

    def empty_cache(self) -> None:
        """Give every block that is kept and not in use back to the system."""
