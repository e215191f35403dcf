"""What `HostPinnedLedger.reserve` and `adopt` return: the memory and its line in the ledger, given back together."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Any, Generic, Protocol, TypeVar

T = TypeVar("T")


class Bookkeeper(Protocol):
    """What a reservation needs of its ledger."""

    def booked_for(self, number: int) -> int:
        """Return what is booked for a reservation now, in bytes; 0 once it is given back."""

    def let_go(self, number: int) -> None:
        """Strike a reservation; what is still resident of it becomes retained. A second call does nothing."""

    def let_go_later(self, number: int, give_back: Callable[[], object]) -> None:
        """The same, from the garbage collector, which may run anywhere: done at the ledger's next step.

        `give_back` is called before, and gives back the memory.
        """


class Adoption:
    """A line in the ledger for memory that somebody else holds. The ledger keeps no reference to that memory.

    Given back by `release`, at the end of a `with`, or when the memory's own object goes.
    """

    def __init__(self, ledger: Bookkeeper, number: int, owner: str, asked_bytes: int) -> None:
        self.owner = owner
        self.asked_bytes = asked_bytes
        self._ledger = ledger
        self._number = number

    @classmethod
    def of(cls, ledger: Bookkeeper, number: int, owner: str, asked_bytes: int, held: object) -> Adoption:
        """Make the line for memory that `held` keeps."""
        # bytearray and list take no weak references: then the line stays until it is released.
        with contextlib.suppress(TypeError):
            weakref.finalize(held, ledger.let_go_later, number, _nothing).atexit = False
        return cls(ledger, number, owner, asked_bytes)

    @property
    def booked_bytes(self) -> int:
        """What is booked for it now: its share of the mappings behind it, never less than what was asked."""
        return self._ledger.booked_for(self._number)

    def release(self) -> None:
        """Strike the line. A second call does nothing."""
        self._ledger.let_go(self._number)

    def __enter__(self) -> Any:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()


class Reservation(Adoption, Generic[T]):
    """Memory that was reserved through the ledger: `value` is what the allocating callable returned.

    Releasing calls `free` with it, if one was given, and lets go of it. Memory that others still refer to, or that its
    allocator keeps, stays booked under `retained`. A reservation that is forgotten is released by the collector.
    """

    def __init__(
        self,
        ledger: Bookkeeper,
        number: int,
        owner: str,
        asked_bytes: int,
        value: T,
        free: Callable[[T], object] | None,
    ) -> None:
        super().__init__(ledger, number, owner, asked_bytes)
        self._kept = _Kept(value, free)
        self._forgotten = weakref.finalize(self, ledger.let_go_later, number, self._kept.give_back)
        self._forgotten.atexit = False

    @property
    def value(self) -> T:
        """What the callable returned. Raises `ValueError` once it was released."""
        if not self._kept.values:
            raise ValueError(f"{self.owner} was released")
        return self._kept.values[0]

    def release(self) -> None:
        """Give the memory back and strike the line. A second call does nothing."""
        self._forgotten.detach()
        try:
            self._kept.give_back()
        finally:
            super().release()


class _Kept(Generic[T]):
    """The one reference that the ledger's side holds, apart from its reservation so that it can outlive that."""

    def __init__(self, value: T, free: Callable[[T], object] | None) -> None:
        self.values = [value]
        self._free = free

    def give_back(self) -> None:
        if self.values:
            value = self.values.pop()
            if self._free is not None:
                self._free(value)


def _nothing() -> None:
    """An adopted object is gone by itself."""
