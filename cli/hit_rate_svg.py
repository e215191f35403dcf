"""Hit rates over bytes as a picture that stands alone: a line a policy, or a point an arm.

An SVG without scripts and without fonts of its own; its colours follow the reader's light or dark setting. Bytes stand
on a logarithmic axis, since each step of a hit rate takes a multiple of the one before.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from pinprobe.ledger.replay.replay_run import ReplayRun
from pinprobe.ledger.replay.replicates import PlayedArms
from pinprobe.ledger.replay.sweep_slots import SlotSweep
from pinprobe.probes.errors import printable
from pinprobe.probes.units import format_bytes

_WIDTH, _LEFT, _RIGHT, _TOP, _BOTTOM = 860, 74, 24, 62, 96
_PLOT_HEIGHT = 360
_LEGEND_ROW = 20
_COLOURS, _DASHES = 6, ("", "7 4", "2 3", "9 3 2 3")
_MOST_TICKS = 9
_LONGEST_NAME = 32

# Told apart by colour-blind readers too, and by dashes and marks once colours run out.
_STYLE = """
  svg { background: #ffffff; color: #1b1f24; font: 13px system-ui, sans-serif }
  .title { font-size: 17px; font-weight: 600 } .small { font-size: 11.5px; opacity: .75 }
  text { fill: currentColor } .grid { stroke: currentColor; stroke-opacity: .14 }
  .axis { stroke: currentColor; stroke-opacity: .6 }
  .bound { stroke: currentColor; stroke-dasharray: 2 4; fill: none }
  .line { fill: none; stroke-width: 2.2 } .spread { stroke-width: 1.4 } .point { stroke-width: 1.6 }
  .c0 { stroke: #0b62c4 } .c1 { stroke: #c25400 } .c2 { stroke: #1a7f4b } .c3 { stroke: #7a3fc2 }
  .c4 { stroke: #a8326b } .c5 { stroke: #5b6270 }
  @media (prefers-color-scheme: dark) {
    svg { background: #12161c; color: #e4e8ee }
    .c0 { stroke: #62a8ff } .c1 { stroke: #ff9d52 } .c2 { stroke: #5fd39a } .c3 { stroke: #c29bff }
    .c4 { stroke: #ff8fbf } .c5 { stroke: #aab2bf }
  }
"""


@dataclass(frozen=True, slots=True)
class _Mark:
    """A place in the picture: bytes, the share of tokens spared, and between which shares its runs lie."""

    bytes: int
    share: float
    low: float
    high: float

    def told(self) -> str:
        spread = "" if self.low == self.high else f" ({self.low * 100:.1f} to {self.high * 100:.1f})"
        return f"{self.share * 100:.1f} %{spread} at {format_bytes(self.bytes)}"


def hit_rate_svg(run: ReplayRun, version: str) -> str:
    """Draw a sweep's policies as lines, or arms as points over all their bytes."""
    source = run.source
    what = _short(source.trace.rpartition("/")[2] if source.trace is not None else str(source.scenario))
    caption = f"replayed by pinprobe {version}; hit rates are modelled from metadata, and not measured"
    if run.sweep is not None:
        title = f"Tokens spared by slots of {run.row_bytes:,} B: {what}"
        bound = run.sweep.everything.token_hit_rate
        return _Picture(title, "slots x savepoint", _of_sweep(run.sweep, run.row_bytes), caption, bound).svg()
    assert run.played is not None
    if any(arm.middle.measured for arm in run.played.arms):
        caption = f"replayed by pinprobe {version} with real bytes"
    title = f"Tokens spared of later turns, by an arm's bytes: {what}"
    return _Picture(title, "pinned and pageable", _of_arms(run.played), caption, None).svg()


def _of_sweep(sweep: SlotSweep, row_bytes: int) -> dict[str, list[_Mark]]:
    lines: dict[str, list[_Mark]] = {}
    for policy in sweep.shown_policies:
        points = [point for point in sweep.points if point.policy == policy]
        rates = [(point.slots * row_bytes, point.token_hit_rate) for point in points]
        lines[policy] = [_Mark(size, rate, rate, rate) for size, rate in rates]
    return lines


def _of_arms(played: PlayedArms) -> dict[str, list[_Mark]]:
    marks = {}
    for arm in played.arms:
        shares = arm.spread(lambda run: run.later_hit_rate)
        marks[arm.arm.name] = [_Mark(arm.middle.total_bytes, shares.median, shares.low, shares.high)]
    return marks


class _Picture:
    """The mapping from bytes and shares to the picture's coordinates, and all that is drawn in it."""

    def __init__(
        self, title: str, bytes_are: str, series: dict[str, list[_Mark]], caption: str, bound: float | None
    ) -> None:
        self._title, self._bytes_are, self._series = title, bytes_are, series
        self._caption, self._bound = caption, bound
        self._legend = list(self._placed_legend())
        self._top = _TOP + _LEGEND_ROW * (self._legend[-1][1] + 1)
        self._base = self._top + _PLOT_HEIGHT
        self._height = self._base + _BOTTOM
        sizes = [max(1, mark.bytes) for marks in series.values() for mark in marks]
        # Half a step of room on both sides, so that no point lies on the frame.
        self._first, self._last = math.log2(min(sizes)) - 0.5, math.log2(max(sizes)) + 0.5

    def svg(self) -> str:
        """Draw it."""
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {self._height}" role="img"'
            ' aria-labelledby="title desc">',
            f'<title id="title">{_text(self._title)}</title>',
            f'<desc id="desc">{_text(self._described())}</desc>',
            f"<style>{_STYLE}</style>",
            f'<text x="{_LEFT}" y="30" class="title">{_text(self._title)}</text>',
            *self._legend_lines(),
            *self._axes(),
            *self._bound_line(),
            *(line for index, name in enumerate(self._series) for line in self._drawn(index, self._series[name])),
            f'<text x="{_LEFT}" y="{self._height - 18}" class="small">{_text(self._caption)}</text>',
            "</svg>",
        ]
        return "\n".join(parts) + "\n"

    def x(self, size_bytes: int) -> float:
        share = (math.log2(max(1, size_bytes)) - self._first) / (self._last - self._first)
        return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)

    def y(self, share: float) -> float:
        return self._base - share * _PLOT_HEIGHT

    def _described(self) -> str:
        """Say in words what is drawn, for those who hear it read out."""
        told = [f"{name}: {', '.join(mark.told() for mark in marks)}" for name, marks in self._series.items()]
        bound = [] if self._bound is None else [f"everything kept: {self._bound * 100:.1f} %"]
        return "; ".join([*told, *bound])

    def _placed_legend(self) -> Iterator[tuple[float, int, str, int | None]]:
        """Place each name: where it begins, in which row, its text, and which series it is; None for the bound."""
        entries: list[tuple[str, int | None]] = [(name, index) for index, name in enumerate(self._series)]
        if self._bound is not None:
            entries.append(("everything kept", None))
        x, row = float(_LEFT), 0
        for name, index in entries:
            width = 50 + 7.6 * len(name)
            if x > _LEFT and x + width > _WIDTH - _RIGHT:
                x, row = float(_LEFT), row + 1
            yield x, row, name, index
            x += width

    def _legend_lines(self) -> Iterator[str]:
        for x, row, name, index in self._legend:
            y = 52 + _LEGEND_ROW * row
            style = 'class="bound"' if index is None else _line_style(index)
            if index is None or any(len(marks) > 1 for marks in self._series.values()):
                yield f'<line x1="{x:.0f}" y1="{y}" x2="{x + 26:.0f}" y2="{y}" {style}/>'
            if index is not None:
                yield _marker(index, x + 13, y)
            yield f'<text x="{x + 32:.0f}" y="{y + 4}">{_text(name)}</text>'

    def _axes(self) -> Iterator[str]:
        for percent in range(0, 101, 20):
            y = self.y(percent / 100)
            style = "axis" if percent == 0 else "grid"
            yield f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{_WIDTH - _RIGHT}" y2="{y:.1f}" class="{style}"/>'
            yield f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{percent}</text>'
        for size_bytes in self._ticks():
            x = self.x(size_bytes)
            yield f'<line x1="{x:.1f}" y1="{self._top}" x2="{x:.1f}" y2="{self._base}" class="grid"/>'
            yield f'<text x="{x:.1f}" y="{self._base + 18}" text-anchor="middle">{_size(size_bytes)}</text>'
        middle = (self._top + self._base) / 2
        turn = f'transform="rotate(-90 18 {middle:.0f})"'
        yield f'<text x="18" y="{middle:.0f}" text-anchor="middle" {turn}>tokens spared, %</text>'
        centre = (_LEFT + _WIDTH - _RIGHT) / 2
        words = f"bytes ({self._bytes_are}), on a logarithmic scale"
        yield f'<text x="{centre:.0f}" y="{self._base + 40}" text-anchor="middle">{_text(words)}</text>'

    def _ticks(self) -> list[int]:
        """Return powers of two within the picture, every one or every so many."""
        powers = range(math.ceil(self._first), math.floor(self._last) + 1)
        step = max(1, -(-len(powers) // _MOST_TICKS))
        return [2**power for power in powers[::step] if power >= 0]

    def _bound_line(self) -> list[str]:
        if self._bound is None:
            return []
        y = self.y(self._bound)
        return [f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{_WIDTH - _RIGHT}" y2="{y:.1f}" class="bound"/>']

    def _drawn(self, index: int, marks: Sequence[_Mark]) -> Iterator[str]:
        way = " ".join(f"{self.x(mark.bytes):.1f},{self.y(mark.share):.1f}" for mark in marks)
        if len(marks) > 1:
            yield f'<polyline points="{way}" {_line_style(index)}/>'
        for mark in marks:
            x, low, high = self.x(mark.bytes), self.y(mark.low), self.y(mark.high)
            if mark.low != mark.high:
                style = f'class="spread c{index % _COLOURS}"'
                yield f'<line x1="{x:.1f}" y1="{low:.1f}" x2="{x:.1f}" y2="{high:.1f}" {style}/>'
            yield _marker(index, x, self.y(mark.share))


def _line_style(index: int) -> str:
    dashes = _DASHES[index // _COLOURS % len(_DASHES)]
    dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
    return f'class="line c{index % _COLOURS}"{dashed}'


def _marker(index: int, x: float, y: float) -> str:
    """Draw a mark of the series' own form, so that forms tell apart what colours don't."""
    corners = (0, 4, 3, 5)[index % 4]
    style = f'class="point c{index % _COLOURS}" fill="none"'
    if not corners:
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" {style}/>'
    turns = [math.pi * (2 * corner / corners - 0.5) for corner in range(corners)]
    points = " ".join(f"{x + 5 * math.cos(turn):.1f},{y + 5 * math.sin(turn):.1f}" for turn in turns)
    return f'<polygon points="{points}" {style}/>'


def _size(size_bytes: int) -> str:
    """Write a power of two without decimals."""
    for name, factor in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size_bytes >= factor:
            return f"{size_bytes // factor:,} {name}"
    return f"{size_bytes} B"


def _short(name: str) -> str:
    """Cut a name off that is too long for a title."""
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 3]}..."


def _text(text: str) -> str:
    """Make a text fit for XML: escaped, and without the characters that XML has no way to hold."""
    return escape(printable(text))
