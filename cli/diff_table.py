"""Two receipts beside each other, in the forms that people and spreadsheets read. Nothing here compares or measures."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from fractions import Fraction

from pinprobe.cli.diff_words import (
    config_unknown,
    growth_sentences,
    head_lines,
    leaf,
    same_lines,
    set_back_lines,
    set_back_words,
    unreadable_lines,
    verdict_lines,
)
from pinprobe.cli.figures import raw
from pinprobe.cli.grid import WIDTH, Grid
from pinprobe.ledger.booking import RowState
from pinprobe.ledger.receipts.config_diff import written
from pinprobe.ledger.receipts.process_growth import ProcessGrowth
from pinprobe.ledger.receipts.receipt_change import Change
from pinprobe.ledger.receipts.receipt_diff import Increase, OwnerDiff, Presence, ReceiptDiff
from pinprobe.probes.reading import Amount, Reading, Unreadable
from pinprobe.probes.units import Unit, format_bytes, unit_for

_SHORTEST_NAME = 12
_Changes = list[tuple[str, Change]]


def diff_text(diff: ReceiptDiff, increases: Sequence[Increase], allowed: Fraction | None) -> str:
    """Write a comparison for a terminal."""
    verdict = verdict_lines(increases, allowed)
    if diff.is_same:
        parts = [head_lines(diff), same_lines(diff), verdict]
        return "\n\n".join("\n".join(map(_wrapped, part)) for part in parts if part)
    parts = [
        [_wrapped(line) for line in head_lines(diff)],
        [_owners_grid(diff, is_folded=True).text()],
        [_growth_grid(diff.growth).text()],
        [_wrapped(line) for line in (*growth_sentences(diff.growth), *unreadable_lines(diff))],
        list(_config_lines(diff)),
        list(_fact_lines(diff)),
        [_wrapped(line) for line in verdict],
    ]
    return "\n\n".join("\n".join(part) for part in parts if part)


def diff_markdown(diff: ReceiptDiff, increases: Sequence[Increase], allowed: Fraction | None) -> str:
    """Write a comparison for a page or a pull request."""
    head = "\n".join(f"* {line}" for line in head_lines(diff))
    verdict = verdict_lines(increases, allowed)
    if diff.is_same:
        return "\n\n".join([head, *same_lines(diff), *verdict])
    parts = [head, _owners_grid(diff, is_folded=False).markdown(), _growth_grid(diff.growth).markdown()]
    parts += [" ".join(growth_sentences(diff.growth)), *unreadable_lines(diff)]
    if isinstance(diff.config, Unreadable):
        parts.append(config_unknown(diff.config))
    elif diff.config:
        rows = [(change.key, leaf(change.old), leaf(change.new)) for change in diff.config]
        parts.append(Grid(("<config", "<old", "<new"), rows).markdown())
        words, lines = set_back_words(diff.config), set_back_lines(diff.config)
        parts += ["The old state again:"] if words or lines else []
        parts += ["\n".join(["```", *words, *lines, "```"])] if words or lines else []
    if diff.facts:
        facts = [(change.fact, str(change.old), str(change.new)) for change in diff.facts]
        parts.append(Grid(("<may be the reason", "<old", "<new"), facts).markdown())
    return "\n\n".join([*parts, *verdict])


def diff_rows(diff: ReceiptDiff) -> Grid:
    """The same for a machine: amounts in bytes, an unknown an empty cell with its reason in the remark."""
    rows = []
    for owner in diff.owners:
        section = "owner" if owner.state is RowState.RESERVED else owner.state.value
        presence = "" if owner.presence is Presence.BOTH else owner.presence.value
        rows += [_row(section, owner.owner, what, change, presence) for what, change in _all_changes(owner)]
    growth = diff.growth
    rows += [_row("sum", name, "booked", change) for name, change in diff.sums.items()]
    rows += [_row("host", "headroom", "", diff.headroom), _row("host", "overhead", "", diff.overhead)]
    rows += [
        _row("process", "from_asked", "", growth.from_asked),
        _row("process", "from_booked", "", growth.from_booked),
        _row("process", "from_resident", "", growth.from_resident),
        _row("process", "measured", "", growth.measured),
        _row("process", "residue", "", growth.residue),
        _row("process", "working_set_floor", "", growth.floor),
    ]
    if isinstance(diff.config, Unreadable):
        rows.append(["config", "", "", "", "", "", diff.config.reason])
    else:
        for key in diff.config:
            values = ["" if value is None else written(value) for value in (key.old, key.new)]
            rows.append(["config", key.key, "", *values, "", key.word or key.line])
    rows += [["fact", change.fact, "", str(change.old), str(change.new), "", ""] for change in diff.facts]
    rows += [["note", "", "", diff.old.note, diff.new.note, "", ""]]
    return Grid(("section", "name", "what", "old", "new", "difference", "remark"), rows)


def _row(section: str, name: str, what: str, change: Change, remark: str = "") -> list[str]:
    difference = change.difference
    told = difference.reason if isinstance(difference, Unreadable) else remark
    return [section, name, what, raw(change.old), raw(change.new), raw(difference), told]


def _owners_grid(diff: ReceiptDiff, is_folded: bool) -> Grid:
    groups = [(owner.owner, owner.presence, _shown_changes(owner)) for owner in diff.owners]
    groups += [("all that is booked", Presence.BOTH, list(diff.sums.items()))]
    # The host's figures are many times those of a small ledger, and do not decide on the unit.
    unit = _unit([change for _, _, changes in groups for _, change in changes])
    groups += [("host", Presence.BOTH, [("headroom", diff.headroom), ("overhead", diff.overhead)])]
    names, figures = [], []
    for name, presence, changes in groups:
        names.append((name, "" if presence is Presence.BOTH else presence.value, len(changes)))
        for what, change in changes:
            old = "-" if presence is Presence.APPEARED else _cell(change.old, unit)
            new = "-" if presence is Presence.WENT else _cell(change.new, unit)
            figures.append((what, old, new, _difference(change, unit)))
    header = ("<owner", f"<{unit.name}", "old", "new", "difference")
    width = WIDTH - Grid(("<", *header[1:]), [("", *row) for row in figures]).width - len("  ")
    labels = [label for name in names for label in _labels(*name, width if is_folded else None)]
    return Grid(header, [(label, *row) for label, row in zip(labels, figures, strict=True)])


def _labels(name: str, presence: str, row_count: int, width: int | None) -> Iterator[str]:
    """Name a group in its first row, and in its second say whether it is in one receipt only."""
    shown = name if width is None else "\n".join(textwrap.wrap(name, max(width, _SHORTEST_NAME)))
    yield from (shown, presence, *[""] * row_count)[:row_count]


def _all_changes(owner: OwnerDiff) -> _Changes:
    return [("asked", owner.asked), ("booked", owner.booked), ("resident", owner.resident)]


def _shown_changes(owner: OwnerDiff) -> _Changes:
    # Nobody asked for what is retained or unattributed.
    return _all_changes(owner)[0 if owner.state is RowState.RESERVED else 1 :]


def _growth_grid(growth: ProcessGrowth) -> Grid:
    changes = [
        ("predicted from asked", growth.from_asked),
        ("predicted from booked", growth.from_booked),
        ("predicted from resident", growth.from_resident),
        ("measured", growth.measured),
        ("residue: measured - resident", growth.residue),
        ("working-set floor", growth.floor),
    ]
    unit = _unit([change for _, change in changes])
    rows = [
        (name, _cell(change.old, unit), _cell(change.new, unit), _difference(change, unit)) for name, change in changes
    ]
    return Grid((f"<VmRSS of the process, {unit.name}", "old", "new", "difference"), rows)


def _config_lines(diff: ReceiptDiff) -> Iterator[str]:
    if isinstance(diff.config, Unreadable):
        yield _wrapped(config_unknown(diff.config))
        return
    if not diff.config:
        yield "Config: no key differs."
        return
    count = len(diff.config)
    yield f"Config: {count} {'key differs' if count == 1 else 'keys differ'}."
    for change in diff.config:
        yield _wrapped(f"{change.key}: {leaf(change.old)} -> {leaf(change.new)}", "  ")
    words, lines = set_back_words(diff.config), set_back_lines(diff.config)
    if words:
        yield "The old state again, on the command line:"
        yield from (f"  {line}" for line in words)
    if lines:
        yield "The old state again, in the config:"
        yield from (_wrapped(line, "  ") for line in lines)


def _fact_lines(diff: ReceiptDiff) -> Iterator[str]:
    if diff.facts:
        yield "What else differs, and may be the reason:"
    for change in diff.facts:
        yield _wrapped(f"{change.fact}: {change.old} -> {change.new}", "  ")


def _unit(changes: Sequence[Change]) -> Unit:
    amounts = [amount for change in changes for amount in (change.old, change.new)]
    return unit_for(max((abs(amount.bytes) for amount in amounts if isinstance(amount, Reading)), default=0))


def _cell(amount: Amount, unit: Unit) -> str:
    """Write an amount in the column's unit, or in its own where nothing of it would be left there."""
    if isinstance(amount, Unreadable):
        return "?"
    text = unit.of(amount.bytes)
    return text if amount.bytes == 0 or float(text.replace(",", "")) else format_bytes(amount.bytes)


def _difference(change: Change, unit: Unit) -> str:
    difference = change.difference
    if isinstance(difference, Unreadable):
        return "?"
    if difference.bytes == 0:
        return "same"
    return f"{'+' if difference.bytes > 0 else ''}{_cell(difference, unit)}"


def _wrapped(text: str, indent: str = "") -> str:
    return textwrap.fill(text, WIDTH, initial_indent=indent, subsequent_indent=f"{indent}  ", break_on_hyphens=False)
