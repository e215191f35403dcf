"""What the overflow reports of itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from pinprobe.ledger.tenants.overflow_file import Loss
from pinprobe.ledger.tenants.overflow_outcome import Outcome, WriteEnd
from pinprobe.ledger.tenants.restore import RestoreState, Stage
from pinprobe.probes.units import format_bytes


@dataclass(frozen=True, slots=True)
class OverflowStats:
    """The counters of one process's overflow since it was opened. All of them were taken at one moment.

    * `files`, `held_bytes`: what of this process lies in the folder, by the file system's count. `bound_bytes` holds
      for the files of all processes in it together.
    * `written`, `written_bytes`: savepoints that were written, and the bytes of their files.
    * `not_written`: attempts by the reason why not (`WriteEnd`); only reasons that occurred.
    * `restored`, `restored_bytes`: restores that ended ready, and the bytes of their rows; `cancelled`: that the caller
      took back, or whose file the caller dropped meanwhile.
    * `dropped`: files that the caller dropped. `evicted`: that went for others of more value.
    * `lost`: files that could not be read back, by the reason (`Loss`); all reasons, zeros too.
    * `write_bytes_per_second`, `read_bytes_per_second`: over all of them; None while there was none.
    * `is_direct`: whether the last transfer went past the page cache; None while there was none.
    """

    files: int
    held_bytes: int
    bound_bytes: int
    written: int
    written_bytes: int
    restored: int
    restored_bytes: int
    cancelled: int
    dropped: int
    evicted: int
    lost: Mapping[str, int]
    not_written: Mapping[str, int]
    write_bytes_per_second: float | None
    read_bytes_per_second: float | None
    is_direct: bool | None

    def line(self) -> str:
        """Say all of it in one line."""
        way = {None: "", True: "; past the page cache", False: "; through the page cache"}[self.is_direct]
        return (
            f"{self.files} files = {format_bytes(self.held_bytes)} of a bound of {format_bytes(self.bound_bytes)};"
            f" written {self.written} = {format_bytes(self.written_bytes)}{_rate(self.write_bytes_per_second)},"
            f" restored {self.restored} = {format_bytes(self.restored_bytes)}{_rate(self.read_bytes_per_second)};"
            f" cancelled {self.cancelled}, dropped {self.dropped}, evicted {self.evicted};"
            f" not written: {_counts(self.not_written)}; lost: {_counts(self.lost)}{way}"
        )


@dataclass
class OverflowCounters:
    """What `OverflowStats` counts, while it is being counted. Not for several threads at once."""

    written: int = 0
    written_bytes: int = 0
    write_seconds: float = 0.0
    restored: int = 0
    read_seconds: float = 0.0
    cancelled: int = 0
    dropped: int = 0
    evicted: int = 0
    lost: Counter[Loss] = field(default_factory=Counter)
    not_written: Counter[WriteEnd] = field(default_factory=Counter)
    is_direct: bool | None = None

    def add_write(self, outcome: Outcome) -> None:
        """Count an attempt to write."""
        if outcome.is_written:
            self.written += 1
            self.written_bytes += outcome.written_bytes
            self.write_seconds += outcome.seconds
        else:
            self.not_written[outcome.end] += 1

    def add_restore(self, state: RestoreState) -> None:
        """Count a restore that has ended."""
        if state.fault is not None:
            self.lost[state.fault.loss] += 1
        self.cancelled += state.stage is Stage.CANCELLED
        if state.stage is Stage.READY:
            self.restored += 1
            self.read_seconds += state.seconds
            self.is_direct = state.is_direct

    def stats(self, files: int, held_bytes: int, bound_bytes: int, row_bytes: int) -> OverflowStats:
        """Freeze them, beside what is there now."""
        restored_bytes = self.restored * row_bytes
        return OverflowStats(
            files=files,
            held_bytes=held_bytes,
            bound_bytes=bound_bytes,
            written=self.written,
            written_bytes=self.written_bytes,
            restored=self.restored,
            restored_bytes=restored_bytes,
            cancelled=self.cancelled,
            dropped=self.dropped,
            evicted=self.evicted,
            lost={loss.value: self.lost[loss] for loss in Loss},
            not_written={end.value: count for end, count in self.not_written.items()},
            write_bytes_per_second=self.written_bytes / self.write_seconds if self.write_seconds else None,
            read_bytes_per_second=restored_bytes / self.read_seconds if self.read_seconds else None,
            is_direct=self.is_direct,
        )


def _rate(bytes_per_second: float | None) -> str:
    return "" if bytes_per_second is None else f" at {bytes_per_second / 1e6:,.0f} MB/s"


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items() if count) or "none"
