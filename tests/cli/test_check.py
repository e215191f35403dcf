"""`pinprobe check` and `pinprobe schema`: what a config says, before a byte is taken."""

from __future__ import annotations

import csv
import io
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.cli.loaded_modules import RUN, loaded_by

if TYPE_CHECKING:
    from tests.cli.conftest import Pinprobe

CONFIG = """\
engine: {name: mine}
numbers: {slots: 64, pool: 3 MiB, floor: 4.5 MiB}
checks:
  enough: slots >= 8
  covered: pool >= floor
"""


@pytest.fixture
def config(tmp_path: Path) -> str:
    """A config of which one check holds and one fails."""
    path = tmp_path / "mine.yaml"
    path.write_text(CONFIG, encoding="utf-8")
    return str(path)


def test_each_check_is_a_line_with_both_sides_and_one_that_fails_ends_with_1(pinprobe: Pinprobe, config: str) -> None:
    done = pinprobe("check", config)
    assert done.returncode == 1
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        "holds  enough: slots >= 8: 64 >= 8 holds",
        f"FAILS  covered: pool >= floor: 3 MiB >= 4.5 MiB does not hold, by 1.5 MiB ({config}:5:12)",
        "mine: 1 of 2 checks fails: covered.",
    ]


def test_where_all_hold_it_ends_with_0(pinprobe: Pinprobe, config: str) -> None:
    done = pinprobe("check", config, "--set", "pool=floor * 2", "--set", "slots = 8")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "holds  enough: slots >= 8: 8 >= 8 holds",
        "holds  covered: pool >= floor: 9 MiB >= 4.5 MiB holds",
        "mine: 2 of 2 checks hold.",
    ]


def test_a_shipped_config_is_known_by_its_bare_name(pinprobe: Pinprobe) -> None:
    assert pinprobe("check", "savepoint-ring-64").stdout.endswith("savepoint-ring-64: 1 of 1 checks hold.\n")


@pytest.mark.parametrize(
    ("name", "printed", "words"),
    [
        ("expert-tiered-2x200k", "44.47 GiB", "150,000 MiB >= 150,138.56 MiB does not hold, by 138.56 MiB"),
        ("expert-tiered-4x200k", "48.59 GiB", "162,000 MiB >= 163,056.32 MiB does not hold, by 1,056.32 MiB"),
    ],
)
def test_what_an_engine_prints_is_held_against_its_config(
    pinprobe: Pinprobe, name: str, printed: str, words: str
) -> None:
    assert pinprobe("check", name).returncode == 0
    done = pinprobe("check", name, "--set", f"host_pool={printed}")
    assert done.returncode == 1
    assert f"FAILS  minimum_covers_the_floor: minimum >= floor: {words}" in done.stdout


def test_a_config_without_checks_says_so(pinprobe: Pinprobe, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("engine: {name: mine}\n", encoding="utf-8")
    done = pinprobe("check", str(tmp_path / "c.yaml"))
    assert done.returncode == 0
    assert done.stdout == "mine: the config has no checks; a section `checks:` would hold them.\n"


def test_every_problem_of_a_config_is_a_line_and_it_ends_with_2(pinprobe: Pinprobe, tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("engine: {nme: e}\nnumbers: {a: 010, b: 64g}\n", encoding="utf-8")
    done = pinprobe("check", str(path), "--set", "c=1")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.removeprefix("pinprobe: ").splitlines() == [
        "--set c: the config has no number `c`; known are a, b, ranks",
        f"{path}:1:1: `engine` lacks `name`: What the engine is called in tables and receipts.",
        f"{path}:1:10: `engine.nme` is not known; did you mean name?",
        f"{path}:2:14: `numbers.a`: '010' begins with 0, which some read as octal: write 10",
        f"{path}:2:22: `numbers.b`: '64g' is ambiguous (powers of 1000 or of 1024?): write 64GiB, or plain bytes",
    ]


@pytest.mark.parametrize(
    ("tenant", "words"),
    [
        ("{kind: savepoint_ring, slots: 4, max_num_seqs: 8, layout: *it}", "are fewer than one turn hands out"),
        ("{kind: retention_pool, regions: 4, layout: *it, policy: best}", "no retention policy is called 'best'"),
        ("{kind: retention_pool, regions: 4, layout: *it, overflow_dir: /tmp}", "give both overflow_dir and"),
        ("{kind: retention_pool, regions: 4, layout: *it, bytes: 4096}", "are less than one region"),
    ],
)
def test_a_tenant_that_no_host_could_open_is_told_before_the_boot(
    pinprobe: Pinprobe, tmp_path: Path, tenant: str, words: str
) -> None:
    path = tmp_path / "engine.yaml"
    layout = "{kind: retention_pool, regions: 1, layout: &it [{name: s, shape: [2048], dtype: float32}]}"
    path.write_text(f"engine: {{name: e}}\ntenants:\n  a.good: {layout}\n  a.bad: {tenant}\n", encoding="utf-8")
    line = pinprobe.refused("check", str(path), exit_code=2)
    assert f"{path}:4:3: tenant a.bad: " in line
    assert words in line


def test_json_holds_every_figure_and_what_was_set(pinprobe: Pinprobe, config: str) -> None:
    document = pinprobe.json("check", config, "--set", "slots=9", exit_code=1)
    assert (document["schema"], document["version"], document["engine"]) == ("pinprobe.check", 1, "mine")
    assert document["settings"] == ["slots=9"]
    assert document["numbers"] == {"slots": 9, "pool": 3 * 2**20, "floor": 9 * 2**19}
    assert document["holds"] is False
    assert document["checks"][1] == {
        "name": "covered",
        "expression": "pool >= floor",
        "place": f"{config}:5:12",
        "holds": False,
        "sides": [{"text": "pool", "value": 3 * 2**20}, {"text": "floor", "value": 9 * 2**19}],
        "sentence": "pool >= floor: 3 MiB >= 4.5 MiB does not hold, by 1.5 MiB",
    }


def test_csv_and_markdown_have_a_row_a_check(pinprobe: Pinprobe, config: str, tmp_path: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(pinprobe("check", config, "--csv").stdout)))
    assert [(row["check"], row["verdict"]) for row in rows] == [("enough", "holds"), ("covered", "fails")]
    done = pinprobe("check", config, "--markdown", "-o", str(tmp_path / "checks.md"))
    assert (done.returncode, done.stdout) == (1, "")
    text = (tmp_path / "checks.md").read_text(encoding="utf-8")
    assert "| covered | FAILS | pool >= floor: 3 MiB >= 4.5 MiB does not hold, by 1.5 MiB |" in text


@pytest.mark.parametrize(
    ("arguments", "because"),
    [
        (("no-such-config",), "there is no config 'no-such-config'"),
        (("savepoint-slpit",), "did you mean savepoint-split?"),
        (("savepoint-ring-64", "--set", "slots"), "write --set slots=16"),
        (("savepoint-ring-64", "--set", "=16"), "write --set slots=16"),
        (("savepoint-ring-64", "--set", "slots=1", "--set", "slots=2"), "given twice"),
        (("savepoint-ring-64", "--set", "slotz=1"), "did you mean slots?"),
        (("savepoint-ring-64", "--set", "slots=1/0"), "divides by zero"),
        (("savepoint-ring-64", "--set", "slots=__import__('os')"), "can't stand in arithmetic"),
        (("savepoint-ring-64", "--set", "sl\nots=1"), "the config has no number"),
        (("/",), "is a folder"),
        (("/dev/zero",), "larger than 1 MiB"),
        ((), "CONFIG"),
    ],
    ids=[
        "unknown", "near", "no value", "no name", "twice", "near number", "zero", "call", "line end", "folder",
        "device", "nothing",
    ],
)  # fmt: skip
def test_what_can_not_be_read_is_refused_in_one_line(
    pinprobe: Pinprobe, arguments: tuple[str, ...], because: str
) -> None:
    assert because in pinprobe.refused("check", *arguments)


def test_an_output_that_exists_is_refused_before_the_config_is_read(pinprobe: Pinprobe, tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("precious", encoding="utf-8")
    assert "-f" in pinprobe.refused("check", "no-such-config", "-o", str(tmp_path / "kept"))


def test_no_code_that_a_config_names_is_run(pinprobe: Pinprobe, tmp_path: Path) -> None:
    (tmp_path / "engine_of_a_test.py").write_text("raise SystemExit(9)\n", encoding="utf-8")
    tenant = "{kind: external, bytes: 1 MiB, callable: 'engine_of_a_test:take'}"
    (tmp_path / "c.yaml").write_text(f"engine: {{name: e}}\ntenants: {{t: {tenant}}}\n", encoding="utf-8")
    assert pinprobe.finding_first(tmp_path)("check", str(tmp_path / "c.yaml")).returncode == 0


def test_a_setting_can_stand_in_the_environment(pinprobe: Pinprobe, config: str) -> None:
    assert pinprobe.given({"PINPROBE_CHECK_SET": "pool=5MiB"})("check", config).returncode == 0


def test_the_schema_is_one_json_document(pinprobe: Pinprobe) -> None:
    done = pinprobe("schema")
    assert (done.returncode, done.stderr) == (0, "")
    schema = json.loads(done.stdout)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert set(schema["properties"]) == {"engine", "numbers", "tenants", "checks", "budget", "removed"}


@pytest.mark.parametrize("arguments", [("check", "--help"), ("schema", "--help")], ids=" ".join)
def test_the_help_loads_no_heavy_library(pinprobe: Pinprobe, arguments: tuple[str, ...]) -> None:
    assert loaded_by(pinprobe, RUN, *arguments) == ""


def test_reading_a_config_loads_no_torch(pinprobe: Pinprobe) -> None:
    assert loaded_by(pinprobe, f"import sys\n{RUN}", "check", "savepoint-ring-64").split() == ["pydantic", "yaml"]


def test_a_test_of_an_engine_can_assert_its_checks(pinprobe: Pinprobe, config: str, tmp_path: Path) -> None:
    import subprocess

    test = tmp_path / "test_my_engine.py"
    test.write_text(
        "from pathlib import Path\n"
        "from pinprobe.ledger.config.checks import assert_checks\n"
        "from pinprobe.ledger.config.registry import load_config\n"
        "def test_the_host_can_pin_what_we_configure():\n"
        f"    assert_checks(load_config(Path({config!r})))\n",
        encoding="utf-8",
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), str(test)]
    done = subprocess.run(command, env=pinprobe.environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout
    assert "covered: pool >= floor: 3 MiB >= 4.5 MiB does not hold, by 1.5 MiB" in done.stdout
