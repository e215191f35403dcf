"""TTM's pages_limit: how many pages AMD's driver may pin for GPUs on the whole host.

The kernel sets it to half of the memory at every boot. With less than an engine pins, loading dies on the way and the
allocator's error names nothing. NVIDIA's driver does not go by it, though the module may be loaded beside it for a
display.
"""

from __future__ import annotations

from collections.abc import Mapping

from pinprobe.probes.host_tree import HostTree
from pinprobe.probes.kernel_text import kilobyte_fields, single_number
from pinprobe.probes.limits.graphics_driver import read_graphics_drivers
from pinprobe.probes.limits.gtt import read_gtt
from pinprobe.probes.limits.limit import Absent, Limit, LimitKind, Value, text_or_absent
from pinprobe.probes.reading import Reading, Unreadable

#: What pages_limit counts in.
PAGE_BYTES = 4096
#: The kernel's own module, and that of AMD's packaged driver.
MODULES = ("ttm", "amdttm")

_BINDS = "AMD's pinning"


def pages_limit_file(module: str) -> str:
    """Return where the limit of a module is read and set."""
    return f"/sys/module/{module}/parameters/pages_limit"


def ttm_limits(tree: HostTree) -> tuple[Limit, ...]:
    """Return the limit of each of the two modules that is loaded; one that is absent where neither is.

    The value is what the limit leaves beside what the cards have taken already; the parts are the `limit`, what is
    `used`, and the host's `memory_total`.
    """
    loaded = [module for module in MODULES if module in tree.names("/sys/module")]
    if not loaded:
        name = pages_limit_file(MODULES[0])
        text = text_or_absent(tree, name, "/sys/module")
        value: Value = Unreadable(f"{name} is there and its folder can't be listed") if isinstance(text, str) else text
        if isinstance(text, Absent):
            value = Absent("the module is not loaded")
        return (Limit(LimitKind.TTM, "ttm pages_limit", value, name, _BINDS),)
    return tuple(_module_limit(tree, module, loaded) for module in loaded)


def _module_limit(tree: HostTree, module: str, loaded: list[str]) -> Limit:
    name = pages_limit_file(module)
    text = text_or_absent(tree, name, "/sys/module")
    parts: Mapping[str, Reading] = {}
    value: Value
    if isinstance(text, Absent):
        value = Absent("this kernel's module has none")
    else:
        pages = single_number(text, name)
        if isinstance(pages, Reading):
            limit = Reading(pages.bytes * PAGE_BYTES, name)
            used = sum(card.used.bytes for card in read_gtt(tree) if isinstance(card.used, Reading))
            value = Reading(max(0, limit.bytes - used), name)
            parts = {"limit": limit, "used": Reading(used, "mem_info_gtt_used"), **_memory_total(tree)}
        else:
            value = pages
    return Limit(LimitKind.TTM, f"{module} pages_limit", value, name, _BINDS, parts, *_applies(tree, module, loaded))


def _memory_total(tree: HostTree) -> dict[str, Reading]:
    total = kilobyte_fields(tree.text("/proc/meminfo"), ["MemTotal"], "/proc/meminfo")["MemTotal"]
    return {"memory_total": total} if isinstance(total, Reading) else {}


def _applies(tree: HostTree, module: str, loaded: list[str]) -> tuple[bool, str]:
    """Say whether the driver at hand goes by this module's limit, and where it does not, why."""
    if module == "ttm" and "amdttm" in loaded:
        return False, "AMD's driver goes by amdttm here"
    drivers = read_graphics_drivers(tree)
    if drivers.nvidia is not None and not drivers.has_amd:
        return False, "NVIDIA's driver does not go by it"
    return True, ""
