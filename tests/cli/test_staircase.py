from __future__ import annotations

from pinprobe.cli.staircase import draw_staircase
from pinprobe.probes.allowance import Allowance
from pinprobe.probes.sweep import Sweep
from pinprobe.probes.walk import walk
from tests.probes.simulated import PAGE, SimulatedBench, exact, power_of_two

SLOT = 154_927_104


def swept(last: int, allowed: int = 2**50, bench: SimulatedBench | None = None) -> Sweep:
    chosen = bench or SimulatedBench(power_of_two)
    return walk(lambda: chosen, "simulated", SLOT, range(1, last + 1), Allowance(allowed, "the test"), PAGE)


def rows(drawing: str) -> list[str]:
    return [line.partition("│")[2] for line in drawing.splitlines() if "│" in line]


def test_the_full_part_is_the_ask_and_the_light_part_the_rest_of_the_block() -> None:
    drawing = rows(draw_staircase(swept(64).points))
    assert drawing[0] == " " * 55 + "▒" * 9  # only 56..64 reach the 16 GiB block
    assert drawing[-1] == "█" * 64
    assert not any("·" in row for row in drawing)


def test_what_was_not_measured_is_drawn_apart() -> None:
    drawing = draw_staircase(swept(64, allowed=2**34 - 1).points)
    assert rows(drawing)[0] == " " * 55 + "·" * 9
    assert drawing.endswith("█ asked   ▒ taken beyond it, measured   · predicted")


def test_memory_that_was_never_given_is_marked() -> None:
    bench = SimulatedBench(exact, class_of=lambda block: (block - 1).bit_length())
    drawing = draw_staircase(swept(8, bench=bench).points)
    assert "! asked and not given" in drawing
    assert any("!" in row for row in rows(drawing))


def test_it_fits_80_columns_however_many_points_there_are() -> None:
    for last in (1, 2, 7, 33, 64, 65, 500):
        assert max(map(len, draw_staircase(swept(last).points).splitlines())) <= 80


def test_without_unicode_it_is_drawn_in_ascii() -> None:
    assert draw_staircase(swept(20).points, ascii_only=True).isascii()
