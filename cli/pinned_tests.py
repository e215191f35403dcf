"""What the ledgers of tests come to: what of an account fails a test, and the lines that sum up a run of tests.

Takes accounts and values; measures nothing and knows no test runner.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pinprobe.cli.grid import WIDTH
from pinprobe.ledger.booking import Account, total_resident
from pinprobe.probes.errors import printable
from pinprobe.probes.reading import Amount, Reading, Unreadable
from pinprobe.probes.units import Unit, unit_for

_GAP = "  "
_LEGEND = (
    "Each line tells of the moment when that test held most; ratio is booked / asked.",
    "held: whether booked >= resident, then and at the test's end. ?: unreadable.",
    "The last line adds up; its peak is the largest of one test.",
)


def unproven(account: Account) -> tuple[str, ...]:
    """Return a line for each row that is booked below what is resident, or of which that can't be said."""
    unreadable = [
        f"{row.owner}: asked {row.asked_bytes:,} B, booked {row.booked_bytes:,} B, resident {row.resident}"
        for row in account.rows
        if isinstance(row.resident, Unreadable)
    ]
    return (*account.shortfalls, *unreadable)


@dataclass(frozen=True, slots=True)
class PinnedTest:
    """One test's ledger at the moment when most was reserved and retained in it.

    `asked_bytes`, `booked_bytes` and `resident` are of what was reserved then; `peak_bytes` holds what was retained
    too. `held` is whether booked >= resident, at that moment and at the test's end.
    """

    name: str
    asked_bytes: int
    booked_bytes: int
    resident: Amount
    peak_bytes: int
    held: bool | Unreadable

    @classmethod
    def of(cls, name: str, fullest: Account, last: Account) -> PinnedTest:
        """Take the figures from the account of the fullest moment and from that of the end."""
        held: bool | Unreadable = fullest.holds and last.holds
        lines = (*unproven(fullest), *unproven(last))
        if held and lines:
            held = Unreadable(lines[0])
        asked, booked = (sum(getattr(row, key) for row in fullest.reserved) for key in ("asked_bytes", "booked_bytes"))
        return cls(name, asked, booked, total_resident(fullest.reserved), last.peak_bytes, held)

    @property
    def ratio(self) -> float | Unreadable:
        """Booked over asked."""
        return self.booked_bytes / self.asked_bytes if self.asked_bytes else Unreadable("nothing was asked")

    def properties(self) -> list[tuple[str, object]]:
        """Return it as properties of a test's report, plain enough to leave a worker process or to stand in XML.

        What could not be read is its reason, in words.
        """
        figures = {
            "asked_bytes": self.asked_bytes,
            "booked_bytes": self.booked_bytes,
            "resident_bytes": self.resident.bytes if isinstance(self.resident, Reading) else self.resident.reason,
            "peak_bytes": self.peak_bytes,
            "held": self.held if isinstance(self.held, bool) else self.held.reason,
        }
        return [(f"pinprobe_{key}", value) for key, value in figures.items()]

    @classmethod
    def from_properties(cls, name: str, properties: Mapping[str, object]) -> PinnedTest | None:
        """Read it back from a report's properties; None where the test used no ledger."""
        keys = ("asked_bytes", "booked_bytes", "resident_bytes", "peak_bytes", "held")
        if f"pinprobe_{keys[-1]}" not in properties:
            return None
        asked, booked, resident, peak, held = (properties[f"pinprobe_{key}"] for key in keys)
        assert isinstance(asked, int)
        assert isinstance(booked, int)
        assert isinstance(peak, int)
        return cls(
            name,
            asked,
            booked,
            Reading(resident, "smaps, pagemap") if isinstance(resident, int) else Unreadable(str(resident)),
            peak,
            held if isinstance(held, bool) else Unreadable(str(held)),
        )


def summary_lines(tests: Sequence[PinnedTest]) -> list[str]:
    """Lay tests out in lines of at most 80 columns, the worst ratio first, with their sums below."""
    if not tests:
        return ["no test used host_pinned_ledger, so there is nothing to sum up"]
    unit = unit_for(max(max(test.booked_bytes, test.peak_bytes) for test in tests))
    ordered = sorted(tests, key=lambda test: test.ratio if isinstance(test.ratio, float) else 0, reverse=True)
    names = [*(printable(test.name) for test in ordered), "1 test" if len(tests) == 1 else f"{len(tests)} tests"]
    table = [
        ("asked", "booked", "resident", "ratio", "peak", "held"),
        *(_cells(test, unit) for test in (*ordered, _sum(tests))),
    ]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    left = WIDTH - sum(widths) - len(_GAP) * len(widths)
    width = min(left, max(map(len, names)))
    lines = [
        _GAP.join(
            [f"{_end_of(name, width):<{width}}", *(f"{cell:>{size}}" for cell, size in zip(cells, widths, strict=True))]
        )
        for name, cells in zip([unit.name, *names], table, strict=True)
    ]
    return [*lines, *_LEGEND]


def _sum(tests: Sequence[PinnedTest]) -> PinnedTest:
    resident: Amount = Reading(0, "smaps, pagemap")
    for test in tests:
        resident = resident + test.resident
    verdicts = [test.held for test in tests]
    unknown = [held for held in verdicts if isinstance(held, Unreadable)]
    return PinnedTest(
        "",
        sum(test.asked_bytes for test in tests),
        sum(test.booked_bytes for test in tests),
        resident,
        max(test.peak_bytes for test in tests),
        False if any(held is False for held in verdicts) else unknown[0] if unknown else True,
    )


def _cells(test: PinnedTest, unit: Unit) -> tuple[str, ...]:
    return (
        _figure(test.asked_bytes, unit),
        _figure(test.booked_bytes, unit),
        _figure(test.resident.bytes, unit) if isinstance(test.resident, Reading) else "?",
        f"{test.ratio:,.3f}" if isinstance(test.ratio, float) else "-",
        _figure(test.peak_bytes, unit),
        "?" if isinstance(test.held, Unreadable) else "yes" if test.held else "NO",
    )


def _figure(value_bytes: int, unit: Unit) -> str:
    """Write a size; what is too small for the column's unit is not written as nothing."""
    text = unit.of(value_bytes)
    return "<0.001" if value_bytes and float(text.replace(",", "")) == 0 else text


def _end_of(name: str, width: int) -> str:
    """Shorten a test's name from the left: its end tells it from its neighbours."""
    return name if len(name) <= width else f"...{name[3 - width :]}"
