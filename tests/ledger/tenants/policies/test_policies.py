"""The policies by name: ours, and those of others, whole and broken."""

from __future__ import annotations

from pathlib import Path

import pytest

from pinprobe.ledger.tenants.policies.policies import ENTRY_POINT_GROUP, check_policy_name, make_policy, policy_names
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
