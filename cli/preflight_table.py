"""The checks of a preflight in the four forms. Nothing here reads or judges anything."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Sequence

from pinprobe.cli.grid import WIDTH, Grid
from pinprobe.ledger.preflight.check import Check, State
from pinprobe.ledger.preflight.preflight_receipt import PreflightRun, preflight_receipt
from pinprobe.ledger.preflight.raise_failing import Raise
from pinprobe.probes.errors import printable
from pinprobe.probes.host_facts import HostFacts
from pinprobe.probes.limits.limit import Absent, Value
from pinprobe.probes.reading import Reading, Unreadable
from pinprobe.probes.units import format_bytes

_SHOUTED = {State.ERROR: "ERROR"}


def render_preflight(run: PreflightRun, host: HostFacts | None, form: str, command: Sequence[str]) -> str:
    """Write a preflight in one of the four forms; `host` is needed for `json` alone."""
    if form == "json":
        assert host is not None
        return json.dumps(preflight_receipt(run, host, command), indent=2)
    if form == "csv":
        return _rows(run).csv()
    is_text = form == "text"
    parts = [_grid(run).text() if is_text else _rows_for_people(run).markdown()]
    if run.is_raising:
        parts.append("\n".join(map(_raised, run.raises)) or "Nothing is raised: no limit that could be is too low.")
    if is_text:
        parts += ["\n".join(_told(check)) for check in sorted(run.checks, key=_urgency) if check.reason]
        parts.append("\n".join(_sources(run)))
    notes = [f"Note: {remark}" for remark in run.remarks]
    parts.append("\n".join(_wrapped(line) if is_text else line for line in [*notes, _verdict(run)]))
    return "\n\n".join(parts)


def _grid(run: PreflightRun) -> Grid:
    rows = [(check.name, _value(check.value), _need(check), _state(check), check.binds) for check in run.checks]
    return Grid(("<check", "<value", "need", "<state", "<binds"), rows, title=_title(run))


def _rows_for_people(run: PreflightRun) -> Grid:
    rows = [
        (check.name, _value(check.value), _need(check), _state(check), check.binds, printable(check.source),
         printable(check.reason), f"`{printable(check.remedy)}`" if check.remedy else "")
        for check in run.checks
    ]  # fmt: skip
    header = ("<check", "<value", "need", "<state", "<binds", "<source", "<reason", "<remedy")
    return Grid(header, rows, title=_title(run))


def _rows(run: PreflightRun) -> Grid:
    header = ("check", "state", "value_bytes", "value", "need_bytes", "binds", "tenants", "source", "reason", "remedy")
    rows = []
    for check in run.checks:
        amount = str(check.value.bytes) if isinstance(check.value, Reading) else ""
        words = "" if isinstance(check.value, Reading) else printable(check.value)
        need = "" if check.need_bytes is None else str(check.need_bytes)
        rest = (check.binds, " ".join(check.tenants), check.source, check.reason, check.remedy)
        rows.append((check.name, check.state.value, amount, words, need, *map(printable, rest)))
    return Grid(header, rows)


def _title(run: PreflightRun) -> str:
    of_whom = run.engine or "no config"
    where = f", by the files below {run.root}" if run.root else ""
    return _wrapped(f"pinprobe preflight: {of_whom}{where}")


def _value(value: Value) -> str:
    if isinstance(value, Reading):
        return format_bytes(value.bytes)
    if isinstance(value, Unreadable):
        return "unreadable"
    return "none" if isinstance(value, Absent) else printable(value)


def _need(check: Check) -> str:
    return "" if check.need_bytes is None else format_bytes(check.need_bytes)


def _state(check: Check) -> str:
    return _SHOUTED.get(check.state, check.state.value)


def _told(check: Check) -> Iterator[str]:
    """What a check has to say: its sentence, whom it binds, and a command, which is never wrapped."""
    yield _wrapped(f"{_state(check)}: {check.name}, {printable(check.source)}: {printable(check.reason)}.")
    if check.state in (State.ERROR, State.UNREADABLE) and check.tenants:
        yield _wrapped(f"It binds {', '.join(check.tenants)}.", "  ")
    if check.remedy:
        yield f"  $ {printable(check.remedy)}"


def _urgency(check: Check) -> int:
    return (State.ERROR, State.UNREADABLE, State.ADVICE, State.OK).index(check.state)


def _raised(each: Raise) -> str:
    if each.raised is None:
        return _wrapped(f"{each.refusal}.")
    old, new = (_limit(size) for size in (each.raised.old_bytes, each.raised.new_bytes))
    return _wrapped(f"raised: {each.name} from {old} to {new}, read back from {each.raised.source}")


def _limit(size_bytes: int | None) -> str:
    return "unlimited" if size_bytes is None else f"{format_bytes(size_bytes)} ({size_bytes:,} B)"


def _sources(run: PreflightRun) -> Iterator[str]:
    yield "Read from:"
    told: dict[str, list[str]] = {}
    for check in (check for check in run.checks if check.source):
        told.setdefault(printable(check.source), []).append(check.name)
    for source, names in told.items():
        yield _wrapped(f"{source}: {', '.join(dict.fromkeys(names))}", "  ")


def _verdict(run: PreflightRun) -> str:
    count = len(run.checks)
    failing = [check.name for check in run.checks if check.state is State.ERROR]
    unknown = [check.name for check in run.checks if check.state is State.UNREADABLE and check.tenants]
    advices = sum(check.state is State.ADVICE for check in run.checks)
    advice = f"{advices} with advice" if advices else "no advice"
    unread = sum(check.state is State.UNREADABLE for check in run.checks)
    advice += f", {unread} unreadable" if unread else ""
    if not run.engine:
        return f"No config, so nothing can fail: {count} checks, {advice}."
    if failing:
        verb = "fails" if len(failing) == 1 else "fail"
        return f"{run.engine}: {len(failing)} of {count} checks {verb}: {', '.join(failing)}. Nothing was taken."
    if unknown:
        return f"{run.engine}: nothing fails, and what binds it can't be read: {', '.join(unknown)}."
    return f"{run.engine}: nothing that binds it fails; {count} checks, {advice}."


def _wrapped(text: str, indent: str = "") -> str:
    return textwrap.fill(
        text, WIDTH, initial_indent=indent, subsequent_indent=f"{indent}  " if indent else "",
        break_on_hyphens=False, break_long_words=False,
    )  # fmt: skip
