"""`Limit`: one thing of a host that bounds what memory can be had or pinned, as it was read, and what it binds.

A limit that this host does not have is `Absent` and binds nobody. One that is there and can't be read is `Unreadable`,
which is another matter: it may bind.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

from pinprobe.probes.host_tree import HostTree
from pinprobe.probes.reading import Reading, Unreadable


class LimitKind(str, Enum):
    """What a limit is, whatever it is called on this host."""

    MEMORY = "memory"
    CGROUP = "cgroup"
    MEMLOCK = "memlock"
    HUGEPAGES = "hugepages"
    TTM = "ttm"
    GTT = "gtt"
    REGISTRATION = "registration"
    SHARED_MEMORY = "shared_memory"
    OVERCOMMIT = "overcommit"
    SWAP = "swap"
    HUGE_PAGE_MODE = "huge_page_mode"
    NUMA = "numa"
    OOM_DAEMON = "oom_daemon"
    OOM_SCORE = "oom_score"
    RANKS = "ranks"
    SURROUNDINGS = "surroundings"


@dataclass(frozen=True, slots=True)
class Words:
    """A value that is no number of bytes: a mode, a name, or a `number` that counts something else."""

    text: str
    number: int | None = None

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Absent:
    """What this host does not have, and so is not bound by."""

    reason: str

    def __str__(self) -> str:
        return self.reason


Value: TypeAlias = "Reading | Words | Absent | Unreadable"


@dataclass(frozen=True)
class Limit:
    """One limit of a host.

    `name` is what a table calls it, `binds` what it holds for, in words. `value` is what can still be had under it, or
    a mode. `source` is the file that it was read from. `parts` are further figures by name (`used`, `page`), in bytes,
    that only a limit of this kind has. `applies` is false for one that is there and that nothing at hand goes by;
    `note` says why, or how the value was proven.
    """

    kind: LimitKind
    name: str
    value: Value
    source: str
    binds: str
    parts: Mapping[str, Reading] = field(default_factory=dict)
    applies: bool = True
    note: str = ""


def text_or_absent(tree: HostTree, name: str, folder: str) -> str | Absent | Unreadable:
    """Read a file; one that is missing in a `folder` that is there is `Absent`, and without the folder unreadable.

    A tree that was recorded without `/sys` says nothing about what lay in it.
    """
    text = tree.text(name)
    if not isinstance(text, Unreadable):
        return text
    if not _is_there(tree, folder):
        return Unreadable(f"{folder}: there is no such folder in this tree")
    return text if _is_there(tree, name) else Absent(f"there is no {name}")


def _is_there(tree: HostTree, name: str) -> bool:
    try:
        tree.path(name).lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except (OSError, ValueError):  # it may not be looked at, which is not the same
        return True
    return True
