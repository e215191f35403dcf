"""A real process with an overflow, that does what it is told line by line; and the same seen from a test.

Run as `python -m tests.ledger.tenants.overflow_process`. Each line is a command with its arguments; each answer is a
line of JSON.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import resource
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pinprobe as package
from pinprobe.ledger.tenants import disk_overflow, row_transfer
from pinprobe.ledger.tenants.disk_overflow import DiskOverflow
from pinprobe.probes.errors import PinprobeError
from tests.ledger.tenants.overflow_bench import LARGE, PATIENCE_SECONDS, SMALL, Pages, key, row

ROOT = Path(__file__).resolve().parent.parent.parent.parent


class _Worker:
    """The process's side: a method for each command."""

    overflow: DiskOverflow

    def open(self, folder: str, bound_bytes: str, size: str = "small") -> list[str]:
        self.layout = {"small": SMALL, "large": LARGE}[size]
        self.pages = Pages(self.layout)
        self.overflow = DiskOverflow(Path(folder), self.layout, int(bound_bytes))
        return [path.name for path in Path(folder).iterdir()]

    def write(self, number: str, value: str = "1") -> list[str]:
        address = self.pages.holding(int(number), self.layout)
        outcome = self.overflow.write(key(int(number)), int(number), address, float(value))
        return [outcome.end.value, outcome.text]

    def restore(self, number: str) -> str:
        self.pages.content = bytes(self.pages.size_bytes)
        restore = self.overflow.begin_restore(key(int(number)), self.pages.address)
        if restore is None:
            return "not there"
        assert restore.wait(PATIENCE_SECONDS)
        state = restore.collect()
        if state.lost is not None:
            return state.lost.value
        assert self.pages.content == row(int(number), self.layout), "wrong bytes were served"
        return state.stage.value

    def hammer(self, first: str, count: str) -> list[str]:
        """Write savepoints of rising value, and read each that was written; return how the writes ended."""
        ends = []
        for number in range(int(first), int(first) + int(count)):
            end, _ = self.write(str(number), str(number))
            ends.append(end)
            if end == "written":
                assert self.restore(str(number)) == "ready"
        return ends

    def is_direct(self) -> bool | None:
        return self.overflow.stats().is_direct

    def held_bytes(self) -> int:
        return self.overflow.held_bytes

    def close(self) -> bool:
        return self.overflow.close()

    def hang_halfway(self) -> None:
        """Let every transfer from now on move its first half and no more."""
        pieces = row_transfer._chunks
        row_transfer.CHUNK_BYTES = self.pages.size_bytes // 2

        def hanging(address: int, size_bytes: int) -> Iterator[tuple[int, memoryview]]:
            for offset, piece in pieces(address, size_bytes):
                if offset:
                    print(json.dumps("halfway"), flush=True)
                    time.sleep(PATIENCE_SECONDS)
                yield offset, piece

        row_transfer._chunks = hanging

    def become(self, user: str) -> None:
        os.setgroups([])
        os.setgid(int(user))
        importlib.import_module("xxhash")  # which is imported with the first file, and may lie where he may not read
        os.setuid(int(user))

    def limit_files(self, size_bytes: str) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(size_bytes), resource.RLIM_INFINITY))

    def limit_files_once_set_aside(self, size_bytes: str) -> None:
        """Lower the limit when the next file's bytes were set aside, and before the first of them is written."""
        names = vars(disk_overflow)
        write_row = names["write_row"]

        def limited(*arguments: Any) -> object:
            names["write_row"] = write_row
            self.limit_files(size_bytes)
            return write_row(*arguments)

        names["write_row"] = limited

    def limit_threads(self, count: str) -> None:
        _, hard = resource.getrlimit(resource.RLIMIT_NPROC)
        resource.setrlimit(resource.RLIMIT_NPROC, (hard if int(count) < 0 else int(count), hard))

    def fill(self, folder: str, left_bytes: str) -> None:
        """Fill the file system but for so much."""
        found = os.statvfs(folder)
        with (Path(folder) / "filler").open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, found.f_bavail * found.f_frsize - int(left_bytes))

    def free_bytes(self, folder: str) -> int:
        found = os.statvfs(folder)
        return found.f_bavail * found.f_frsize

    def fork(self) -> list[object]:
        """Fork a child that uses what it inherited, ends as programs do, and says what it saw."""
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            pages = Pages(self.layout)
            outcome = self.overflow.write(key(999), 1, pages.holding(999, self.layout), 1.0)
            restore = self.overflow.begin_restore(key(1), pages.address)
            seen = [outcome.end.value, restore is None, self.overflow.held_bytes, self.overflow.close()]
            os.write(writer, json.dumps(seen).encode("ascii"))
            sys.exit()
        os.close(writer)
        with os.fdopen(reader, "rb") as pipe:
            said: list[object] = json.loads(pipe.read())
        os.waitpid(child, 0)
        return said

    def fork_sleeper(self) -> int:
        """Fork a child that outlives this process; the test ends it."""
        begun, has_begun = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(has_begun, b"!")  # what has to be done at a fork is done by now
            os.close(0)
            os.close(1)
            time.sleep(PATIENCE_SECONDS)
            os._exit(0)
        os.read(begun, 1)
        return child


def serve() -> None:
    worker = _Worker()
    for line in sys.stdin:
        command, *arguments = json.loads(line)
        try:
            value = getattr(worker, command)(*arguments)
        except PinprobeError as error:
            value = {"kind": type(error).__name__, "line": str(error)}
        print(json.dumps(value), flush=True)


class OverflowProcess:
    """The test's side."""

    def __init__(self, before: Sequence[str] = ()) -> None:
        libraries = [str(ROOT), str(Path(package.__file__).resolve().parent.parent)]
        self._process = subprocess.Popen(
            [*before, sys.executable, "-m", "tests.ledger.tenants.overflow_process"],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(libraries)},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0,
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

    def end(self) -> int:
        """Let it end as programs do; return its exit code."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        return self._process.wait(PATIENCE_SECONDS)

    def close(self) -> None:
        self.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


@contextlib.contextmanager
def overflow_processes(count: int, before: Sequence[str] = ()) -> Iterator[list[OverflowProcess]]:
    """So many processes; at the end none is left."""
    started: list[OverflowProcess] = []
    try:
        started += (OverflowProcess(before) for _ in range(count))
        yield started
    finally:
        for process in started:
            process.close()


if __name__ == "__main__":
    serve()
