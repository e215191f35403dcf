"""A small engine that books its pinned memory: the ledger refuses what does not fit, and prints the rest at boot."""

from pinprobe import HostPinnedLedger
from pinprobe.probes.allocators.registry import prepare_allocator

SLOT_BYTES, SLOTS = 154_927_104, 2
asked = SLOTS * SLOT_BYTES

# In an engine this is `lambda: torch.empty(asked, dtype=torch.uint8, pin_memory=True)`, and needs no `free`.
allocator = prepare_allocator("auto", asked).allocator
allocator.notes()

ledger = HostPinnedLedger(allocator=allocator.name, keep_free_bytes=2**30)
ring = ledger.reserve(
    "cache.savepoint_ring", asked, lambda: allocator.allocate(asked), free=lambda ring: ring.release(),
    detail=f"{SLOTS} slots",
)  # fmt: skip
tokens = bytearray(50_000_000)
vocabulary = ledger.adopt("tokenizer.vocabulary", tokens, pageable=True)

print(ledger.printout())
assert ledger.verify().holds, "booked below resident"
ledger.close()
