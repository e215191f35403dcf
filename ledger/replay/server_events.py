"""Reads server-sent events out of bytes as they arrive: the form in which a server streams its answer.

Only `data` matters here. Names, ids and remarks of the stream are left alone, as the form allows.
"""

from __future__ import annotations

import re

#: A line or an event beyond this is none that a server of chat answers sends; a bound, so that it costs no memory.
LONGEST_EVENT_BYTES = 2**20

_LINE_END = re.compile(rb"[\r\n]")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class ServerEvents:
    r"""Takes pieces of a stream, cut anywhere, and gives back the data of each event once it is complete.

    >>> events = ServerEvents()
    >>> events.feed(b": a remark\n\nevent: note\ndata: {\"a\"")
    []
    >>> events.feed(b": 1}\r\n\r\ndata: [DONE]\n\n")
    ['{"a": 1}', '[DONE]']
    """

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._searched = 0  # of the buffer, so that a long line in small pieces is not searched again and again
        self._data: list[bytes] = []
        self._data_bytes = 0
        self._is_first_line = True
        self._skips_newline = False

    def feed(self, piece: bytes) -> list[str]:
        """Take the next bytes and return the data of the events that they complete.

        Raises `ValueError` where an event is longer than any may be. What is not UTF-8 becomes U+FFFD.
        """
        self._buffer += piece
        found: list[str] = []
        begin = 0
        if self._skips_newline and self._buffer:
            begin = int(self._buffer.startswith(b"\n"))
            self._skips_newline = False
        self._searched = max(self._searched, begin)
        while end := _LINE_END.search(self._buffer, self._searched):
            self._take_line(bytes(self._buffer[begin : end.start()]), found)
            begin = end.end()
            if end.group() == b"\r":
                # A line may end with both, and the second may still be on its way.
                self._skips_newline = begin == len(self._buffer)
                begin += int(self._buffer.startswith(b"\n", begin))
            self._searched = begin
        del self._buffer[:begin]
        self._searched = len(self._buffer)
        self._check_length(len(self._buffer))
        return found

    def close(self) -> list[str]:
        """Return the data of an event that the stream ended in, without the blank line that would complete it."""
        found: list[str] = []
        for line in (bytes(self._buffer), b""):
            self._take_line(line, found)
        self._buffer.clear()
        self._searched = 0
        return found

    def _take_line(self, line: bytes, found: list[str]) -> None:
        if self._is_first_line:
            line = line.removeprefix(_BYTE_ORDER_MARK)
            self._is_first_line = False
        if not line:
            if self._data:
                found.append(b"\n".join(self._data).decode("utf-8", "replace"))
            self._data, self._data_bytes = [], 0
            return
        name, _, value = line.partition(b":")
        if name == b"data":
            self._data.append(value.removeprefix(b" "))
            self._data_bytes += len(value) + 1
            self._check_length(0)

    def _check_length(self, waiting_bytes: int) -> None:
        if waiting_bytes + self._data_bytes > LONGEST_EVENT_BYTES:
            raise ValueError(f"an event of the stream has no end within {LONGEST_EVENT_BYTES:,} B")
