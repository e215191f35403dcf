"""The policies by name: ours, and those of others, whole and broken."""

from __future__ import annotations

from pathlib import Path

import pytest

from pinprobe.ledger.tenants.policies.policies import ENTRY_POINT_GROUP, check_policy_name, make_policy, policy_names
from pinprobe.ledger.tenants.policies.policy import Policy, Savepoint
from pinprobe.probes.errors import BadRequest
from tests.ledger.tenants.foreign_package import install


@pytest.mark.parametrize("name", ["lru", "gdsf", "chain", "gittins"])
def test_a_policy_is_made_by_its_name_for_so_many_slots(name: str) -> None:
    policy = make_policy(name, 3)
    assert (policy.name, policy.slots, policy.resident_count) == (name, 3, 0)


def test_an_unknown_name_is_refused_with_the_nearest_known_one() -> None:
    with pytest.raises(BadRequest, match="no retention policy is called 'gitins'; did you mean gittins"):
        make_policy("gitins", 3)
    with pytest.raises(BadRequest, match="known are lru, gdsf, chain, gittins"):
        check_policy_name("clairvoyance")


def test_no_slot_is_refused() -> None:
    for name in ("lru", "gdsf", "chain", "gittins"):
        with pytest.raises(BadRequest, match="a policy of 0 slots keeps nothing; give it 1 or more"):
            make_policy(name, 0)


BROKEN = """
def boom(slots):
    raise RuntimeError("out\\nof order")

def leave(slots):
    raise SystemExit(3)

class Half:
    name = "half"
    def __init__(self, slots):
        self.slots = slots
"""


def test_policies_of_others_that_are_broken_are_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = {"boom": ":boom", "leave": ":leave", "half": ":Half", "gone": ".nowhere:Gone", "lru": ":boom"}
    install(tmp_path, BROKEN, {ENTRY_POINT_GROUP: names})
    monkeypatch.syspath_prepend(tmp_path)
    assert policy_names() == ["lru", "gdsf", "chain", "gittins", "boom", "gone", "half", "leave"]
    for name, reason in {
        "boom": "can't be made: RuntimeError: out$",
        "leave": "can't be made",
        "gone": "can't be made",
        "half": "has no resident_count",
    }.items():
        check_policy_name(name)
        with pytest.raises(BadRequest, match=reason) as caught:
            make_policy(name, 3)
        assert name in str(caught.value)
        assert "\n" not in str(caught.value)
    assert type(make_policy("lru", 3)).__name__ == "Lru"  # a name of ours is nobody else's


WRONG = """
from pinprobe.ledger.tenants.policies.lru import Lru
from pinprobe.ledger.tenants.policies.policy import KEPT

class Raises(Lru):
    name = "raises"
    def offer(self, savepoint, now_seconds, held=()):
        raise KeyError("oops\\nand more")

class Answers(Lru):
    name = "answers"
    def offer(self, savepoint, now_seconds, held=()):
        return True

class Hoards(Lru):
    name = "hoards"
    def offer(self, savepoint, now_seconds, held=()):
        self._entries[savepoint.key] = None
        return KEPT

class Whole(Lru):
    name = "whole"
"""


def _fill(policy: Policy) -> None:
    for number in range(policy.slots + 1):
        policy.offer(Savepoint(number, None, 100), float(number))


def test_what_a_policy_of_others_does_wrong_is_told_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = {"raises": ":Raises", "answers": ":Answers", "hoards": ":Hoards", "whole": ":Whole"}
    module = install(tmp_path, WRONG, {ENTRY_POINT_GROUP: names})
    monkeypatch.syspath_prepend(tmp_path)
    for name, reason in {
        "raises": "offer failed: KeyError: .*oops.*; mend it, or take another$",
        "answers": "offer returned bool, and has to return a Decision$",
        "hoards": "offer left 3 entries resident where 2 may be; it has to let one go, or refuse the newcomer$",
    }.items():
        policy = make_policy(name, 2)
        with pytest.raises(BadRequest, match=reason) as caught:
            _fill(policy)
        assert str(caught.value).startswith(f"the retention policy {name} ({module}:")
        assert "\n" not in str(caught.value)
    whole = make_policy("whole", 2)
    whole.slots = 1
    assert (whole.name, whole.slots) == ("whole", 1)
    with pytest.raises(BadRequest, match="read failed: KeyError"):
        whole.read("never seen", 0.0)
