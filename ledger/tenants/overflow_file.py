"""What a file of the overflow looks like: a header of 4,096 B, then one savepoint's row in whole pages.

The header says what the row is of (layout, key, tokens) and has a checksum of the row and one of itself, so that no bit
of a file can change unseen. It is written last: a file without one was never finished. Numbers are little-endian; the
row's bytes are those of the machine's memory, and a mark says in which order.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import struct
from dataclasses import dataclass
from enum import Enum

from pinprobe.ledger.tenants.savepoint_layout import SavepointLayout

HEADER_BYTES = 4096
#: Rises when a field changes its meaning. Nothing else than this version is read.
VERSION = 1
#: Of a key, of a layout's fingerprint and of both checksums.
DIGEST_BYTES = 16

_MAGIC = b"pprow\r\n\x1a"
# magic, version, byte order, fingerprint, row_bytes, key, tokens, row_hash.
_FIELDS = struct.Struct("<8sI4s16sQ16sQ16s")
_BYTE_ORDER = struct.pack("=I", 0x01020304)


class Loss(str, Enum):
    """Why a file that was written can't be read back."""

    CHECKSUM = "checksum"  # a bit of it is not what was written
    CUT = "cut"  # it is shorter than it was
    FOREIGN = "foreign"  # it is no file of ours, or one of another savepoint
    VERSION = "version"  # it has the form of another version
    GONE = "gone"  # it is not there
    UNREADABLE = "unreadable"  # the system gives an error for it


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with a file: the reason that it is counted under, and a few words for people."""

    loss: Loss
    text: str


@dataclass(frozen=True, slots=True)
class OverflowHeader:
    """What the first 4,096 B say. `row_hash` is the xxh3_128 of the row and of what fills its last page.

    Before the row was written, it has no hash yet.
    """

    fingerprint: bytes
    row_bytes: int
    key: bytes
    tokens: int
    row_hash: bytes = bytes(DIGEST_BYTES)

    def packed(self) -> bytes:
        """Return the whole page."""
        fields = _FIELDS.pack(
            _MAGIC, VERSION, _BYTE_ORDER, self.fingerprint, self.row_bytes, self.key, self.tokens, self.row_hash
        )
        page = fields.ljust(HEADER_BYTES - DIGEST_BYTES, b"\0")
        return page + _checksum(page)

    def fault_beside(self, wanted: OverflowHeader) -> Fault | None:
        """Say in what this is not what was asked for; the rows' checksums are not compared."""
        for name in ("fingerprint", "row_bytes", "key", "tokens"):
            if getattr(self, name) != getattr(wanted, name):
                return Fault(Loss.FOREIGN, f"its {name.replace('_', ' ')} is another than was asked for")
        return None


def parse_header(page: bytes) -> OverflowHeader | Fault:
    """Read a header; where it is none that can be trusted to the bit, say why."""
    if len(page) < HEADER_BYTES:
        return Fault(Loss.CUT, f"it ends after {len(page)} B, within its header")
    magic, version, byte_order, *fields = _FIELDS.unpack_from(page)
    if magic != _MAGIC:
        return Fault(Loss.FOREIGN, "it does not begin as a file of the overflow does")
    if version != VERSION:
        return Fault(Loss.VERSION, f"it has version {version}, and {VERSION} is the one that is read")
    end = HEADER_BYTES - DIGEST_BYTES
    if page[end:HEADER_BYTES] != _checksum(page[:end]):
        return Fault(Loss.CHECKSUM, "its header is not what was written")
    if byte_order != _BYTE_ORDER:
        return Fault(Loss.FOREIGN, "it was written by a machine of another byte order")
    return OverflowHeader(*fields)


def layout_fingerprint(layout: SavepointLayout) -> bytes:
    """Return what tells a layout from every other: each slab's name, shape, type and place, and the row's size."""
    slabs = [
        [slab.name, slab.shape, slab.dtype, offset] for slab, offset in zip(layout.slabs, layout.offsets, strict=True)
    ]
    text = json.dumps([slabs, layout.row_bytes]).encode("ascii")
    return hashlib.blake2b(text, digest_size=DIGEST_BYTES).digest()


def padded_row_bytes(row_bytes: int) -> int:
    """Return a row's bytes in whole pages, which is what is written of it and read back."""
    return -(-row_bytes // mmap.PAGESIZE) * mmap.PAGESIZE


def file_bytes(row_bytes: int) -> int:
    """Return what one file takes: its header, and its row in whole pages."""
    return HEADER_BYTES + padded_row_bytes(row_bytes)


def _checksum(page: bytes) -> bytes:
    import xxhash

    return bytes(xxhash.xxh3_128_digest(page))
