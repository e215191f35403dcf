"""Three readings that prove what an allocator does: the control, pinned memory, and the same request once more."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

from pinprobe.probes.allowance import Allowance
from pinprobe.probes.control import control_fault, margin_bytes
from pinprobe.probes.cost import Cost
from pinprobe.probes.errors import CouldNotMeasure
from pinprobe.probes.reading import Reading
from pinprobe.probes.units import format_bytes


class TrialBench(Protocol):
    """What a trial is measured on: a `MeasuringChild`, or a double of it."""

    notes: tuple[str, ...]

    def measure(self, asked_bytes: int, limit_bytes: int | None = None, *, control: bool = False) -> Cost:
        """Allocate and measure, keeping the allocation until `release`."""

    def release(self) -> None:
        """Give the held allocation back."""


@dataclass(frozen=True)
class Verdict:
    """What a trial proves, in one sentence, and the exit code that goes with it."""

    exit_code: int
    sentence: str


@dataclass(frozen=True)
class Trial:
    """The three costs. `ended` says why one is missing, where one is."""

    allocator: str
    notes: tuple[str, ...]
    asked_bytes: int
    page_size_bytes: int
    allowance: Allowance
    control: Cost | None = None
    pinned: Cost | None = None
    again: Cost | None = None
    ended: str | None = None

    @property
    def broken_promise(self) -> str | None:
        """The request that was handed a block smaller than its ask: a write to its end would be outside of it."""
        for cost in (self.pinned, self.again):
            if cost is not None and isinstance(cost.block, Reading) and cost.block.bytes < cost.asked_bytes:
                return (
                    f"{self.allocator} handed a block of {cost.block.bytes:,} B to a request for {cost.asked_bytes:,} B"
                )
        return None

    @property
    def verdict(self) -> Verdict:
        """Judge: a broken promise first, then the control, then what the rows say together."""
        if self.broken_promise:
            return Verdict(1, f"memory is not safe: {self.broken_promise}")
        fault = control_fault(self.control, self.page_size_bytes) if self.ended is None or self.control else None
        if fault:
            return Verdict(3, f"probe invalid: {fault}")
        if self.ended:
            return Verdict(3, f"not all was measured: {self.ended}")
        return _judge(self)


def run_trial(bench: TrialBench, allocator: str, asked_bytes: int, allowance: Allowance, page_size_bytes: int) -> Trial:
    """Measure control, pinned, and pinned again; each is released before the next.

    Stops with what it has at an interrupt or at a failure, which the trial then tells; raises nothing of either kind.
    """
    trial = Trial(allocator, bench.notes, asked_bytes, page_size_bytes, allowance)
    try:
        trial = replace(trial, control=bench.measure(asked_bytes, allowance.bytes, control=True))
        bench.release()
        trial = replace(trial, pinned=bench.measure(asked_bytes, allowance.bytes))
        bench.release()
        trial = replace(trial, again=bench.measure(asked_bytes, allowance.bytes))
        bench.release()
    except KeyboardInterrupt as interrupt:
        return replace(trial, ended=str(interrupt) or "interrupted")
    except CouldNotMeasure as error:
        return replace(trial, ended=str(error))
    return trial


def _judge(trial: Trial) -> Verdict:
    pinned, again = trial.pinned, trial.again
    if pinned is None or again is None:
        return Verdict(3, "not all was measured")
    if not (isinstance(pinned.resident, Reading) and isinstance(again.resident, Reading)):
        return Verdict(3, f"could not measure: {pinned.evidence()}; {again.evidence()}")
    kept = again.resident.within(0) and again.address == pinned.address
    for cost in (pinned,) if kept else (pinned, again):
        if cost.fault:
            return Verdict(3, f"could not measure: {cost.fault}")
    took, asked = pinned.resident.bytes, pinned.asked_bytes
    whole_pages = -(-asked // trial.page_size_bytes) * trial.page_size_bytes
    repeat = (
        "the same request again costs nothing, since the block is kept"
        if kept
        else "the same request again costs it anew"
    )
    margin = margin_bytes(asked, trial.page_size_bytes)
    if pinned.resident.within(whole_pages, margin):
        return Verdict(0, f"For this size {trial.allocator} takes what is asked, to the page; {repeat}.")
    if isinstance(pinned.block, Reading) and pinned.resident.within(pinned.block.bytes, margin):
        return Verdict(
            0,
            f"A page costs no more for being pinned (the control reads 1.000): {trial.allocator} serves"
            f" {format_bytes(asked)} from a block of {format_bytes(took)}; {repeat}.",
        )
    return Verdict(
        0,
        f"{trial.allocator} took {format_bytes(took)} for {format_bytes(asked)}, which no one block explains: something"
        f" rides along; {repeat}.",
    )
