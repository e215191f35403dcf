"""Lends regions to other processes of the same user, by id, over a Unix socket.

The lender passes the memfd's descriptor; the borrower maps it for reading, and can do nothing else with it. The socket
has no name in any file system and the memory none either, so nothing is left of a lender that is killed. As long as the
borrower's connection is open its savepoint is held, so that the region is not used for another one.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import mmap
import os
import secrets
import socket
import struct
import threading
import time
from dataclasses import dataclass
from types import TracebackType

from pinprobe.ledger.tenants.pool_entry import Hold
from pinprobe.ledger.tenants.region import RegionPage
from pinprobe.ledger.tenants.retention_pool import RetentionPool
from pinprobe.probes.errors import CouldNotMeasure, PinprobeError, in_one_line, printable

_log = logging.getLogger("pinprobe")
_LONGEST_MESSAGE_BYTES = 256
_PATIENCE_SECONDS = 5.0
_PAUSE_SECONDS = 0.05
# struct ucred of linux/socket.h: pid, uid, gid.
_CREDENTIALS = struct.Struct("=iII")


class NotLent(PinprobeError):
    """The region can't be had: it is gone, holds another savepoint by now, or belongs to another user."""


def region_id(hold: Hold) -> str:
    """Return the id by which another process asks for what is held: the savepoint's key, and which filling it is."""
    return f"{hold.key.hex()}-{hold.region.filling}"


class RegionLender:
    """Serves one pool's shared regions. A context manager; `address` is what borrowers need to know."""

    def __init__(self, pool: RetentionPool) -> None:
        self._pool = pool
        # A leading NUL makes it a name of the kernel's alone, which goes with this process.
        self.address = f"@pinprobe-{os.getuid()}-{secrets.token_hex(8)}"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        self._socket.bind("\0" + self.address[1:])
        self._socket.listen()
        self._is_ending = False
        self._borrowers: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._accept, name="pinprobe-lender", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Lend nothing more, and end what is lent. A second call does nothing."""
        self._is_ending = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        with self._lock:
            for borrower in self._borrowers:
                with contextlib.suppress(OSError):
                    borrower.shutdown(socket.SHUT_RDWR)
        self._thread.join()

    def __enter__(self) -> RegionLender:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _accept(self) -> None:
        while not self._is_ending:
            try:
                borrower, _ = self._socket.accept()
            except OSError as error:
                if self._is_ending or error.errno in (errno.EBADF, errno.EINVAL):
                    return
                time.sleep(_PAUSE_SECONDS)  # out of descriptors, for example: that may pass
                continue
            with self._lock:
                self._borrowers.add(borrower)
            threading.Thread(target=self._serve, args=(borrower,), name="pinprobe-lending", daemon=True).start()

    def _serve(self, borrower: socket.socket) -> None:
        try:
            with borrower:
                borrower.settimeout(_PATIENCE_SECONDS)
                wanted = borrower.recv(_LONGEST_MESSAGE_BYTES).decode("ascii", "replace")
                if _uid_of(borrower) != os.getuid():
                    borrower.send(b"refused: this pool is another user's")
                    return
                hold = self._pool.hold_by_id(wanted)
                if hold is None:
                    borrower.send(b"refused: no savepoint of that id is here any more")
                    return
                with hold:
                    descriptor = hold.region.read_only_descriptor()
                    try:
                        socket.send_fds(borrower, [b"%d %d" % (hold.region.size_bytes, hold.tokens)], [descriptor])
                    finally:
                        os.close(descriptor)
                    borrower.settimeout(None)
                    borrower.recv(1)  # returns when the borrower closes its end, or dies
        except (OSError, PinprobeError) as error:
            _log.info("a borrower of a region went: %s", in_one_line(error))
        finally:
            with self._lock:
                self._borrowers.discard(borrower)


@dataclass(eq=False)
class BorrowedRegion:
    """A savepoint of another process, mapped for reading. A context manager."""

    tokens: int
    _memory: mmap.mmap
    _connection: socket.socket
    _key: bytes
    _filling: int

    def read(self) -> bytes:
        """Return the row's bytes. Raises `NotLent` where the region holds another savepoint by now."""
        page = self._page()
        row = self._memory[: page.row_bytes]
        self._page()
        return row

    def _page(self) -> RegionPage:
        page = RegionPage.parsed(self._memory[max(0, len(self._memory) - mmap.PAGESIZE) :])
        if page is None or page.key != self._key or page.filling != self._filling:
            raise NotLent("the region holds another savepoint by now")
        return page

    def close(self) -> None:
        """Let go of it."""
        self._memory.close()
        self._connection.close()

    def __enter__(self) -> BorrowedRegion:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def borrow(address: str, wanted_id: str) -> BorrowedRegion:
    """Map the region of an id for reading, from the lender at an address.

    Raises `NotLent`, saying why, and `CouldNotMeasure` where no lender is there.
    """
    key_text, _, filling = wanted_id.partition("-")
    try:
        key = bytes.fromhex(key_text)
        number = int(filling)
    except ValueError:
        raise NotLent(f"{printable(wanted_id)[:80]!r} is no region's id") from None
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    try:
        connection.settimeout(_PATIENCE_SECONDS)
        connection.connect("\0" + address.removeprefix("@"))
        connection.send(wanted_id.encode())
        message, descriptors, _, _ = socket.recv_fds(connection, _LONGEST_MESSAGE_BYTES, 1)
        if not descriptors:
            raise NotLent(printable(message.decode("utf-8", "replace")) or "the lender went away")
        with contextlib.ExitStack() as closing:
            closing.callback(os.close, descriptors[0])
            size, tokens = (int(word) for word in message.split())
            memory = mmap.mmap(descriptors[0], size, mmap.MAP_SHARED, mmap.PROT_READ)
        connection.settimeout(None)
        borrowed = BorrowedRegion(tokens, memory, connection, key, number)
        try:
            borrowed._page()
        except BaseException:
            borrowed.close()
            raise
        return borrowed
    except (ValueError, OverflowError):  # no numbers, or a size that is none
        connection.close()
        raise NotLent(f"what answers at {printable(address)} is no lender of regions") from None
    except OSError as error:
        connection.close()
        raise CouldNotMeasure(f"no lender answers at {printable(address)}: {error.strerror or error}") from None
    except BaseException:
        connection.close()
        raise


def _uid_of(borrower: socket.socket) -> int:
    packed = borrower.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, uid, _ = _CREDENTIALS.unpack(packed)
    return int(uid)
