"""The staircase as a picture that stands alone: one line an allocator, over the line of what was asked.

An SVG without scripts and without fonts of its own; its colours follow the reader's light or dark setting.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from pinprobe.probes.cliffs import find_cliffs
from pinprobe.probes.errors import printable
from pinprobe.probes.host_facts import HostFacts
from pinprobe.probes.reading import Reading, Unreadable
from pinprobe.probes.sweep import Point, PointState, Sweep
from pinprobe.probes.units import unit_for

_WIDTH, _HEIGHT = 860, 540
_LEFT, _RIGHT, _TOP, _BOTTOM = 74, 24, 84, 96
_TICKS = 5

# Told apart by colour-blind readers too (blue, orange, green, purple), and by their dashes once colours run out.
_STYLE = """
  svg { background: #ffffff; color: #1b1f24; font: 13px system-ui, sans-serif }
  .title { font-size: 17px; font-weight: 600 } .small { font-size: 11.5px; opacity: .75 }
  text { fill: currentColor } .grid { stroke: currentColor; stroke-opacity: .14 }
  .axis { stroke: currentColor; stroke-opacity: .6 } .asked { stroke: currentColor; stroke-dasharray: 2 4; fill: none }
  .line { fill: none; stroke-width: 2.2 } .predicted { stroke-dasharray: 6 5; stroke-opacity: .75 }
  .c0 { stroke: #0b62c4 } .c1 { stroke: #c25400 } .c2 { stroke: #1a7f4b } .c3 { stroke: #7a3fc2 }
  @media (prefers-color-scheme: dark) {
    svg { background: #12161c; color: #e4e8ee }
    .c0 { stroke: #62a8ff } .c1 { stroke: #ff9d52 } .c2 { stroke: #5fd39a } .c3 { stroke: #c29bff }
  }
"""


def staircase_svg(sweeps: Sequence[Sweep], host: HostFacts) -> str:
    """Draw the sweeps of one run, which share their points and slot size."""
    plot = _Plot(sweeps)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-labelledby="title">',
        f'<title id="title">{_text(_title(sweeps))}</title>',
        f"<style>{_STYLE}</style>",
        f'<text x="{_LEFT}" y="30" class="title">{_text(_title(sweeps))}</text>',
        *_legend(sweeps),
        *plot.axes(),
        plot.asked(sweeps[0].points),
        *(line for index, sweep in enumerate(sweeps) for line in plot.staircase(sweep, index)),
        *(
            f'<text x="{_LEFT}" y="{_HEIGHT - 34 + 17 * row}" class="small">{_text(text)}</text>'
            for row, text in enumerate(_captions(sweeps, host))
        ),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _text(text: str) -> str:
    """Make a text fit for XML: escaped, and without the characters that XML has no way to hold."""
    return escape(printable(text))


def _title(sweeps: Sequence[Sweep]) -> str:
    return f"What slots of {sweeps[0].slot_bytes:,} B take: {', '.join(sweep.allocator for sweep in sweeps)}"


def _captions(sweeps: Sequence[Sweep], host: HostFacts) -> list[str]:
    known = [f"Linux {host.kernel}" if not isinstance(host.kernel, Unreadable) else ""]
    known += [f"torch {host.torch}" if not isinstance(host.torch, Unreadable) else ""]
    known += [_driver(host.driver) if not isinstance(host.driver, Unreadable) else "no GPU driver"]
    machine = f"{host.machine}, {host.cpu_count} CPUs"
    cliffs = []
    for sweep in sweeps:
        found = find_cliffs(sweep.points)
        if found and not sweep.is_exact:
            cliffs.append(f"{sweep.allocator} cliffs at {', '.join(cliff.place for cliff in found)}")
    has_predicted = any(_is_predicted(point) for sweep in sweeps for point in sweep.points)
    note = "dashed and *: predicted from the measured points" if has_predicted else ""
    return [
        "; ".join(part for part in (f"measured by pinprobe {host.pinprobe}", machine, *known) if part),
        "; ".join(part for part in (*cliffs, note) if part),
    ]


def _driver(text: str) -> str:
    words = text.split()
    versions = [word for word in words if word[:1].isdigit() and word.count(".") >= 1]
    return f"driver {versions[0]}" if versions else "driver of unknown version"


def _legend(sweeps: Sequence[Sweep]) -> list[str]:
    entries = [("asked", "asked"), *((f"line c{index % 4}", sweep.allocator) for index, sweep in enumerate(sweeps))]
    lines, x = [], float(_LEFT)
    for style, name in entries:
        lines.append(f'<line x1="{x:.0f}" y1="52" x2="{x + 26:.0f}" y2="52" class="{style}"/>')
        lines.append(f'<text x="{x + 32:.0f}" y="56">{_text(name)}</text>')
        x += 62 + 7.6 * len(name)
    return lines


class _Plot:
    """The mapping from slots and bytes to the picture's coordinates."""

    def __init__(self, sweeps: Sequence[Sweep]) -> None:
        points = [point for sweep in sweeps for point in sweep.points]
        sizes = [point.asked_bytes for point in points]
        sizes += [point.block.bytes for point in points if isinstance(point.block, Reading)]
        self._top = max(sizes)
        self._unit = unit_for(self._top)
        self._first = sweeps[0].points[0].slots
        self._last = sweeps[0].points[-1].slots + 1  # a step is as wide as its slot, the last one too

    def x(self, slots: float) -> float:
        return _LEFT + (slots - self._first) * (_WIDTH - _LEFT - _RIGHT) / max(1, self._last - self._first)

    def y(self, size_bytes: float) -> float:
        return _HEIGHT - _BOTTOM - size_bytes * (_HEIGHT - _TOP - _BOTTOM) / self._top

    def axes(self) -> list[str]:
        lines = []
        for tick in range(_TICKS):
            size = self._top * tick / (_TICKS - 1)
            y = self.y(size)
            lines.append(f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{_WIDTH - _RIGHT}" y2="{y:.1f}" class="grid"/>')
            label = f"{size / self._unit.factor_bytes:.2f}".rstrip("0").rstrip(".")
            lines.append(f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{label}</text>')
        step = max(1, -(-(self._last - self._first) // 8))
        for slots in range(self._first, self._last, step):
            lines.append(
                f'<text x="{self.x(slots + 0.5):.1f}" y="{_HEIGHT - _BOTTOM + 18}" text-anchor="middle">{slots}</text>'
            )
        base = self.y(0)
        lines.append(f'<line x1="{_LEFT}" y1="{base:.1f}" x2="{_WIDTH - _RIGHT}" y2="{base:.1f}" class="axis"/>')
        middle = (_TOP + _HEIGHT - _BOTTOM) / 2
        turn = f'transform="rotate(-90 18 {middle:.0f})"'
        lines.append(f'<text x="18" y="{middle:.0f}" text-anchor="middle" {turn}>block, {self._unit.name}</text>')
        centre = (_LEFT + _WIDTH - _RIGHT) / 2
        lines.append(f'<text x="{centre:.0f}" y="{_HEIGHT - _BOTTOM + 38}" text-anchor="middle">slots</text>')
        return lines

    def asked(self, points: Sequence[Point]) -> str:
        way = " ".join(f"{self.x(point.slots + 0.5):.1f},{self.y(point.asked_bytes):.1f}" for point in points)
        return f'<polyline points="{way}" class="asked"/>'

    def staircase(self, sweep: Sweep, index: int) -> list[str]:
        """Draw runs of neighbouring points that are known in the same way, joined; a point without neighbours, alone.

        Between counts that were not asked for the block is unknown, and nothing is drawn there.
        """
        lines: list[str] = []
        run: list[str] = []
        last: Point | None = None
        for point in sweep.points:
            if not isinstance(point.block, Reading):
                continue
            is_next = last is not None and point.slots == last.slots + 1
            if last is not None and not (is_next and _is_predicted(point) == _is_predicted(last)):
                lines.append(_polyline(run, index, _is_predicted(last)))
                run = run[-1:] if is_next else []
            height = f"{self.y(point.block.bytes):.1f}"
            run += [f"{self.x(point.slots):.1f},{height}", f"{self.x(point.slots + 1):.1f},{height}"]
            last = point
        return [*lines, _polyline(run, index, _is_predicted(last))] if last is not None else lines


def _is_predicted(point: Point) -> bool:
    return point.state is PointState.PREDICTED


def _polyline(run: list[str], index: int, is_predicted: bool) -> str:
    style = f"line c{index % 4}{' predicted' if is_predicted else ''}"
    return f'<polyline points="{" ".join(run)}" class="{style}"/>'
