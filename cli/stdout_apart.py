"""Keeps stdout for the result while code of others runs that may print, in Python or below it."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from types import TracebackType
from typing import TextIO


class StdoutApart:
    """As long as it lasts, what is written to stdout or to descriptor 1 goes to stderr. A context manager.

    `given_back` is for writing the result. Where stdout is closed, or is no descriptor, nothing is done.
    """

    def __init__(self) -> None:
        self._descriptor: int | None = None
        self._stream: TextIO | None = sys.stdout
        self._real: TextIO | None = None

    def __enter__(self) -> StdoutApart:
        if self._stream is None or sys.stderr is None:
            return self
        self._stream.flush()
        with contextlib.suppress(OSError):
            self._descriptor = os.dup(1)
            os.dup2(2, 1)
            encoding = self._stream.encoding
            self._real = os.fdopen(os.dup(self._descriptor), "w", encoding=encoding, errors=self._stream.errors)
        sys.stdout = sys.stderr
        return self

    @contextlib.contextmanager
    def given_back(self) -> Iterator[None]:
        """Let Python's stdout be the real one for a while."""
        apart, sys.stdout = sys.stdout, self._real or self._stream or sys.stdout
        try:
            yield
        finally:
            sys.stdout = apart

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._stream is None or sys.stderr is None:
            return
        with contextlib.suppress(OSError, ValueError):  # whoever reads has had enough
            if self._real is not None:
                self._real.close()
        if self._descriptor is not None:
            os.dup2(self._descriptor, 1)
            os.close(self._descriptor)
        sys.stdout = self._stream
