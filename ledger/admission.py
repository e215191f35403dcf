"""Whether a request may be made: what bounds it, and the refusal that says so. Decided before a byte is taken."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pinprobe.ledger.price import Price, PriceList
from pinprobe.probes.errors import CouldNotMeasure, Refused
from pinprobe.probes.headroom import Headroom, HeadroomSource
from pinprobe.probes.reading import Reading, Unreadable
from pinprobe.probes.units import format_bytes


@dataclass(frozen=True, slots=True)
class Request:
    """Somebody wants memory. `from_pool` says that it comes from the kernel's huge page pool and nowhere else."""

    owner: str
    asked_bytes: int
    price: Price
    allocator: str
    from_pool: bool = False


@dataclass(frozen=True, slots=True)
class Bound:
    """One thing that bounds a request, in words, and the price that still fits within it."""

    words: str
    room_bytes: int


def headroom_bound(
    headroom: Headroom, keep_free_bytes: int, pending_bytes: int, overhead_share: float, from_pool: bool
) -> Bound | Unreadable:
    """Return what the host can still give: the binding source less what is kept free and what others are taking.

    `overhead_share` is what pinning was seen to take beside each resident byte.
    """
    source = _pool(headroom) if from_pool else headroom.binding
    if isinstance(source.available, Unreadable):
        return source.available
    left = source.available.bytes - keep_free_bytes - pending_bytes
    words = f"{source.name} leaves {format_bytes(source.available.bytes)}"
    if keep_free_bytes:
        words += f", of which {format_bytes(keep_free_bytes)} are kept free"
    if pending_bytes:
        words += f", and {format_bytes(pending_bytes)} are being taken"
    if overhead_share and not from_pool:
        words += f", and pinning takes {overhead_share:.1%} more beside"
        left = int(left / (1 + overhead_share))
    return Bound(words, max(0, left))


def limit_bound(limit_bytes: int, booked_bytes: int, pending_bytes: int, of_whom: str) -> Bound:
    """Return what a limit leaves beside what is booked under it, by this process or by all that share a book."""
    words = f"the limit is {format_bytes(limit_bytes)} and {format_bytes(booked_bytes)} are booked{of_whom}"
    if pending_bytes:
        words += f", and {format_bytes(pending_bytes)} are being taken"
    return Bound(words, max(0, limit_bytes - booked_bytes - pending_bytes))


def usable_bounds(headroom: Bound | Unreadable, limit: Bound | None) -> list[Bound]:
    """Return the bounds that are known. Raises `CouldNotMeasure` where none is: then nothing may be taken."""
    if isinstance(headroom, Bound):
        return [headroom] if limit is None else [headroom, limit]
    if limit is None:
        raise CouldNotMeasure(f"the headroom is {headroom}; give limit_bytes to reserve within a bound")
    return [limit]


def judge(request: Request, bounds: Sequence[Bound], prices: PriceList) -> Refused | None:
    """Return the refusal of a request that does not fit, or None where it does."""
    bound = min(bounds, key=lambda bound: bound.room_bytes)
    price = request.price.bytes
    if price <= bound.room_bytes:
        return None
    largest = prices.largest_request(request.allocator, bound.room_bytes)
    cost = f", which costs {format_bytes(price)} ({request.price.known})" if price != request.asked_bytes else ""
    fits = f"the largest request that fits now is {format_bytes(largest)}" if largest else "nothing fits now"
    message = f"{request.owner} asks for {format_bytes(request.asked_bytes)}{cost}; {bound.words}; {fits}"
    return Refused(
        message, request.owner, request.asked_bytes, price, bound.room_bytes, bound.words, largest_bytes=largest
    )


def after_waiting(refusal: Refused, seconds: float, pending: Iterable[str]) -> Refused:
    """Return the refusal with a word on whom it waited for in vain."""
    names = "; ".join(pending)
    if not names:
        return refusal
    message = f"{refusal}; waited {seconds:.1f} s for what is still pending: {names}"
    return Refused(message, *refusal.args[1:])


def _pool(headroom: Headroom) -> HeadroomSource:
    readable = [pool for pool in headroom.pools if isinstance(pool.free, Reading)]
    if not readable:
        return HeadroomSource("huge page pool", Unreadable("this kernel has no huge page pool that can be read"))
    pool = max(readable, key=lambda pool: pool.free.bytes if isinstance(pool.free, Reading) else 0)
    return HeadroomSource(f"the pool of {format_bytes(pool.page_bytes)} pages", pool.free)
