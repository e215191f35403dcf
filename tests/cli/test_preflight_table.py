"""The table of a preflight, drawn of every saved host, with and without a config: it keeps to 80 columns."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pinprobe.cli.preflight_table import render_preflight
from pinprobe.ledger.preflight.needs import Needs
from pinprobe.ledger.preflight.preflight import check_limits
from pinprobe.ledger.preflight.preflight_receipt import PreflightRun
from pinprobe.ledger.preflight.raise_failing import Raise
from pinprobe.probes.limits.read_limits import read_limits
from pinprobe.probes.limits.recorded_tree import recorded_tree
from tests.ledger.preflight.made_hosts import AMD, FIXTURES, GIB, NO_BOOK, large_host, made_host, needs_of_shipped

_NAMES = ("expert-tiered-2x200k", "")


def drawn(root: Path, name: str, raises: tuple[Raise, ...] = ()) -> str:
    needs = needs_of_shipped(name) if name else Needs()
    checks = check_limits(read_limits(recorded_tree(root)), needs, NO_BOOK)
    run = PreflightRun(needs.engine, name, "", (), checks, raises, is_raising=bool(raises))
    return render_preflight(run, None, "text", [])


def wide_lines(text: str) -> list[str]:
    """Lines of more than 80 columns, but for commands and for paths, which are never broken."""
    lines = [line for line in text.splitlines() if len(line) > 80 and not line.startswith("  $ ")]
    return [line for line in lines if max(map(len, line.split())) < 50]


@pytest.mark.parametrize("name", _NAMES)
@pytest.mark.parametrize("saved", sorted(path.name for path in FIXTURES.iterdir()))
def test_no_line_is_wider(saved: str, name: str) -> None:
    text = drawn(FIXTURES / saved, name)
    assert wide_lines(text) == []
    table = text.partition("\n\n")[0].splitlines()
    assert max(map(len, table)) <= 80
    assert table[1].split() == ["check", "value", "need", "state", "binds"]


def test_long_words_of_a_host_are_wrapped_and_what_is_no_text_is_marked(tmp_path: Path) -> None:
    daemons = {"/proc/812/comm": "earlyoom\n", "/proc/813/comm": "systemd-oomd\n"}
    texts = {
        **AMD,
        **daemons,
        "/proc/self/oom_score_adj": "\x1b[31m\n",
        "/sys/module/amdttm/parameters/pages_limit": "x",
    }
    text = drawn(made_host(tmp_path, texts).root, _NAMES[0])
    assert wide_lines(text) == []
    assert "\x1b" not in text
    assert "amdttm pages_limit" in text


def test_errors_are_told_first_and_a_command_stands_whole_on_its_line(tmp_path: Path) -> None:
    others = {"/proc/812/comm": "earlyoom\n", "/proc/self/oom_score_adj": "x\n"}
    text = drawn(made_host(tmp_path, {**AMD, **large_host(256 * GIB), **others}).root, _NAMES[0])
    told = [
        line.partition(":")[0] for line in text.splitlines() if line.startswith(("ERROR:", "advice:", "unreadable:"))
    ]
    assert set(told) == {"ERROR", "unreadable", "advice"}
    assert told == sorted(told, key=["ERROR", "unreadable", "advice"].index)
    assert re.search(r"^  \$ echo [0-9]{8} \| sudo tee /sys/module/ttm/parameters/pages_limit$", text, re.MULTILINE)


def test_what_was_not_raised_is_told_in_its_own_words(tmp_path: Path) -> None:
    text = drawn(
        made_host(tmp_path, AMD).root, "", (Raise("ttm pages_limit", None, "ttm pages_limit is not raised: no"),)
    )
    assert "\nttm pages_limit is not raised: no.\n" in text
