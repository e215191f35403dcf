"""Raises the two limits that can be raised without a reboot: TTM's pages_limit, and this process's own memlock.

What was set is read back: a kernel may take a value and keep another. Nothing of a host that only lends its files is
ever written: where a tree was recorded, its files are its own; where it shows a running kernel, writing would set that.
"""

from __future__ import annotations

import os
import resource
from dataclasses import dataclass
from pathlib import Path

from pinprobe.probes.errors import CheckFailed, printable
from pinprobe.probes.host_tree import THIS_HOST, HostTree
from pinprobe.probes.kernel_text import single_number
from pinprobe.probes.limits.ttm import PAGE_BYTES, pages_limit_file
from pinprobe.probes.reading import Unreadable
from pinprobe.probes.units import format_bytes

_KERNELS_OWN = ("proc", "sysfs", "cgroup", "cgroup2", "debugfs", "securityfs", "configfs")


@dataclass(frozen=True, slots=True)
class Raised:
    """What was set. `old_bytes` and `new_bytes` were read before and after; None stands for no limit."""

    name: str
    source: str
    old_bytes: int | None
    new_bytes: int | None


def raise_pages_limit(tree: HostTree, module: str, wanted_bytes: int) -> Raised:
    """Set a TTM module's pages_limit to whole pages of at least `wanted_bytes`, and read it back.

    Raises `CheckFailed`, naming the limit, where that can't be done or was not kept.
    """
    name, source = f"{module} pages_limit", pages_limit_file(module)
    path = tree.path(source)
    if tree != THIS_HOST:
        refuse_a_running_kernel(tree, path, name)
    old = single_number(tree.text(source), source)
    if isinstance(old, Unreadable):
        raise CheckFailed(f"{name} is not raised: it is {old}")
    pages = -(-wanted_bytes // PAGE_BYTES)
    remedy = f"echo {pages} | sudo tee {source}"
    if pages <= old.bytes:
        raise CheckFailed(
            f"{name} is not raised: it is {format_bytes(old.bytes * PAGE_BYTES)} already, which is enough"
        )
    try:
        # Without O_CREAT: a limit that is not there is never made.
        descriptor = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(f"{pages}\n")
    except OSError as error:
        reason = error.strerror or error
        raise CheckFailed(f"{name} can't be raised: {printable(path)}: {reason}; as root: {remedy}") from None
    new = single_number(tree.text(source), source)
    if isinstance(new, Unreadable) or new.bytes != pages:
        reads = str(new) if isinstance(new, Unreadable) else f"{new.bytes}"
        raise CheckFailed(f"{name} was set to {pages} and now reads {reads}; look at the kernel's log: dmesg | tail")
    return Raised(name, source, old.bytes * PAGE_BYTES, new.bytes * PAGE_BYTES)


def raise_memlock(wanted_bytes: int | None) -> Raised:
    """Raise the soft limit of this process, which what it starts inherits, and read it back.

    None asks for all that the hard limit allows. Raises `CheckFailed` where that is less than is wanted: only root
    raises a hard limit, and then for a shell or a unit, not from within.
    """
    name, source = "RLIMIT_MEMLOCK", "/proc/self/limits"
    soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    wanted = hard if wanted_bytes is None else wanted_bytes
    if soft == resource.RLIM_INFINITY or (wanted != resource.RLIM_INFINITY and wanted <= soft):
        raise CheckFailed(f"{name} is not raised: its soft limit is {_words(soft)} already, and no more is to be had")
    if hard != resource.RLIM_INFINITY and (wanted == resource.RLIM_INFINITY or wanted > hard):
        raise CheckFailed(
            f"{name} can't be raised to {_words(wanted)}: its hard limit is {_words(hard)}; as root: prlimit --pid $$"
            f" --memlock={wanted}:{wanted} for a shell, or LimitMEMLOCK= in a unit"
        )
    try:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (wanted, hard))
    except (OSError, ValueError) as error:
        raise CheckFailed(f"{name} can't be raised to {_words(wanted)}: {error}") from None
    kept, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if kept != wanted:
        raise CheckFailed(f"{name} was set to {_words(wanted)} and now reads {_words(kept)}")
    return Raised(name, source, soft, None if kept == resource.RLIM_INFINITY else kept)


def refuse_a_running_kernel(tree: HostTree, path: Path, name: str) -> None:
    """Raise `CheckFailed` where a file of a tree is not the tree's own, but a running kernel's or outside of it."""
    real, root = path.resolve(), tree.root.resolve()
    if not real.is_relative_to(root) or root == Path("/"):
        raise CheckFailed(f"{name} is not raised: {printable(path)} lies outside of the tree that --root names")
    kind = _file_system(real)
    if kind is None or kind in _KERNELS_OWN:
        reason = "it can't be told what file system it is on" if kind is None else f"it is a running kernel's ({kind})"
        raise CheckFailed(
            f"{name} is not raised: {printable(path)}: {reason}, and --root only reads; leave --root out on that host"
        )


def _file_system(path: Path) -> str | None:
    """Return the kind of file system that a path lies on; None where that can't be told."""
    text = THIS_HOST.text("/proc/self/mountinfo")
    if isinstance(text, Unreadable):
        return None
    best: tuple[int, str] | None = None
    for line in text.split("\n"):
        before, separator, after = line.partition(" - ")
        place, kind = before.split(), after.split()
        if not separator or len(place) < 5 or not kind:
            continue
        point = Path(
            place[4].replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\")
        )
        # Of two at one place the later lies above.
        if path.is_relative_to(point) and (best is None or len(point.parts) >= best[0]):
            best = (len(point.parts), kind[0])
    return None if best is None else best[1]


def _words(limit: int) -> str:
    return "unlimited" if limit == resource.RLIM_INFINITY else format_bytes(limit)
