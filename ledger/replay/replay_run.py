"""`ReplayRun`: all that one replay came to, with what it was made of and what of it is modelled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pinprobe.ledger.replay.arm_replay import Setting
from pinprobe.ledger.replay.do_no_harm import DoNoHarmRow
from pinprobe.ledger.replay.replicates import PlayedArms
from pinprobe.ledger.replay.request import Request
from pinprobe.ledger.replay.shape import Shape
from pinprobe.ledger.replay.sweep_slots import SlotSweep
from pinprobe.ledger.tenants.prefill_time import SavepointWorth, savepoint_worth
from pinprobe.probes.errors import BadRequest
from pinprobe.probes.units import format_bytes

#: Prompts of so many tokens stand in the table of what a savepoint is worth.
WORTH_TOKENS = tuple(2_048 << power for power in range(7))


@dataclass(frozen=True, slots=True)
class Source:
    """Where the requests of a replay come from: a trace's file, or a drive by name and shape; and how many they are.

    `later_count` are those that continue an earlier prompt.
    """

    trace: str | None
    scenario: str | None
    shape: Shape | None
    request_count: int
    later_count: int

    @classmethod
    def of(cls, requests: Sequence[Request], *, trace: str | None = None, scenario: str | None = None,
           shape: Shape | None = None) -> Source:  # fmt: skip
        """Count them."""
        later = sum(request.parent is not None for request in requests)
        return cls(trace, scenario, shape, len(requests), later)


@dataclass(frozen=True)
class ReplayRun:
    """All that one run of the command came to; one of `played`, `sweep` and `rows` is there, the others are None.

    `setting` is None where a live server was driven. `modelled` says in sentences which figures are modelled and not
    measured; `notes` what else has to be known. `row_bytes` is what a savepoint takes, 0 where nobody knows.
    """

    source: Source
    setting: Setting | None
    row_bytes: int = 0
    modelled: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    worth: SavepointWorth | None = None
    played: PlayedArms | None = None
    sweep: SlotSweep | None = None
    rows: tuple[DoNoHarmRow, ...] | None = None
    ended: str | None = None


def worth_of(setting: Setting, row_bytes: int) -> SavepointWorth | None:
    """Return what savepoints of several lengths are worth; None where nobody said what prefill takes.

    Its `pays_from_tokens` is None where no rate of reading back was given, and where none ever pays at the rate given.
    """
    if setting.prefill_time is None:
        return None
    try:
        return savepoint_worth(row_bytes, WORTH_TOKENS, setting.prefill_time, setting.read_back_bytes_per_second)
    except BadRequest:
        return savepoint_worth(row_bytes, WORTH_TOKENS, setting.prefill_time)


def modelled(setting: Setting, *, is_real: bool) -> tuple[str, ...]:
    """Say in sentences which figures of replayed arms are modelled."""
    told = []
    if not is_real:
        told.append(
            "Modelled, not measured: only metadata was replayed, no byte was copied, and what is copied takes no time."
        )
    if setting.prefill_time is not None:
        given = setting.prefill_time
        told.append(f"Modelled, not measured: seconds of prefill; n tokens take {given.formula} s ({given.source}).")
    if setting.read_back_bytes_per_second is not None:
        rate = format_bytes(round(setting.read_back_bytes_per_second))
        told.append(f"Taken, not measured: a disk that reads {rate} back in a second.")
    return tuple(told)
