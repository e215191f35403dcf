"""`HostPinnedLedger`: books what reservations of host memory really cost, and refuses what does not fit.

Covers: memory of this process, page-locked or not; with a `HostBook`, what the other processes of the host booked.
Does not cover: memory that is taken without asking. What the process grew by and no row explains is shown as
`unattributed`, not prevented.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, TypeVar

from pinprobe.ledger.account import read_account, rows_of
from pinprobe.ledger.admission import Request
from pinprobe.ledger.booking import Account, Row, RowState, total_resident
from pinprobe.ledger.bookkeeping import Bookkeeping
from pinprobe.ledger.price import PriceList
from pinprobe.ledger.records import Entry
from pinprobe.ledger.reservation import Adoption, Reservation
from pinprobe.ledger.taking import Parts, parts_behind, rides_along
from pinprobe.probes.errors import BadRequest, CouldNotMeasure, Refused, printable
from pinprobe.probes.extents import find_extents
from pinprobe.probes.host_tree import THIS_HOST, HostTree
from pinprobe.probes.in_process_control import InProcessControl, run_control
from pinprobe.probes.reading import Reading, Unreadable
from pinprobe.probes.units import LARGEST_SIZE_BYTES, format_bytes

if TYPE_CHECKING:
    from pinprobe.ledger.book.host_book import HostBook
    from pinprobe.probes.sweep import Sweep

T = TypeVar("T")
_Self = TypeVar("_Self", bound="HostPinnedLedger")  # typing.Self is not in Python 3.10


class SpeakingTenant(Protocol):
    """A tenant that has something to say of itself."""

    def describe(self) -> str:
        """Say in one line what it is, for the boot."""

    def report(self) -> str:
        """Say in one line what it counted."""


_log = logging.getLogger("pinprobe")
_WORTH_A_WARNING = 1.01
_REMEMBERED_WARNINGS = 1000


class HostPinnedLedger:
    """The ledger of this process's host memory.

    Guarantees, for any number of threads that reserve and release at once:

    * Every row is booked at what was asked or more, and the rows of a mapping together at its size or more; what its
      allocator keeps after a release stays booked as `retained`. So booked >= resident at every moment, also where a
      reading failed: the row is then booked as asked and says so.
    * A refusal (`Refused`) comes before a byte is taken, but for one case: a limit in bytes, and an allocator that
      takes more than its price said; that memory is given back, and the refusal says so.
    * An `allocate` that raises leaves the ledger as it was.

    `keep_free_bytes` is left of the headroom. `limit_bytes` bounds what is reserved, pending or retained, with a `book`
    that of all processes which share it; growth that no row explains is not held against it. A request waits up to
    `wait_seconds` for pending ones to settle before it is refused. `allocator` is the name that reservations are priced
    under where they name none. Everything is read from `tree`, which is this host.
    """

    def __init__(
        self,
        *,
        allocator: str = "",
        keep_free_bytes: int = 0,
        limit_bytes: int | None = None,
        book: HostBook | None = None,
        wait_seconds: float = 10.0,
        tree: HostTree = THIS_HOST,
    ) -> None:
        self.allocator = allocator
        #: What requests are priced by: add the sweeps of an allocator to have its blocks known beforehand.
        self.prices = PriceList()
        self._tree = tree
        self._wait_seconds = wait_seconds
        self._books = Bookkeeping(tree, self.prices, book, keep_free_bytes, limit_bytes)
        self._control: InProcessControl | None = None
        self._calibrating = threading.Lock()
        self._process = os.getpid()
        self._tenants: weakref.WeakKeyDictionary[SpeakingTenant, str] = weakref.WeakKeyDictionary()
        self._warned_of: set[tuple[object, ...]] = set()
        self._open: weakref.WeakValueDictionary[int, Adoption] = weakref.WeakValueDictionary()

    # -- reserving

    def reserve(
        self,
        owner: str,
        asked_bytes: int,
        allocate: Callable[[], T],
        *,
        free: Callable[[T], object] | None = None,
        detail: str = "",
        allocator: str | None = None,
        pageable: bool = False,
        from_pool: bool = False,
    ) -> Reservation[T]:
        """Admit a request, let `allocate` take the memory, and book what that took.

        `allocate` may return anything: a tensor, an array, a buffer, an address, a collection of those, or an object
        that shows no address, which is booked by the growth of the process. `free` is called with it at the release.
        `pageable` memory can be paged out, and `from_pool` memory comes from the kernel's huge page pool.

        Raises `Refused` where it does not fit, `CouldNotMeasure` where nothing bounds it, and what `allocate` raises.
        """
        books, request = self._books, self._request(owner, asked_bytes, allocator, from_pool)
        control = self.calibrate()
        number, pending = books.admit(request, self._wait_seconds)
        reservation: Reservation[T] | None = None
        try:
            host_before = books.overhead.before(pending.cost_bytes)
            taking = books.take()
            value = allocate()
            reservation = Reservation(self, number, request.owner, asked_bytes, value, free)
            self._open[number] = reservation
            parts = parts_behind(self._tree, value, asked_bytes)
            del value
            entry, new = books.settle(number, request, taking, parts, control, detail, pageable)
            books.overhead.after(host_before, new)
            if (new or entry.grown_bytes) and (beyond := books.beyond_the_limit()):
                raise _beyond(request, books.booked_for(number), beyond)
        except BaseException:
            books.withdraw(number)
            if reservation is not None:
                reservation.release()
            raise
        self._warn(entry, parts, sum(backing.size_bytes for backing in new), books.booked_for(number))
        return reservation

    def adopt(
        self, owner: str, held: object, *, detail: str = "", allocator: str = "", pageable: bool = False
    ) -> Adoption:
        """Book what an engine holds already: a tensor, an array, a buffer, or a collection of those.

        It is booked even where it passes a limit, since it is resident already. The ledger keeps no reference to it.
        Raises `BadRequest` where it shows no address of this process's memory.
        """
        asked = sum(extent.size_bytes for extent in find_extents(held, 0))
        if not asked:
            raise BadRequest(f"{printable(owner)}: what is to be adopted shows no host memory of this process")
        request = self._request(owner, asked, allocator, from_pool=False)
        parts = parts_behind(self._tree, held, asked)
        number = self._books.adopt(request, parts, self.calibrate(), detail, pageable)
        self._open[number] = adoption = Adoption.of(self, number, request.owner, asked, held)
        return adoption

    def fit(self, slot_bytes: int, wanted: int, *, allocator: str | None = None) -> int:
        """Return how many slots, up to `wanted`, could be reserved at once now, counted at what they would cost.

        Others may be faster: a reservation of that many is admitted anew.
        """
        request = self._request("fit", slot_bytes, allocator, from_pool=False)
        room, kept = self._books.room_bytes(request)
        # A block that is kept already costs nothing more, so it may hold more slots than there is room for.
        largest = max(self.prices.largest_request(request.allocator, size, slot_bytes) for size in (room, *kept))
        return min(largest // slot_bytes, wanted)

    def close(self) -> None:
        """Release everything that is still reserved, the newest first, and leave the host's book.

        Where a `free` raises, the rest is released all the same; the last error is raised, the others in its context.
        """
        failures: list[Exception] = []
        closing = [adoption.release for _, adoption in sorted(self._open.items(), reverse=True)]
        if self._books.book is not None and os.getpid() == self._process:
            closing.append(self._books.book.close)
        for step in closing:
            try:
                step()
            except Exception as error:  # noqa: BLE001  # the rest is released all the same
                error.__context__ = failures[-1] if failures else error.__context__
                failures.append(error)
        if failures:
            raise failures[-1]

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    # -- measuring

    def calibrate(self) -> InProcessControl:
        """Take the control once and return it: without its 1.000 no row is called measured.

        The first reservation does this by itself; it takes 4 MiB for some milliseconds.
        """
        with self._calibrating:
            if self._control is None:
                self._control = run_control(self._tree)
                if self._control.fault is not None:
                    _log.warning("no row of the ledger is measured: %s", self._control.fault)
            return self._control

    def cliffs(self, slot_bytes: int, slots: Iterable[int] = range(1, 65)) -> Sweep:
        """Map the ledger's allocator in a process of its own, and price its requests by that map from now on.

        Takes seconds, and up to two thirds of the headroom for that time. Raises `AllocatorUnavailable`, and
        `CouldNotMeasure` where nothing could be measured.
        """
        from pinprobe.ledger.allocator_map import map_allocator

        sweep = map_allocator(self.allocator or "auto", slot_bytes, slots)
        self.prices.add(sweep, self.allocator)
        return sweep

    # -- what is in the book

    def rows(self) -> tuple[Row, ...]:
        """Return every row, mappings counted at their full size; `verify` reads how much of them is resident."""
        return rows_of(self._books.copy())

    @property
    def booked_bytes(self) -> int:
        """The sum of all rows: reserved, pending, retained, and the growth that no row explains."""
        return sum(row.booked_bytes for row in self.rows())

    @property
    def peak_bytes(self) -> int:
        """The most that was reserved and retained at one time."""
        return self._books.copy().peak_bytes

    @property
    def resident_bytes(self) -> int | Unreadable:
        """What the kernel says is resident of everything that is reserved or retained."""
        rows = tuple(row for row in self.verify().rows if row.state in (RowState.RESERVED, RowState.RETAINED))
        total = total_resident(rows)
        return total.bytes if isinstance(total, Reading) else total

    @property
    def working_set_floor_bytes(self) -> int | Unreadable:
        """VmRSS less what was measured as resident in it: the engine itself."""
        floor = self.verify().working_set_floor
        return floor.bytes if isinstance(floor, Reading) else floor

    def verify(self, claims: Mapping[str, int] | None = None) -> Account:
        """Read every mapping anew and say for each row whether booked >= resident holds now.

        `claims` are other books' figures by owner, in bytes: they are held against what is resident too; one for an
        owner who holds nothing raises `BadRequest`. Costs a reading of smaps: milliseconds, or seconds where many
        gibibytes of small pages are mapped.
        """
        books = self._books
        return read_account(
            self._tree,
            books.copy(),
            claims=claims or {},
            keep_free_bytes=books.keep_free_bytes,
            limit_bytes=books.limit_bytes,
            control=self._control,
            book_reach=books.book.reach if books.book is not None else "",
            remarks=tuple(f"{owner}: {tenant.describe()}" for tenant, owner in list(self._tenants.items())),
            reports=tuple(f"{owner}: {tenant.report()}" for tenant, owner in list(self._tenants.items())),
        )

    def introduce(self, owner: str, tenant: SpeakingTenant) -> None:
        """Have a tenant's own lines stand in the printout, for as long as the tenant is there."""
        self._tenants[tenant] = printable(owner)

    def printout(self, *, stats: bool = False) -> str:
        """Return the boot lines as plain text; with `stats` also what tenants counted since."""
        from pinprobe.ledger.printout import printout

        return printout(self.verify(), stats=stats)

    # -- what a reservation asks of its ledger

    def booked_for(self, number: int) -> int:
        """Return what is booked for a reservation now; 0 once it is given back."""
        return self._books.booked_for(number)

    def let_go(self, number: int) -> None:
        """Strike a reservation; what is still resident of it becomes retained."""
        self._open.pop(number, None)
        if os.getpid() == self._process:  # a forked child lets go of copies: its parent's rows are not its own
            self._books.let_go(number)

    def let_go_later(self, number: int, give_back: Callable[[], object]) -> None:
        """Note a reservation that the collector found; any lock may be held where it runs."""
        self._books.let_go_later(number, give_back)

    # -- the steps

    def _request(self, owner: str, asked_bytes: int, allocator: str | None, from_pool: bool) -> Request:
        if os.getpid() != self._process:
            raise CouldNotMeasure("this ledger is its parent's: a forked process has to make one of its own")
        if not isinstance(asked_bytes, int) or not 0 < asked_bytes <= LARGEST_SIZE_BYTES:
            raise BadRequest(f"{printable(owner)}: {asked_bytes!r} is no number of bytes that can be reserved")
        name = self.allocator if allocator is None else allocator
        return Request(printable(owner), asked_bytes, self.prices.price(name, asked_bytes), name, from_pool)

    def _warn(self, entry: Entry, parts: Parts | Unreadable, new_bytes: int, booked_bytes: int) -> None:
        """Log what an engine that books its asks would not see."""
        asked = entry.asked_bytes
        if isinstance(parts, Unreadable):
            _log.error("%s: %s", entry.owner, entry.evidence)
        elif booked_bytes > asked * _WORTH_A_WARNING and booked_bytes - asked > 2 * self._tree.page_size_bytes:
            _log.log(
                logging.WARNING if self._is_first(entry.owner, asked, booked_bytes) or new_bytes else logging.DEBUG,
                "%s asked for %s and is booked at %s (ratio %.3f): %s",
                entry.owner, format_bytes(asked), format_bytes(booked_bytes), booked_bytes / asked, entry.evidence,
            )  # fmt: skip
        beyond = rides_along(entry, parts, new_bytes)
        if beyond:
            _log.warning(
                "%s asked for %s and the process grew by %s meanwhile (ratio %.3f): %s are in no row of an owner",
                entry.owner, format_bytes(asked), format_bytes(new_bytes + beyond), (new_bytes + beyond) / asked,
                format_bytes(beyond),
            )  # fmt: skip

    def _is_first(self, *figures: object) -> bool:
        """Say whether these were not asked about yet: what takes nothing more is worth one warning, not a million."""
        if figures in self._warned_of:
            return False
        if len(self._warned_of) >= _REMEMBERED_WARNINGS:
            self._warned_of.clear()
        self._warned_of.add(figures)
        return True


def _beyond(request: Request, took_bytes: int, beyond_bytes: int) -> Refused:
    message = (
        f"{request.owner} asked for {format_bytes(request.asked_bytes)} and took {format_bytes(took_bytes)}, which is"
        f" {format_bytes(beyond_bytes)} beyond the limit; it was given back, and its allocator may keep it: with a map"
        " (ledger.cliffs) the like is refused before"
    )
    room = max(0, took_bytes - beyond_bytes)
    return Refused(message, request.owner, request.asked_bytes, took_bytes, room, "the limit", largest_bytes=0)
