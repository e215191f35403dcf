"""`savepoint_ring`: how a config gives a `SavepointRing` its slots."""

from __future__ import annotations

import ctypes
from fractions import Fraction
from typing import TYPE_CHECKING

from pinprobe.ledger.tenants.ready_allocators import ReadyAllocators
from pinprobe.ledger.tenants.savepoint_layout import SavepointLayout, Slab
from pinprobe.ledger.tenants.savepoint_ring import SavepointRing
from pinprobe.ledger.tenants.tenant import AUTO, Field, FieldType, TenantSpec, scaled_count
from pinprobe.ledger.tenants.torch_library import load_torch
from pinprobe.probes.errors import AllocatorUnavailable, BadRequest, in_one_line
from pinprobe.probes.units import format_bytes

if TYPE_CHECKING:
    from pinprobe.ledger.ledger import HostPinnedLedger


class SavepointRingKind:
    """A ring of `slots`, or of what one turn hands out: `max_num_seqs` x `hand_outs`.

    Where the ledger can't afford all of them it takes as many as fit, down to one turn's worth: fewer would be handed
    out again while the turn still reads them. A config that gives fewer is refused when it is opened.
    """

    kind = "savepoint_ring"
    meaning = "Slots that savepoints are staged in, handed out one after the other and round again."
    fields = (
        Field("layout", FieldType.LAYOUT, "What a slot holds: one savepoint, a row across all slabs."),
        Field("slots", FieldType.AUTO_COUNT, "How many slots; auto is what one turn hands out.", default=AUTO),
        Field("max_num_seqs", FieldType.COUNT, "Sequences that are served at a time."),
        Field("hand_outs", FieldType.COUNT, "Slots that a turn of one sequence holds.", default=2),
    )
    only_allocator: str | None = None

    def __init__(self) -> None:
        self._ready = ReadyAllocators()

    def asked_bytes(self, spec: TenantSpec) -> int:
        """Return slots x row, all that is wanted."""
        return wanted_slots(spec) * spec.layout("layout").row_bytes

    def scaled(self, spec: TenantSpec, scale: Fraction) -> TenantSpec:
        """Return it with fewer slots, and with a turn that hands out fewer. Raises `BadRequest` as `prepare` does."""
        _refuse_too_few(spec)
        # One count in the place of two, since each of them alone would be rounded up: 8 x 2 at 1/16 is a turn of one.
        turn = spec.with_fields(max_num_seqs=scaled_count(_turn_slots(spec), scale), hand_outs=1)
        return turn if spec.fields["slots"] == AUTO else turn.scaled("slots", scale)

    def check(self, spec: TenantSpec) -> None:
        """Raise `BadRequest` where there are fewer slots than a turn hands out."""
        _refuse_too_few(spec)

    def prepare(self, spec: TenantSpec) -> None:
        """Make the allocator ready, and load torch, whose tensors show the slots.

        Raises `BadRequest` where there are fewer slots than a turn hands out, and `AllocatorUnavailable`.
        """
        _refuse_too_few(spec)
        _bring_up_torch(spec)
        self._ready.get(spec.allocator, self.asked_bytes(spec))

    def open(self, spec: TenantSpec, ledger: HostPinnedLedger, rank: int | None) -> SavepointRing:
        """Reserve the slots, or as many as fit; whoever opened the ring stages into it.

        Raises `Refused` where less than one turn's worth fits.
        """
        self.prepare(spec)
        return SavepointRing(
            ledger,
            spec.layout("layout"),
            wanted_slots(spec),
            self._ready.get(spec.allocator, self.asked_bytes(spec)),
            turn_slots=_turn_slots(spec),
            owner=spec.name,
            detail=spec.detail_for(rank),
        )


def _bring_up_torch(spec: TenantSpec) -> None:
    try:
        load_torch()
    except Exception as error:
        reason = f"{spec.where}: the slots of a ring are torch's tensors, and it can't be imported"
        raise AllocatorUnavailable(f"{reason}: {in_one_line(error)}", "`pip install torch`") from error
    # The first tensors over memory that is not torch's own bring in 2 MiB of it, which would be no row's.
    first = SavepointLayout((Slab("first", (1,), "float32"),))
    memory = ctypes.create_string_buffer(first.row_bytes)
    first.views(ctypes.addressof(memory), memory)


def _turn_slots(spec: TenantSpec) -> int:
    return spec.size("max_num_seqs") * spec.size("hand_outs")


def wanted_slots(spec: TenantSpec) -> int:
    """Return how many slots a ring is to have: those of its config, or what one turn hands out."""
    return _turn_slots(spec) if spec.fields["slots"] == AUTO else spec.size("slots")


def _refuse_too_few(spec: TenantSpec) -> None:
    slots, turn = wanted_slots(spec), _turn_slots(spec)
    if slots < turn:
        row_bytes = spec.layout("layout").row_bytes
        how = f"{spec.size('max_num_seqs'):,} sequences x {spec.size('hand_outs'):,} hand-outs"
        raise BadRequest(
            f"{spec.where}: {slots:,} slots ({format_bytes(slots * row_bytes)}) are fewer than one turn hands out,"
            f" {how} = {turn:,} ({format_bytes(turn * row_bytes)}); give {turn:,} or more, or slots: auto"
        )
