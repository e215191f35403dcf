"""The lines of a trace, from a file that may be gzipped, and the error that names every line that can't be used."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Generator, Sequence
from pathlib import Path

from pinprobe.probes.errors import BadRequest, printable

#: Bounds, so that a hostile file costs neither time nor memory.
MOST_REQUESTS = 1_000_000
MOST_LINES = 2 * MOST_REQUESTS
LONGEST_LINE_CHARACTERS = 2**20
#: So many bad lines are named; the rest is counted.
MOST_NAMED = 20

_GZIP = b"\x1f\x8b"


class BadTrace(BadRequest):
    """A trace that can't be used.

    `problems` has a line for each place: `file:line: what is wrong with it`.
    """

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__(tuple(problems))
        self.problems = tuple(problems)

    def __str__(self) -> str:
        return "\n".join(self.problems)


class Faults:
    """Collects what is wrong with a file, so that all of it is told at once."""

    def __init__(self, path: Path) -> None:
        self._source = printable(path)
        self._problems: list[str] = []
        self._unnamed_count = 0

    def add(self, line: int, what: str) -> None:
        """Note what is wrong with a line."""
        if len(self._problems) < MOST_NAMED:
            self._problems.append(f"{self._source}:{line}: {printable(what)}")
        else:
            self._unnamed_count += 1

    def check(self) -> None:
        """Raise `BadTrace` where something was noted."""
        if self._unnamed_count:
            self._problems.append(f"{self._source}: {self._unnamed_count} more lines can't be used either")
        if self._problems:
            raise BadTrace(self._problems)


def numbered_lines(path: Path) -> Generator[tuple[int, str], None, None]:
    """Yield the number and the text of each line of a file, plain or gzipped, in UTF-8, with what ends it.

    What is not UTF-8 stands in the text as lone surrogates, so that its reader can name the line among all others that
    can't be used: `check_utf8`. Raises `BadRequest` where the file can't be read to its end, and `BadTrace` where a
    line has none.
    """
    source = printable(path)
    number = 0
    try:
        if (
            path.exists() and not path.is_file() and not path.is_dir()
        ):  # a pipe's first bytes would be gone once looked at
            raise BadRequest(f"{source} is no ordinary file; write the trace into one first")
        with path.open("rb") as raw:
            is_gzipped = raw.read(2) == _GZIP
            raw.seek(0)
            file = gzip.GzipFile(fileobj=raw) if is_gzipped else raw
            while line := file.readline(LONGEST_LINE_CHARACTERS + 1):
                number += 1
                if number > MOST_LINES:
                    raise BadRequest(f"{source} has more than {MOST_LINES:,} lines; replay a part of it")
                if len(line) > LONGEST_LINE_CHARACTERS:
                    raise BadTrace([f"{source}:{number}: the line has no end within 1 MiB; that is no request"])
                encoding = "utf-8-sig" if number == 1 else "utf-8"
                yield number, line.decode(encoding, "surrogateescape")
    except FileNotFoundError:
        raise BadRequest(f"{source}: there is no such file") from None
    except IsADirectoryError:
        raise BadRequest(f"{source} is a folder; name a trace in it") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise BadRequest(f"{source} is damaged after line {number}: {printable(error)}; fetch it again") from None
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        raise BadRequest(f"{source} can't be read: {reason}") from None


def check_utf8(text: str) -> None:
    """Raise `BadRequest` where a line, or a part of one, was not UTF-8 in its file."""
    if not text.isascii() and any("\udc80" <= character <= "\udcff" for character in text):
        raise BadRequest("the line is not UTF-8")


def requests_within_bounds(count: int, path: Path) -> None:
    """Raise `BadRequest` where a trace has no request, or more than are ever taken in."""
    if not count:
        raise BadRequest(f"{printable(path)} has no request in it")
    if count > MOST_REQUESTS:
        raise BadRequest(f"{printable(path)} has more than {MOST_REQUESTS:,} requests; replay a part of it")
