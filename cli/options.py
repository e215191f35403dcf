"""What the commands' options accept, and where their output goes. Light, since `--help` loads it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from pinprobe.probes.errors import BadRequest
from pinprobe.probes.units import LARGEST_SIZE_BYTES, parse_size

#: More points than anyone looks at; a bound, so that a slip of the finger does not become a list of a billion.
MOST_POINTS = 4096

_Command = TypeVar("_Command", bound=Callable[..., object])


class Size(click.ParamType):  # type: ignore[type-arg, unused-ignore]  # generic from click 8.2 on
    """A size in bytes, or with an IEC suffix."""

    name = "SIZE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Read it, or fail with what is wrong."""
        if isinstance(value, int):
            return value
        try:
            return parse_size(value)
        except BadRequest as error:
            self.fail(str(error), param, ctx)


class SlotCounts(click.ParamType):  # type: ignore[type-arg, unused-ignore]  # generic from click 8.2 on
    """Slot counts: `1..64`, `1,8,16`, or both."""

    name = "RANGE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        """Read it, or fail with what is wrong."""
        if isinstance(value, tuple):
            return value
        try:
            return parse_slot_counts(value)
        except BadRequest as error:
            self.fail(str(error), param, ctx)


def parse_slot_counts(text: str) -> tuple[int, ...]:
    """Read slot counts into rising order without repeats.

    >>> parse_slot_counts("1..4,8,2")
    (1, 2, 3, 4, 8)
    """
    counts: set[int] = set()
    for part in text.split(","):
        first_text, dots, last_text = part.strip().partition("..")
        first = _count(first_text, part, text)
        last = _count(last_text, part, text) if dots else first
        if last < first:
            raise BadRequest(f"the range {part.strip()!r} runs backwards; write {last}..{first}")
        if last - first >= MOST_POINTS or len(counts) > MOST_POINTS:
            raise BadRequest(f"{text!r} is more than {MOST_POINTS} points; list fewer, such as 1,8,16")
        counts.update(range(first, last + 1))
    if len(counts) > MOST_POINTS:
        raise BadRequest(f"{text!r} is more than {MOST_POINTS} points; list fewer, such as 1,8,16")
    return tuple(sorted(counts))


def _count(text: str, part: str, whole: str) -> int:
    stripped = text.strip()
    if not (stripped.isascii() and stripped.isdigit() and len(stripped) <= 18):
        where = f" in {whole!r}" if part.strip() != whole.strip() else ""
        raise BadRequest(f"{part.strip()!r}{where} is no slot count or range: write 1..64 or 1,8,16")
    if int(stripped) == 0:
        raise BadRequest(f"{part.strip()!r}: counts begin at 1")
    return int(stripped)


def total_bytes(slot_bytes: int, slots: int) -> int:
    """Return what so many slots ask for, or fail where no address space holds it."""
    asked = slot_bytes * slots
    if asked > LARGEST_SIZE_BYTES:
        raise BadRequest(f"{slots:,} slots of {slot_bytes:,} B are more than any address space holds (2**56 bytes)")
    return asked


@dataclass(frozen=True, slots=True)
class Output:
    """Where a result goes and in which form: `text`, `json`, `csv` or `markdown`."""

    form: str
    path: Path | None
    overwrite: bool
    quiet: bool

    def check(self) -> None:
        """Fail before anything is measured where the result could not be written afterwards."""
        if self.path is None:
            return
        if self.path.is_dir():
            raise BadRequest(f"{self.path} is a folder; name a file")
        if self.path.exists() and not self.overwrite:
            raise BadRequest(f"{self.path} exists; -f overwrites it")
        if not os.access(self.path.parent, os.W_OK | os.X_OK):
            raise BadRequest(f"{self.path.parent} is no folder that can be written to")

    def write(self, text: str) -> None:
        """Print the result, or put it whole into its file: a reader never sees a half of it."""
        if self.path is None:
            click.echo(text)
            return
        handle, name = tempfile.mkstemp(prefix=f".{self.path.name}-", dir=self.path.parent)
        temporary = Path(name)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text + "\n")
            temporary.chmod(0o666 & ~_umask())
            if self.overwrite:
                temporary.replace(self.path)
            else:
                self.path.hardlink_to(temporary)  # unlike a rename, this refuses a file that appeared meanwhile
        except FileExistsError:
            raise BadRequest(f"{self.path} exists; -f overwrites it") from None
        finally:
            temporary.unlink(missing_ok=True)

    def tell(self, message: str) -> None:
        """Say something beside the result, on stderr, unless told to be quiet."""
        if not self.quiet:
            click.echo(message, err=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def output_options(command: _Command) -> _Command:
    """Give a command the options for its result; it gets them as `form`, `path`, `overwrite` and `quiet`."""
    for decorate in (
        click.option("-q", "--quiet", is_flag=True, help="No progress and no remarks on stderr."),
        click.option("-f", "--force", "overwrite", is_flag=True, help="Overwrite the file given with -o."),
        click.option("-o", "--output", "path", type=click.Path(path_type=Path), help="Write to a file, not to stdout."),
        click.option("--markdown", "form", flag_value="markdown", help="A Markdown table."),
        click.option("--csv", "form", flag_value="csv", help="Comma-separated values, sizes in bytes."),
        click.option("--json", "form", flag_value="json", help="One document with every reading and the host's facts."),
    ):
        command = decorate(command)
    return command


def bound_options(command: _Command) -> _Command:
    """Give a command the options that bound how much memory it takes; it gets them as `share` and `at_most`."""
    share = click.FloatRange(0, 0.9, min_open=True)
    for decorate in (
        click.option("--at-most", type=Size(), help="Never take more than this, whatever the headroom."),
        click.option(
            "--share",
            type=share,
            default=2 / 3,
            show_default="two thirds",
            help="The share of the headroom that may be taken.",
        ),
    ):
        command = decorate(command)
    return command
