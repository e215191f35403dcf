"""The commands that measure nothing start at once: they load no library that only measuring needs."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.cli.conftest import Pinprobe

_HEAVY = ("torch", "pydantic", "rich", "psutil", "numpy", "yaml")
_TELL_LOADED = f"""
import atexit, sys
atexit.register(lambda: print(*sorted(set({_HEAVY!r}) & set(sys.modules)), file=sys.stderr))
"""
_RUN = "from pinprobe.cli.main import main; main.main(sys.argv[1:], prog_name='pinprobe', standalone_mode=False)"


def loaded_by(pinprobe: Pinprobe, code: str, *arguments: str) -> str:
    command = [sys.executable, "-c", _TELL_LOADED + code, *arguments]
    done = subprocess.run(command, env=pinprobe.environment, capture_output=True, text=True, check=True)
    return done.stderr.strip()


@pytest.mark.parametrize(
    "arguments",
    [
        ("--help",),
        ("--version",),
        ("sweep", "--help"),
        ("probe", "--help"),
        ("replay", "--help"),
        ("allocators", "--help"),
        ("cache", "--help"),
        ("cache", "path"),
    ],
    ids=" ".join,
)
def test_a_command_that_measures_nothing_loads_no_heavy_library(pinprobe: Pinprobe, arguments: tuple[str, ...]) -> None:
    assert loaded_by(pinprobe, _RUN, *arguments) == ""


def test_importing_the_package_loads_no_heavy_library(pinprobe: Pinprobe) -> None:
    assert loaded_by(pinprobe, "import pinprobe") == ""


def test_a_heavy_library_would_be_seen(pinprobe: Pinprobe) -> None:
    # Without this, a misspelt name in the list would make the tests above pass for ever.
    assert loaded_by(pinprobe, "import psutil, rich") == "psutil rich"


def test_measuring_itself_loads_no_torch(pinprobe: Pinprobe) -> None:
    loaded = loaded_by(pinprobe, _RUN, "probe", "--bytes", "1MiB", "--allocator", "pageable")
    assert "torch" not in loaded.split()


def test_the_version_is_the_packages(pinprobe: Pinprobe) -> None:
    import pinprobe as package

    done = pinprobe("--version")
    assert (done.returncode, done.stdout) == (0, f"pinprobe {package.__version__}\n")


def test_help_lists_every_command_and_the_exit_codes(pinprobe: Pinprobe) -> None:
    text = pinprobe("--help").stdout
    for word in ("probe", "sweep", "allocators", "cache", "0 it holds", "3 could not measure"):
        assert word in text


def test_without_a_command_the_help_is_shown_and_it_counts_as_bad_usage(pinprobe: Pinprobe) -> None:
    done = pinprobe()
    assert done.returncode == 2
    assert "Commands:" in done.stdout + done.stderr
