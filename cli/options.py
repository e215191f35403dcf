"""What the commands' options accept, and where their output goes. Light, since `--help` loads it."""

from __future__ import annotations

import math
import os
import re
import stat
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, TypeVar

import click

from pinprobe.probes.errors import BadRequest
from pinprobe.probes.units import LARGEST_SIZE_BYTES, parse_size

#: More points than anyone looks at; a bound, so that a slip of the finger does not become a list of a billion.
MOST_POINTS = 4096

SIZES = "Bytes, or a number with KiB, MiB, GiB or TiB."

_SHARE = re.compile(r"[0-9]{1,12}(\.[0-9]{1,12})?(/[0-9]{1,12})?", re.ASCII)

_Command = TypeVar("_Command", bound=Callable[..., object])


class Size(click.ParamType):  # type: ignore[type-arg, unused-ignore]  # generic from click 8.2 on
    """A size in bytes, or with an IEC suffix."""

    name = "SIZE"

    def __init__(self, or_none: bool = False) -> None:
        self._or_none = or_none

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Read it, or fail with what is wrong; `0` is no size but where none may be meant."""
        if isinstance(value, int):
            return value
        if self._or_none and value.strip() == "0":
            return 0
        try:
            return parse_size(value)
        except BadRequest as error:
            self.fail(str(error), param, ctx)


class Scale(click.ParamType):  # type: ignore[type-arg, unused-ignore]  # generic from click 8.2 on
    """A share of 1, as a fraction or a decimal."""

    name = "SHARE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Fraction:
        """Read it, or fail with what is wrong."""
        if isinstance(value, Fraction):
            return value
        # No exponents: 1e-30000000 is a fraction too, and takes minutes to write down.
        if not _SHARE.fullmatch(value.strip()):
            self.fail(f"{value[:40]!r} is no share: write 1/16 or 0.25.", param, ctx)
        number, _, divisor = value.strip().partition("/")
        scale = Fraction(number) / int(divisor or 1) if int(divisor or 1) else Fraction(0)
        if not 0 < scale <= 1:
            self.fail(f"{value[:40]!r} is not in the range 0<x<=1.", param, ctx)
        return scale


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
            if sys.stdout is None:
                raise BadRequest("stdout is closed; give a file with -o")
            return
        try:
            found = self.path.stat() if self.path.exists() else None
        except OSError as error:
            raise BadRequest(f"{self.path} can't be a file: {error.strerror}") from None
        if found is not None and stat.S_ISDIR(found.st_mode):
            raise BadRequest(f"{self.path} is a folder; name a file")
        if found is not None and not self.overwrite:
            raise BadRequest(f"{self.path} exists; -f overwrites it")
        if found is None and not os.access(self.path.parent, os.W_OK | os.X_OK):
            raise BadRequest(f"{self.path.parent} is no folder that can be written to")
        if len(os.fsencode(self.path.name)) > os.pathconf(self.path.parent, "PC_NAME_MAX"):
            raise BadRequest(f"the name of {self.path.name[:40]}... is longer than its file system allows")

    def write(self, text: str) -> None:
        """Print the result, or put it whole into its file: a reader never sees a half of it."""
        if self.path is None:
            _print(text)
        elif self.path.exists() and not self.path.is_file():
            self.path.write_text(text + "\n", encoding="utf-8")  # a pipe or a device is written to, never replaced
        else:
            try:
                _write_whole(self.path.resolve(), text, self.overwrite)
            except BadRequest:
                # It took minutes to measure: better on the wrong stream than nowhere.
                if sys.stdout is not None:
                    _print(text)
                raise

    def tell(self, message: str) -> None:
        """Say something beside the result, on stderr, unless told to be quiet."""
        if not self.quiet:
            click.echo(message, err=True)


def check_all(*outputs: Output) -> None:
    """Check every place that a result goes to, and that no two are the same file."""
    for output in outputs:
        output.check()
    files = [output.path.resolve() for output in outputs if output.path is not None]
    for path in files:
        if files.count(path) > 1 and (path.is_file() or not path.exists()):
            raise BadRequest(f"{path} is named twice; each result needs a file of its own")


def _print(text: str) -> None:
    encoding = sys.stdout.encoding or "ascii"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:  # the lines of tables, and the sign of error bars
        text = text.replace("─", "-").replace("±", "+-").encode(encoding, "replace").decode(encoding)
    try:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever reads has had enough, which changes nothing of what was found. The interpreter would complain once
        # more when it flushes at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _write_whole(path: Path, text: str, overwrite: bool) -> None:
    try:
        handle, name = tempfile.mkstemp(prefix=".pinprobe-", dir=path.parent)
    except OSError as error:
        raise BadRequest(f"{path.parent} can't be written to: {error.strerror or error}") from None
    temporary = Path(name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text + "\n")
        temporary.chmod(0o666 & ~_umask())
        if overwrite:
            temporary.replace(path)
        else:
            path.hardlink_to(temporary)  # unlike a rename, this refuses a file that appeared meanwhile
    except FileExistsError:
        raise BadRequest(f"{path} exists by now; -f overwrites it") from None
    except OSError as error:
        raise BadRequest(f"{path} can't be written: {error.strerror or error}") from None
    finally:
        temporary.unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


class Share(click.FloatRange):
    """A share of the headroom: more than 0, and never so much that nothing is left for the rest."""

    def __init__(self) -> None:
        super().__init__(0, 0.9, min_open=True)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Read it, or fail with what is wrong; not-a-number passes every comparison and is none of them."""
        share = float(super().convert(value, param, ctx))
        if math.isnan(share):
            self.fail(f"{value} is not a number.", param, ctx)
        return share


def output_options(command: _Command) -> _Command:
    """Give a command the options for its result; it gets them as `form`, `path`, `overwrite` and `quiet`."""
    for decorate in (
        click.option("-q", "--quiet", is_flag=True, help="No progress and no remarks on stderr."),
        click.option("-f", "--force", "overwrite", is_flag=True, help="Overwrite files that exist."),
        click.option("-o", "--output", "path", type=click.Path(path_type=Path), help="Write to a file, not to stdout."),
        click.option("--markdown", "form", flag_value="markdown", help="A Markdown table."),
        click.option("--csv", "form", flag_value="csv", help="Comma-separated values, sizes in bytes."),
        click.option("--json", "form", flag_value="json", help="One document with every reading and the host's facts."),
    ):
        command = decorate(command)
    return command


def detail_options(command: _Command) -> _Command:
    """Give a measuring command the options that show or keep more; it gets them as `columns` and `receipt`."""
    for decorate in (
        click.option(
            "--receipt", type=click.Path(path_type=Path), help="Save what --json would print, beside the output."
        ),
        click.option(
            "--columns", type=click.Choice(["few", "all"]), default="few", help="all: what every counter saw, too."
        ),
    ):
        command = decorate(command)
    return command


def bound_options(command: _Command) -> _Command:
    """Give a command the options that bound how much memory it takes; it gets them as `share` and `at_most`."""
    for decorate in (
        click.option("--at-most", type=Size(), help="Never take more than this, whatever the headroom."),
        click.option(
            "--share",
            type=Share(),
            default=2 / 3,
            show_default="two thirds",
            help="The share of the headroom that may be taken.",
        ),
    ):
        command = decorate(command)
    return command
