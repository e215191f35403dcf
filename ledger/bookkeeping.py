"""The ledger's work under its lock: admitting, booking and striking, and what the host's book is told of it.

Lock order: the ledger's own lock, then the book's. Neither is held while memory is taken or given back, which may last
minutes, nor while smaps is read.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from typing import TYPE_CHECKING

from pinprobe.ledger.account import Copy, copy_of
from pinprobe.ledger.admission import (
    Bound,
    Request,
    after_waiting,
    headroom_bound,
    judge,
    limit_bound,
    usable_bounds,
)
from pinprobe.ledger.book.book_entry import BookEntry, BookReading, BookRow
from pinprobe.ledger.headroom_seen import HeadroomSeen
from pinprobe.ledger.overhead_seen import OverheadSeen
from pinprobe.ledger.price import PriceList
from pinprobe.ledger.records import Entry, Pending, Records
from pinprobe.ledger.taking import Parts, Taking, entry_for
from pinprobe.probes.backing import Backing, is_still_there, read_resident
from pinprobe.probes.counters import read_statm
from pinprobe.probes.errors import PinprobeError, Refused, in_one_line
from pinprobe.probes.headroom import Headroom
from pinprobe.probes.host_tree import HostTree
from pinprobe.probes.in_process_control import InProcessControl
from pinprobe.probes.reading import Amount, Reading, Unreadable
from pinprobe.probes.units import format_bytes

if TYPE_CHECKING:
    from pinprobe.ledger.book.host_book import HostBook

_log = logging.getLogger("pinprobe")
# How often the book is looked at while others' pending rows settle: they are other processes, and nobody calls.
_PULSE_SECONDS = 0.01
# What the interpreter may take by itself between two readings: less than this was not kept by anybody.
_OWN_NOISE_BYTES = 64 * 1024
# Most rows of the book are what they were when it was written last, and need not be looked over again.
_book_row = lru_cache(maxsize=256)(BookRow)


class Bookkeeping:
    """The records of one process with their lock. Any number of threads may call."""

    def __init__(
        self, tree: HostTree, prices: PriceList, book: HostBook | None, keep_free_bytes: int, limit_bytes: int | None
    ) -> None:
        self.overhead = OverheadSeen(tree)
        self._headroom = HeadroomSeen(tree)
        self.keep_free_bytes = keep_free_bytes
        self.limit_bytes = limit_bytes
        self.book = book
        self._tree = tree
        self._prices = prices
        self._records = Records()
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        # Reservations that the collector found. It may run anywhere, also while this very lock is held.
        self._forgotten: deque[tuple[int, Callable[[], object]]] = deque()
        self._next_number = 1
        self._process = os.getpid()
        self._floor_at_start = read_statm(tree)

    # -- admitting

    def admit(self, request: Request, wait_seconds: float) -> tuple[int, Pending]:
        """Put a request among the pending ones, or raise its refusal once what others are taking has settled."""
        started = time.monotonic()
        while True:
            self.tidy()
            with self._lock:
                if self._records.can_reuse(request, self._is_kept):
                    return self._pend(Pending(request, reuses=True))
                with self._locked_book() as reading:
                    others = _counted(reading)
                    refusal = self._refusal(request, others, self._headroom.at_least)
                    if refusal is not None:  # nothing is refused by a lower bound
                        if self._strike_gone():
                            self._publish()
                        refusal = self._refusal(request, others, self._headroom.whole)
                    if refusal is None:
                        return self._pend(Pending(request, reuses=False))
                waiting_for = self._pending_names(others)
                waited = time.monotonic() - started
                if not waiting_for or waited >= wait_seconds:
                    raise after_waiting(refusal, waited, waiting_for)
                left = wait_seconds - waited
                self._changed.wait(min(left, _PULSE_SECONDS) if self.book is not None else left)

    def withdraw(self, number: int) -> None:
        """Take a request back that came to nothing."""
        with self._lock:
            if self._records.pending.pop(number, None) is not None:
                self._publish()
                self._changed.notify_all()

    def room_bytes(self, request: Request) -> tuple[int, tuple[int, ...]]:
        """Return what a request may cost now, and the sizes of the blocks that its allocator keeps."""
        self.tidy()
        with self._lock:
            self._strike_gone()
            with self._locked_book() as reading:
                bounds = self._bounds(request, _counted(reading), self._headroom.whole(request))
            room = min(bound.room_bytes for bound in bounds)
            idle = self._records.mappings.idle
            return room, tuple(backing.size_bytes for backing, kept_by in idle if kept_by == request.allocator)

    # -- booking

    def take(self) -> Taking:
        """Read what an allocation's growth will be told by."""
        with self._lock:
            return Taking(read_statm(self._tree), self._records.explained_bytes)

    def settle(
        self,
        number: int,
        request: Request,
        taking: Taking,
        parts: Parts | Unreadable,
        control: InProcessControl,
        detail: str,
        pageable: bool,
    ) -> tuple[Entry, tuple[Backing, ...]]:
        """Turn a pending request into an entry; return it, and those of its mappings that are new."""
        with self._lock:
            records, mapped = self._records, () if isinstance(parts, Unreadable) else parts
            entry = entry_for(
                request,
                parts,
                taking.growth(self._tree, records),
                records.mappings.new_bytes(mapped),
                control,
                kept_unseen_bytes=records.kept_unseen_bytes,
                detail=detail,
                pageable=pageable,
            )
            new = records.add(number, entry, mapped)
            self._publish()
            self._changed.notify_all()
            return entry, new

    def adopt(
        self, request: Request, parts: Parts | Unreadable, control: InProcessControl, detail: str, pageable: bool
    ) -> int:
        """Book what is resident already, without asking whether it fits; return its number."""
        with self._lock:
            number = self._new_number()
            records, mapped = self._records, () if isinstance(parts, Unreadable) else parts
            before = Unreadable("it was there before")
            new_bytes = records.mappings.new_bytes(mapped)
            entry = entry_for(
                request, parts, before, new_bytes, control, kept_unseen_bytes=0, detail=detail, pageable=pageable
            )
            new = records.add(number, entry, mapped)
            self._explain_from_the_start(new)
            self._publish()
            return number

    def beyond_the_limit(self) -> int:
        """Return by how much everything booked is beyond the limit; 0 where it is not, or there is none."""
        if self.limit_bytes is None:
            return 0
        with self._lock, self._locked_book() as reading:
            by_others = sum(entry.booked_bytes for entry in _counted(reading))
            if self._records.booked_bytes + by_others > self.limit_bytes and self._strike_gone():
                self._publish()
            return max(0, self._records.booked_bytes + by_others - self.limit_bytes)

    def booked_for(self, number: int) -> int:
        """Return what is booked for a reservation now; 0 once it is given back."""
        with self._lock:
            return self._records.booked_for(number)

    # -- striking

    def let_go(self, number: int) -> None:
        """Strike a reservation whose memory was given back; what is still resident of it becomes retained."""
        with self._lock:
            if self._strike(number):
                self._publish()
                self._changed.notify_all()

    def let_go_later(self, number: int, give_back: Callable[[], object]) -> None:
        """Note that a reservation was forgotten by its owner; `give_back` is called, and it is struck, in `tidy`."""
        self._forgotten.append((number, give_back))

    def tidy(self) -> None:
        """Give back and strike what the collector found. Every step begins with it, before the lock is taken."""
        while self._forgotten:
            try:
                number, give_back = self._forgotten.popleft()
            except IndexError:  # another thread was faster
                return
            try:
                give_back()
            except Exception as error:  # noqa: BLE001  # its owner is gone, and whoever calls now is not to blame
                _log.warning("a forgotten reservation could not be given back: %s", in_one_line(error))
            self.let_go(number)

    def copy(self) -> Copy:
        """Copy everything, for rows and accounts."""
        self.tidy()
        with self._lock:
            if self._strike_gone():
                self._publish()
            return copy_of(self._records, self._floor_at_start, read_statm(self._tree), self.overhead.bytes)

    # -- the steps, under the lock

    def _pend(self, pending: Pending) -> tuple[int, Pending]:
        number = self._new_number()
        self._records.pending[number] = pending
        self._headroom.admitted(pending.cost_bytes)
        try:
            if pending.cost_bytes:  # others need not wait for what takes nothing
                self._write_book()
        except BaseException:
            del self._records.pending[number]
            raise
        return number, pending

    def _new_number(self) -> int:
        self._next_number += 1
        return self._next_number

    def _refusal(
        self, request: Request, others: Sequence[BookEntry], headroom: Callable[[Request], tuple[Headroom, int]]
    ) -> Refused | None:
        return judge(request, self._bounds(request, others, headroom(request)), self._prices)

    def _bounds(
        self, request: Request, others: Sequence[BookEntry], headroom_seen: tuple[Headroom, int]
    ) -> list[Bound]:
        records = self._records
        taken_by_others = sum(entry.pending_bytes for entry in others)
        seen, admitted_since = headroom_seen
        headroom = headroom_bound(
            seen,
            self.keep_free_bytes,
            records.pending_bytes(request.from_pool) + taken_by_others + admitted_since,
            self.overhead.share,
            request.from_pool,
        )
        limit = None
        if self.limit_bytes is not None:
            booked = records.booked_bytes + sum(entry.booked_bytes for entry in others)
            whose = f" by {len(others) + 1} processes" if others else ""
            if records.retained_bytes:
                whose += f", {format_bytes(records.retained_bytes)} of it kept by allocators for later"
            limit = limit_bound(self.limit_bytes, booked, records.pending_bytes() + taken_by_others, whose)
        return usable_bounds(headroom, limit)

    def _strike(self, number: int) -> bool:
        """Strike a reservation and what is mapped no more of it; say whether there was one."""
        entry = self._records.entries.get(number)
        if entry is None:
            return False
        for backing in self._records.remove(number, kept_bytes=self._still_there(entry.grown_bytes)):
            self._is_kept(backing)
        return True

    def _strike_gone(self) -> bool:
        """Strike what was retained and is there no more, since its allocator emptied its cache; say whether any was."""
        records = self._records
        gone = [backing for backing, _ in records.mappings.idle if not self._is_kept(backing)]
        kept_before = records.kept_unseen_bytes
        records.kept_unseen_bytes = self._still_there(kept_before)
        return bool(gone) or records.kept_unseen_bytes != kept_before

    def _still_there(self, counted_bytes: int) -> int:
        """Return how many of these bytes, which are counted and show no address, the process can still hold.

        Growth of others that no row explains is taken for them: it is counted either way, and once.
        """
        records = self._records
        above = read_statm(self._tree) - self._floor_at_start if counted_bytes else Unreadable("nothing is counted")
        if isinstance(above, Unreadable):
            return counted_bytes
        others = records.explained_bytes - counted_bytes + records.pending_bytes(from_pool=False)
        left = min(counted_bytes, above.bytes - others)
        return left if left >= _OWN_NOISE_BYTES else 0

    def _is_kept(self, backing: Backing) -> bool:
        """Say whether an idle mapping is still there; one that is not, since its allocator let go of it, is struck."""
        if is_still_there(self._tree, backing):
            return True
        self._records.mappings.drop(backing)
        self.overhead.forget(backing)
        return False

    def _explain_from_the_start(self, new: Sequence[Backing]) -> None:
        """Take adopted memory out of the floor at the start, as far as the growth since then does not hold it."""
        resident = read_resident(self._tree, [backing for backing in new if backing.in_rss])
        above = self._above_what_is_explained(resident)
        if isinstance(above, Reading) and above.bytes < 0 and self._strike_gone():
            above = self._above_what_is_explained(resident)  # what is booked and gone is no reason to lower it
        if isinstance(above, Reading) and above.bytes < 0:
            self._floor_at_start = self._floor_at_start + Reading(above.bytes, "statm")

    def _above_what_is_explained(self, resident: Mapping[Backing, Amount]) -> Amount:
        above = read_statm(self._tree) - self._floor_at_start - Reading(self._records.explained_bytes, "mapping")
        for backing, amount in resident.items():  # what is not resident of it explains nothing
            above = above + (Reading(backing.size_bytes, "mapping") - amount)
        return above

    # -- the host's book

    def _locked_book(self) -> AbstractContextManager[BookReading]:
        """Hold the book's lock, if there is one, and give what the other processes wrote into it."""
        return nullcontext(BookReading()) if self.book is None else self.book.locked()

    def _publish(self) -> None:
        """Tell the book what has happened. Where it can't be written, what happened has happened all the same."""
        try:
            self._write_book()
        except PinprobeError as error:
            _log.warning("other processes do not see what this one holds now: %s", error)

    def _write_book(self) -> None:
        """Write this process's rows into the book, summed by owner."""
        if self.book is None or os.getpid() != self._process:
            return  # a forked child holds copies of its parent's rows, which are not its own
        records = self._records
        rows = [
            _book_row(group.owner, own.asked_bytes, own.booked_bytes, False, group.pageable)
            for group, own in records.sums().items()
        ]
        waiting: dict[str, list[Pending]] = {}
        for pending in records.pending.values():
            waiting.setdefault(pending.request.owner, []).append(pending)
        for owner, each in waiting.items():
            asked = sum(pending.request.asked_bytes for pending in each)
            rows.append(_book_row(owner, asked, sum(pending.cost_bytes for pending in each), True, False))
        if records.retained_bytes:
            rows.append(_book_row("retained", 0, records.retained_bytes, False, False))
        self.book.write(rows)

    def _pending_names(self, others: Sequence[BookEntry]) -> list[str]:
        names = [f"{p.request.owner} (a thread of this process)" for p in self._records.pending.values()]
        for entry in others:
            names += [f"{row.owner} ({entry.label or 'process'} {entry.pid})" for row in entry.rows if row.pending]
        return names


def _counted(reading: BookReading) -> tuple[BookEntry, ...]:
    for line in reading.unreadable:
        _log.warning("what another process holds is not counted: %s", line)
    return reading.entries
