"""A simulated allocator and the costs it would cause: a fake, for what no real allocator can be made to do on demand.

It stands in where a walk's arithmetic is tested over many rules and limits. That real allocators behave as simulated
here is tested elsewhere, with the kernel as judge.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType

from pinprobe.probes.cost import Cost
from pinprobe.probes.counters import Counters
from pinprobe.probes.errors import AllocationFailed
from pinprobe.probes.reading import Amount, Reading, Unreadable

PAGE = 4096
Rule = Callable[[int], int]


def exact(asked: int) -> int:
    return -(-asked // PAGE) * PAGE


def power_of_two(asked: int) -> int:
    return max(PAGE, 1 << (asked - 1).bit_length())


def rounded_up_to(threshold: int) -> Rule:
    return lambda asked: power_of_two(asked) if asked <= threshold else exact(asked)


def multiple_of(step: int) -> Rule:
    return lambda asked: -(-asked // step) * step


def cost_of(
    asked: int,
    *,
    grown: int,
    block: int | None = None,
    address: int = 0x1000,
    error: int = 0,
    second: int | None = None,
) -> Cost:
    """A cost as a quiet, exact kernel would give it."""
    known: Amount = Unreadable("simulated: the kernel names no mapping") if block is None else Reading(block, "mapping")
    return Cost(
        asked_bytes=asked,
        address=address,
        resident=Reading(grown, "simulated", error),
        counter="RssShmem",
        second=Reading(grown if second is None else second, "statm"),
        block=known,
        block_resident=known,
        block_locked=known,
        block_by_allocator=Unreadable("simulated"),
        overhead=Unreadable("simulated"),
        counters=Counters({}),
        seconds=0.0,
        note="simulated",
    )


@dataclass
class SimulatedBench:
    """A measuring process around an allocator that follows `rule`; `caches` says whether freed blocks are kept.

    Kept blocks are found by size class, as `class_of` gives it; by default that is the block's own size, which is safe.
    It holds each request to `limit_bytes` as the kernel holds a real child, and records the most ever mapped.
    """

    rule: Rule
    caches: bool = True
    class_of: Callable[[int], int] | None = None
    control_ratio: float = 1.0
    notes: tuple[str, ...] = ()
    kept: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    held: tuple[int, int] | None = None
    asked: list[int] = field(default_factory=list)
    touched: int = 0
    most_mapped: int = 0
    closed: bool = False
    next_address: int = 0x10000
    fails_at: int | None = None
    interrupts_at: int | None = None

    def measure(self, asked_bytes: int, limit_bytes: int | None = None, *, control: bool = False) -> Cost:
        self.release()
        if control:
            grown = int(exact(asked_bytes) * self.control_ratio)
            return cost_of(asked_bytes, grown=grown, block=exact(asked_bytes))
        self.asked.append(asked_bytes)
        if self.interrupts_at is not None and asked_bytes >= self.interrupts_at:
            raise KeyboardInterrupt("ended by SIGINT")
        if self.fails_at is not None and asked_bytes >= self.fails_at:
            raise AllocationFailed("simulated: no")
        block = self.rule(asked_bytes)
        size_class = self._class(block)
        if self.kept.get(size_class):
            self.held = self.kept[size_class].pop()
            return cost_of(asked_bytes, grown=0, block=self.held[1], address=self.held[0])
        if limit_bytes is not None and self.mapped + block > limit_bytes:
            raise AllocationFailed("simulated: mmap failed", no_address_space=True)
        self.held = (self.next_address, block)
        self.next_address += block + PAGE
        self.touched += block
        self.most_mapped = max(self.most_mapped, self.mapped)
        return cost_of(asked_bytes, grown=block, block=block, address=self.held[0])

    @property
    def mapped(self) -> int:
        return sum(size for blocks in self.kept.values() for _, size in blocks) + (self.held[1] if self.held else 0)

    def release(self) -> None:
        if self.held is not None and self.caches:
            self.kept.setdefault(self._class(self.held[1]), []).append(self.held)
        self.held = None

    def empty_cache(self) -> None:
        self.kept.clear()

    def _class(self, block: int) -> int:
        return self.class_of(block) if self.class_of else block

    def __enter__(self) -> SimulatedBench:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.closed = True
        self.release()
        self.kept.clear()
