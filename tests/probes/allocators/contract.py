"""What every allocator owes, as checks that each get one. A name that begins with `it_` is a term of the contract.

Each check runs in a fresh process, where the allocator arrives pickled, as it does in a measuring process.
"""

from __future__ import annotations

import ctypes
import pickle
import random
import resource
from collections.abc import Callable

from pinprobe.probes.allocators.allocator import Allocation, Allocator
from pinprobe.probes.errors import AllocationFailed
from pinprobe.probes.host_tree import THIS_HOST
from pinprobe.probes.overhead import read_free_or_held
from pinprobe.probes.reading import Reading
from tests.probes.allocators.kernel_word import (
    KINDS,
    MIB,
    PAGE_BYTES,
    block_bytes,
    counter_bar_bytes,
    counter_bytes,
    mapping_count,
    smaps_bytes,
    take,
)

_ASKED_BYTES = 3_000_000
_ROUNDS = 1_000
# The driver maps for these, and all it says of a refusal is that there is no memory.
_MAPPED_BY_A_DRIVER = ("torch", "cupy")


def it_satisfies_the_protocols(allocator: Allocator) -> None:
    allocation = allocator.allocate(_ASKED_BYTES)
    assert isinstance(allocator, Allocator)
    assert isinstance(allocation, Allocation)
    assert allocator.name, "it has no name"
    assert allocator.counter in (*KINDS, "VmRSS"), allocator.counter
    assert isinstance(allocator.notes(), tuple)
    assert all(isinstance(note, str) and note for note in allocator.notes()), allocator.notes()
    assert allocation.note, "it does not say how the memory was made resident"


def it_pickles_before_and_after_use(allocator: Allocator) -> None:
    fresh = pickle.loads(pickle.dumps(allocator))
    allocation = allocator.allocate(_ASKED_BYTES)
    used = pickle.loads(pickle.dumps(allocator))
    for copy in (fresh, used):
        assert (copy.name, copy.counter) == (allocator.name, allocator.counter)
        other = copy.allocate(_ASKED_BYTES)
        assert other.address != allocation.address, "two live allocations share their memory"
        other.release()


def it_gives_memory_that_can_be_read_and_written_over_the_whole_ask(allocator: Allocator) -> None:
    for asked in (1, PAGE_BYTES - 1, PAGE_BYTES, PAGE_BYTES + 1, _ASKED_BYTES):
        allocation = allocator.allocate(asked)
        memory = (ctypes.c_ubyte * asked).from_address(allocation.address)
        places = sorted({0, asked // 3, asked // 2, asked - 1})
        for value, place in enumerate(places, start=1):
            memory[place] = value
        assert [memory[place] for place in places] == list(range(1, len(places) + 1))
        allocation.release()


def it_gives_a_mapping_not_smaller_than_the_ask(allocator: Allocator) -> None:
    # Falling sizes too: a cache could serve the second from the first, never the other way around.
    for asked in (1, _ASKED_BYTES, 2 * _ASKED_BYTES, _ASKED_BYTES + 1, PAGE_BYTES + 1):
        allocation, taken = take(allocator, asked)
        assert taken.block_bytes >= asked, f"{taken.block_bytes:,} B behind a request for {asked:,} B"
        allocation.release()


def it_makes_the_whole_block_resident_and_moves_the_counter_it_declares(allocator: Allocator) -> None:
    deviations = []
    for _ in range(5):
        before = {name: counter_bytes(name) for name in KINDS}
        allocation = allocator.allocate(_ASKED_BYTES)
        grown = {name: counter_bytes(name) - before[name] for name in KINDS}
        block = block_bytes(allocation.address)
        # Pages of the huge page pool are in no Rss.
        resident = sum(smaps_bytes(allocation.address, name) for name in ("Rss", "Private_Hugetlb", "Shared_Hugetlb"))
        assert resident == block, "not all of the block is resident"
        expected = {name: block if name == allocator.counter else 0 for name in KINDS}
        deviations.append(max(abs(grown[name] - expected[name]) for name in KINDS))
        allocation.release()
        allocator.empty_cache()
    # The interpreter's own heap may grow by a page or so in between, so the quietest of five tries speaks.
    assert min(deviations) <= PAGE_BYTES + counter_bar_bytes(), deviations


def it_lets_a_second_release_do_nothing(allocator: Allocator) -> None:
    first = allocator.allocate(_ASKED_BYTES)
    first.release()
    first.release()
    second = allocator.allocate(_ASKED_BYTES)
    # The block may be the same one again; it must not be taken from its new owner.
    first.release()
    third = allocator.allocate(_ASKED_BYTES)
    assert second.address != third.address, "a late second release gave a live block away"
    ctypes.memset(second.address, 7, _ASKED_BYTES)
    ctypes.memset(third.address, 9, _ASKED_BYTES)
    assert ctypes.string_at(second.address, _ASKED_BYTES) == b"\7" * _ASKED_BYTES


def it_gives_everything_back_at_the_end(allocator: Allocator) -> None:
    allocator.allocate(_ASKED_BYTES).release()
    allocator.empty_cache()
    before = counter_bytes(allocator.counter)
    held = [take(allocator, size) for size in (1, PAGE_BYTES, _ASKED_BYTES)]
    for allocation, _ in held:
        allocation.release()
    allocator.empty_cache()
    for _, taken in held:
        assert block_bytes(taken.address) == 0, f"the block for {taken.asked_bytes:,} B is still mapped"
    left = counter_bytes(allocator.counter) - before
    # Threads of the allocator's own may have touched some pages of their stacks meanwhile.
    assert abs(left) <= 64 * PAGE_BYTES + counter_bar_bytes(), f"{left:,} B are still resident"


def it_refuses_an_impossible_size_and_keeps_nothing(allocator: Allocator) -> None:
    allocator.allocate(_ASKED_BYTES).release()
    allocator.empty_cache()
    _failure(allocator, 2**50)  # a first failure may load what words errors, and that stays
    for asked in (2**50, 2**56, 2**62):
        _refused_without_a_trace(allocator, asked)
    # It goes on working afterwards.
    assert take(allocator, _ASKED_BYTES)[1].block_bytes >= _ASKED_BYTES


def it_refuses_what_the_address_space_has_no_room_for_and_keeps_nothing(allocator: Allocator) -> None:
    allocator.allocate(_ASKED_BYTES).release()
    allocator.empty_cache()
    room = counter_bytes("VmSize") + 16 * MIB
    resource.setrlimit(resource.RLIMIT_AS, (room, resource.RLIM_INFINITY))
    _failure(allocator, 24 * MIB)
    failure = _refused_without_a_trace(allocator, 24 * MIB)
    if allocator.name not in _MAPPED_BY_A_DRIVER:
        assert failure.no_address_space, "it does not say that the kernel refused the mapping itself"
    assert take(allocator, _ASKED_BYTES)[1].block_bytes >= _ASKED_BYTES


def it_loses_nothing_in_a_thousand_rounds(allocator: Allocator) -> None:
    dice = random.Random(154_927_104)
    _rounds(allocator, 50, dice)  # the interpreter's heap and the library's tables find their size
    rss_before, mappings_before = counter_bytes("VmRSS"), mapping_count()
    host_before = read_free_or_held(THIS_HOST)
    _rounds(allocator, _ROUNDS, dice)
    grown = counter_bytes("VmRSS") - rss_before
    assert abs(grown) <= 2 * MIB, f"{_ROUNDS} rounds left {grown:,} B"
    # What a driver keeps for itself shows in no counter of the process, only in what the host has left.
    lost = host_before - read_free_or_held(THIS_HOST)
    assert isinstance(lost, Reading)
    assert lost.bytes <= 64 * MIB, f"{_ROUNDS} rounds cost the host {lost.bytes:,} B"
    # The interpreter may map an arena of its own meanwhile; a leak would be of another order.
    assert abs(mapping_count() - mappings_before) <= 2, f"{mappings_before} mappings became {mapping_count()}"


def reserved_and_then_refused_without_a_trace(allocator: Allocator) -> None:
    """What fits the address space and no machine: the guards' mapping is granted, the memory between them is not.

    No term of the contract, since a memfd is not accounted for until it is written: there only a limit says no.
    """
    allocator.allocate(_ASKED_BYTES).release()
    allocator.empty_cache()
    assert _refused_without_a_trace(allocator, 2**45).no_address_space


def _refused_without_a_trace(allocator: Allocator, asked_bytes: int) -> AllocationFailed:
    rss, mappings, mapped = counter_bytes("VmRSS"), mapping_count(), counter_bytes("VmSize")
    failure = _failure(allocator, asked_bytes)
    assert len(str(failure).splitlines()) == 1, f"not one line: {failure}"
    assert abs(counter_bytes("VmRSS") - rss) < MIB
    assert abs(counter_bytes("VmSize") - mapped) < 2 * MIB, "address space was kept"
    assert abs(mapping_count() - mappings) <= 1, "a mapping was kept"
    return failure


def _failure(allocator: Allocator, asked_bytes: int) -> AllocationFailed:
    try:
        allocator.allocate(asked_bytes)
    except AllocationFailed as failure:
        return failure
    raise AssertionError(f"{asked_bytes:,} B were granted")


def _rounds(allocator: Allocator, count: int, dice: random.Random) -> None:
    live: list[Allocation] = []
    for _ in range(count):
        asked = dice.choice((dice.randint(1, 64 * 1024), dice.randint(1, 2 * PAGE_BYTES), dice.randint(1, MIB)))
        allocation = allocator.allocate(asked)
        ctypes.memset(allocation.address, 1, asked)
        live.append(allocation)
        if len(live) > 4:
            live.pop(dice.randrange(len(live))).release()
    for allocation in live:
        allocation.release()
    allocator.empty_cache()


TERMS: tuple[Callable[[Allocator], None], ...] = tuple(
    term for name, term in list(globals().items()) if name.startswith("it_")
)
