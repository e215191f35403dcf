"""The maps that this host measured, kept in pinprobe's cache folder: one for each allocator, torch and settings.

A map says what one host's allocator does under one torch with one set of settings, so all of these are in the name of
its file, and what changes any of them finds no map. A file is the receipt of its sweep, as `pinprobe sweep` writes it:
put there whole by a rename, and set aside where it can't be read.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import re
import tempfile
from pathlib import Path

from pinprobe.ledger.plan.map_file import MapFile, read_map
from pinprobe.ledger.receipts.receipt import sweep_receipt
from pinprobe.probes.cache_folder import MAPS_FOLDER, cache_folder
from pinprobe.probes.errors import BadRequest, in_one_line
from pinprobe.probes.host_facts import HostFacts
from pinprobe.probes.sweep import Sweep

_COMMAND = ("pinprobe", "plan", "--measure")


class MapCache:
    """The kept maps of one host. `remarks` has a line for each file that was set aside or could not be written."""

    def __init__(self, host: HostFacts) -> None:
        self._host = host
        self.folder = cache_folder() / MAPS_FOLDER
        self.remarks: list[str] = []

    def find(self, allocator: str) -> MapFile | None:
        """Return the map that was kept for an allocator, by the name under which it was asked for."""
        path = self._path(allocator)
        if not os.path.lexists(path):
            return None
        try:
            return read_map(path)
        except BadRequest as error:
            self._set_aside(path, str(error))
            return None

    def keep(self, allocator: str, sweep: Sweep) -> None:
        """Keep a map. Where the folder can't be written that is remarked, and the map serves this run alone."""
        text = json.dumps(sweep_receipt([sweep], self._host, _COMMAND))
        path = self._path(allocator)
        temporary = None
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(prefix="writing-", dir=self.folder)
            temporary = Path(name)
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text + "\n")
            temporary.replace(path)
        except OSError as error:
            self.remarks.append(f"the map of {allocator} can't be kept in {self.folder}: {in_one_line(error)}")
            if temporary is not None:
                with contextlib.suppress(OSError):
                    temporary.unlink(missing_ok=True)

    def _path(self, allocator: str) -> Path:
        host = self._host
        parts = [
            allocator, platform.node(), host.machine, host.kernel, host.driver, host.page_size_bytes,
            host.transparent_hugepages, host.shared_memory_hugepages, host.torch, *sorted(host.torch_settings.items()),
        ]  # fmt: skip
        digest = hashlib.sha256()
        for part in map(repr, parts):
            digest.update(len(part).to_bytes(8, "big") + part.encode("utf-8", "surrogateescape"))
        readable = re.sub(r"[^A-Za-z0-9_-]", "_", allocator)[:40]
        return self.folder / f"{readable}-{digest.hexdigest()[:24]}.json"

    def _set_aside(self, path: Path, reason: str) -> None:
        aside = path.with_suffix(".damaged")
        try:
            path.replace(aside)
        except OSError as error:
            self.remarks.append(f"{reason} (it can't be set aside: {in_one_line(error)})")
        else:
            self.remarks.append(f"{reason.rpartition('; ')[0]}; it was set aside as {aside.name}")
