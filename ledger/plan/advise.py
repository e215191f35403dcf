"""Measures what other allocators, and torch's own settings, would take for a config's pinned tenants."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction

from pinprobe.ledger.config.config import Config
from pinprobe.ledger.plan.advice import Advice, Effect, Way, ranked
from pinprobe.ledger.plan.plan import make_plan
from pinprobe.ledger.plan.plan_row import PlanRow
from pinprobe.ledger.plan.tried_allocator import Trials, Tried
from pinprobe.ledger.price import PriceList
from pinprobe.probes.allocators.allocator import Allocator
from pinprobe.probes.allocators.registry import allocator_names, prepare_allocator
from pinprobe.probes.allocators.torch_keys import pinned_keys, settings_with
from pinprobe.probes.errors import AllocatorUnavailable, BadRequest, CouldNotMeasure
from pinprobe.probes.headroom import Headroom
from pinprobe.probes.installed_torch import find_installed_torch
from pinprobe.probes.reading import Unreadable

ALLOCATOR, SETTING = "allocator", "setting"

# Those that torch's settings speak to; the second stands in for the first where there is no accelerator, and can serve
# no engine.
_OF_TORCH = ("torch", "torch-host")
_STAND_IN = "torch-host"
_NOT_PINNED = "pageable"
_CAVEATS = {"mlock": "locked, but not registered with a device: copies to one are as slow as from pageable memory"}
_KEEPS_NOTHING = "keeps no block: what is freed and asked for again is pinned anew"

Say = Callable[[str], object]


def advise(config: Config, scale: Fraction, trials: Trials, say: Say = lambda step: None) -> Advice:
    """Try every other way of pinning that is to be had here, each in fresh processes and within the trials' bound.

    Raises `BadRequest` where the config pins nothing, and `CouldNotMeasure` where its own way can't be tried.
    """
    plan = make_plan(config, PriceList(), Headroom(()), scale=scale)
    rows = [row for row in plan.rows if not row.pageable and row.kind != "external"]
    if not rows:
        raise BadRequest(f"{config.path}: no tenant pins memory by an allocator, so there is nothing to advise")
    work = _Work(rows, trials, say)
    as_it_is = work.as_it_is()
    ways = ranked([*work.other_allocators(), *work.torch_settings()])
    return Advice(config.path, config.engine, str(scale), as_it_is, ways)


class _Work:
    """The tenants, what they are taken from as it is, and what that was seen to take."""

    def __init__(self, rows: Sequence[PlanRow], trials: Trials, say: Say) -> None:
        self._rows = rows
        self._trials = trials
        self._say = say
        self._own: dict[str, Allocator] = {}
        self._before: dict[str, Tried] = {}

    def as_it_is(self) -> Way:
        """Try each tenant's own allocator. Raises `CouldNotMeasure` where one can't be measured."""
        for name in dict.fromkeys(row.allocator for row in self._rows):
            asked = [row.asked_bytes for row in self._rows if row.allocator == name]
            allocator = prepare_allocator(name, self._able(asked)).allocator
            self._say(f"{allocator.name}, as it is")
            tried = self._trials.try_out(allocator, asked, {}, self._say)
            if tried.failed:
                raise CouldNotMeasure(f"{allocator.name}, which the config takes memory from: {tried.failed}")
            self._own[name], self._before[name] = allocator, tried
        effects = tuple(self._effect(row, self._before[row.allocator]) for row in self._rows)
        broken = [f"{tried.allocator} {tried.broken}" for tried in self._before.values() if tried.broken]
        names = dict.fromkeys(allocator.name for allocator in self._own.values())
        notes = tuple(dict.fromkeys(note for tried in self._before.values() for note in tried.notes))
        return Way(", ".join(names), ALLOCATOR, (), effects, notes, "; ".join(broken))

    def other_allocators(self) -> Iterator[Way]:
        """Try every allocator that can be had here for the tenants that are not taken from it already."""
        for name in allocator_names():
            rows = [row for row in self._rows if self._own[row.allocator].name != name]
            if name == _NOT_PINNED or not rows or (name == _STAND_IN and len(rows) == len(self._rows)):
                continue
            self._say(name)
            sizes = [row.asked_bytes for row in rows]
            try:
                allocator = prepare_allocator(name, self._able(sizes)).allocator
            except AllocatorUnavailable as error:
                yield Way(name, ALLOCATOR, (), (), reason=f"not to be had here: {error}")
                continue
            way = self._way(name, ALLOCATOR, {}, rows, self._trials.try_out(allocator, sizes, {}, self._say))
            yield replace(way, caveat=_CAVEATS.get(name, ""))

    def torch_settings(self) -> Iterator[Way]:
        """Try each pinned key that the installed torch knows, alone, for the tenants whose memory torch pins."""
        torch = find_installed_torch()
        rows = [row for row in self._rows if self._own[row.allocator].name in _OF_TORCH]
        if isinstance(torch, Unreadable) or not rows:
            return
        for key in pinned_keys(torch):
            for value in _values(key):
                settings = settings_with(os.environ, key, value)
                name = f"{key}:{value}"
                self._say(name)
                own = self._own[rows[0].allocator]
                tried = self._trials.try_out(own, [row.asked_bytes for row in rows], settings, self._say)
                way = self._way(name, SETTING, settings, rows, tried)
                if not tried.failed:
                    break
            unreached = next(
                (note for note in tried.notes if note.startswith(f"setting not reproduced here: {key}")), ""
            )
            yield replace(way, reason=f"{unreached}; try it where torch pins by itself") if unreached else way

    def _way(self, name: str, kind: str, settings: dict[str, str], rows: Sequence[PlanRow], tried: Tried) -> Way:
        own_notes = {note for before in self._before.values() for note in before.notes}
        notes = tuple(note for note in tried.notes if note not in own_notes and "setting in force" not in note)
        if tried.keeps is False and any(self._before[row.allocator].keeps for row in rows):
            notes += (_KEEPS_NOTHING,)
        warning = f"{tried.allocator} {tried.broken}: a write to its end is outside of it" if tried.broken else ""
        effects = () if tried.failed else tuple(self._effect(row, tried) for row in rows)
        return Way(name, kind, tuple(settings.items()), effects, notes, warning, tried.failed)

    def _effect(self, row: PlanRow, tried: Tried) -> Effect:
        before, price = self._before[row.allocator].price(row.asked_bytes), tried.price(row.asked_bytes)
        seconds, seconds_known = tried.seconds(row.asked_bytes)
        return Effect(
            owner=row.owner,
            copies=row.copies,
            asked_bytes=row.asked_bytes,
            before_bytes=before.bytes,
            before_known=before.known,
            cost_bytes=price.bytes,
            known=price.known,
            seconds=seconds,
            seconds_known=seconds_known,
        )

    def _able(self, sizes: Sequence[int]) -> int:
        """Return what an allocator has to be fit for: the largest size of all that will be tried."""
        return min(max(sizes), self._trials.allowance.bytes)


def _values(key: str) -> tuple[str, ...]:
    """Return what to try for a key, until torch takes one: of a size the least, so that every tenant is beyond it."""
    return ("1",) if key.endswith("_mb") else ("True", "2")
