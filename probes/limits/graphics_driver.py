"""Which GPU drivers a host has: each pins by its own rules, and is bound by its own limits."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pinprobe.probes.host_tree import HostTree

_NVIDIA = "/proc/driver/nvidia/version"
_VERSION = re.compile(r"\b([0-9]{3,4})(\.[0-9]{1,4}){1,2}\b", re.ASCII)


@dataclass(frozen=True, slots=True)
class GraphicsDrivers:
    """`nvidia` is the version of that driver, empty where it is there and says none, and None without it."""

    nvidia: str | None
    has_amd: bool

    @property
    def nvidia_branch(self) -> int | None:
        """The number that a driver's version begins with: 580 of 580.159.04. None where there is none."""
        head = (self.nvidia or "").partition(".")[0]
        return int(head) if head else None


def read_graphics_drivers(tree: HostTree) -> GraphicsDrivers:
    """Look which drivers are loaded."""
    text = tree.text(_NVIDIA)
    nvidia = None
    if isinstance(text, str):
        version = _VERSION.search(text)
        nvidia = version[0] if version else ""
    modules = tree.names("/sys/module")
    return GraphicsDrivers(nvidia, "amdgpu" in modules or "amdttm" in modules)
