"""The exceptions of pinprobe, as a tree. Each carries the exit code a command ends with.

::

    PinprobeError
    ├── CheckFailed            1  a check that the user asked for does not hold
    ├── Refused                1  a reservation that does not fit, refused before a byte was taken
    ├── BadRequest             2  a size, a range, a name or a file that can't be used
    │   └── BadConfig             a config, with every place that has to be mended
    └── CouldNotMeasure        3  nothing was measured, or not all of it
        ├── AllocatorUnavailable  what an allocator needs is not on this machine
        │   └── NoAccelerator
        ├── AllocationFailed      an allocator said no
        ├── BookBusy              another process holds the host's book and does not let go of it
        └── ChildDied             a measuring process ended before it answered

A message is one line: what, where, and what to do next. An exception holds nothing but its arguments, so that it
crosses the pipe between a measuring process and its parent unchanged.
"""

from collections.abc import Sequence


class PinprobeError(Exception):
    """The root of every error that pinprobe raises on purpose."""

    exit_code = 3


class BadRequest(PinprobeError):
    """The request itself can't be carried out as it was put."""

    exit_code = 2


class BadConfig(BadRequest):
    """A config that can't be used.

    `problems` has a line for each place: `file:line:column: what, and what would be right`.
    """

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__(tuple(problems))
        self.problems = tuple(problems)

    def __str__(self) -> str:
        return "\n".join(self.problems)


class CheckFailed(PinprobeError):
    """Something that was to hold does not; the message gives both sides."""

    exit_code = 1


class Refused(PinprobeError):
    """A reservation that does not fit. Nothing was taken.

    `price_bytes` is what it would have cost, `room_bytes` what `bound` leaves, `largest_bytes` the largest request that
    would fit now.
    """

    exit_code = 1

    def __init__(self, message: str, owner: str, asked_bytes: int, price_bytes: int, room_bytes: int, bound: str,
                 largest_bytes: int) -> None:  # fmt: skip
        super().__init__(message, owner, asked_bytes, price_bytes, room_bytes, bound, largest_bytes)
        self.owner = owner
        self.asked_bytes = asked_bytes
        self.price_bytes = price_bytes
        self.room_bytes = room_bytes
        self.bound = bound
        self.largest_bytes = largest_bytes

    def __str__(self) -> str:
        return str(self.args[0])


class CouldNotMeasure(PinprobeError):
    """A reading that the question needs was not to be had."""


class AllocatorUnavailable(CouldNotMeasure):
    """What an allocator needs is not on this machine; `remedy` is what would bring it."""

    def __init__(self, reason: str, remedy: str = "") -> None:
        super().__init__(reason, remedy)
        self.reason = reason
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.reason}; {self.remedy}" if self.remedy else self.reason


class NoAccelerator(AllocatorUnavailable):
    """There is no accelerator on this machine at all: nothing is missing that could be installed."""


class AllocationFailed(CouldNotMeasure):
    """An allocator refused a request.

    `no_address_space` is true where the kernel refused the mapping itself, before a page was taken: under the limit
    that a sweep sets on its own child, that is the limit speaking.
    """

    def __init__(self, message: str, no_address_space: bool = False) -> None:
        super().__init__(message, no_address_space)
        self.no_address_space = no_address_space

    def __str__(self) -> str:
        return str(self.args[0])


class BookBusy(CouldNotMeasure):
    """The lock of the host's book was not to be had in time."""


class ChildDied(CouldNotMeasure):
    """A measuring process ended before it answered; the message says by what, and what proves it."""


def in_one_line(error: BaseException) -> str:
    r"""Put a foreign exception into one line: its kind, and the first line of what it says.

    >>> in_one_line(ValueError("no such device\nin three lines\nof detail"))
    'ValueError: no such device'
    """
    lines = str(error).strip().splitlines()
    return printable(f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__)


def printable(text: object) -> str:
    r"""Make foreign text fit for one line of a terminal, JSON and XML: what can't be printed becomes `?`.

    >>> printable("pool\x1b[31m of\udcff three")
    'pool?[31m of? three'
    """
    line = str(text)
    if line.isprintable():
        return line
    return "".join(character if character.isprintable() else "?" for character in line)
