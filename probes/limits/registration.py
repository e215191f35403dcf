"""How much one call can register with a GPU's driver: a ceiling that stands in no file, only the driver's version does.

One cudaHostRegister of 512 GiB or more fails on NVIDIA's driver from r580 on, with an error about something else, and
511.96 GiB pass. ROCm refused 531,470,745,600 B in one call. Memory that is registered in pieces is not bound; but a
copy that crosses from one piece into the next fails, so the cuts have to lie where no copy crosses.
"""

from __future__ import annotations

from pinprobe.probes.allocators.registered import CALL_CEILING_BYTES
from pinprobe.probes.host_tree import HostTree
from pinprobe.probes.limits.graphics_driver import read_graphics_drivers
from pinprobe.probes.limits.limit import Absent, Limit, LimitKind, Value, Words, text_or_absent
from pinprobe.probes.reading import Reading, Unreadable

#: The first branch of NVIDIA's driver that has the ceiling.
FIRST_BRANCH = 580
#: A request that ROCm refused. Less is not known to fail.
ROCM_REFUSED_BYTES = 531_470_745_600

_NVIDIA = "/proc/driver/nvidia/version"
_BINDS = "one registration"


def registration_limit(tree: HostTree) -> Limit:
    """Return the size from which on one call fails. `applies` is false where it was seen once and is no rule."""
    drivers = read_graphics_drivers(tree)
    source, applies, note = _NVIDIA, True, ""
    value: Value
    if drivers.nvidia_branch is not None:
        ceiling = Reading(CALL_CEILING_BYTES, f"driver {drivers.nvidia}")
        value = ceiling if drivers.nvidia_branch >= FIRST_BRANCH else Words("none known")
        note = f"driver {drivers.nvidia}; the ceiling is known from {FIRST_BRANCH} on"
    elif drivers.nvidia is not None:
        value = Unreadable(f"{_NVIDIA} names no version")
    elif drivers.has_amd:
        source, applies = "/sys/module/amdgpu", False
        value, note = Reading(ROCM_REFUSED_BYTES, "ROCm"), "ROCm refused this size once; less is not known to fail"
    elif isinstance(text_or_absent(tree, _NVIDIA, "/proc"), Unreadable):
        value = Unreadable(f"{_NVIDIA} can't be read")
    else:
        value = Absent("no GPU driver")
    return Limit(LimitKind.REGISTRATION, "per-call ceiling", value, source, _BINDS, {}, applies, note)
