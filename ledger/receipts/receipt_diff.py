"""What differs between two receipts of a ledger, and by what the process grew. Nothing is read here, nothing printed.

The order of rows and keys does not matter, and the other way round is the same with its signs turned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction

from pinprobe.ledger.booking import RowState
from pinprobe.ledger.receipts.config_diff import KeyChange, config_changes
from pinprobe.ledger.receipts.process_growth import ProcessGrowth, explain_growth
from pinprobe.ledger.receipts.receipt_change import FROM_ROWS, Change, asked_of, booked_of, resident_of
from pinprobe.ledger.receipts.receipt_file import LedgerReceipt, ReceiptRow, pageable_bytes, pinned_bytes
from pinprobe.probes.host_facts import Fact
from pinprobe.probes.reading import Reading, Unreadable

_TOTAL = "total"


class Presence(str, Enum):
    """In which of the receipts an owner has rows."""

    BOTH = "both"
    APPEARED = "appeared"
    WENT = "went"


@dataclass(frozen=True)
class OwnerDiff:
    """All rows of one owner, or of what is retained, or of what is unattributed. Without a row an amount is 0."""

    owner: str
    state: RowState
    presence: Presence
    asked: Change
    booked: Change
    resident: Change

    @property
    def is_same(self) -> bool:
        """Whether nothing of it differs."""
        amounts = (self.asked, self.booked, self.resident)
        return self.presence is Presence.BOTH and all(amount.is_same for amount in amounts)


@dataclass(frozen=True, slots=True)
class FactChange:
    """A fact of the host, or a row's allocator, that differs and may be the reason for a difference in bytes."""

    fact: str
    old: Fact
    new: Fact


@dataclass(frozen=True)
class ReceiptDiff:
    """Two receipts beside each other.

    `owners` are sorted by name, with what is retained and what no row explains at the end. `sums` are what is booked
    `pinned`, `pageable`, and in `total`, and the `peak`.
    """

    old: LedgerReceipt
    new: LedgerReceipt
    owners: tuple[OwnerDiff, ...]
    sums: Mapping[str, Change]
    growth: ProcessGrowth
    headroom: Change
    overhead: Change
    config: tuple[KeyChange, ...] | Unreadable
    facts: tuple[FactChange, ...]

    @property
    def is_same(self) -> bool:
        """Whether no row, sum, reading, key of the config or fact of the host differs."""
        amounts = (*self.sums.values(), self.growth.measured, self.growth.floor, self.headroom, self.overhead)
        are_rows_same = all(owner.is_same for owner in self.owners) and all(amount.is_same for amount in amounts)
        return are_rows_same and self.config == () and not self.facts

    @property
    def unreadable(self) -> Mapping[str, Unreadable]:
        """Every difference that is not known, by what it is of, with the reason."""
        named = {f"{owner.owner}, resident": owner.resident for owner in self.owners}
        named |= {"VmRSS": self.growth.measured, "working-set floor": self.growth.floor}
        named |= {"headroom": self.headroom, "overhead": self.overhead}
        missing = {name: change.difference for name, change in named.items()}
        return {name: reason for name, reason in missing.items() if isinstance(reason, Unreadable)}


@dataclass(frozen=True, slots=True)
class Increase:
    """What is booked for an owner, or in total, and grew by more than was allowed."""

    name: str
    is_total: bool
    booked: Change
    share: Fraction | Unreadable


def diff_receipts(old: LedgerReceipt, new: LedgerReceipt) -> ReceiptDiff:
    """Compare two receipts."""

    def change_of(pick: Callable[[LedgerReceipt], int]) -> Change:
        return Change(Reading(pick(old), FROM_ROWS), Reading(pick(new), FROM_ROWS))

    return ReceiptDiff(
        old=old,
        new=new,
        owners=_owners(old.rows, new.rows),
        sums={
            "pinned": change_of(lambda receipt: pinned_bytes(receipt.rows)),
            "pageable": change_of(lambda receipt: pageable_bytes(receipt.rows)),
            _TOTAL: change_of(lambda receipt: pinned_bytes(receipt.rows) + pageable_bytes(receipt.rows)),
            "peak": change_of(lambda receipt: receipt.peak_bytes),
        },
        growth=explain_growth(old, new),
        headroom=Change(old.headroom, new.headroom),
        overhead=Change(old.overhead, new.overhead),
        config=config_changes(old, new),
        facts=_facts(old, new),
    )


def find_increases(diff: ReceiptDiff, allowed: Fraction) -> tuple[Increase, ...]:
    """Return the owners whose booked bytes grew by more than a share of what they were, and the total if it did.

    What was not there before grew from nothing, which is more than any share. What is retained counts in the total, and
    what no row explains does not: it differs from run to run.
    """
    found = []
    named = [(owner.owner, False, owner.booked) for owner in diff.owners if owner.state is RowState.RESERVED]
    for name, is_total, booked in [*named, (_TOTAL, True, diff.sums[_TOTAL])]:
        assert isinstance(booked.old, Reading)
        assert isinstance(booked.new, Reading)
        before, grown = booked.old.bytes, booked.new.bytes - booked.old.bytes
        if grown > before * allowed:
            share = Fraction(grown, before) if before else Unreadable("it grew from 0 B")
            found.append(Increase(name, is_total, booked, share))
    return tuple(found)


def _owners(old: Iterable[ReceiptRow], new: Iterable[ReceiptRow]) -> tuple[OwnerDiff, ...]:
    before, after = _by_owner(old), _by_owner(new)
    # The states of rows without an owner come last, in this order.
    order = (RowState.RESERVED, RowState.RETAINED, RowState.UNATTRIBUTED)
    keys = sorted({*before, *after}, key=lambda key: (order.index(key[0]), key[1]))
    return tuple(_owner(*key, before.get(key, ()), after.get(key, ())) for key in keys)


def _by_owner(rows: Iterable[ReceiptRow]) -> dict[tuple[RowState, str], list[ReceiptRow]]:
    found: dict[tuple[RowState, str], list[ReceiptRow]] = {}
    for row in rows:
        # What is being taken is its owner's, as what is taken.
        state = RowState.RESERVED if row.state is RowState.PENDING else row.state
        found.setdefault((state, row.owner), []).append(row)
    return found


def _owner(state: RowState, owner: str, old: Iterable[ReceiptRow], new: Iterable[ReceiptRow]) -> OwnerDiff:
    before, after = list(old), list(new)
    presence = Presence.BOTH if before and after else Presence.APPEARED if after else Presence.WENT
    return OwnerDiff(
        owner=owner,
        state=state,
        presence=presence if state is RowState.RESERVED else Presence.BOTH,
        asked=Change(asked_of(before), asked_of(after)),
        booked=Change(booked_of(before), booked_of(after)),
        resident=Change(resident_of(before), resident_of(after)),
    )


def _facts(old: LedgerReceipt, new: LedgerReceipt) -> tuple[FactChange, ...]:
    before, after = ({**receipt.facts, "headroom bound by": receipt.headroom_bound} for receipt in (old, new))
    absent = Unreadable("it is not set")
    changes = [
        FactChange(name, before.get(name, absent), after.get(name, absent)) for name in sorted({*before, *after})
    ]
    taken_from = _allocators(old.rows), _allocators(new.rows)
    changes += [
        FactChange(f"allocator of {owner}", *(names[owner] for names in taken_from))
        for owner in sorted(taken_from[0].keys() & taken_from[1].keys())
    ]
    return tuple(change for change in changes if not _is_same_fact(change))


def _is_same_fact(change: FactChange) -> bool:
    # Why a fact could not be read is worded differently by different kernels, and is no difference of the host's.
    return change.old == change.new or (isinstance(change.old, Unreadable) and isinstance(change.new, Unreadable))


def _allocators(rows: Iterable[ReceiptRow]) -> dict[str, str]:
    """Name what each owner's memory came from: a config says `auto`, and what that is depends on the host."""
    names: dict[str, set[str]] = {}
    for row in rows:
        if row.state in (RowState.RESERVED, RowState.PENDING):
            names.setdefault(row.owner, set()).add(row.allocator)
    return {owner: ", ".join(sorted(found)) for owner, found in names.items()}
