"""Which heavy libraries a command loads, told by a process of its own."""

from __future__ import annotations

import subprocess
import sys

from tests.cli.conftest import Pinprobe

_HEAVY = ("torch", "pydantic", "rich", "psutil", "numpy", "yaml")
TELL_LOADED = f"""
import atexit, sys
atexit.register(lambda: print(*sorted(set({_HEAVY!r}) & set(sys.modules)), file=sys.stderr))
"""
RUN = "from pinprobe.cli.main import main; main.main(sys.argv[1:], prog_name='pinprobe', standalone_mode=False)"


def loaded_by(pinprobe: Pinprobe, code: str, *arguments: str) -> str:
    command = [sys.executable, "-c", TELL_LOADED + code, *arguments]
    done = subprocess.run(command, env=pinprobe.environment, capture_output=True, text=True, check=True)
    return done.stderr.strip()
