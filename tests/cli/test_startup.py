"""The commands that measure nothing start at once: they load no library that only measuring needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.cli.loaded_modules import RUN, loaded_by

if TYPE_CHECKING:
    from tests.cli.conftest import Pinprobe


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
    assert loaded_by(pinprobe, RUN, *arguments) == ""


def test_importing_the_package_loads_no_heavy_library(pinprobe: Pinprobe) -> None:
    assert loaded_by(pinprobe, "import pinprobe") == ""


def test_a_heavy_library_would_be_seen(pinprobe: Pinprobe) -> None:
    # Without this, a misspelt name in the list would make the tests above pass for ever.
    assert loaded_by(pinprobe, "import psutil, rich") == "psutil rich"


def test_measuring_itself_loads_no_torch(pinprobe: Pinprobe) -> None:
    loaded = loaded_by(pinprobe, RUN, "probe", "--bytes", "1MiB", "--allocator", "pageable")
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


def test_a_command_that_is_nearly_one_is_suggested(pinprobe: Pinprobe) -> None:
    assert "did you mean sweep?" in pinprobe.refused("sweeep")
    assert "No such command" in pinprobe.refused("zzzz")
