"""Runs a function in a process of its own: nothing is warm there, and it may die without taking the tests along."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

_Result = TypeVar("_Result")

# What the function prints goes to stderr, and the real stdout carries its result alone. The process is first in line
# for the OOM killer, so that a test of many gibibytes ends before anything else does.
_BOOT = """
import os, pickle, sys
result = os.fdopen(os.dup(1), "wb")
os.dup2(2, 1)
with open("/proc/self/oom_score_adj", "w") as file:
    file.write("1000")
sys.path[:] = pickle.load(sys.stdin.buffer)
function, arguments = pickle.load(sys.stdin.buffer)
pickle.dump(function(*arguments), result)
result.close()
"""


@dataclass(frozen=True)
class Ended:
    """How a process ended: its exit code (negative for a signal), what it returned pickled, what it said."""

    code: int
    pickled: bytes
    stderr: str


def run_to_its_end(
    function: Callable[..., object],
    *arguments: object,
    settings: Mapping[str, str] | None = None,
    patience_seconds: float = 60,
) -> Ended:
    """Run the function, whatever becomes of it. A process that hangs is a failure and not an end."""
    done = subprocess.run(
        [sys.executable, "-c", _BOOT],
        input=pickle.dumps(sys.path) + pickle.dumps((function, arguments)),
        capture_output=True,
        check=False,
        timeout=patience_seconds,
        env={**os.environ, **(settings or {})},
    )
    return Ended(done.returncode, done.stdout, done.stderr.decode(errors="replace"))


def in_fresh_process(
    function: Callable[..., _Result],
    *arguments: object,
    settings: Mapping[str, str] | None = None,
    patience_seconds: float = 60,
) -> _Result:
    """Run the function and return what it returned; what it raised fails the test, with its own traceback."""
    ended = run_to_its_end(function, *arguments, settings=settings, patience_seconds=patience_seconds)
    assert ended.code == 0, f"the process ended with {ended.code}:\n{ended.stderr}"
    result: Any = pickle.loads(ended.pickled)
    returned: _Result = result
    return returned
