"""What the tiers of an arm would keep is what a plain model keeps, and everything that is offered is counted once."""

from __future__ import annotations

from collections import deque

from hypothesis import given, settings
from hypothesis import strategies as st

from pinprobe.ledger.replay.kept import PoolKept, RingAlone
from pinprobe.ledger.replay.placement import PrefixNode
from pinprobe.ledger.tenants.overflow_file import file_bytes
from pinprobe.ledger.tenants.policies.policies import policy_names
from pinprobe.ledger.tenants.prefill_time import PrefillTime
from tests.ledger.replay.made_runs import ROW_BYTES, pool_of

FUZZ = settings(derandomize=True, deadline=None, max_examples=150)
CHUNK = 2_048
PREFILL = PrefillTime(0.001)
OUTCOMES = ("promoted", "declined", "already_here", "below_floor")

#: Lines of a prefix tree: which line is asked for, and how many chunks deep.
ASKED = st.lists(st.tuples(st.integers(0, 4), st.integers(1, 4)), max_size=60)


def node(line: int, depth: int, tokens: int | None = None) -> PrefixNode:
    parent = (line, depth - 1) if depth > 1 else None
    return PrefixNode((line, depth), parent, depth * CHUNK if tokens is None else tokens)


def nodes_up_to(line: int, depth: int) -> list[PrefixNode]:
    """A prompt's nodes, the longest first."""
    return [node(line, each) for each in range(depth, 0, -1)]


@FUZZ
@given(ASKED, st.integers(1, 6))
def test_a_pool_of_fixed_size_under_lru_keeps_what_an_obvious_model_keeps(
    asked: list[tuple[int, int]], regions: int
) -> None:
    pool = PoolKept(pool_of(regions, "lru"), None)
    model: list[tuple[int, int]] = []  # the one that was used last stands last
    evicted = 0
    for now, (line, depth) in enumerate(asked):
        nodes = nodes_up_to(line, depth)
        pool.settle(float(now))
        found = pool.read(nodes, float(now))
        expected = next((each.key for each in nodes if each.key in model), None)
        assert (found and (found[0], found[1].key)) == (expected and ("pool", expected))
        if expected is not None:
            model.remove(expected)
            model.append(expected)
        for each in reversed(nodes):
            if found is None or each.tokens > found[1].tokens:
                shorter = [other for other in nodes if other.tokens < each.tokens]
                pool.offer(each, shorter, f"line {line}", float(now))
                model.append(each.key)  # type: ignore[arg-type]
                if len(model) > regions:
                    del model[0]
                    evicted += 1
        assert {key for key in model if pool.retention.is_resident(key)} == set(model)
        assert pool.retention.resident_count == len(model)
    assert pool.retention.evictions == evicted


@FUZZ
@given(ASKED, st.integers(1, 6), st.sampled_from(policy_names()), st.booleans(), st.integers(0, 3))
def test_whatever_is_offered_has_one_outcome_and_no_bound_is_passed(
    asked: list[tuple[int, int]], regions: int, policy: str, follows_demand: bool, files: int
) -> None:
    overflow_bytes = files * file_bytes(ROW_BYTES) if files else None
    shape = pool_of(
        regions,
        policy,
        is_sized_by_demand=follows_demand,
        chunk_tokens=2 * CHUNK,
        overflow_bytes=overflow_bytes,
        prefill_time=PREFILL,
    )
    pool = PoolKept(shape, 2.0**30)
    offered = 0
    for now, (line, depth) in enumerate(asked):
        nodes = nodes_up_to(line, depth)
        pool.settle(float(now))
        found = pool.read(nodes, float(now))
        assert found is None or found[1].tokens >= 2 * CHUNK
        for each in reversed(nodes):
            pool.offer(each, [other for other in nodes if other.tokens < each.tokens], f"line {line}", float(now))
            offered += 1
        assert pool.retention.resident_count <= regions
        assert pool.files <= files
    assert pool.counts["requests"] == offered == sum(pool.counts[outcome] for outcome in OUTCOMES)
    spill = pool.spill.stats()
    assert spill.spilled + spill.rejected_count == (pool.retention.evictions if files else 0)


def test_what_covers_less_than_a_chunk_is_not_kept() -> None:
    pool = PoolKept(pool_of(), None)
    pool.offer(node(0, 1, CHUNK - 1), [], "a", 0.0)
    pool.offer(node(1, 1, CHUNK), [], "b", 0.0)
    assert dict(pool.counts) == {"requests": 2, "below_floor": 1, "promoted": 1}
    assert pool.read([node(0, 1, CHUNK - 1)], 1.0) is None


def test_an_entry_that_had_to_go_is_read_from_its_file_and_comes_back() -> None:
    shape = pool_of(1, overflow_bytes=4 * file_bytes(ROW_BYTES), prefill_time=PREFILL)
    pool = PoolKept(shape, 2.0**30)
    pool.offer(node(0, 1), [], "a", 0.0)
    pool.offer(node(1, 1), [], "b", 1.0)
    assert (pool.files, pool.counts["written"]) == (1, 1)
    read = pool.read([node(0, 1)], 2.0)
    assert read is not None
    assert (read[0], read[1].key) == ("disk", (0, 1))
    assert pool.counts["recalled"] == 1
    assert pool.retention.is_resident((0, 1))


def test_without_a_prefill_time_or_a_rate_nothing_is_worth_a_file() -> None:
    for prefill_time, read_back in ((None, 2.0**30), (PREFILL, None)):
        shape = pool_of(1, overflow_bytes=4 * file_bytes(ROW_BYTES), prefill_time=prefill_time)
        pool = PoolKept(shape, read_back)
        pool.offer(node(0, 1), [], "a", 0.0)
        pool.offer(node(1, 1), [], "b", 1.0)
        assert pool.files == 0
        assert pool.spill.stats().rejected["unmeasured"] == 1


@FUZZ
@given(st.lists(st.integers(0, 5), max_size=60), st.integers(1, 5))
def test_a_ring_holds_what_it_staged_last(keys: list[int], slots: int) -> None:
    ring, model = RingAlone(slots), deque[int](maxlen=slots)
    for key in keys:
        before = set(model)
        model.append(key)
        assert ring.stage(key) == bool(before - set(model))
        assert {each for each in range(6) if each in ring} == set(model)
        assert len(ring) == len(model)
