"""What differs between two receipts, in sentences and lines. Nothing here compares or measures."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import TypeGuard

from pinprobe.cli.grid import WIDTH
from pinprobe.ledger.receipts.config_diff import KeyChange, written
from pinprobe.ledger.receipts.json_value import Leaf
from pinprobe.ledger.receipts.process_growth import ProcessGrowth
from pinprobe.ledger.receipts.receipt_change import Change
from pinprobe.ledger.receipts.receipt_diff import Increase, ReceiptDiff
from pinprobe.ledger.receipts.receipt_file import LedgerReceipt
from pinprobe.probes.reading import Amount, Reading, Unreadable
from pinprobe.probes.units import format_bytes

_CONTINUED = " \\"


def head_lines(diff: ReceiptDiff) -> list[str]:
    """Say which receipts are compared, with the notes of whoever made them."""
    both = (("old", diff.old), ("new", diff.new))
    notes = [f"note of the {name}: {receipt.note}" for name, receipt in both if receipt.note]
    return [*(f"{name}: {_named(receipt)}" for name, receipt in both), *notes]


def same_lines(diff: ReceiptDiff) -> list[str]:
    """Say that nothing differs, and what is not known in either."""
    missing = [f"Not known of either: {line}" for line in unreadable_lines(diff)]
    return ["Nothing differs: no row, sum, reading, key of the config or fact of the host.", *missing]


def unreadable_lines(diff: ReceiptDiff) -> list[str]:
    """Name each difference that is not known, with the reason."""
    return [f"{name}: {reason}." for name, reason in diff.unreadable.items()]


def growth_sentences(growth: ProcessGrowth) -> list[str]:
    """Say what the rows do not explain of the process's growth, and what stands beside it."""
    sentences = [_residue_sentence(growth.residue.difference), _floor_sentence(growth.floor, growth.unattributed)]
    measured = growth.measured.difference
    if isinstance(measured, Reading) and measured.error_bytes:
        sentences.append(f"The two readings of VmRSS may be off by {format_bytes(measured.error_bytes)} together.")
    if growth.in_huge_pages:
        owners = ", ".join(growth.in_huge_pages)
        sentences.append(f"In huge pages of the kernel's pool, in no VmRSS and so in none of these lines: {owners}.")
    outside = (("old", growth.outside.old), ("new", growth.outside.new))
    return sentences + [_outside_sentence(name, amount.bytes) for name, amount in outside if _is_any(amount)]


def increase_sentence(increase: Increase) -> str:
    """Say what grew, and by how much."""
    change = increase.booked
    by = "from nothing" if isinstance(increase.share, Unreadable) else f"by {float(increase.share * 100):,.2f}%"
    what = "the total booked" if increase.is_total else f"booked for {increase.name}"
    return f"{what} grew {by}: {told(change.old)} -> {told(change.new)}, {signed(change.difference)}"


def verdict_lines(increases: Sequence[Increase], allowed: Fraction | None) -> list[str]:
    """Say what grew by more than was allowed; nothing where no bound was given."""
    if allowed is None:
        return []
    share = f"{float(allowed * 100):.12g}%"
    if not increases:
        return [f"Nothing that is booked grew by more than {share}."]
    return [f"FAILS, more than {share}: {increase_sentence(increase)}" for increase in increases]


def config_unknown(reason: Unreadable) -> str:
    """Say why the configs can't be compared."""
    return f"Config: which keys differ is {reason}."


def set_back_words(changes: Sequence[KeyChange]) -> list[str]:
    """Pack the words that set numbers back into lines for a shell, which goes on behind a backslash."""
    lines: list[str] = []
    for word in (change.word for change in changes if change.word):
        # Two columns of the width are the indent. A word is never broken: inside of quotes that would change it.
        if lines and len(f"  {lines[-1]} {word}{_CONTINUED}") <= WIDTH:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return [f"{line}{_CONTINUED}" for line in lines[:-1]] + lines[-1:]


def set_back_lines(changes: Sequence[KeyChange]) -> list[str]:
    """List what the config itself has to say for the old state."""
    return [change.line for change in changes if change.line]


def leaf(value: Leaf | None) -> str:
    """Write a value of a config, or that there is none."""
    return "not there" if value is None else written(value)


def told(amount: Amount) -> str:
    """Write an amount in its own unit."""
    return format_bytes(amount.bytes) if isinstance(amount, Reading) else str(amount)


def signed(amount: Amount) -> str:
    """Write a difference in its own unit, with its sign."""
    return f"+{told(amount)}" if isinstance(amount, Reading) and amount.bytes > 0 else told(amount)


def _named(receipt: LedgerReceipt) -> str:
    engine = f"{receipt.engine}, " if receipt.engine else ""
    scale = "" if receipt.scale == "1" else f"at scale {receipt.scale}, "
    return f"{receipt.source} ({engine}{scale}{receipt.measured_at})"


def _residue_sentence(residue: Amount) -> str:
    if isinstance(residue, Unreadable):
        return f"Residue: {residue}."
    if residue.bytes == 0:
        return "No residue: VmRSS differs by what is resident of the rows, to the byte."
    if residue.bytes > 0:
        return f"Residue {signed(residue)}: VmRSS grew by that much more than what is resident of the rows."
    return f"Residue {signed(residue)}: VmRSS grew by that much less than what is resident of the rows."


def _floor_sentence(floor: Change, unattributed: Change) -> str:
    difference, beside = floor.difference, unattributed.difference
    if isinstance(difference, Unreadable):
        return f"By how much the engine itself (working-set floor) grew: {difference}."
    if difference.bytes == 0:
        line = "The engine itself (working-set floor) did not grow"
    else:
        verb = "grew" if difference.bytes > 0 else "shrank"
        line = f"The engine itself (working-set floor) {verb} by {format_bytes(abs(difference.bytes))}"
    if isinstance(beside, Unreadable):
        return f"{line}; how much of it while its ledger ran: {beside}."
    return f"{line}, {signed(beside)} of it while its ledger ran (unattributed)." if beside.bytes else f"{line}."


def _is_any(amount: Amount) -> TypeGuard[Reading]:
    return isinstance(amount, Reading) and amount.bytes != 0


def _outside_sentence(name: str, outside_bytes: int) -> str:
    size = format_bytes(abs(outside_bytes))
    if outside_bytes > 0:
        return (
            f"Of what rows of the {name} receipt call resident, {size} are not in its VmRSS: huge pages, or pages that"
            " two rows hold. It does not say whose; the predictions are too high by it, and the residue too low."
        )
    return f"The {name} receipt's floor leaves out {size} more than its rows call resident; the residue is off by it."
