"""A real process that keeps a book, and does what it is told line by line; and the same seen from a test.

Run as `python -m tests.ledger.book_process FOLDER LABEL`. Each line is a command with its arguments; each answer is a
line of JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import select
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pinprobe as package
from pinprobe.ledger.book.book_entry import BookReading, BookRow
from pinprobe.ledger.book.host_book import HostBook
from pinprobe.probes.errors import PinprobeError

ROOT = Path(__file__).resolve().parent.parent.parent
PATIENCE_SECONDS = 60

#: In the races an allocation costs one unit, and may, for all that is known before, cost two.
UNIT = 2**20
PRICE = 2 * UNIT
#: Where five are booked, a sixth does not fit; where fewer are, one does, once nobody is pending.
LIMIT = 6 * UNIT


class _Worker:
    """The process's side: a method for each command."""

    def __init__(self, folder: Path, label: str) -> None:
        self.folder = folder
        self.book = HostBook(folder, label)
        self.random = random.Random(label)

    def who(self) -> list[object]:
        return [self.book.process, os.getpid()]

    def write(self, *sizes: str) -> None:
        self.book.write([BookRow("tenant", int(size), int(size)) for size in sizes])

    def read(self) -> list[object]:
        return described(self.book.read())

    def others(self) -> list[object]:
        with self.book.locked() as others:
            return described(others)

    def close(self) -> None:
        self.book.close()

    def become(self, user: str) -> None:
        os.setgroups([])
        os.setgid(int(user))
        os.setuid(int(user))

    def umask(self, mask: str) -> None:
        os.umask(int(mask, 8))

    def reserve(self, milliseconds: str, held: str) -> bool:
        """Reserve one unit of what all share, if it fits; the memory itself is a file in `held`."""
        if not self.pend():
            return False
        time.sleep((1 + self.random.random()) / 2 * int(milliseconds) / 1000)
        (Path(held) / self.book.process).touch()
        self.book.write([BookRow("tenant", UNIT, UNIT)])
        return True

    def pend(self) -> bool:
        """Write a pending row if there is room, waiting for others while any is pending."""
        while True:
            with self.book.locked() as others:
                assert not others.unreadable, others
                taken = sum(entry.booked_bytes + entry.pending_bytes for entry in others.entries)
                if taken + PRICE <= LIMIT:
                    self.book.write([BookRow("tenant", UNIT, PRICE, pending=True)])
                    return True
                must_wait = any(entry.pending_bytes for entry in others.entries)
            if not must_wait:
                return False
            time.sleep(self.random.random() * 0.003)

    def settle(self) -> None:
        """Turn the pending row into a booked one."""
        self.book.write([BookRow("tenant", UNIT, UNIT)])

    def free(self, held: str) -> None:
        (Path(held) / self.book.process).unlink(missing_ok=True)
        self.book.write([])

    def lock_and_hang(self, gate: str = "") -> None:
        """Never leave the lock; where there is a gate, with a child forked meanwhile that lives until it shuts."""
        with self.book.locked():
            if gate:
                fork_living_child(gate)
            answer(None)
            time.sleep(PATIENCE_SECONDS)

    def fork_while_locked(self, count: str, gate: str) -> list[int]:
        """Fork children in one thread while another takes and leaves the lock; they live until the gate shuts."""
        children: list[int] = []
        done = threading.Event()

        def fork_all() -> None:
            for _ in range(int(count)):
                children.append(fork_living_child(gate))
            done.set()

        with self.book.locked():
            # The first is forked while the lock is held for certain.
            forking = threading.Thread(target=fork_all)
            forking.start()
            while not children:
                time.sleep(0.001)
        while not done.is_set():
            with self.book.locked():
                pass
        forking.join()
        return children

    def fork_and_write(self, size: str) -> list[object]:
        """Fork a child that uses the inherited book while the parent is inside the lock; return both sides' words."""
        reader, writer = os.pipe()
        with self.book.locked():
            child = os.fork()
            if child:
                os.close(writer)
                time.sleep(0.05)
        if child == 0:
            os.close(reader)
            # In another thread than the one that forked: it must not find a lock that nobody will let go of.
            using = threading.Thread(target=self._use_in_child, args=(int(size), writer))
            using.start()
            using.join(PATIENCE_SECONDS / 2)
            os._exit(0)
        with os.fdopen(reader, "rb") as pipe:
            said = json.loads(pipe.read())
        os.waitpid(child, 0)
        return [self.book.process, *said]

    def _use_in_child(self, size: int, writer: int) -> None:
        self.book.write([BookRow("of the child", size, size)])
        with self.book.locked() as others:
            said = [self.book.process, described(others)]
        os.write(writer, json.dumps([*said, described(self.book.read())]).encode("ascii"))

    def fill(self) -> None:
        with (self.folder / "filler").open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while file.write(b"\0" * 4096):
                pass

    def unfill(self) -> None:
        (self.folder / "filler").unlink()


def fork_living_child(gate: str) -> int:
    """Fork a child that lives until the gate shuts; return once Python has done in it what it does after a fork."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, b".")
        os.read(int(gate), 1)
        os._exit(0)
    os.read(reader, 1)
    os.close(reader)
    os.close(writer)
    return child


def described(reading: BookReading) -> list[object]:
    """A look at the book as JSON holds it: [label, pid, booked, pending] of each, and what is unreadable."""
    entries = [[e.label, e.pid, e.booked_bytes, e.pending_bytes] for e in reading.entries]
    return [entries, list(reading.unreadable)]


def answer(value: object) -> None:
    print(json.dumps(value), flush=True)


def serve() -> None:
    worker = _Worker(Path(sys.argv[1]), sys.argv[2])
    answer("ready")
    for line in sys.stdin:
        command, *arguments = json.loads(line)
        try:
            value = getattr(worker, command)(*arguments)
        except PinprobeError as error:
            value = {"kind": type(error).__name__, "line": str(error)}
        answer(value)


class BookProcess:
    """The test's side."""

    def __init__(
        self, folder: Path, label: str = "", before: Sequence[str] = (), inherited: Sequence[int] = ()
    ) -> None:
        libraries = [str(ROOT), str(Path(package.__file__).resolve().parent.parent)]
        settings = {key: value for key, value in os.environ.items() if not key.startswith("PINPROBE_")}
        self._process = subprocess.Popen(
            [*before, sys.executable, "-m", "tests.ledger.book_process", str(folder), label],
            env={**settings, "PYTHONPATH": os.pathsep.join(libraries)},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, pass_fds=inherited,
        )  # fmt: skip
        self.pid = self._process.pid

    def tell(self, command: str, *arguments: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([command, *map(str, arguments)]).encode("ascii") + b"\n")

    def answer(self) -> Any:
        assert self._process.stdout is not None
        line = b""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not line.endswith(b"\n"):
            assert select.select([self._process.stdout], [], [], max(0, deadline - time.monotonic()))[0], "no answer"
            piece = self._process.stdout.read(65536)
            assert piece, "the process has ended; what it said is above"
            line += piece
        return json.loads(line)

    def ask(self, command: str, *arguments: object) -> Any:
        self.tell(command, *arguments)
        return self.answer()

    def kill(self) -> None:
        """End it by SIGKILL and wait for that."""
        self._process.kill()
        self._process.wait(PATIENCE_SECONDS)

    def end(self) -> None:
        """Let it end as programs do."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self._process.wait(PATIENCE_SECONDS) == 0

    def is_silent(self) -> bool:
        """Say whether nobody holds its stdout any more."""
        assert self._process.stdout is not None
        return bool(select.select([self._process.stdout], [], [], 0)[0]) and not self._process.stdout.read(1)

    def wait_for_silence(self) -> None:
        """Wait until nobody holds its stdout any more: neither it nor what it started."""
        assert self._process.stdout is not None
        while select.select([self._process.stdout], [], [], PATIENCE_SECONDS)[0]:
            if not self._process.stdout.read(65536):
                return
        raise AssertionError("it goes on")

    def close(self) -> None:
        self.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


@contextlib.contextmanager
def book_processes(count: int, folder: Path, before: Sequence[str] = (), inherited: Sequence[int] = ()) -> Iterator[
    list[BookProcess]
]:  # fmt: skip
    """So many processes that keep a book in that folder; at the end none is left."""
    started: list[BookProcess] = []
    try:
        started += (BookProcess(folder, f"rank {number}", before, inherited) for number in range(count))
        for process in started:
            assert process.answer() == "ready"
        yield started
    finally:
        for process in started:
            process.close()


if __name__ == "__main__":
    serve()
