"""What a plan says in sentences."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from fractions import Fraction

from pinprobe.ledger.admission import Bound
from pinprobe.ledger.config.expression_text import Quantity
from pinprobe.ledger.config.quantity_text import write_quantity
from pinprobe.ledger.plan.plan import Plan, Smaller
from pinprobe.ledger.plan.plan_fit import Fit
from pinprobe.ledger.plan.plan_row import PlanRow, WorkedOut
from pinprobe.probes.reading import Unreadable
from pinprobe.probes.units import format_bytes


def verdict_sentence(plan: Plan) -> str:
    """Say whether it fits, what it needs, and which bound that is held against."""
    known = ""
    if any(row.has_no_map for row in plan.rows):
        known = " at what is asked"
    elif any(row.known == "predicted" for row in plan.rows):
        known = ", predicted"
    needs = f"it needs {_size(plan.needed_bytes)}{known}"
    pool_needs = f"{_size(plan.pool_needed_bytes)} of huge pages"
    if plan.pool_room is not None:
        needs = f"it needs {pool_needs}" + (f" and {_size(plan.needed_bytes)} beside" if plan.needed_bytes else "")
    fits = plan.fits
    if isinstance(fits, Unreadable):
        return f"{plan.engine}: {needs}, and nobody can say whether that fits: the headroom is {fits}."
    words = [room.words for room in (plan.room, plan.pool_room) if isinstance(room, Bound)]
    if fits:
        return f"{plan.engine} fits: {needs}; {'; '.join(words)}."
    lacking = [
        f"{format_bytes(needed - room.room_bytes)} more than {'the pool' if is_pool else 'there is'}"
        for needed, room, is_pool in (
            (plan.needed_bytes, plan.room, False),
            (plan.pool_needed_bytes, plan.pool_room, True),
        )
        if isinstance(room, Bound) and needed > room.room_bytes
    ]
    return f"{plan.engine} does not fit: {needs}, {' and '.join(lacking)}; {'; '.join(words)}."


def formula_lines(plan: Plan) -> list[str]:
    """Return each formula with what it comes to: the config's numbers first, then the tenants' keys."""
    lines = [_worked_out(formula) for formula in plan.formulas]
    return lines + [f"{row.owner}: {'; '.join(map(_worked_out, row.formulas))}" for row in plan.rows if row.formulas]


def printed_sentences(plan: Plan) -> list[str]:
    """Compare the engine's own figure with the plan's, where the config gives one."""
    return [_printed(row) for row in plan.rows if row.printed_bytes is not None]


def smaller_sentences(smaller: Sequence[Smaller]) -> list[str]:
    """Say which one tenant, made how small, would make it fit."""
    if not smaller:
        return ["No one tenant, made smaller alone, would make it fit."]
    return [
        f"{each.owner}: the largest size{_per(each.per)} that fits, all else as it is, is"
        f" {format_bytes(each.largest_bytes)} ({each.largest_bytes:,} B); it asks for {format_bytes(each.asked_bytes)}."
        for each in smaller
    ]


def with_settings(config: str, overrides: Mapping[str, str]) -> str:
    """Write a config and all that is set for this run as a command line has them, so that it is about the same.

    >>> with_settings("engine.yaml", {"slots": "5", "row": "2 MiB"})
    "engine.yaml --set slots=5 --set 'row=2 MiB'"
    """
    return shlex.join([config, *(word for name, text in overrides.items() for word in ("--set", f"{name}={text}"))])


def fit_sentences(fit: Fit | None, config: str) -> list[str]:
    """Say the largest value that fits, what binds beyond it, and what the search can't know."""
    if fit is None:
        return []
    sentences = []
    if fit.value is None or fit.plan is None:
        sentences.append(f"No value of {fit.name} fits: {_beyond(fit.beyond, 'the least that the config takes')}.")
    else:
        sentences.append(
            f"The largest {fit.name} that fits is {_value(fit)}, which needs {_size(fit.plan.needed_bytes)}:"
            f" `pinprobe plan {with_settings(config, {**fit.plan.overrides, fit.name: fit.expression})}`."
        )
        if fit.beyond is None:
            sentences.append(f"No larger {fit.name} was found that does not fit.")
        else:
            sentences.append(f"Beyond it: {_beyond(fit.beyond, 'the next')}.")
    if fit.is_idle:
        sentences.append(f"Every value of {fit.name} comes to the same: it is no part of what is priced.")
    elif not fit.is_monotone:
        sentences.append(
            f"What the plan needs does not grow with {fit.name} everywhere, so other values, larger ones too, may fit."
        )
    return sentences


def _beyond(beyond: Plan | str | None, what: str) -> str:
    if isinstance(beyond, Plan):
        rooms = [
            room.words
            for needed, room in ((beyond.needed_bytes, beyond.room), (beyond.pool_needed_bytes, beyond.pool_room))
            if isinstance(room, Bound) and needed > room.room_bytes
        ]
        needed = beyond.needed_bytes + beyond.pool_needed_bytes
        return f"{what} needs {_size(needed)}, and {'; '.join(rooms)}"
    return f"{what} is refused: {beyond}"


def _value(fit: Fit) -> str:
    assert fit.value is not None
    return f"{fit.value:,}" if fit.unit_bytes is None else f"{fit.value:,} {fit.expression.rpartition(' ')[2]}"


def _printed(row: PlanRow) -> str:
    assert row.printed_bytes is not None
    each = " a rank" if row.per == "rank" else ""
    more = row.printed_bytes - row.asked_bytes
    begin = f"{row.owner}: the engine prints {format_bytes(row.printed_bytes)}{each}"
    if more <= 0:
        return f"{begin}, no more than what is asked."
    told = f"{begin}, {_exactly(more)} more than what is asked"
    if not row.short_bytes:
        return f"{told}; the block that it is planned with holds that too."
    on_host = f", {_exactly(row.copies * row.short_bytes)} on the host" if row.copies > 1 else ""
    return f"{told}: the plan is short by {_exactly(row.short_bytes)}{each}{on_host}, and counts that as needed."


def _worked_out(formula: WorkedOut) -> str:
    text = "" if formula.text == formula.name else f" = {formula.text}"
    return f"{formula.name}{text} = {write_quantity(formula.quantity)}"


def _size(size_bytes: int) -> str:
    """Write a size for a sentence, and in the unit that engines are configured in."""
    text = format_bytes(size_bytes)
    return f"{text} ({_exactly(size_bytes)})" if text.endswith("GiB") else text


def _exactly(size_bytes: int) -> str:
    return f"{_mib(size_bytes)} MiB" if size_bytes >= 2**20 else write_quantity(Quantity(Fraction(size_bytes), True))


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / 2**20:,.2f}".rstrip("0").rstrip(".")


def _per(per: str) -> str:
    return " a rank" if per == "rank" else ""
