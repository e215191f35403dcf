"""Which pinned keys of PYTORCH_ALLOC_CONF the installed torch knows, found in its own files and in no list of ours."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from pinprobe.probes.allocators.torch_settings import SETTINGS_NAMES, settings_by_key
from pinprobe.probes.installed_torch import InstalledTorch

_IN_LIBRARY = re.compile(rb"(?<=\0)pinned_[a-z0-9_]{1,80}(?=\0)")
# A literal in a header may be cut into several that stand one after the other.
_LITERALS = re.compile(r'(?:"[A-Za-z0-9_]*"\s*)+')
_KEY = re.compile(r"pinned_[a-z0-9_]{1,80}")


def pinned_keys(torch: InstalledTorch) -> tuple[str, ...]:
    """Return the pinned keys by name, sorted: of the common allocator, and of each backend that this torch has.

    The common library holds its keys as texts. Of a backend the header is read too: a compiler may put short texts
    into the code itself, where nobody finds them. torch is not imported, and a file that is missing knows no key.
    """
    found: set[str] = set()
    for library in sorted((torch.folder / "lib").glob("libc10*.so")):
        found |= {key.decode("ascii") for key in _IN_LIBRARY.findall(library.read_bytes())}
        backend = library.stem.partition("_")[2]
        if backend:
            found |= _keys_in_headers(torch.folder / "include" / "c10" / backend)
    return tuple(sorted(found))


def _keys_in_headers(folder: Path) -> set[str]:
    found: set[str] = set()
    for header in folder.glob("*AllocatorConfig.h"):
        text = header.read_text(encoding="utf-8", errors="replace")
        found.update(re.sub(r'["\s]', "", run) for run in _LITERALS.findall(text))
    return {literal for literal in found if _KEY.fullmatch(literal)}


def settings_with(environment: Mapping[str, str], key: str, value: str) -> dict[str, str]:
    """Return the variables of an environment that tell torch its settings, with one key set beside what they say.

    Every variable that is set gets it, since which of them wins is torch's affair.

    >>> settings_with({}, "pinned_max_cached_size_mb", "1")
    {'PYTORCH_ALLOC_CONF': 'pinned_max_cached_size_mb:1'}
    """
    given = {name: environment[name] for name in SETTINGS_NAMES if name in environment} or {"PYTORCH_ALLOC_CONF": ""}
    return {
        name: ",".join(f"{known}:{text}" for known, text in {**settings_by_key(settings), key: value}.items())
        for name, settings in given.items()
    }
