"""`pinprobe preflight` as a user runs it: its forms, its exit codes, another host's files, and what it raises."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pinprobe.cli.main import main
from tests.cli.conftest import Done
from tests.cli.test_environments import need_tools, unprivileged
from tests.ledger.preflight.made_hosts import (
    AMD,
    GIB,
    MIB,
    TTM,
    Texts,
    buffer,
    large_host,
    made_host,
    write_into,
)

if TYPE_CHECKING:
    from tests.cli.conftest import Pinprobe

Here = Callable[..., Done]

#: pytest finds them in this module by their names.
FIXTURES = (unprivileged,)
_HALF: Texts = {**AMD, **large_host(256 * GIB)}
_KEYS = {"name", "state", "value", "need_bytes", "binds", "tenants", "source", "reason", "remedy"}


@pytest.fixture
def half(tmp_path: Path) -> Path:
    """A recorded host of 256 GiB, half of which may be pinned."""
    return made_host(tmp_path, _HALF).root


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text(f"engine: {{name: mine}}\ntenants: {{{buffer('12 MiB', 'mlock')}}}\n", encoding="utf-8")
    return path


@pytest.fixture
def here(capsys: pytest.CaptureFixture[str]) -> Here:
    """The command in this process, for what only reads a tree: starting it takes ten times as long as running it."""

    def run(*arguments: str) -> Done:
        code = main.main(["preflight", *arguments], standalone_mode=False)
        captured = capsys.readouterr()
        return subprocess.CompletedProcess(arguments, code, captured.out, captured.err)

    return run


def document_of(done: Done, exit_code: int = 0) -> dict[str, Any]:
    assert (done.returncode, done.stderr) == (exit_code, "")
    document: dict[str, Any] = json.loads(done.stdout)
    return document


# This host.


def test_without_a_config_this_host_is_looked_at_and_nothing_fails(pinprobe: Pinprobe) -> None:
    done = pinprobe("preflight")
    assert (done.returncode, done.stderr) == (0, "")
    assert "No config, so nothing can fail" in done.stdout
    document = pinprobe.json("preflight")
    assert (document["schema"], document["config"], document["exit_code"]) == ("pinprobe.preflight", None, 0)
    assert all(check["state"] != "error" and check["tenants"] == [] for check in document["checks"])


def test_a_config_that_this_host_holds_passes_and_nothing_was_taken(pinprobe: Pinprobe, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(f"engine: {{name: mine}}\ntenants: {{{buffer('1 MiB', 'pageable')}}}\n", encoding="utf-8")
    document = pinprobe.json("preflight", str(path), "--book-dir", str(tmp_path / "book"))
    memory = document["checks"][0]
    assert (memory["need_bytes"], memory["tenants"], memory["state"]) == (MIB, ["cache.store"], "ok")
    assert not (tmp_path / "book").exists()


def test_a_config_that_no_host_holds_is_refused(pinprobe: Pinprobe, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(f"engine: {{name: mine}}\ntenants: {{{buffer('64 TiB', 'pageable')}}}\n", encoding="utf-8")
    done = pinprobe("preflight", str(path))
    assert done.returncode == 1
    assert "ERROR: MemAvailable" in done.stdout
    assert "Nothing was taken." in done.stdout


# The forms.


def test_each_form_has_every_check_and_the_table_fits_80_columns(here: Here, half: Path) -> None:
    arguments = ("expert-tiered-2x200k", "--root", str(half))
    names = [check["name"] for check in document_of(here(*arguments, "--json"), exit_code=1)["checks"]]
    text = here(*arguments)
    assert text.returncode == 1
    # A path and a command are never broken, so that they can be copied.
    long = [line for line in text.stdout.splitlines() if len(line) > 80 and not line.startswith(("  $ ", "  /"))]
    assert [line for line in long if str(half) not in line] == []
    assert [name for name in names if f"\n {name} " not in text.stdout] == []
    rows = list(csv.DictReader(here(*arguments, "--csv").stdout.splitlines()))
    assert [row["check"] for row in rows] == names
    assert {row["state"] for row in rows} <= {"ok", "advice", "error", "unreadable"}
    markdown = here(*arguments, "--markdown").stdout
    assert len(re.findall(r"^\| ", markdown, re.MULTILINE)) == len(names) + 2


def test_a_saved_host_of_another_page_size_is_read_with_its_own(here: Here) -> None:
    root = Path(__file__).resolve().parents[1] / "fixtures" / "pages_64k"
    document = document_of(here("--root", str(root), "--json"))
    assert document["root"] == str(root)
    assert all(set(check) == _KEYS for check in document["checks"])
    # 1887616 kB and 199 pages of 64 KiB, whose size its smaps name.
    assert document["checks"][0]["value"]["bytes"] == 1_945_960_448


def test_a_record_says_what_sort_of_value_it_has(here: Here, half: Path) -> None:
    checks = {check["name"]: check for check in document_of(here("--root", str(half), "--json"))["checks"]}
    assert set(checks["MemAvailable"]["value"]) == {"bytes", "source", "error_bytes"}
    assert checks["huge page mode"]["value"] == {"words": "always"}
    assert checks["/dev/shm"]["value"] == {"absent": "not mounted"}
    write_into(half, {TTM: "half\n"})
    checks = {check["name"]: check for check in document_of(here("--root", str(half), "--json"))["checks"]}
    assert checks["ttm pages_limit"]["value"] == {"unreadable": f"{TTM} reads 'half'"}


# The exit codes.


def test_what_binds_a_tenant_and_cannot_be_read_ends_with_3(here: Here, half: Path) -> None:
    write_into(half, {TTM: "half\n"})
    done = here("expert-tiered-2x200k", "--root", str(half))
    assert done.returncode == 3
    assert "what binds it can't be read: ttm pages_limit" in " ".join(done.stdout.split())


def test_what_binds_nobody_and_cannot_be_read_ends_with_0(here: Here, half: Path) -> None:
    write_into(half, {"/proc/self/oom_score_adj": None})
    write_into(half, {TTM: "52428800\n"})
    assert here("expert-tiered-2x200k", "--root", str(half)).returncode == 0


def test_a_number_set_anew_is_what_is_checked(here: Here, half: Path) -> None:
    # As it stands it fails, which the forms above show.
    done = here("expert-tiered-2x200k", "--root", str(half), "--set", "host_pool=16 GiB")
    assert done.returncode == 0, done.stdout


def test_the_command_to_copy_is_about_the_same_numbers(here: Here, half: Path) -> None:
    done = here("expert-tiered-2x200k", "--root", str(half), "--set", "host_pool=300 GiB", "--set", "slots=3", "--json")
    checks = {check["name"]: check for check in document_of(done, exit_code=1)["checks"]}
    for name in ("MemAvailable", "ttm pages_limit"):
        assert checks[name]["remedy"] == (
            "pinprobe plan expert-tiered-2x200k --set 'host_pool=300 GiB' --set slots=3 --fit host_pool"
        )


# What it raises.


def test_raise_sets_what_the_config_calls_its_target_and_prints_old_and_new(here: Here, half: Path) -> None:
    done = here("expert-tiered-4x200k", "--root", str(half), "--raise", "--target", "target")
    assert (done.returncode, done.stderr) == (0, "")
    said = " ".join(done.stdout.split())
    assert "raised: ttm pages_limit from 128.000 GiB (137,438,953,472 B) to 200.000 GiB (214,748,364,800 B)" in said
    assert (half / TTM[1:]).read_text(encoding="utf-8") == f"{204_800 * MIB // 4096}\n"


def test_without_raise_nothing_is_written(here: Here, half: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PINPROBE_PREFLIGHT_RAISE", "1")  # nobody typed it
    before = {path: path.read_bytes() for path in half.rglob("*") if path.is_file()}
    here("expert-tiered-4x200k", "--root", str(half), "--target", "target")
    assert {path: path.read_bytes() for path in half.rglob("*") if path.is_file()} == before


def test_what_is_raised_stands_in_the_document(here: Here, half: Path) -> None:
    document = document_of(here("expert-tiered-4x200k", "--root", str(half), "--raise", "--target", "200GiB", "--json"))
    (raised,) = document["raises"]
    assert raised == {"name": "ttm pages_limit", "old_bytes": 128 * GIB, "new_bytes": 200 * GIB, "refusal": ""}


def test_a_raise_that_is_not_enough_still_fails(here: Here, half: Path) -> None:
    done = here("expert-tiered-4x200k", "--root", str(half), "--raise", "--set", "host_pool=300 GiB")
    assert done.returncode == 1
    assert "is not raised to" in done.stdout
    assert (half / TTM[1:]).read_text(encoding="utf-8") == "33554432\n"


def test_the_own_memlock_is_raised_up_to_the_hard_limit_and_no_further(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    command: Pinprobe = request.getfixturevalue("unprivileged")
    soft = replace(command, before=tuple(word.replace("=8388608:", "=4194304:") for word in command.before))
    six, twelve = (_in(command, size) for size in ("6 MiB", "12 MiB"))
    assert soft("preflight", six).returncode == 1
    done = soft("preflight", six, "--raise")
    assert done.returncode == 0, done.stdout + done.stderr
    said = " ".join(done.stdout.split())
    assert "raised: RLIMIT_MEMLOCK from 4.000 MiB (4,194,304 B) to 6.000 MiB" in said
    done = soft("preflight", twelve, "--raise")
    assert done.returncode == 1
    assert "RLIMIT_MEMLOCK can't be raised to 12.000 MiB: its hard limit is 8.000 MiB" in " ".join(done.stdout.split())


def _in(command: Pinprobe, size: str) -> str:
    """Write a config where another user can read it."""
    path = command.cache_folder / f"{size.replace(' ', '')}.yaml"
    path.write_text(f"engine: {{name: mine}}\ntenants: {{{buffer(size, 'mlock')}}}\n", encoding="utf-8")
    return str(path)


# Bad usage.


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--set", "slots=3"), "--set is about a config, and none is given"),
        (("--root", "/nonexistent"), "--root /nonexistent holds no folder proc"),
        (("--raise", "--root", "/"), "--raise --root / would set this host's own limits"),
        (("--raise", "--root", "/proc/self/root"), "would set this host's own limits"),
        (("--target", "64g"), "--target: '64g' is ambiguous"),
        (("--target", "64 GiB"), "--target is held against what a CONFIG needs, or raised to by --raise"),
        (("expert-tiered-2x200k", "--target", "max_seqs"), "the config's sizes are "),
        (("no-such-config",), "there is no config 'no-such-config'"),
    ],
)
def test_bad_usage_is_one_line(pinprobe: Pinprobe, arguments: tuple[str, ...], words: str) -> None:
    assert words in pinprobe.refused("preflight", *arguments)


def test_a_book_that_was_named_and_cannot_be_used_is_bad_usage(pinprobe: Pinprobe, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("", encoding="utf-8")
    assert "the host's book can't be read" in pinprobe.refused("preflight", "--book-dir", str(file))


# What others run it with.

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def test_the_drop_in_is_what_systemd_takes(tmp_path: Path) -> None:
    need_tools("systemd-analyze")
    shutil.copytree(EXAMPLES / "systemd", tmp_path / "units")
    unit = tmp_path / "units" / "engine.service"
    unit.write_text("[Unit]\nDescription=engine\n[Service]\nExecStart=/bin/true\n", encoding="utf-8")

    def verified() -> str:
        done = subprocess.run(
            ["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True, check=False
        )
        return f"{done.returncode} {done.stdout}{done.stderr}"

    assert verified() == "0 "
    # That the drop-in is read at all, a fault in it shows.
    drop_in = tmp_path / "units" / "engine.service.d" / "pinprobe.conf"
    drop_in.write_text(drop_in.read_text(encoding="utf-8").replace("LimitMEMLOCK", "LimitMEMLOCKS"), encoding="utf-8")
    assert "LimitMEMLOCKS" in verified()


def test_the_commands_of_the_examples_are_ones_that_run(
    pinprobe: Pinprobe, here: Here, half: Path, tmp_path: Path
) -> None:
    import yaml

    drop_in = (EXAMPLES / "systemd" / "engine.service.d" / "pinprobe.conf").read_text(encoding="utf-8")
    commands = [
        line.split() for line in re.findall(r"^ExecStartPre=[-+]*/usr/bin/env pinprobe (.*)$", drop_in, re.MULTILINE)
    ]
    pod = yaml.safe_load((EXAMPLES / "kubernetes" / "preflight-init-container.yaml").read_text(encoding="utf-8"))
    (check, init), (engine,) = pod["spec"]["initContainers"], pod["spec"]["containers"]
    commands += [check["command"][1:], init["command"][1:]]
    checks = [words for words in commands if words[0] == "check"]
    commands = [words for words in commands if words[0] != "check"]
    assert [len(checks), len(commands)] == [2, 3]
    config = tmp_path / "engine.yaml"
    config.write_text(f"engine: {{name: mine}}\ntenants: {{{buffer('140 GiB', 'torch')}}}\n", encoding="utf-8")
    for words in checks:
        assert (
            pinprobe(*[str(config) if word == "/etc/pinprobe/engine.yaml" else word for word in words]).returncode == 0
        )
    codes = []
    for words in (commands[1], commands[0], commands[2]):
        words = [str(config) if word == "/etc/pinprobe/engine.yaml" else word for word in words]
        assert words[0] == "preflight"
        codes.append(here(*words[1:], "--root", str(half)).returncode)
    assert codes == [1, 0, 0], "refused, raised, and fine from then on"
    # The limit that the init container reads is the engine's.
    assert init["resources"] == engine["resources"]
    assert {mount["name"] for mount in init["volumeMounts"]} == {volume["name"] for volume in pod["spec"]["volumes"]}


def test_an_ordinary_user_reads_a_tree_that_he_may_not_write(request: pytest.FixtureRequest, half: Path) -> None:
    command: Pinprobe = request.getfixturevalue("unprivileged")
    if os.geteuid():
        pytest.skip("not root, so no tree can be another's")
    shutil.copytree(half, command.cache_folder / "half")
    arguments = ("preflight", "expert-tiered-2x200k", "--root", str(command.cache_folder / "half"), "--raise")
    done = command(*arguments)
    assert done.returncode == 1
    command_for_root = rf"Permission denied; as root: echo [0-9]{{8}} \| sudo tee {TTM}"
    assert re.search(command_for_root, " ".join(done.stdout.split()))
