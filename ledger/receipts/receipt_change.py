"""One amount in two receipts, and the sums of rows that such amounts are made of."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pinprobe.ledger.receipts.receipt_file import ReceiptRow
from pinprobe.probes.reading import Amount, Reading, Unreadable

#: The source of an amount that is a sum of rows.
FROM_ROWS = "rows"


@dataclass(frozen=True, slots=True)
class Change:
    """An amount in both receipts."""

    old: Amount
    new: Amount

    @property
    def difference(self) -> Amount:
        """New less old; where that is unreadable, with the receipt whose reading is missing."""
        reasons = {
            name: amount.reason
            for name, amount in (("old", self.old), ("new", self.new))
            if isinstance(amount, Unreadable)
        }
        if len(set(reasons.values())) == 1 and len(reasons) == 2:
            return Unreadable(f"in both receipts: {reasons['old']}")
        if reasons:
            return Unreadable("; ".join(f"in the {name} receipt: {reason}" for name, reason in reasons.items()))
        return self.new - self.old

    @property
    def is_same(self) -> bool:
        """Whether both are the same number, or are missing for the same reason."""
        return _figure(self.old) == _figure(self.new)

    def __sub__(self, other: Change) -> Change:
        return Change(self.old - other.old, self.new - other.new)


def _figure(amount: Amount) -> int | str:
    return amount.bytes if isinstance(amount, Reading) else amount.reason


def asked_of(rows: Iterable[ReceiptRow]) -> Amount:
    """Add up what was asked."""
    return Reading(sum(row.asked_bytes for row in rows), FROM_ROWS)


def booked_of(rows: Iterable[ReceiptRow]) -> Amount:
    """Add up what is booked."""
    return Reading(sum(row.booked_bytes for row in rows), FROM_ROWS)


def resident_of(rows: Iterable[ReceiptRow], names_owners: bool = False) -> Amount:
    """Add up what is resident; where any of it is unreadable that is too, with every reason."""
    total = error = 0
    reasons: set[str] = set()
    for row in rows:
        if isinstance(row.resident, Unreadable):
            reasons.add(f"{row.owner}: {row.resident.reason}" if names_owners else row.resident.reason)
        else:
            total, error = total + row.resident.bytes, error + row.resident.error_bytes
    return Unreadable("; ".join(sorted(reasons))) if reasons else Reading(total, FROM_ROWS, error)
