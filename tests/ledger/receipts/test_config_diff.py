"""Which keys of two configs differ, and what sets each back."""

from __future__ import annotations

import copy
import shlex
from typing import Any

import pytest

from pinprobe.ledger.receipts.config_diff import KeyChange
from pinprobe.probes.reading import Unreadable
from tests.ledger.made_receipts import diff_of, document

CONFIG: dict[str, Any] = {
    "engine": {"name": "mine", "ranks": 2},
    "numbers": {"slots": 64, "spare": 2, "pool": "slots * 148 MiB"},
    "tenants": {"cache.ring": {"kind": "buffer", "bytes": "pool", "allocator": "torch"}},
}


def changes(old: dict[str, Any], new: dict[str, Any], **more: Any) -> dict[str, KeyChange]:
    found = diff_of(document(config=old), document(config=new, **more)).config
    assert isinstance(found, tuple)
    return {change.key: change for change in found}


def with_key(section: str, key: str, value: Any) -> dict[str, Any]:
    changed = copy.deepcopy(CONFIG)
    changed[section][key] = value
    return changed


@pytest.mark.parametrize(
    ("section", "key", "value", "word"),
    [
        ("numbers", "slots", 16, "--set slots=64"),
        ("numbers", "pool", "3 GiB", "--set 'pool=slots * 148 MiB'"),
        ("engine", "ranks", 1, "--set ranks=2"),
    ],
)
def test_a_number_is_set_back_by_words_for_a_shell(section: str, key: str, value: Any, word: str) -> None:
    (change,) = changes(CONFIG, with_key(section, key, value)).values()
    assert (change.key, change.old, change.new) == (f"{section}.{key}", CONFIG[section][key], value)
    assert (change.word, change.line) == (word, "")
    assert shlex.split(change.word) == ["--set", f"{key}={CONFIG[section][key]}"]


def test_the_scale_is_set_back_by_its_option() -> None:
    (change,) = changes(CONFIG, CONFIG, scale="1/16").values()
    assert (change.key, change.old, change.new, change.word) == ("scale", "1", "1/16", "--scale 1")


def test_other_keys_are_set_back_in_the_config_under_their_dotted_names() -> None:
    new = with_key("tenants", "cache.ring", {"kind": "buffer", "bytes": "pool", "detail": "all", "allocator": "mlock"})
    found = changes(CONFIG, new)
    assert {key: (change.old, change.new, change.word, change.line) for key, change in found.items()} == {
        "tenants.cache.ring.allocator": ("torch", "mlock", "", "tenants.cache.ring.allocator: torch"),
        "tenants.cache.ring.detail": (
            None, "all", "", "tenants.cache.ring.detail: not in the old config; take it out",
        ),
    }  # fmt: skip


def test_a_number_that_the_new_config_could_not_set_is_left_to_the_config() -> None:
    gone = copy.deepcopy(CONFIG)
    del gone["numbers"]["spare"]
    assert changes(CONFIG, gone)["numbers.spare"].line == "numbers.spare: 2"
    # --set would be refused for an expression over a number that is no longer there.
    old = with_key("numbers", "slots", "8 * spare")
    assert changes(old, gone)["numbers.slots"].line == "numbers.slots: 8 * spare"
    assert changes(old, gone)["numbers.slots"].word == ""


def test_what_was_set_for_the_run_is_told_and_set_back_by_the_number_itself() -> None:
    found = changes(CONFIG, with_key("numbers", "slots", 16), overrides={"slots": "16"})
    assert set(found) == {"numbers.slots", "overrides.slots"}
    assert found["numbers.slots"].word == "--set slots=64"
    assert (found["overrides.slots"].new, found["overrides.slots"].word, found["overrides.slots"].line) == (
        "16",
        "",
        "",
    )


def test_values_of_another_kind_are_no_longer_the_same() -> None:
    for old, new in ((1, True), (1, "1"), (0, False)):
        assert set(changes(with_key("numbers", "slots", old), with_key("numbers", "slots", new))) == {"numbers.slots"}


def test_a_list_is_one_value_and_sections_in_a_list_are_not() -> None:
    old, new = (with_key("tenants", "a", {"shape": shape, "parts": [{"x": shape[0]}]}) for shape in ([48, 2], [64, 2]))
    assert {key: (change.old, change.new) for key, change in changes(old, new).items()} == {
        "tenants.a.parts.0.x": (48, 64),
        "tenants.a.shape": ("[48, 2]", "[64, 2]"),
    }


def test_where_only_one_ledger_had_a_config_that_is_said() -> None:
    found = diff_of(document(), document(config=CONFIG))
    assert found.config == Unreadable("the old receipt has no config")
    assert not found.is_same
    assert diff_of(document(), document()).config == ()
