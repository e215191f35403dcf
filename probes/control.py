"""The control: ordinary memory of the same size, measured the same way. Without its 1.000 nothing else counts."""

from __future__ import annotations

from pinprobe.probes.cost import Cost
from pinprobe.probes.reading import Unreadable

#: An error bar wider than this share of the ask can't tell a rounded block from an exact one well enough to be called
#: proof.
_WIDEST_BAR = 0.02


def margin_bytes(asked_bytes: int, page_size_bytes: int) -> int:
    """Return how far a reading may be off without meaning anything: pages that the interpreter takes meanwhile.

    Some pages, but never more than a fiftieth of the ask; for large asks half of the last decimal that is shown.
    """
    return max(asked_bytes // 2000, min(4 * page_size_bytes, asked_bytes // 50))


def control_fault(control: Cost | None, page_size_bytes: int) -> str | None:
    """Say why the control voids the run, or None where it reads 1.000 within its error bar.

    The expected reading is the ask rounded up to whole pages, which is all that a kernel can give.
    """
    if control is None:
        return "no control was measured"
    if isinstance(control.resident, Unreadable):
        return f"the control is {control.resident}"
    expected = -(-control.asked_bytes // page_size_bytes) * page_size_bytes
    if control.resident.error_bytes > expected * _WIDEST_BAR:
        return (
            f"the error bar of ±{control.resident.error_bytes:,} B is too wide for {control.asked_bytes:,} B;"
            f" ask for {int(control.resident.error_bytes / _WIDEST_BAR):,} B or more"
        )
    if not control.resident.within(expected, margin_bytes(control.asked_bytes, page_size_bytes)):
        took, bar = control.resident.bytes, control.resident.error_bytes
        ratio = took / control.asked_bytes
        return (
            f"the control took {took:,} B for {control.asked_bytes:,} B asked (ratio {ratio:.3f}, error bar ±{bar:,} B)"
        )
    return None
