"""What torch was told of its pinned allocator in PYTORCH_ALLOC_CONF, and which of it the common allocator honours."""

from __future__ import annotations

import re

#: Where torch takes them from. Of two that are set, which one wins is torch's affair, and is asked of it.
SETTINGS_NAMES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")

_KEY = re.compile(r"([A-Za-z0-9_]+)\s*:\s*(\[[^\]]*\]|[^,]*)")


def settings_by_key(settings: str) -> dict[str, str]:
    """Read `key:value,key:[a:1,b:2]`.

    >>> settings_by_key("pinned_max_cached_size_mb:1024, roundup_power2_divisions:[64:8,256:4]")
    {'pinned_max_cached_size_mb': '1024', 'roundup_power2_divisions': '[64:8,256:4]'}
    """
    return {key: value.strip() for key, value in _KEY.findall(settings)}


def notes_on_settings(settings: str, known_keys: set[str], header: str) -> tuple[str, ...]:
    """Say which pinned settings are in force, and which can't be reproduced.

    A key is honoured where torch's common configuration knows it and the template's own header reads it. The rest of
    the pinned keys belong to one backend's allocator (CUDA's reserved segment, its registering threads) or are
    misspelt; torch accepts both in silence.
    """
    notes = []
    for key, value in settings_by_key(settings).items():
        if not key.startswith("pinned_"):
            continue
        if key in known_keys and key.removesuffix("_mb") in header:
            notes.append(f"setting in force: {key}:{value}")
        else:
            notes.append(f"setting not reproduced here: {key}:{value} (not part of the common allocator)")
    return tuple(notes)
