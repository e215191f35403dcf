"""The drives of a live endpoint for people and machines: a row each, what happened in them, and what differs."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence
from typing import Any

from pinprobe.cli.grid import WIDTH, Grid
from pinprobe.ledger.receipts.receipt import as_json
from pinprobe.ledger.replay.arms_compared import Comparison, Difference, Verdict, compare
from pinprobe.ledger.replay.do_no_harm import Bounds, DoNoHarmRow
from pinprobe.probes.errors import printable
from pinprobe.probes.reading import Unreadable

_SHOWN_INCIDENTS = 5
#: What a drawn table takes beside its columns and the gaps between them.
_EDGES = 2
#: How a figure is called in a sentence, by what it is multiplied, and its decimals.
_FIGURES = {
    "cached_share": ("cached %", 100, 1),
    "cached_share_later": ("cached % after the first turn", 100, 1),
    "ttft_median_seconds": ("TTFT s", 1, 3),
    "tokens_a_second": ("tok/s", 1, 1),
    "uncached_tokens_a_turn": ("uncached tokens a turn", 1, 0),
}


def do_no_harm_text(rows: Sequence[DoNoHarmRow], form: str) -> str:
    """Write the rows of a run as `text`, `markdown`, `csv` or `json`; the comparison is in all but CSV."""
    if form == "json":
        return json.dumps(do_no_harm_document(rows), indent=2)
    if form == "csv":
        return do_no_harm_records(rows).csv()
    grid = do_no_harm_grid(rows)
    told = [*_incidents(rows), *_comparison(compare(rows))]
    if form == "markdown":
        return "\n\n".join(filter(None, [grid.markdown(), "\n".join(f"* {line}" for line in told)]))
    text = _with_narrow_arms(grid).text()
    return "\n\n".join([text, *(["\n".join(_wrapped(line) for line in told)] if told else [])])


def do_no_harm_document(rows: Sequence[DoNoHarmRow]) -> dict[str, Any]:
    """Put rows and comparison into what json.dumps takes; unknowns are `{"unreadable": reason}`."""
    return {"rows": as_json(list(rows)), "comparison": as_json(compare(rows))}


def do_no_harm_grid(rows: Sequence[DoNoHarmRow]) -> Grid:
    """The table for a person: TTFT, rate and uncached tokens are of the turns after the first, which `n` counts."""
    header = ["<arm", "#", "cached %", "later %", "TTFT s", "tok/s", "uncached", "n", "err"]
    cells = [
        [
            printable(row.arm),
            str(row.replicate),
            _percent(row.cached_share),
            _percent(row.cached_share_later),
            _seconds(row.ttft_median_seconds),
            _number(row.tokens_a_second, 1),
            _uncached(row.uncached_tokens_a_turn),
            str(row.later_count),
            str(row.error_count),
        ]
        for row in rows
    ]
    legend = ["later %, TTFT, tok/s (medians), uncached tokens a turn (mean): the n turns after each first."]
    if any("*" in cell for row in cells for cell in row):
        silent = sum(row.silent_count for row in rows)
        answers = "1 answer says" if silent == 1 else f"{silent:,} answers say"
        legend.append(f"*: {answers} nothing of cached tokens, as some servers do for 0; taken as 0 here.")
    return Grid(header, cells, legend="\n".join(_wrapped(line) for line in legend))


def do_no_harm_records(rows: Sequence[DoNoHarmRow]) -> Grid:
    """The same for a machine: shares of 1, seconds, and both bounds; an unknown is an empty cell."""
    header = ["arm", "replicate", "cached_share_low", "cached_share_high", "cached_share_later_low"]
    header += ["cached_share_later_high", "ttft_median_seconds", "tokens_a_second", "uncached_tokens_a_turn_low"]
    header += ["uncached_tokens_a_turn_high", "prompt_tokens_a_turn", "silent_count", "turn_count", "later_count"]
    header += ["error_count", "incidents"]
    cells = []
    for row in rows:
        figures = [*_both(row.cached_share), *_both(row.cached_share_later), _raw(row.ttft_median_seconds)]
        figures += [_raw(row.tokens_a_second), *_both(row.uncached_tokens_a_turn), _raw(row.prompt_tokens_a_turn)]
        counts = map(str, (row.silent_count, row.turn_count, row.later_count, row.error_count))
        cells.append([row.arm, str(row.replicate), *figures, *counts, "; ".join(row.incidents)])
    return Grid(header, cells)


def _incidents(rows: Sequence[DoNoHarmRow]) -> list[str]:
    lines = []
    for row in rows:
        name = f"{row.arm} #{row.replicate}"
        lines += [printable(f"{name}: {incident}.") for incident in row.incidents[:_SHOWN_INCIDENTS]]
        if len(row.incidents) > _SHOWN_INCIDENTS:
            lines.append(
                f"{printable(name)}: {len(row.incidents) - _SHOWN_INCIDENTS} more incidents; --json lists all."
            )
        reasons = [getattr(row, figure) for figure in (*_FIGURES, "prompt_tokens_a_turn")]
        unknown = dict.fromkeys(value.reason for value in reasons if isinstance(value, Unreadable))
        lines += [printable(f"{name}: ?: {reason}.") for reason in unknown]
    return lines


def _comparison(comparison: Comparison) -> list[str]:
    by_arm: dict[str, list[Difference]] = {}
    for difference in comparison.differences:
        by_arm.setdefault(difference.arm, []).append(difference)
    lines = []
    for arm, differences in by_arm.items():
        names = printable(f"{arm} against {differences[0].baseline_arm}")
        differing = [d for d in differences if d.verdict in (Verdict.HIGHER, Verdict.LOWER)]
        alike = [_FIGURES[d.figure][0] for d in differences if d.verdict is Verdict.WITHIN_THE_SPREAD]
        lines += [f"{names}: {_told(difference)}." for difference in differing]
        if alike:
            lines.append(f"{names}: no difference beyond the replicates' own spread in {', '.join(alike)}.")
        untold = dict.fromkeys(d.reason for d in differences if d.verdict is Verdict.UNTOLD)
        lines += [f"{names}: not told, since {printable(reason)}." for reason in untold]
    return [*lines, *(f"Caution: {printable(caveat)}." for caveat in comparison.caveats)]


def _told(difference: Difference) -> str:
    name, factor, decimals = _FIGURES[difference.figure]
    sides = []
    for side in (difference.compared, difference.baseline):
        assert isinstance(side, Bounds)
        low, high = (f"{value * factor:,.{decimals}f}" for value in (side.low, side.high))
        sides.append(low if low == high else f"{low} to {high}")
    return f"{name} {difference.verdict.value}, {sides[0]} against {sides[1]}"


def _percent(value: Bounds | Unreadable) -> str:
    if isinstance(value, Unreadable):
        return "?"
    return f"{value.low * 100:.1f}{'' if value.is_exact else '*'}"


def _uncached(value: Bounds | Unreadable) -> str:
    # What is silent is taken as uncached in all columns alike: that is the low share and the high remainder.
    if isinstance(value, Unreadable):
        return "?"
    number = f"{value.high:,.0f}" if value.high < 999_999 else f"{value.high:.1e}"
    return f"{number}{'' if value.is_exact else '*'}"


def _seconds(value: float | Unreadable) -> str:
    if isinstance(value, Unreadable):
        return "?"
    return f"{value:.3f}" if value < 1000 else f"{value:.0f}"


def _number(value: float | Unreadable, decimals: int) -> str:
    if isinstance(value, Unreadable):
        return "?"
    return f"{value:.{decimals}f}" if value < 10_000 else f"{value:.1e}"


def _raw(value: float | Unreadable) -> str:
    return "" if isinstance(value, Unreadable) else repr(value)


def _both(value: Bounds | Unreadable) -> list[str]:
    return ["", ""] if isinstance(value, Unreadable) else [repr(value.low), repr(value.high)]


def _with_narrow_arms(grid: Grid) -> Grid:
    """Break the arms' names so that the figures fit beside them: a word that is too long would be cut off."""
    figures = Grid(["", *grid.header[1:]], [["", *row[1:]] for row in grid.rows])
    room = max(len("arm"), WIDTH - figures.width - _EDGES)
    rows = [["\n".join(textwrap.wrap(row[0], room)), *row[1:]] for row in grid.rows]
    return Grid(grid.header, rows, legend=grid.legend)


def _wrapped(text: str) -> str:
    return textwrap.fill(text, WIDTH, subsequent_indent="  ", break_on_hyphens=False)
