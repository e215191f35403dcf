"""By how much the process of one receipt is larger than that of another, and which figure of its ledger explains it.

An engine that books what it asks expects the process to grow by that. What it does grow by is what is resident of the
rows, and what the engine itself takes beside them.
"""

from __future__ import annotations

from dataclasses import dataclass

from pinprobe.ledger.booking import RowState
from pinprobe.ledger.receipts.receipt_change import Change, asked_of, booked_of, resident_of
from pinprobe.ledger.receipts.receipt_file import LedgerReceipt, ReceiptRow
from pinprobe.probes.reading import Amount, Reading

#: Whose memory lies in the kernel's huge page pool, which is in no VmRSS: the rows of a receipt name nothing else that
#: would tell it.
HUGE_PAGE_ALLOCATORS = ("registered-hugetlb",)


@dataclass(frozen=True)
class ProcessGrowth:
    """By how much VmRSS differs, and what would explain it.

    The predictions sum the rows that count in VmRSS: all but those in huge pages of the kernel's pool, which are named
    in `in_huge_pages`, and but the growth that no row explains, which is no prediction. `measured` is VmRSS.
    """

    from_asked: Change
    from_booked: Change
    from_resident: Change
    measured: Change
    floor: Change
    unattributed: Change
    in_huge_pages: tuple[str, ...]
    slack_bytes: int

    @property
    def residue(self) -> Change:
        """What is measured beyond the prediction from what is resident: the process without its rows."""
        return self.measured - self.from_resident

    @property
    def outside(self) -> Change:
        """By how much the rows' resident bytes are more than VmRSS has of them, beyond roundings of the shares.

        Rows are in huge pages that nobody knew of, or two rows hold the same pages.
        """
        beyond = self.floor - self.residue
        return Change(self._beyond_slack(beyond.old), self._beyond_slack(beyond.new))

    def _beyond_slack(self, amount: Amount) -> Amount:
        if isinstance(amount, Reading) and abs(amount.bytes) <= self.slack_bytes:
            return Reading(0, amount.source)
        return amount


def explain_growth(old: LedgerReceipt, new: LedgerReceipt) -> ProcessGrowth:
    """Predict the difference of two processes from their rows, in three ways, and set what was measured beside it."""
    counted_old, counted_new = ([row for row in r.rows if _counts_in_rss(row)] for r in (old, new))
    huge = {row.owner for receipt in (old, new) for row in receipt.rows if _is_in_huge_pages(row)}
    unexplained_old, unexplained_new = (
        [row for row in receipt.rows if row.state is RowState.UNATTRIBUTED] for receipt in (old, new)
    )
    return ProcessGrowth(
        from_asked=Change(asked_of(counted_old), asked_of(counted_new)),
        from_booked=Change(booked_of(counted_old), booked_of(counted_new)),
        from_resident=Change(resident_of(counted_old, True), resident_of(counted_new, True)),
        measured=Change(old.process_resident, new.process_resident),
        floor=Change(old.working_set_floor, new.working_set_floor),
        unattributed=Change(resident_of(unexplained_old), resident_of(unexplained_new)),
        in_huge_pages=tuple(sorted(huge)),
        # A row's share of a mapping is rounded up, and two rows may begin on one page.
        slack_bytes=max(len(r.rows) * r.page_size_bytes for r in (old, new)),
    )


def _counts_in_rss(row: ReceiptRow) -> bool:
    return row.state is not RowState.UNATTRIBUTED and not _is_in_huge_pages(row)


def _is_in_huge_pages(row: ReceiptRow) -> bool:
    # What is retained names the allocators of all its blocks.
    return bool(row.allocator) and all(name in HUGE_PAGE_ALLOCATORS for name in row.allocator.split(", "))
