"""`external`: memory that the engine's own function takes, booked as whatever it turns out to cost."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from pinprobe.ledger.tenants.tenant import Field, FieldType, TenantSpec
from pinprobe.probes.errors import AllocationFailed, BadRequest, PinprobeError, in_one_line

if TYPE_CHECKING:
    from pinprobe.ledger.ledger import HostPinnedLedger
    from pinprobe.ledger.reservation import Reservation


class OpenExternal:
    """What a function of the engine's took."""

    def __init__(self, reservation: Reservation[Any]) -> None:
        self.reservation = reservation

    def close(self) -> None:
        """Let go of it, and strike its line: where nobody else refers to it, it is freed."""
        self.reservation.release()


class External:
    """`count` pieces of `bytes` each, taken by a function of the engine's own.

    The function is called once, with the bytes of all pieces together; what it returns is held until the tenant is
    closed, and booked. It is imported when the tenant is prepared or opened, and never before: what only reads a config
    runs no code of the engine's.
    """

    kind = "external"
    meaning = "Memory that a function of the engine's own takes; whatever it returns is booked."
    fields = (
        Field("callable", FieldType.CALLABLE, "What is called with the number of bytes, and returns the memory."),
        Field("count", FieldType.COUNT, "How many pieces.", default=1),
        Field("bytes", FieldType.SIZE, "The size of one piece."),
    )
    only_allocator: str | None = None

    def asked_bytes(self, spec: TenantSpec) -> int:
        """Return count x bytes."""
        return spec.size("count") * spec.size("bytes")

    def scaled(self, spec: TenantSpec, scale: Fraction) -> TenantSpec:
        """Return it with fewer pieces."""
        return spec.scaled("count", scale)

    def prepare(self, spec: TenantSpec) -> None:
        """Import the function. Raises `BadRequest` where there is none."""
        _find(str(spec.fields["callable"]), spec)

    def open(self, spec: TenantSpec, ledger: HostPinnedLedger, rank: int | None) -> OpenExternal:
        """Import the function, and let it take its memory through the ledger.

        Raises `BadRequest` where there is no such function, and `AllocationFailed` with what it raised.
        """
        asked = self.asked_bytes(spec)
        name = str(spec.fields["callable"])
        take = _find(name, spec)
        how = f"{spec.size('count'):,} x {spec.size('bytes'):,} B by {name}"
        return OpenExternal(
            ledger.reserve(
                spec.name,
                asked,
                lambda: _call(take, asked, name, spec),
                detail=spec.detail_for(rank, how),
                allocator=name,
                pageable=spec.allocator == "pageable",
            )
        )


def _find(name: str, spec: TenantSpec) -> Callable[[int], object]:
    module_name, _, attributes = name.partition(":")
    try:
        # Foreign code may print; stdout is data.
        with contextlib.redirect_stdout(sys.stderr):
            found: Any = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        hint = "; PYTHONPATH names where to look" if isinstance(error, ModuleNotFoundError) else ""
        raise BadRequest(f"{spec.where}: {module_name} can't be imported: {in_one_line(error)}{hint}") from error
    for attribute in attributes.split("."):
        try:
            found = getattr(found, attribute)
        except AttributeError:
            raise BadRequest(f"{spec.where}: {module_name} has no {attributes}; name a function in it") from None
    if not callable(found):
        raise BadRequest(f"{spec.where}: {name} is no function; it is called with the number of bytes")
    function: Callable[[int], object] = found
    return function


def _call(take: Callable[[int], object], asked_bytes: int, name: str, spec: TenantSpec) -> object:
    try:
        with contextlib.redirect_stdout(sys.stderr):
            return take(asked_bytes)
    except PinprobeError:
        raise
    except (Exception, SystemExit) as error:
        reason = f"{spec.where}: {name} did not take {asked_bytes:,} B: {in_one_line(error)}"
        raise AllocationFailed(reason) from error
