"""Which keys of the config differ between two receipts, and what sets each back to what it was."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from pinprobe.ledger.config.arithmetic import parse_number
from pinprobe.ledger.receipts.json_value import Leaf
from pinprobe.ledger.receipts.receipt_file import KeyPath, LedgerReceipt
from pinprobe.probes.errors import BadRequest
from pinprobe.probes.reading import Unreadable


@dataclass(frozen=True, slots=True)
class KeyChange:
    """One key, dotted, with its value in both receipts; None where it is not there.

    `word` sets it back on the command line of the new run, ready to paste into a shell; where it is empty, `line` is
    what the config has to say for it. Both are empty for what was set on the command line: the key that it set says it.
    """

    key: str
    old: Leaf | None
    new: Leaf | None
    word: str
    line: str


def config_changes(old: LedgerReceipt, new: LedgerReceipt) -> tuple[KeyChange, ...] | Unreadable:
    """Compare the configs of two receipts, what was set for the run, and the scale.

    Unreadable where one of the receipts has a config and the other has none.
    """
    if (old.config is None) != (new.config is None):
        name = "old" if old.config is None else "new"
        return Unreadable(f"the {name} receipt has no config")
    before, after = _everything(old), _everything(new)
    paths = sorted(path for path in {*before, *after} if not _are_same(before.get(path), after.get(path)))
    return tuple(_change(path, before.get(path), after.get(path), after) for path in paths)


def written(value: Leaf) -> str:
    """Write a value as a config would have it.

    >>> written(True), written(64), written("16 * 148 MiB")
    ('true', '64', '16 * 148 MiB')
    """
    return str(value).lower() if isinstance(value, bool) else str(value)


def _everything(receipt: LedgerReceipt) -> Mapping[KeyPath, Leaf]:
    found: dict[KeyPath, Leaf] = {**(receipt.config or {}), ("scale",): receipt.scale}
    found.update({("overrides", name): expression for name, expression in receipt.overrides.items()})
    return found


def _are_same(old: Leaf | None, new: Leaf | None) -> bool:
    return type(old) is type(new) and old == new  # to Python true is 1 as well


def _change(path: KeyPath, old: Leaf | None, new: Leaf | None, after: Mapping[KeyPath, Leaf]) -> KeyChange:
    key = ".".join(path)
    word = line = ""
    if path[0] == "overrides":
        pass
    elif old is None:
        line = f"{key}: not in the old config; take it out"
    elif path == ("scale",):
        word = f"--scale {shlex.quote(written(old))}"
    elif new is not None and _can_be_set(path, written(old), after):
        word = f"--set {shlex.quote(f'{path[-1]}={written(old)}')}"
    else:
        line = f"{key}: {written(old)}"
    return KeyChange(key, old, new, word, line)


def _can_be_set(path: KeyPath, expression: str, after: Mapping[KeyPath, Leaf]) -> bool:
    """Say whether `--set` would be understood by the new config: it knows the number, and what the old value names."""
    if path != ("engine", "ranks") and not (path[0] == "numbers" and len(path) == 2):
        return False
    try:
        names = parse_number(expression).names
    except BadRequest:
        return False
    return all(name == "ranks" or ("numbers", name) in after for name in names)
