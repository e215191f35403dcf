"""Regions lent to real other processes: what they read, what they can't, and what is left when either side dies."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import mmap
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pinprobe.ledger.ledger import HostPinnedLedger
from pinprobe.ledger.tenants import region_sharing
from pinprobe.ledger.tenants.region_sharing import NotLent, RegionLender, borrow, region_id
from pinprobe.ledger.tenants.retention_pool import RetentionPool
from pinprobe.ledger.tenants.savepoint_layout import SavepointLayout, Slab
from pinprobe.probes.errors import CouldNotMeasure, PinprobeError
from tests.ledger.tenants.open_files import open_files
from tests.probes.allocators.fresh_process import in_fresh_process
from tests.probes.allocators.kernel_word import PAGE_BYTES

NOBODY = 65534
#: Not whole pages, so that the row ends within one.
LAYOUT = SavepointLayout((Slab("state", (777, 5), "float32"), Slab("odd", (333,), "uint8")))
_PATIENCE_SECONDS = 20.0

#: A process that borrows, says what it read, and reads once more for each line that it is told; it ends with its stdin.
#: Given a user, it becomes that one before it borrows.
BORROWER = """
import hashlib, os, sys
from pinprobe.ledger.tenants.region_sharing import borrow
from pinprobe.probes.errors import PinprobeError

address, wanted, user = sys.argv[1:]
if user:
    os.setgroups([])
    os.setresgid(int(user), int(user), int(user))
    os.setresuid(int(user), int(user), int(user))
try:
    borrowed = borrow(address, wanted)
    print("borrowed", borrowed.tokens, hashlib.sha256(borrowed.read()).hexdigest(), flush=True)
    for line in sys.stdin:
        print("read", hashlib.sha256(borrowed.read()).hexdigest(), flush=True)
except PinprobeError as error:
    print(type(error).__name__, error, flush=True)
"""

#: A process that lends one savepoint, says where, and does nothing more.
LENDER = """
import sys, time
from pinprobe.ledger.ledger import HostPinnedLedger
from pinprobe.ledger.tenants.region_sharing import RegionLender, region_id
from tests.ledger.tenants.test_region_sharing import pool_of_one

with HostPinnedLedger() as ledger:
    pool = pool_of_one(ledger, fill=0x42)
    with pool.match([1, 2, 3]) as hold:
        name = region_id(hold)
    print(RegionLender(pool).address, name, flush=True)
    time.sleep(600)
"""


def row(fill: int) -> bytes:
    """A row whose bytes are all different from those of another fill."""
    return bytes((fill + index) & 0xFF for index in range(LAYOUT.row_bytes))


def sha_of(fill: int) -> str:
    return hashlib.sha256(row(fill)).hexdigest()


def put(pool: RetentionPool, tokens: list[int], fill: int) -> None:
    """Keep a row under these tokens."""
    pool.offer(len(tokens))
    place = pool.take_place(tokens, "c")
    assert place is not None
    place.region.begin()
    ctypes.memmove(place.region.address, row(fill), LAYOUT.row_bytes)
    pool.publish(place)


def pool_of_one(ledger: HostPinnedLedger, fill: int) -> RetentionPool:
    """A shared pool of one region, with one savepoint in it."""
    pool = RetentionPool(ledger, LAYOUT, bound_regions=1, policy="lru", chunk_tokens=1, shared=True)
    put(pool, [1, 2, 3], fill)
    return pool


@pytest.fixture
def pool() -> Iterator[RetentionPool]:
    """Afterwards nothing of it is mapped and no descriptor is left."""
    files = open_files()
    with HostPinnedLedger() as ledger:
        pool = pool_of_one(ledger, fill=1)
        yield pool
        pool.close()
        wait_for(lambda: pool.stats().held_regions == 0)
    wait_for(lambda: open_files() == files)


@pytest.fixture
def lender(pool: RetentionPool) -> Iterator[RegionLender]:
    with RegionLender(pool) as lender:
        yield lender


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> float:
    """Both sides wait for the other only so long."""
    monkeypatch.setattr(region_sharing, "_PATIENCE_SECONDS", 0.3)
    return 0.3


def id_in(pool: RetentionPool, tokens: list[int] | None = None) -> str:
    with pool.match(tokens or [1, 2, 3]) or pytest.fail("nothing is found") as hold:
        return region_id(hold)


def wait_for(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not holds():
        assert time.monotonic() < deadline, "it does not come to hold"
        time.sleep(0.005)


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


@contextlib.contextmanager
def started(code: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A process that runs this code, and is gone afterwards."""
    with subprocess.Popen(
        [sys.executable, "-c", code, *arguments], env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        text=True,
    ) as process:  # fmt: skip
        impatience = threading.Timer(_PATIENCE_SECONDS, process.kill)
        impatience.start()
        try:
            yield process
        finally:
            impatience.cancel()
            process.kill()


@contextlib.contextmanager
def borrower(address: str, wanted: str, user: str = "") -> Iterator[subprocess.Popen[str]]:
    with started(BORROWER, address, wanted, user) as process:
        yield process


def line_of(process: subprocess.Popen[str]) -> list[str]:
    """The words of the next line that a process says."""
    assert process.stdout is not None
    return process.stdout.readline().split()


def told(process: subprocess.Popen[str]) -> list[str]:
    """Have a borrower read once more; return what it says."""
    assert process.stdin is not None
    process.stdin.write("again\n")
    process.stdin.flush()
    return line_of(process)


def unix_sockets() -> list[str]:
    """The abstract sockets of all lenders on this host."""
    lines = Path("/proc/net/unix").read_text(encoding="utf-8").splitlines()
    return [line.split()[-1] for line in lines if "@pinprobe-" in line]


# -- lending


def test_another_process_reads_the_same_bytes(pool: RetentionPool, lender: RegionLender) -> None:
    with borrower(lender.address, id_in(pool)) as process:
        assert line_of(process) == ["borrowed", "3", sha_of(1)]
        assert told(process) == ["read", sha_of(1)]


def test_several_processes_borrow_one_region_at_once(pool: RetentionPool, lender: RegionLender) -> None:
    name = id_in(pool)
    with borrower(lender.address, name) as first, borrower(lender.address, name) as second:
        assert line_of(first) == line_of(second) == ["borrowed", "3", sha_of(1)]
        with pool.match([1, 2, 3]) or pytest.fail("nothing is found") as hold:
            assert ctypes.string_at(hold.address, LAYOUT.row_bytes) == row(1)


def test_what_is_lent_is_held_until_the_borrower_closes_it(pool: RetentionPool, lender: RegionLender) -> None:
    with borrower(lender.address, id_in(pool)) as process:
        line_of(process)
        assert pool.stats().being_read == 1
        assert pool.offer(3)
        assert pool.take_place([9, 9, 9], "c") is None
        assert pool.trim() == 0
        assert told(process) == ["read", sha_of(1)]
        assert process.stdin is not None
        process.stdin.close()
        process.wait(_PATIENCE_SECONDS)
        wait_for(lambda: pool.stats().being_read == 0)
    assert pool.trim() == 1


def test_a_borrower_that_is_killed_lets_go(pool: RetentionPool, lender: RegionLender) -> None:
    with borrower(lender.address, id_in(pool)) as process:
        line_of(process)
        assert pool.stats().being_read == 1
        process.send_signal(signal.SIGKILL)
        process.wait(_PATIENCE_SECONDS)
        wait_for(lambda: pool.stats().being_read == 0)
    put(pool, [4, 5], 2)
    assert pool.stats().evicted == 1


def test_a_borrower_of_the_same_process_reads_and_lets_go(pool: RetentionPool, lender: RegionLender) -> None:
    with borrow(lender.address, id_in(pool)) as borrowed:
        assert (borrowed.tokens, borrowed.read()) == (3, row(1))
    wait_for(lambda: pool.stats().being_read == 0)


def test_many_threads_borrow_at_once_and_nothing_is_left(pool: RetentionPool, lender: RegionLender) -> None:
    name, read = id_in(pool), []

    def act() -> None:
        for _ in range(10):
            with borrow(lender.address, name) as borrowed:
                read.append(borrowed.read())

    threads = [threading.Thread(target=act, daemon=True) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(_PATIENCE_SECONDS)
    assert read == [row(1)] * 60
    wait_for(lambda: pool.stats().being_read == 0)


# -- writing is not to be had


def test_borrowed_memory_can_not_be_written(pool: RetentionPool, lender: RegionLender) -> None:
    with borrow(lender.address, id_in(pool)) as borrowed:
        with pytest.raises(TypeError):
            borrowed._memory[0] = 0
        (span,) = (
            line.split()[:2]
            for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
            if "/memfd:pinprobe-region" in line and " r--s " in line
        )
        address = int(span[0].split("-")[0], 16)
        libc = ctypes.CDLL(None)
        access = mmap.PROT_READ | mmap.PROT_WRITE
        assert libc.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(PAGE_BYTES), access) == -1
        assert borrowed.read() == row(1)


# -- what can't be had


def refusal(address: str, wanted: str) -> str:
    """The one line by which a borrower is told that it can't have a region."""
    with pytest.raises(NotLent) as refused:
        borrow(address, wanted)
    line = str(refused.value)
    assert line.isprintable()
    return line


def test_a_savepoint_that_is_gone_is_not_lent(pool: RetentionPool, lender: RegionLender) -> None:
    name = id_in(pool)
    pool.forget([1, 2, 3])
    assert refusal(lender.address, name) == "refused: no savepoint of that id is here any more"
    with borrower(lender.address, name) as process:
        assert line_of(process)[:2] == ["NotLent", "refused:"]


def test_a_region_that_was_filled_again_is_not_lent_under_its_old_id(pool: RetentionPool, lender: RegionLender) -> None:
    name = id_in(pool)
    pool.forget([1, 2, 3])
    put(pool, [1, 2, 3], 2)
    assert refusal(lender.address, name).startswith("refused: no savepoint of that id")
    assert id_in(pool) != name
    with borrow(lender.address, id_in(pool)) as borrowed:
        assert borrowed.read() == row(2)


@pytest.mark.parametrize(
    "wanted",
    ["", "-", "zz-2", "00", "00-", "00-x", "é-2", "00-1-2", "\x1b[31m-2", "00-\n", "\udcff-2", "0" * 3000, "00-1.5"],
    ids=ascii,
)
def test_what_is_no_id_is_not_lent(pool: RetentionPool, lender: RegionLender, wanted: str) -> None:
    line = refusal(lender.address, wanted)
    assert "is no region's id" in line
    assert len(line) < 200


@pytest.mark.parametrize("wanted", ["00" * 16 + "-2", "00" * 16 + "--2", "00" * 16 + "-" + "9" * 1000, "00-2", "-2"])
def test_an_id_of_nothing_is_not_lent(pool: RetentionPool, lender: RegionLender, wanted: str) -> None:
    assert "refused: no savepoint of that id" in refusal(lender.address, wanted)
    with borrow(lender.address, id_in(pool)) as borrowed:
        assert borrowed.read() == row(1)


def test_another_user_is_refused(pool: RetentionPool, lender: RegionLender) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    with borrower(lender.address, id_in(pool), str(NOBODY)) as process:
        assert line_of(process) == ["NotLent", "refused:", "this", "pool", "is", "another", "user's"]
    assert pool.stats().being_read == 0


def test_private_regions_are_not_lent() -> None:
    with HostPinnedLedger() as ledger:
        pool = RetentionPool(ledger, LAYOUT, bound_regions=1, chunk_tokens=1)
        put(pool, [1, 2, 3], 1)
        with RegionLender(pool) as lender:
            refusal(lender.address, id_in(pool))
            assert pool.stats().being_read == 0
        pool.close()


@pytest.mark.parametrize(
    "address", ["", "@", "@pinprobe-nobody", "no such lender", "@" + "x" * 500, "@a\x1b[31m\nb"], ids=ascii
)
def test_where_no_lender_is_that_is_said_in_one_line(address: str) -> None:
    with pytest.raises(CouldNotMeasure, match="no lender answers at") as error:
        borrow(address, "00" * 16 + "-2")
    assert str(error.value).isprintable()


class FakeLender:
    """Answers every borrower with what a test wants, and with a descriptor where one is given."""

    def __init__(self, message: bytes, descriptor: int | None = None) -> None:
        self.address = f"@pinprobe-test-{os.getpid()}-{time.monotonic_ns()}"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.bind("\0" + self.address[1:])
        self._socket.listen()
        self._answer = (message, descriptor)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        message, descriptor = self._answer
        with self._socket, self._socket.accept()[0] as borrower:
            borrower.recv(256)
            if message or descriptor is not None:
                socket.send_fds(borrower, [message], [] if descriptor is None else [descriptor])
                borrower.recv(1)

    def join(self) -> None:
        self._thread.join(_PATIENCE_SECONDS)


@pytest.mark.parametrize(
    ("message", "with_descriptor"),
    [
        (b"", False), (b"refused: \x1b[31mso\nthere", False), (b"8192 3", False), (b"hello", True), (b"", True),
        (b"8192", True), (b"-1 3", True), (b"0 3", True), (b"99999999 3", True), (b"8192 3", True), (b"16 3", True),
        (b"\xff\xfe 3", True),
    ],
    ids=repr,
)  # fmt: skip
def test_a_lender_that_talks_nonsense_is_an_error_of_one_line(message: bytes, with_descriptor: bool) -> None:
    files = open_files()
    memory = os.memfd_create("nonsense")
    try:
        os.ftruncate(memory, 8192)
        lender = FakeLender(message, memory if with_descriptor else None)
        try:
            said = str(borrow(lender.address, "00" * 16 + "-2"))
        except PinprobeError as error:
            said = str(error)
        lender.join()
    finally:
        os.close(memory)
    assert said.isprintable()
    assert "BorrowedRegion" not in said, "it was taken for a region"
    assert open_files() == files


def test_a_lender_that_does_not_answer_is_given_up(patience: float) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as silent:
        silent.bind(f"\0pinprobe-test-silent-{os.getpid()}")
        silent.listen()
        started_at = time.monotonic()
        with pytest.raises(CouldNotMeasure, match="timed out"):
            borrow(f"@pinprobe-test-silent-{os.getpid()}", "00" * 16 + "-2")
        assert time.monotonic() - started_at < patience + 2


# -- borrowers that misbehave


def connected(lender: RegionLender) -> socket.socket:
    client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    client.connect("\0" + lender.address[1:])
    return client


def test_borrowers_that_say_nothing_or_go_at_once_keep_nobody_waiting(
    patience: float, pool: RetentionPool, lender: RegionLender
) -> None:
    silent = [connected(lender) for _ in range(5)]
    connected(lender).close()
    with connected(lender) as hasty:
        hasty.send(id_in(pool).encode())
    with borrow(lender.address, id_in(pool)) as borrowed:
        assert borrowed.read() == row(1)
    for client in silent:
        assert client.recv(1) == b"", "the lender has not given up on it"
        client.close()
    wait_for(lambda: pool.stats().being_read == 0)


def lend_without_descriptors() -> bytes:
    """Have a borrower come while the lender may open no descriptor more, and another one when it may again."""
    with HostPinnedLedger() as ledger:
        pool = pool_of_one(ledger, fill=1)
        with RegionLender(pool) as lender, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as unlucky:
            limits = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
            unlucky.connect("\0" + lender.address[1:])
            time.sleep(0.2)
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            with borrow(lender.address, id_in(pool)) as borrowed:
                return borrowed.read()


def test_a_lender_that_had_no_descriptor_for_a_moment_lends_again_afterwards() -> None:
    assert in_fresh_process(lend_without_descriptors) == row(1)


# -- the lender's end


def test_closing_the_lender_ends_what_is_lent_and_nothing_is_left(pool: RetentionPool) -> None:
    lender = RegionLender(pool)
    name = id_in(pool)
    assert any(lender.address in line for line in unix_sockets())
    with borrow(lender.address, name) as borrowed:
        assert pool.stats().being_read == 1
        lender.close()
        lender.close()
        wait_for(lambda: pool.stats().being_read == 0)
        assert not any(lender.address in line for line in unix_sockets())
        assert borrowed.read() == row(1)  # nothing else lies in it so far
        with pytest.raises(CouldNotMeasure, match="no lender answers at"):
            borrow(lender.address, name)
    assert not [thread for thread in threading.enumerate() if thread.name == "pinprobe-lender"]


def test_a_borrower_whose_hold_has_ended_never_reads_another_savepoint(pool: RetentionPool) -> None:
    with RegionLender(pool) as lender, borrower(lender.address, id_in(pool)) as process:
        assert line_of(process) == ["borrowed", "3", sha_of(1)]
        with borrow(lender.address, id_in(pool)) as borrowed:
            lender.close()
            wait_for(lambda: pool.stats().being_read == 0)
            place = pool.take_place([7, 8], "c")
            assert place is not None
            place.region.begin()  # half of it is written
            with pytest.raises(NotLent, match="the region holds another savepoint by now"):
                borrowed.read()
            ctypes.memmove(place.region.address, row(2), LAYOUT.row_bytes)
            pool.offer(2)
            pool.publish(place)
            with pytest.raises(NotLent, match="the region holds another savepoint by now"):
                borrowed.read()
        assert told(process) == ["NotLent", "the", "region", "holds", "another", "savepoint", "by", "now"]


def test_nothing_is_left_of_a_lender_that_is_killed() -> None:
    with started(LENDER) as process:
        address, name = line_of(process)
        assert any(address in line for line in unix_sockets())
        with borrow(address, name) as borrowed:
            assert borrowed.read() == row(0x42)
            process.send_signal(signal.SIGKILL)
            process.wait(_PATIENCE_SECONDS)
            # The memory goes with its last user, and nobody can write into it any more.
            assert borrowed.read() == row(0x42)
            with pytest.raises(CouldNotMeasure, match="no lender answers at") as error:
                borrow(address, name)
            assert str(error.value).isprintable()
        with borrower(address, name) as late:
            assert line_of(late)[:2] == ["CouldNotMeasure", "no"]
    assert not any(address in line for line in unix_sockets())
    assert not [path for path in Path("/dev/shm").iterdir() if "region" in path.name]


def test_two_lenders_of_one_process_are_told_apart(pool: RetentionPool) -> None:
    with HostPinnedLedger() as ledger, RegionLender(pool) as first:
        other = pool_of_one(ledger, fill=9)
        with RegionLender(other) as second:
            assert first.address != second.address
            assert f"-{os.getuid()}-" in first.address
            with borrow(second.address, id_in(other)) as borrowed:
                assert borrowed.read() == row(9)
        other.close()
