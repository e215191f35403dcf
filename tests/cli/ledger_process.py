"""`pinprobe ledger` as a process that holds what it took, and what the kernel says of that process."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.cli.conftest import Pinprobe

MIB = 2**20
PATIENCE_SECONDS = 60

#: Two tenants of ordinary memory, 32 MiB each: enough to be seen, and to be had anywhere.
TWO = """\
engine: {name: two, allocator: pageable}
tenants:
  a.first: {kind: buffer, count: 2, bytes: 16 MiB}
  b.second: {kind: buffer, count: 2, bytes: 16 MiB}
"""
ONE_BYTES = 32 * MIB


@dataclass(frozen=True)
class Mapped:
    """A mapping of a process: what it maps, how long it is, and how much of it is resident."""

    name: str
    size_bytes: int
    resident_bytes: int


def mappings(pid: int) -> list[Mapped]:
    """Read a process's mappings from its smaps."""
    found: list[Mapped] = []
    for line in Path(f"/proc/{pid}/smaps").read_text(encoding="utf-8").splitlines():
        head = re.match(r"([0-9a-f]+)-([0-9a-f]+) \S+ \S+ \S+ \d+ *(.*)$", line)
        if head:
            found.append(Mapped(head[3], int(head[2], 16) - int(head[1], 16), -1))
        elif line.startswith("Rss:"):
            found[-1] = Mapped(found[-1].name, found[-1].size_bytes, int(line.split()[1]) * 1024)
    return found


def status_bytes(pid: int, name: str) -> int:
    """Read one line of a process's status."""
    text = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    found = re.search(rf"^{name}:\s+(\d+) kB$", text, re.MULTILINE)
    assert found is not None, text
    return int(found[1]) * 1024


def with_book(pinprobe: Pinprobe, folder: Path) -> Pinprobe:
    """The command with a book of the host in that folder, apart from what else runs on the machine."""
    folder.mkdir()
    return pinprobe.given({"PINPROBE_BOOK_DIR": str(folder)})


def book_files(pinprobe: Pinprobe) -> list[str]:
    """What lies in the book's folder beside its lock; empty where no process is in it, nor was left there."""
    names = {path.name for path in Path(pinprobe.settings["PINPROBE_BOOK_DIR"]).iterdir()}
    return sorted(names - {"book.lock"})


@contextlib.contextmanager
def started(pinprobe: Pinprobe, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Start `pinprobe ledger`; it is gone afterwards, and also where a test would wait for it for ever."""
    process = pinprobe.start("ledger", *arguments)
    impatience = threading.Timer(PATIENCE_SECONDS, process.kill)
    impatience.start()
    try:
        with process:
            try:
                yield process
            finally:
                process.kill()
    finally:
        impatience.cancel()


@contextlib.contextmanager
def holding(pinprobe: Pinprobe, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Start `pinprobe ledger --hold`, and give it once it does nothing any more but wait for a signal."""
    with started(pinprobe, *arguments, "--hold") as process:
        wait_until_it_holds(process)
        wait_until_it_sleeps(process)
        yield process


def wait_until_it_holds(process: subprocess.Popen[str]) -> None:
    """Read its remarks up to the one that all is taken."""
    assert process.stderr is not None
    said = []
    for line in process.stderr:
        said.append(line)
        if "holding it all" in line:
            return
    raise AssertionError(f"it ended with {process.wait()}: {''.join(said)}")


def wait_until_it_sleeps(process: subprocess.Popen[str]) -> None:
    """Wait until the kernel says three times in a row that it sleeps."""
    in_a_row = 0
    while in_a_row < 3:
        time.sleep(0.01)
        state = Path(f"/proc/{process.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
        in_a_row = in_a_row + 1 if state == "S" else 0
        assert process.poll() is None, "it has ended"


def ended_by(process: subprocess.Popen[str], number: signal.Signals) -> tuple[int, str]:
    """Send it a signal; return its exit code, and what it had to say until its end."""
    process.send_signal(number)
    return ended(process)


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Wait for its end; return its exit code, and what it had to say until then."""
    assert process.stderr is not None
    said = process.stderr.read()
    return process.wait(PATIENCE_SECONDS), said
