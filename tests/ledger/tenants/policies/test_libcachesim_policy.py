"""The library's policies as baselines: its LRU is ours call by call, and what can't be had is refused in one line."""

from __future__ import annotations

import random
import sys

import pytest

from pinprobe.ledger.replay.replay import replay
from pinprobe.ledger.replay.scenario import make_scenario
from pinprobe.ledger.tenants.policies.libcachesim_policy import LibcachesimPolicy
from pinprobe.ledger.tenants.policies.lru import Lru
from pinprobe.ledger.tenants.policies.policies import check_policy_name, make_policy
from pinprobe.probes.errors import BadRequest
from tests.ledger.tenants.policies.keeper import Keeper, Prompt


def test_without_the_library_the_command_that_installs_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "libcachesim", None)
    check_policy_name("libcachesim:Sieve")
    with pytest.raises(
        BadRequest, match=r'needs the library libcachesim; install it: pip install "pinprobe\[policies]"'
    ):
        make_policy("libcachesim:Sieve", 8)


class TestInstalled:
    @pytest.fixture(autouse=True)
    def installed(self) -> None:
        pytest.importorskip("libcachesim")

    def test_its_lru_answers_every_call_as_ours_does(self) -> None:
        logs = []
        for policy in (LibcachesimPolicy("LRU", 10), Lru(10)):
            keeper, lot = Keeper(policy), random.Random(1)
            for _ in range(800):
                keeper.request(Prompt(lot.randint(0, lot.choice([12, 40])), None, 1_000))
            logs.append(keeper.log)
        assert logs[0] == logs[1]

    def test_its_lru_spares_what_ours_does_to_the_token(self) -> None:
        requests = make_scenario("branching", 3_000, seed=1)
        theirs, ours = (replay(requests, make_policy(name, 32)) for name in ("libcachesim:LRU", "lru"))
        assert (theirs.spared_tokens, theirs.evictions) == (ours.spared_tokens, ours.evictions)

    @pytest.mark.parametrize("algorithm", ["S3FIFO", "Sieve", "ARC", "TwoQ", "SLRU", "Clock", "LHD", "LeCaR", "GDSF"])
    def test_general_policies_replay_a_drive(self, algorithm: str) -> None:
        result = replay(make_scenario("linear", 1_500, seed=2), make_policy(f"libcachesim:{algorithm}", 64))
        assert result.policy == f"libcachesim:{algorithm}"
        assert result.writes - result.evictions == 64
        assert result.token_hit_rate > 0.1

    def test_a_policy_that_it_does_not_have_is_refused_with_those_that_it_has(self) -> None:
        with pytest.raises(BadRequest, match=r"has no policy 'sieve'; it has ARC, .*, Sieve, "):
            make_policy("libcachesim:sieve", 8)

    def test_a_policy_that_knows_the_future_is_none_here(self) -> None:
        with pytest.raises(BadRequest, match="has no policy 'Belady'"):
            make_policy("libcachesim:Belady", 8)

    def test_a_policy_that_ends_its_process_for_so_few_slots_is_refused(self) -> None:
        with pytest.raises(BadRequest, match=r"S3FIFO can't keep 8 savepoints .* give it more slots") as caught:
            make_policy("libcachesim:S3FIFO", 8)
        assert "\n" not in str(caught.value)

    def test_a_policy_that_lets_several_go_for_one_is_refused(self) -> None:
        with pytest.raises(BadRequest, match="LIRS can't keep 64 savepoints of one size"):
            make_policy("libcachesim:LIRS", 64)
