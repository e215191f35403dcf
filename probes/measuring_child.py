"""A fresh process that measures one allocator, seen from its parent.

Each allocator is measured cold, in a process of its own: no warm arena, no cache of an earlier run.
"""

from __future__ import annotations

import pickle

from pinprobe.probes.allocators.allocator import Allocator
from pinprobe.probes.cost import Cost
from pinprobe.probes.errors import AllocatorUnavailable, in_one_line
from pinprobe.probes.fresh_process import FreshProcess


class MeasuringChild(FreshProcess):
    """A context manager around one measuring process; at its end the process is gone.

    It dies with the thread that made it, so make it on a thread that lives as long. One allocation is held at a time.
    Raises `ChildDied` from any call after which the process is found dead, with what killed it, and whatever error the
    call itself met there.
    """

    def __init__(self, allocator: Allocator) -> None:
        super().__init__("pinprobe.probes.measuring_server:MeasuringServer", "measuring process")
        try:
            self.notes: tuple[str, ...] = self.call("start", _pickled(allocator))
        except BaseException:
            self.kill()
            raise

    def measure(self, asked_bytes: int, limit_bytes: int | None = None, *, control: bool = False) -> Cost:
        """Allocate and measure; the allocation stays held until `release`.

        `limit_bytes` is how much this one request may map; the kernel holds it to that.
        `control` measures the pageable control instead of the allocator.
        """
        cost: Cost = self.call("measure", asked_bytes, limit_bytes, control)
        return cost

    def release(self) -> None:
        """Give the held allocation back to its allocator."""
        self.call("release")

    def empty_cache(self) -> None:
        """Have the allocator give back what it keeps."""
        self.call("empty_cache")


def _pickled(allocator: Allocator) -> bytes:
    try:
        return pickle.dumps(allocator)
    except Exception as error:  # pickling runs foreign code
        raise AllocatorUnavailable(
            f"the allocator {allocator.name} can't be sent to a measuring process: {in_one_line(error)}",
            "what `prepare` returns has to pickle: keep names and paths in it, and load libraries at first use",
        ) from error
