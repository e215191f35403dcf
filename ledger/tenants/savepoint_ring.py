"""`SavepointRing`: pinned slots that savepoints are staged in, one after the other and round again.

A ring is sized by transfers: as many slots as one turn hands out. Whoever reads a slot later holds a ticket, and each
hand-out raises its slot's generation, so that a reader can tell whether what he read was still his.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pinprobe.ledger.tenants.fence import DeviceFence, DoneFence, Fence
from pinprobe.ledger.tenants.from_allocator import reserve_from
from pinprobe.probes.allocators.allocator import Allocator
from pinprobe.probes.errors import BadRequest, PinprobeError, Refused, printable
from pinprobe.probes.units import format_bytes

if TYPE_CHECKING:
    import torch

    from pinprobe.ledger.ledger import HostPinnedLedger
    from pinprobe.ledger.tenants.savepoint_layout import SavepointLayout

_log = logging.getLogger("pinprobe")
_PAUSE_SECONDS = 0.0005


class StaleTicket(PinprobeError):
    """The slot has been handed out again since this ticket was: what lies there is another savepoint."""


@dataclass(frozen=True, slots=True)
class Ticket:
    """A slot as it was handed out once."""

    slot: int
    generation: int


@dataclass(frozen=True, slots=True)
class RingStats:
    """Counters since the ring was opened. A lap is one turn of the whole ring."""

    slots: int
    hand_outs: int
    live: int
    stale_reads_refused: int

    @property
    def laps(self) -> int:
        """How often the whole ring was handed out."""
        return self.hand_outs // self.slots


class SavepointRing:
    """Slots of one layout in one reservation, handed out in turn.

    `stage` is for one thread at a time, and others wait for it; every other call is for any thread. `fence_for` makes
    the fence of a copy on a stream, or without one.
    """

    def __init__(
        self,
        ledger: HostPinnedLedger,
        layout: SavepointLayout,
        slots: int,
        allocator: Allocator,
        *,
        turn_slots: int = 1,
        owner: str = "cache.savepoint_ring",
        detail: str = "",
        fence_for: Callable[[Any], Fence] | None = None,
    ) -> None:
        """Reserve the slots, or as many as the ledger can afford.

        `allocator` is one that is ready, as `prepare_allocator` gives it, and not its name. Raises `Refused` where less
        fits than `turn_slots`, what one turn hands out; then nothing was taken.
        """
        if isinstance(allocator, str):
            raise BadRequest(
                f"{owner}: {printable(allocator)[:40]!r} is an allocator's name, and a ring takes one that is ready:"
                " prepare_allocator(name, bytes).allocator of pinprobe.probes.allocators.registry"
            )
        if slots < 1 or turn_slots < 1:
            raise BadRequest(f"{owner}: a ring of {min(slots, turn_slots)} slots stages nothing; give 1 or more")
        self.layout = layout
        self._fence_for = fence_for or _fence_for
        self._reservation = _reserve(ledger, layout, slots, allocator, turn_slots, owner, detail)
        self.slots = self._reservation.asked_bytes // layout.row_bytes
        self._allocator = allocator
        memory = self._reservation.value
        self._addresses = [memory.address + slot * layout.row_bytes for slot in range(self.slots)]
        self._views = [layout.views(address, memory) for address in self._addresses]
        self._generations = [0] * self.slots
        self._fences: list[Fence] = [DoneFence()] * self.slots
        # Copies out of a slot that a device may still be reading: the next copy into it waits for them, on the device.
        self._readers: list[list[Fence]] = [[] for _ in range(self.slots)]
        self._staging = threading.Lock()
        self._counting = threading.Lock()
        self._hand_outs = 0
        self._is_closed = False
        self._unread = threading.Condition()
        self._reads = 0
        self._stale_reads_refused = 0
        ledger.introduce(owner, self)

    def stage(self, tensors: Mapping[str, torch.Tensor], stream: Any = None) -> Ticket:
        """Hand out the next slot and start the copy of one savepoint into it; return its ticket at once.

        The tensors may lie on a device; then `stream` is the torch stream that the copy is put into. Whoever had the
        slot before finds his ticket stale from here on. Raises `BadRequest` where the tensors are not the layout's.
        """
        self.layout.check(tensors)
        with self._staging:
            ticket = self._hand_out(stream)
            with self._nobodys_on_failure(ticket):
                _copy(self._views[ticket.slot], tensors, stream)
                self._fences[ticket.slot] = self._fence_for(stream)
                self._readers[ticket.slot] = []
            return ticket

    def load(self, address: int) -> Ticket:
        """Hand out the next slot and copy a row into it that lies in host memory, by one memmove; return its ticket.

        For a savepoint that comes back: from a pinned slot it goes to a device as fast as the link allows. Waits for
        copies that a device still makes from or into the slot.
        """
        with self._staging:
            ticket = self._hand_out(None)
            with self._nobodys_on_failure(ticket):
                ctypes.memmove(self._addresses[ticket.slot], address, self.layout.row_bytes)
                self._fences[ticket.slot] = DoneFence()
                self._readers[ticket.slot] = []
            return ticket

    @contextlib.contextmanager
    def _nobodys_on_failure(self, ticket: Ticket) -> Iterator[None]:
        """Where a copy fails, leave its slot to nobody: its ticket is stale, and the next lap need not wait for it."""
        try:
            yield
        except BaseException:
            self._generations[ticket.slot] += 1
            self._fences[ticket.slot] = DoneFence()
            raise

    def _hand_out(self, stream: Any) -> Ticket:
        if self._is_closed:
            raise BadRequest("this ring is closed: its slots are given back")
        slot = self._hand_outs % self.slots
        # Before a byte is written: a reader who finds his generation unchanged afterwards has read no byte of this.
        self._generations[slot] += 1
        self._hand_outs += 1
        earlier = [self._fences[slot], *self._readers[slot]]
        # Kept until the next copy is under way: should that fail, the one after it has to wait for them too.
        self._fences[slot], self._readers[slot] = _NotYet(), earlier
        ticket = Ticket(slot, self._generations[slot])
        with self._nobodys_on_failure(ticket):
            for fence in earlier:
                if stream is not None:
                    fence.hold_back(stream)
                else:
                    _look_until_done(fence)
        return ticket

    def is_live(self, ticket: Ticket) -> bool:
        """Say whether the slot is still this ticket's."""
        return self._generations[ticket.slot] == ticket.generation

    def is_staged(self, ticket: Ticket) -> bool:
        """Ask whether the copy into the slot is complete; false too where the slot was handed out again."""
        fence = self._fences[ticket.slot]
        return self.is_live(ticket) and fence.is_done()

    def address(self, ticket: Ticket) -> int:
        """Return where the slot begins. Raises `StaleTicket`. After reading from there, ask `is_live` again."""
        self._refuse_stale(ticket)
        address: int = self._addresses[ticket.slot]
        return address

    @contextlib.contextmanager
    def reading(self, ticket: Ticket) -> Iterator[int]:
        """Yield where the slot begins, and keep its memory mapped meanwhile: `close` waits. Raises `StaleTicket`."""
        with self._unread:
            address = self.address(ticket)
            self._reads += 1
        try:
            yield address
        finally:
            with self._unread:
                self._reads -= 1
                self._unread.notify_all()

    def view(self, ticket: Ticket) -> dict[str, torch.Tensor]:
        """Return the slot's slabs as tensors. Raises `StaleTicket`. After reading from them, ask `is_live` again."""
        self._refuse_stale(ticket)
        return dict(self._views[ticket.slot])

    def restore(self, ticket: Ticket, tensors: Mapping[str, torch.Tensor], stream: Any = None) -> None:
        """Copy a staged savepoint into tensors, on the stream where one is given.

        Raises `StaleTicket` where the slot was handed out again, before or meanwhile: the tensors then hold nothing
        that may be used.
        """
        self.layout.check(tensors)
        with self._staging:
            self._refuse_stale(ticket)
            if stream is not None:
                self._fences[ticket.slot].hold_back(stream)
            else:
                _look_until_done(self._fences[ticket.slot])
            _copy(tensors, self._views[ticket.slot], stream)
            if stream is not None:
                self._readers[ticket.slot].append(self._fence_for(stream))
            self._refuse_stale(ticket)

    def stats(self) -> RingStats:
        """Return the counters."""
        return RingStats(self.slots, self._hand_outs, min(self._hand_outs, self.slots), self._stale_reads_refused)

    def describe(self) -> str:
        """Say in one line what the ring is, for the boot."""
        return f"ring of {self.slots} slot{'' if self.slots == 1 else 's'}; {self.layout.describe()}"

    def report(self) -> str:
        """Say in one line what was counted."""
        stats = self.stats()
        return (
            f"{stats.hand_outs} hand-outs, {stats.laps} laps, {stats.live} live;"
            f" stale reads refused {stats.stale_reads_refused}"
        )

    def close(self) -> None:
        """Give the slots back. Every ticket is stale from here on; views must not be used any more."""
        with self._staging:
            self._is_closed = True
            self._generations = [generation + 1 for generation in self._generations]
            self._views = [{} for _ in self._views]
        with self._unread:
            self._unread.wait_for(lambda: not self._reads)
        self._reservation.release()
        self._allocator.empty_cache()

    def _refuse_stale(self, ticket: Ticket) -> None:
        if not self.is_live(ticket):
            with self._counting:
                self._stale_reads_refused += 1
            raise StaleTicket(f"slot {ticket.slot} was handed out again: its ticket of generation {ticket.generation}"
                              f" is stale, and it is at {self._generations[ticket.slot]}")  # fmt: skip


class _NotYet(DoneFence):
    """While a copy is being started there is no fence yet, and it is not complete."""

    def is_done(self) -> bool:
        return False


def _look_until_done(fence: Fence) -> None:
    """Wait for a copy in the only way that this processor has: it can't be held back by a device, so it looks."""
    while not fence.is_done():
        time.sleep(_PAUSE_SECONDS)


def _copy(to: Mapping[str, torch.Tensor], of: Mapping[str, torch.Tensor], stream: Any) -> None:
    import torch

    names = list(to)
    # Only so may tensors of a model that ran in inference mode be written into; others may be written so too.
    with torch.inference_mode():
        if stream is None:
            torch._foreach_copy_([to[name] for name in names], [of[name] for name in names])
            return
        with torch.cuda.stream(stream):
            # One fused call: it launches once, and lets go of the interpreter's lock once.
            torch._foreach_copy_([to[name] for name in names], [of[name] for name in names], non_blocking=True)


def _fence_for(stream: Any) -> Fence:
    return DoneFence() if stream is None else DeviceFence(stream)


def _reserve(
    ledger: HostPinnedLedger,
    layout: SavepointLayout,
    slots: int,
    allocator: Allocator,
    turn_slots: int,
    owner: str,
    detail: str,
) -> Any:
    """Reserve as many slots as the ledger can afford, from one turn's worth up to all."""
    wanted = slots
    while True:
        affordable = ledger.fit(layout.row_bytes, wanted, allocator=allocator.name)
        fitting = max(turn_slots, affordable)
        asked = fitting * layout.row_bytes
        how = f"{fitting:,} slot{'' if fitting == 1 else 's'} x {layout.row_bytes:,} B"
        if fitting < slots:
            how = f"{how}, of {slots:,} that were wanted"
        try:
            reservation = reserve_from(
                allocator, ledger, owner, asked, ", ".join(part for part in (how, detail) if part)
            )
        except Refused as refusal:
            # Others may have been faster, or its allocator took more than its price said: then a smaller ring may fit,
            # down to one turn's worth, which is the least that is of use.
            allocator.empty_cache()
            if fitting == turn_slots:
                needs = format_bytes(turn_slots * layout.row_bytes)
                message = f"{refusal}; one turn hands out {turn_slots} slots, {needs}"
                raise Refused(message, *refusal.args[1:]) from None
            wanted = max(turn_slots, fitting * 7 // 8)
            continue
        if fitting < slots:
            _log.warning("%s: %s of %s slots fit now", owner, fitting, slots)
        return reservation
