"""`pinprobe advise`: what other ways of pinning take, measured on torch's own allocator and within a bound."""

from __future__ import annotations

import csv
import io
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pinprobe.probes.installed_torch import InstalledTorch, find_installed_torch
from tests.cli.loaded_modules import RUN, loaded_by

if TYPE_CHECKING:
    from tests.cli.conftest import Pinprobe

MIB = 2**20
#: 40 MiB take a block of 64, and 5 GiB are beyond what these tests allow.
CONFIG = """\
engine: {name: mine, ranks: 2, allocator: torch-host}
tenants:
  a.small: {kind: buffer, bytes: 40 MiB}
  b.large: {kind: buffer, per: host, bytes: 5 GiB}
  c.pageable: {kind: buffer, bytes: 1 MiB, allocator: pageable}
"""
_THRESHOLD, _CACHED = "pinned_max_round_threshold_mb:1", "pinned_max_cached_size_mb:1"


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "mine.yaml"
    path.write_text(CONFIG, encoding="utf-8")
    return str(path)


@pytest.fixture
def torch_of_2_13(torch_host: Pinprobe, need_room: Callable[[int], None]) -> Pinprobe:
    """The command with the torch whose settings are known to be unsafe one by one."""
    torch = find_installed_torch()
    if not isinstance(torch, InstalledTorch) or torch.release != (2, 13):
        pytest.skip("needs torch 2.13")
    need_room(300 * MIB)
    return torch_host


def by_name(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {way["name"]: way for way in document["ways"]}


def test_ways_are_measured_where_they_fit_and_an_unsafe_one_is_never_recommended(
    torch_of_2_13: Pinprobe, config: str
) -> None:
    document = torch_of_2_13.json("advise", config, "--at-most", "128MiB")
    own, ways = document["as_it_is"], by_name(document)
    assert document["allowance"]["bytes"] == 128 * MIB
    assert [(e["owner"], e["copies"], e["cost_bytes"], e["known"]) for e in own["effects"]] == [
        ("a.small", 2, 64 * MIB, "measured"),
        ("b.large", 1, 8192 * MIB, "predicted"),
    ]
    saved = 2 * 24 * MIB + 3072 * MIB
    assert (ways[_CACHED]["saved_bytes"], ways[_CACHED]["is_usable"]) == (saved, True)
    assert [effect["known"] for effect in ways[_CACHED]["effects"]] == ["measured", "predicted"]
    assert ways[_CACHED]["settings"] == {"PYTORCH_ALLOC_CONF": _CACHED}
    assert "pinned anew" in ways[_CACHED]["notes"][0]
    # With rounding off and caching on, this torch hands a smaller block to a larger request.
    assert "block of 9,003,008 B to a request for 15,000,000 B" in ways[_THRESHOLD]["warning"]
    assert ways[_THRESHOLD]["is_usable"] is False
    assert document["recommended"] == _CACHED
    # What is not registered with a device is shown and not recommended, whatever it saves.
    assert ways["mlock"]["saved_bytes"] == saved
    assert "not registered with a device" in ways["mlock"]["caveat"]
    assert all(effect["seconds"] > 0 for way in (own, ways["mlock"]) for effect in way["effects"])


def test_settings_that_are_unsafe_as_they_are_fail_and_a_safe_way_is_named(
    torch_of_2_13: Pinprobe, config: str
) -> None:
    command = torch_of_2_13.given({"PYTORCH_ALLOC_CONF": _THRESHOLD})
    done = command("advise", config, "--at-most", "32MiB")
    assert done.returncode == 1
    text = " ".join(done.stdout.split())
    assert text.startswith("pinprobe advise: mine: memory is not safe as it is: torch-host handed a block of")
    assert f"PYTORCH_ALLOC_CONF={_THRESHOLD},{_CACHED} is safe" in text
    assert [line for line in done.stdout.splitlines() if len(line) > 80 or line != line.rstrip()] == []


@pytest.mark.parametrize(
    ("arguments", "exit_code", "because"),
    [
        (("mine.yaml", "--set", "slots=1"), 2, "has no number"),
        (("pageable.yaml",), 2, "no tenant pins memory"),
        (("locked.yaml", "--at-most", "1MiB"), 3, "mlock, which the config takes memory from"),
    ],
)
def test_what_can_not_be_tried_is_refused_in_one_line(
    pinprobe: Pinprobe, config: str, tmp_path: Path, arguments: tuple[str, ...], exit_code: int, because: str
) -> None:
    for name in ("pageable", "mlock"):
        text = CONFIG.replace("torch-host", name)
        (tmp_path / f"{name.replace('mlock', 'locked')}.yaml").write_text(text, encoding="utf-8")
    words = [str(tmp_path / word) if word.endswith(".yaml") else word for word in arguments]
    assert because in pinprobe.refused("advise", *words, exit_code=exit_code)


@pytest.mark.parametrize(
    "arguments",
    [("advise", "--at-most", "128MiB"), pytest.param(("plan", "--measure"), marks=pytest.mark.slow)],
    ids=lambda words: words[0],
)
def test_an_interrupt_ends_all_of_it_and_nothing_is_left_behind(
    torch_host: Pinprobe, config: str, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    command = torch_host.given({"PINPROBE_CACHE_DIR": str(tmp_path / "cache")})
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache/torch_host").symlink_to(torch_host.cache_folder / "torch_host")
    process = command.start(arguments[0], config, *arguments[1:])
    while not children_of(process.pid):
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out) == (3, ""), err
    assert {"pinprobe: interrupted", "pinprobe: ended by SIGINT"} & set(err.splitlines())
    assert not (tmp_path / "cache/maps").exists()


def children_of(pid: int) -> str:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii")


def test_without_torch_as_its_own_no_setting_is_tried_and_csv_has_a_row_an_effect(
    pinprobe: Pinprobe, tmp_path: Path, need_lock: Callable[[int], None]
) -> None:
    need_lock(15 * MIB)
    path = tmp_path / "c.yaml"
    path.write_text(
        "engine: {name: e, allocator: mlock}\ntenants: {t: {kind: buffer, bytes: 3 MiB}}\n", encoding="utf-8"
    )
    done = pinprobe("advise", str(path), "--at-most", "20MiB", "--csv")
    assert done.returncode == 0, done.stderr
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    assert [(row["way"], row["cost_bytes"], row["known"]) for row in rows if row["cost_bytes"]] == [
        ("as it is", str(3 * MIB), "measured")
    ]
    assert {row["kind"] for row in rows} == {"allocator"}


def test_its_help_loads_no_heavy_library(pinprobe: Pinprobe) -> None:
    assert loaded_by(pinprobe, RUN, "advise", "--help") == ""
