"""`LowestFirst`: things by a number that changes, the lowest found without looking at the others."""

from __future__ import annotations

import heapq
from collections.abc import Container, Hashable
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class LowestFirst(Generic[T]):
    """Items, each with a rank; of equal ranks the one comes first that was ranked first.

    A heap whose outdated pairs stay until they come up, or until they outnumber the items by far: so a rank may change
    often, at the price of a push.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, T]] = []
        self._newest: dict[T, int] = {}  # by item the turn of its valid pair; turns also keep items from being compared
        self._turn = 0

    def __len__(self) -> int:
        return len(self._newest)

    def put(self, item: T, rank: float) -> None:
        """Give an item a rank, in the place of an earlier one."""
        self._turn += 1
        self._newest[item] = self._turn
        heapq.heappush(self._heap, (rank, self._turn, item))
        if len(self._heap) > 8 * len(self._newest) + 64:
            self._heap = [pair for pair in self._heap if self._newest.get(pair[2]) == pair[1]]
            heapq.heapify(self._heap)

    def remove(self, item: T) -> None:
        """Take an item out; one that is not here is no error."""
        self._newest.pop(item, None)

    def lowest(self, passing: Container[T] = ()) -> tuple[float, T] | None:
        """Return the lowest rank and its item, passing over some; None where there is no other."""
        passed = []
        found = None
        while self._heap:
            rank, turn, item = self._heap[0]
            if self._newest.get(item) != turn:
                heapq.heappop(self._heap)
            elif item in passing:
                passed.append(heapq.heappop(self._heap))
            else:
                found = rank, item
                break
        for pair in passed:
            heapq.heappush(self._heap, pair)
        return found

    def pop_up_to(self, rank: float) -> T | None:
        """Take out the lowest item, unless its rank is above `rank`; None where there is none to take."""
        while self._heap and self._heap[0][0] <= rank:
            _, turn, item = heapq.heappop(self._heap)
            if self._newest.get(item) == turn:
                del self._newest[item]
                return item
        return None
