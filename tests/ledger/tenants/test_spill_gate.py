"""What is worth a file, and the reason where it is not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinprobe.ledger.tenants.prefill_time import PrefillTime
from pinprobe.ledger.tenants.spill_gate import Spillable, SpillCounter, SpillRefusal, spill_value

SECOND_A_TOKEN = PrefillTime(1.0)
GOOD = Spillable(tokens=100, beyond_tokens=40, chance=0.5, is_dominated=False, is_awaited=True)


def asked(**changes: object) -> Spillable:
    return Spillable(**{**{name: getattr(GOOD, name) for name in Spillable.__slots__}, **changes})


def test_its_value_are_the_seconds_beyond_what_is_spared_without_it_less_those_of_reading_it_back() -> None:
    assert spill_value(GOOD, SECOND_A_TOKEN, 10.0) == 0.5 * (60 - 10)


@pytest.mark.parametrize(
    ("what", "prefill_time", "read_seconds", "refusal"),
    [
        (asked(is_dominated=True, is_awaited=False), None, None, SpillRefusal.DOMINATED),
        (asked(is_awaited=False), None, None, SpillRefusal.OVER),
        (GOOD, None, 1.0, SpillRefusal.UNMEASURED),
        (GOOD, SECOND_A_TOKEN, None, SpillRefusal.UNMEASURED),
        (GOOD, SECOND_A_TOKEN, 60.0, SpillRefusal.NOT_WORTH_IT),
        (asked(chance=0.0), SECOND_A_TOKEN, 1.0, SpillRefusal.NOT_WORTH_IT),
        (asked(beyond_tokens=100), SECOND_A_TOKEN, 1.0, SpillRefusal.NOT_WORTH_IT),
    ],
    ids=repr,
)
def test_each_refusal_has_its_reason(
    what: Spillable, prefill_time: PrefillTime | None, read_seconds: float | None, refusal: SpillRefusal
) -> None:
    assert spill_value(what, prefill_time, read_seconds) is refusal


@given(
    tokens=st.integers(1, 200_000), beyond=st.integers(0, 300_000), chance=st.floats(0, 1), read=st.floats(0, 1e3),
    dominated=st.booleans(), awaited=st.booleans(),
)  # fmt: skip
def test_a_value_is_always_above_nothing(
    tokens: int, beyond: int, chance: float, read: float, dominated: bool, awaited: bool
) -> None:
    value = spill_value(Spillable(tokens, beyond, chance, dominated, awaited), PrefillTime(1e-4, 1e-9), read)
    assert isinstance(value, SpillRefusal) or value > 0


def test_every_refusal_has_a_counter_beside_the_total() -> None:
    counter = SpillCounter()
    for refusal in (*SpillRefusal, SpillRefusal.OVER, None, None):
        counter.count(refusal)
    stats = counter.stats()
    assert (stats.spilled, stats.rejected_count) == (2, 6)
    assert stats.rejected == {"slot_reused": 1, "dominated": 1, "over": 2, "unmeasured": 1, "not_worth_it": 1}
    assert stats.words() == ("spilled 2, rejected 6 (slot_reused 1, dominated 1, over 2, unmeasured 1, not_worth_it 1)")
