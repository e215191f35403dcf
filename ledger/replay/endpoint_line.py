"""The connection of one request, which another thread can cut: how no request outlasts its time."""

from __future__ import annotations

import contextlib
import socket
import threading
from types import TracebackType
from typing import Any

_CONNECTED = ("connection.connect_tcp.complete", "connection.start_tls.complete")
_CLOSING = "http11.response_closed.started"


class Line:
    """Is cut by `cut` from any thread, or by itself after `most_seconds`; `reason` then says why, and is empty before.

    A timeout of httpx bounds each wait for bytes, and a server that sends a byte now and then never meets it. Closing a
    client from another thread does not wake who waits either. Shutting down the socket does both.
    """

    def __init__(self, most_seconds: float) -> None:
        self.reason = ""
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._timer = threading.Timer(most_seconds, self.cut, [f"not answered to its end within {most_seconds:g} s"])
        self._timer.daemon = True

    def __enter__(self) -> Line:
        self._timer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()
        with self._lock:
            self._socket = None

    def trace(self, event: str, info: dict[str, Any]) -> None:
        """Learn of the socket, as httpx's extension `trace` tells of it."""
        if event in _CONNECTED:
            with self._lock:
                self._socket = info["return_value"].get_extra_info("socket")
                if self.reason:
                    self._shut_down()
        elif event == _CLOSING:
            with self._lock:
                self._socket = None  # its number may soon be another one's

    def cut(self, reason: str) -> None:
        """End the request now; the first reason is the one that is kept."""
        with self._lock:
            self.reason = self.reason or reason
            self._shut_down()

    def _shut_down(self) -> None:
        if self._socket is not None:
            # Of the plain socket, even under TLS: whose own shutdown would wait for nobody and break a read in C.
            with contextlib.suppress(OSError):
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)
