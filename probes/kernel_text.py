"""Reads the two shapes that most kernel texts have: `Name:  123 kB` lines, and files that hold one number."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pinprobe.probes.reading import Amount, Reading, Unreadable


def kilobyte_fields(
    text: str | Unreadable, names: Iterable[str], origin: str, error_bytes: int = 0
) -> dict[str, Amount]:
    r"""Read `Name:   123 kB` lines.

    Returns an amount for every name asked for: a line that is missing or does not read as kibibytes is `Unreadable` and
    says so, since a sandbox may leave a line out and that is not the same as 0. The kernel writes kB and means KiB.

    >>> kilobyte_fields("VmRSS:\t    1712 kB\n", ["VmRSS", "VmPin"], "status")["VmRSS"]
    Reading(bytes=1753088, source='status VmRSS', error_bytes=0)
    """
    if isinstance(text, Unreadable):
        return dict.fromkeys(names, text)
    lines: dict[str, str] = {}
    # Newlines alone end a line: str.splitlines would also split at characters that a process may put into its own name,
    # and let it write lines of status that the kernel never wrote.
    for line in text.split("\n"):
        name, colon, value = line.partition(":")
        if colon:
            lines.setdefault(name, value)
    return {name: _kilobytes(name, lines.get(name), origin, error_bytes) for name in names}


def _kilobytes(name: str, value: str | None, origin: str, error_bytes: int) -> Amount:
    if value is None:
        return Unreadable(f"{origin} has no line {name}")
    parts = value.split()
    if len(parts) != 2 or parts[1] != "kB" or not is_count(parts[0]):
        return Unreadable(f"{origin}: the line {name} reads {value.strip()[:40]!r}")
    return Reading(int(parts[0]) * 1024, f"{origin} {name}", error_bytes)


def numbers_by_name(text: str | Unreadable) -> Mapping[str, int] | Unreadable:
    """Read lines of `name 123`, as in memory.stat and vmstat; lines of another shape are passed over."""
    if isinstance(text, Unreadable):
        return text
    pairs = (line.split() for line in text.split("\n"))
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and is_count(pair[1])}


def single_number(text: str | Unreadable, origin: str) -> Amount:
    """Read a file that holds one number of bytes and nothing else."""
    if isinstance(text, Unreadable):
        return text
    stripped = text.strip()
    return Reading(int(stripped), origin) if is_count(stripped) else Unreadable(f"{origin} reads {stripped[:40]!r}")


def is_count(text: str) -> bool:
    """Say whether a word of a kernel text is a plain count."""
    # str.isdigit alone would take other scripts' digits and superscripts; 20 digits hold every 64-bit counter.
    return text.isascii() and text.isdigit() and len(text) <= 20
