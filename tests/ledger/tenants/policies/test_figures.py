"""What each policy spares on two recorded traces, one of coding agents and one of open chat.

The traces are not part of the project: where they are not beside the checkout these tests are skipped.
"""

from __future__ import annotations

import functools
import importlib.util

import pytest

from pinprobe.ledger.replay.replay import replay
from pinprobe.ledger.replay.request import Request
from pinprobe.ledger.replay.trace import read_trace
from pinprobe.ledger.tenants.policies.policies import make_policy
from tests.ledger.replay.real_traces import real_trace

AGENT, CHAT = "agent_sessions", "chat_hour"

#: What a plain replay of the least recently used policy is known to spare, by trace and slots.
LRU = {
    AGENT: {8: 0.463, 16: 0.690, 32: 0.824, 64: 0.891, 128: 0.919, 256: 0.933},
    CHAT: {64: 0.049, 256: 0.133, 512: 0.214, 1024: 0.281},
}
GDSF = {AGENT: {8: 0.531, 32: 0.833, 256: 0.939}, CHAT: {64: 0.085, 256: 0.199, 1024: 0.302}}
CHAIN = {AGENT: {8: 0.674, 32: 0.905, 256: 0.946}, CHAT: {64: 0.070, 256: 0.176, 1024: 0.300}}
GITTINS = {
    AGENT: {8: 0.75, 16: 0.88, 32: 0.925, 64: 0.942, 128: 0.946, 256: 0.949},
    CHAT: {64: 0.127, 128: 0.168, 256: 0.219, 512: 0.268, 1024: 0.315},
}


@functools.cache
def requests_of(name: str) -> list[Request]:
    return read_trace(real_trace(name))


def spared(name: str, policy: str, slots: int) -> float:
    return replay(requests_of(name), make_policy(policy, slots)).token_hit_rate


@pytest.mark.slow
@pytest.mark.parametrize("name", [AGENT, CHAT])
def test_lru_spares_what_it_is_known_to_spare(name: str) -> None:
    assert {slots: spared(name, "lru", slots) for slots in LRU[name]} == pytest.approx(LRU[name], abs=0.005)


@pytest.mark.slow
@pytest.mark.parametrize("name", [AGENT, CHAT])
def test_gdsf_spares_what_it_is_known_to_spare(name: str) -> None:
    assert {slots: spared(name, "gdsf", slots) for slots in GDSF[name]} == pytest.approx(GDSF[name], abs=0.02)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "slots"), [(name, slots) for name, column in CHAIN.items() for slots in column])
def test_chain_spares_no_less_than_it_is_known_to_spare(name: str, slots: int) -> None:
    assert spared(name, "chain", slots) > CHAIN[name][slots] - 0.003


@pytest.mark.slow
@pytest.mark.parametrize(("name", "slots"), [(name, slots) for name, column in GITTINS.items() for slots in column])
def test_gittins_spares_no_less_than_it_is_to_spare(name: str, slots: int) -> None:
    assert spared(name, "gittins", slots) >= GITTINS[name][slots]


def test_on_the_first_hours_of_agents_gittins_spares_far_more_than_lru() -> None:
    requests = requests_of(AGENT)[:1_500]
    lru, gittins = (replay(requests, make_policy(name, 8)).token_hit_rate for name in ("lru", "gittins"))
    assert lru < 0.5
    assert gittins > lru + 0.15


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("libcachesim") is None, reason="libcachesim is not installed")
@pytest.mark.parametrize(("name", "slots"), [(AGENT, 32), (CHAT, 256)])
def test_the_librarys_lru_and_ours_spare_the_same_to_the_token(name: str, slots: int) -> None:
    assert spared(name, "libcachesim:LRU", slots) == spared(name, "lru", slots)
