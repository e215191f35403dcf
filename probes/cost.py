"""What one allocation cost: the frozen value between measuring and everything else."""

from __future__ import annotations

from dataclasses import dataclass

from pinprobe.probes.counters import Counters
from pinprobe.probes.reading import Amount, Reading, Unreadable

_BETWEEN_READINGS_BYTES = 64 * 1024


@dataclass(frozen=True)
class Cost:
    """One request and what the kernel says it took.

    `resident` is the growth of the process: the difference of `counters[counter]` over the request, with its error bar.
    `block` is the size of the mapping behind the address, `block_resident` how much of that is resident,
    `block_by_allocator` by how much the allocator's own account of its blocks grew. `second` is the same growth by
    another source. `overhead` is what the host lost beyond `resident`: page tables, the driver's bookkeeping. `note` is
    the allocator's word on how the memory was made resident.
    """

    asked_bytes: int
    address: int
    resident: Amount
    counter: str
    second: Amount
    block: Amount
    block_resident: Amount
    block_locked: Amount
    block_by_allocator: Amount
    overhead: Amount
    counters: Counters
    seconds: float
    note: str

    @property
    def ratio(self) -> float | Unreadable:
        """Resident over asked."""
        return self.resident.bytes / self.asked_bytes if isinstance(self.resident, Reading) else self.resident

    @property
    def confirmed(self) -> bool | Unreadable:
        """Whether the second source agrees with `resident`, within both error bars and what lies between two readings.

        The sources are read one after the other, and the interpreter may take some pages in between: no disagreement.
        """
        if isinstance(self.resident, Unreadable):
            return self.resident
        if isinstance(self.second, Unreadable):
            return self.second
        return self.resident.within(
            self.second.bytes, self.second.error_bytes + max(_BETWEEN_READINGS_BYTES, self.asked_bytes // 2000)
        )

    @property
    def fault(self) -> str | None:
        """Why this can't be what a new block took, or None where it can.

        It grew by less than was asked, so that something unseen served it; or two sources disagree on the growth.
        """
        if isinstance(self.resident, Unreadable):
            return str(self.resident)
        if self.resident.bytes + self.resident.error_bytes + _BETWEEN_READINGS_BYTES < self.asked_bytes:
            grew = f"{self.counter} grew by {self.resident.bytes:,} B for {self.asked_bytes:,} B asked"
            return f"{grew}, and what served the rest is unseen"
        return f"two sources disagree: {self.evidence()}" if self.confirmed is False else None

    def evidence(self) -> str:
        """Say where `resident` came from, how sure it is, and which other sources agree."""
        if isinstance(self.resident, Unreadable):
            return str(self.resident)
        bar = f" ±{self.resident.error_bytes:,} B" if self.resident.error_bytes else ""
        if isinstance(self.second, Unreadable):
            return f"{self.counter}{bar}, no second source"
        if self.confirmed is False:
            return f"{self.counter} says {self.resident.bytes:,} B{bar}, {self.second.source} {self.second.bytes:,} B"
        return f"{self.counter}{bar}; {self.second.source.split()[0]} agrees"
