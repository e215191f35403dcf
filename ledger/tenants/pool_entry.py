"""What a retention pool keeps: places, the entries that lie in them, and a reader's hold on one."""

from __future__ import annotations

from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

from pinprobe.ledger.tenants.policies.policy import Key
from pinprobe.ledger.tenants.prefix_index import PrefixKey
from pinprobe.ledger.tenants.region import Region
from pinprobe.ledger.tenants.savepoint_layout import SavepointLayout
from pinprobe.probes.errors import BadRequest

if TYPE_CHECKING:
    import torch

    from pinprobe.ledger.reservation import Reservation


@dataclass(eq=False)
class Place:
    """A region with its line in the ledger. `was_used` is false until something was published from it.

    `key`, `conversation` and `prefixes` are those of the savepoint that is being copied into it.
    """

    region: Region
    reservation: Reservation[Region]
    was_used: bool = False
    key: PrefixKey | None = None
    conversation: str = ""
    prefixes: tuple[Key, ...] = ()


@dataclass(eq=False)
class Entry:
    """A savepoint that is kept: `tokens` of one conversation, and where it lies. Changed by its pool alone."""

    key: PrefixKey
    conversation: str
    place: Place
    prefixes: tuple[Key, ...] = ()  # the keys of those that were known when it was offered, the longest first
    readers: int = 0
    is_here: bool = True

    @property
    def tokens(self) -> int:
        """How many tokens of the prompt it covers."""
        return self.key.tokens


class Keeper(Protocol):
    """What a hold needs of the pool that gave it."""

    layout: SavepointLayout

    def let_go(self, entry: Entry) -> None:
        """End a reader's hold."""


class Hold:
    """A reader's hold on an entry: as long as it lasts the region is not used for anything else. A context manager."""

    def __init__(self, pool: Keeper, entry: Entry) -> None:
        self._pool = pool
        self._entry = entry
        self._is_held = True

    @property
    def tokens(self) -> int:
        """How many tokens of the prompt the savepoint covers."""
        return self._entry.tokens

    @property
    def key(self) -> bytes:
        """The hash of the tokens that it covers."""
        return self._entry.key.digest

    @property
    def address(self) -> int:
        """Where its row begins."""
        return self._region.address

    @property
    def _region(self) -> Region:
        if not self._is_held:
            raise BadRequest("this hold was released: what lies in its region may be another savepoint by now")
        return self._entry.place.region

    @property
    def region(self) -> Region:
        """The region itself, for whoever shares it with another process."""
        return self._region

    def views(self) -> dict[str, torch.Tensor]:
        """Return the slabs as tensors. They must not be used after the release."""
        return self._pool.layout.views(self._region.address, self._region)

    def release(self) -> None:
        """Let go. A second call does nothing."""
        if self._is_held:
            self._is_held = False
            self._pool.let_go(self._entry)

    def __enter__(self) -> Hold:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()
