"""The control: ordinary memory of the same size, measured the same way. Without its 1.000 nothing else counts."""

from __future__ import annotations

from pinprobe.probes.cost import Cost
from pinprobe.probes.reading import Unreadable

#: An error bar wider than this share of the ask can't tell a rounded block from an exact one well enough to be called
#: proof.
_WIDEST_BAR = 0.02


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
    # Half of the last decimal of 1.000: a page that the interpreter took meanwhile voids no run.
    if not control.resident.within(expected, control.asked_bytes // 2000):
        took, bar = control.resident.bytes, control.resident.error_bytes
        ratio = took / control.asked_bytes
        return (
            f"the control took {took:,} B for {control.asked_bytes:,} B asked (ratio {ratio:.3f}, error bar ±{bar:,} B)"
        )
    return None
