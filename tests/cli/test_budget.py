"""`pinprobe budget`: the waterfall on a terminal and for programs, before a byte is taken."""

from __future__ import annotations

import csv
import io
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pinprobe.cli.main import main
from pinprobe.ledger.budget.budget_model import BudgetModel
from pinprobe.ledger.config.registry import load_config
from pinprobe.ledger.config.shipped import find_config
from tests.cli.loaded_modules import RUN, loaded_by
from tests.ledger.budgets import GIB, MIB, WHOLE

if TYPE_CHECKING:
    from tests.cli.conftest import Pinprobe


@pytest.fixture
def whole(tmp_path: Path) -> str:
    path = tmp_path / "whole.yaml"
    path.write_text(WHOLE, encoding="utf-8")
    return str(path)


def in_one_line(text: str) -> str:
    """Text as it was before it was wrapped."""
    return re.sub(r"\s+", " ", text)


def test_the_four_slot_boot_is_printed_line_by_line_within_80_columns(pinprobe: Pinprobe) -> None:
    done = pinprobe("budget", "expert-tiered-4x200k")
    assert (done.returncode, done.stderr) == (0, "")
    assert all(len(line) <= 80 for line in done.stdout.splitlines()), done.stdout
    text = in_one_line(done.stdout)
    for line in (
        "expert-tiered-4x200k: the cards, the same for each of 2 ranks, in GiB",
        "capacity 26.730 elastic",
        "experts, floor 0.000 26.730 have to have plane + spare, less what the host holds:",
        "kv, floor 1.499 25.231 has to have one_sequence",
        "kv, growth 4.496 20.735 grows to its cap kv_cap",
        "experts, growth 20.735 0.000 grow to their ceiling plane + spare *",
        "unclaimed 0.000 what no consumer may have",
        "kv stands at its cap (kv_cap).",
        "0.365 GiB for staging_ring is charged to it and 5.631 GiB stay",
        "up to 5.201 GiB is lent to experts: lent, not free.",
        "747,577 tokens",
        "+1 GiB of host_pool: nothing moves, since the floor of experts is 0 already;",
        "spare = 0 B is an assumption: not published",
        "expert-tiered-4x200k: the budget of the cards fits.",
    ):
        assert line in text, line


def test_the_bar_shows_each_share_and_what_is_lent_in_proportion(pinprobe: Pinprobe, whole: str) -> None:
    done = pinprobe("budget", whole)
    (bar,) = (line for line in done.stdout.splitlines() if line.startswith("["))
    assert len(bar) == 80
    # 24 GiB over 78 columns: claims 2, floor 6, experts 11, kv 2 (1.8 of it lent), scratch 0.25, unclaimed 2.75 GiB.
    assert re.fullmatch(r"\[-{6,7}={19,20}E{35,36}K{0,1}k{5,6}S{0,1}\.{8,9}\]", bar), bar
    assert "- claims   = floors   E experts   K kv   k kv, lent to experts" in done.stdout


def test_a_pool_too_small_for_the_native_payload_ends_with_1_and_says_what_mends_it(pinprobe: Pinprobe) -> None:
    done = pinprobe("budget", "expert-fp8-native", "--set", "host_pool=36_864 MiB")
    assert (done.returncode, done.stderr) == (1, "")
    assert all(len(line) <= 80 for line in done.stdout.splitlines())
    text = in_one_line(done.stdout)
    assert "0.400 GiB fits neither: what does not fit the cards must fit the host" in text
    assert "host_pool = 39,106 MiB is the least that does it, where it is 36,864 MiB now" in text
    assert "elastic = 20 GiB is an assumption: not published for this payload" in text
    assert text.rstrip().endswith("the budget of the cards does not fit: experts, kv.")


def test_with_40_gib_it_fits_and_the_lever_is_explained(pinprobe: Pinprobe) -> None:
    done = pinprobe("budget", "expert-fp8-native", "--set", "elastic=20 GiB")
    assert done.returncode == 0
    assert "assumption" not in done.stdout  # what is set for a run is none of the file's
    words = "+1 GiB of host_pool: floor of experts -1 GiB; kv already at its cap, so experts keep it;"
    assert words in in_one_line(done.stdout)


def test_one_more_slot_is_priced_in_store_state_kv_and_experts(pinprobe: Pinprobe) -> None:
    done = pinprobe("budget", "expert-tiered-4x200k", "--marginal", "slots")
    assert done.returncode == 0
    rows = {line.split()[1].rstrip(","): line.split()[-1] for line in done.stdout.splitlines()
            if line.startswith((" host ", " device "))}  # fmt: skip
    assert float(rows["cache.checkpoint_store"]) == pytest.approx(10 * 112 / 1024, abs=0.001)
    assert float(rows["kv.state"]) == pytest.approx(110.01 / 1024, abs=0.001)
    assert float(rows["experts"]) == pytest.approx(-(110.01 * MIB + 200_000 * 7470) / GIB, abs=0.001)
    assert float(rows["kv"]) == pytest.approx(-float(rows["experts"]) - float(rows["kv.staging_ring"]), abs=0.002)
    assert "one more of slots: 4 -> 5, in GiB or as counted" in done.stdout


def test_a_difference_that_is_small_for_the_unit_is_written_out_in_bytes(pinprobe: Pinprobe) -> None:
    done = pinprobe("budget", "expert-tiered-2x200k", "--marginal", "window")
    text = in_one_line(done.stdout)
    # One more token makes one more block of four, of 7,470 B each, for either sequence.
    assert f"experts 23.732 23.732 -{2 * 4 * 7_470:,} B" in text
    assert "kv.floor 1.499 1.499 +29,880 B" in text
    assert "-0.000" not in text
    assert all(len(line) <= 80 for line in done.stdout.splitlines()), done.stdout


def test_a_wish_is_answered_by_each_lever_or_by_the_one_that_is_named(pinprobe: Pinprobe) -> None:
    wish = "kv.tokens >= 700000"
    done = pinprobe("budget", "expert-tiered-2x200k", "--set", "slots=3", "--wish", wish)
    assert done.returncode == 0
    text = in_one_line(done.stdout)
    assert f"{wish}: no value of host_pool does it;" in text
    assert "since kv is at its cap, kv_cap = 4,604.4 MiB" in text
    assert f"{wish}: slots = 4 is the least that does it, where it is 3 now" in text
    done = pinprobe("budget", "expert-tiered-2x200k", "--wish", wish, "--lever", "host_pool")
    assert done.returncode == 1
    assert in_one_line(done.stdout).endswith("fits. Nothing meets the wish kv.tokens >= 700000. ")


def test_json_holds_every_figure_in_bytes(pinprobe: Pinprobe, whole: str) -> None:
    arguments = ("budget", whole, "--marginal", "slots", "--wish", "kv >= 3 GiB", "--set", "pool=5 GiB")
    document = pinprobe.json(*arguments)
    assert (document["schema"], document["version"], document["fits"], document["settings"]) == (
        "pinprobe.budget", 1, True, ["pool=5 GiB"],
    )  # fmt: skip
    assert (document["capacity_bytes"], document["elastic_bytes"]) == (24 * GIB, 16 * GIB)
    taken = sum(step["taken_bytes"] for step in document["steps"])
    assert taken + document["unclaimed_bytes"] == document["capacity_bytes"]
    assert document["steps"][1] == {
        "kind": "claim", "name": "drift", "wanted_bytes": 1536 * MIB, "taken_bytes": 1536 * MIB, "short_bytes": 0,
        "left_bytes": 22 * GIB, "rule": "taken first: guess", "assumed": ["guess"],
    }  # fmt: skip
    kv = document["shares"][1]
    assert (kv["name"], kv["standing"], kv["got_bytes"], kv["lent_to"]) == ("kv", "at its cap", 2 * GIB, "experts")
    assert kv["units"] == [{"name": "tokens", "count": 2048 - 200}]
    assert [answer["least"] for answer in document["wishes"]] == [None, 3]
    assert document["marginal"]["tenants"][0]["difference"] == 64 * MIB
    assert document["assumptions"][0]["number"] == "guess"
    (pool, _) = document["levers"]
    assert (pool["number"], pool["before"], pool["after"]) == ("pool", 5 * GIB, 6 * GIB)


def test_csv_and_markdown_have_the_same_figures(pinprobe: Pinprobe, whole: str, tmp_path: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(pinprobe("budget", whole, "--csv").stdout)))
    taken = {(row["section"], row["name"]): row["value"] for row in rows if row["what"] == "taken"}
    assert taken["growth", "kv"] == str(GIB)
    results = {row["name"]: row["value"] for row in rows if row["section"] == "result"}
    assert results["kv.tokens"] == str(2048 - 200)
    done = pinprobe("budget", whole, "--markdown", "-o", str(tmp_path / "budget.md"))
    assert (done.returncode, done.stdout) == (0, "")
    text = (tmp_path / "budget.md").read_text(encoding="utf-8")
    assert "| kv, growth | 1.000 | 7.750 | grows to its cap slots * slot_bytes |" in text
    assert "* guess = 1,536 MiB is an assumption: nobody measured it" in text


@pytest.mark.parametrize(
    ("arguments", "because"),
    [
        (("savepoint-split",), "has no `budget:` section"),
        (("expert-tiered-4x200k", "--wish", "kv.tokns > 1"), "did you mean kv.tokens?"),
        (("expert-tiered-4x200k", "--lever", "pool"), "did you mean host_pool?"),
        (("expert-tiered-4x200k", "--marginal", "host_pool"), "name a count, such as slots"),
        (("expert-tiered-4x200k", "--set", "elastic=0 - 1"), "`budget.capacity` comes to -1; it has to be more than 0"),
        (("/dev/zero",), "can be read once only"),
    ],
    ids=lambda value: " ".join(value[1:])[-20:] if isinstance(value, tuple) else "",
)
def test_what_can_not_be_used_is_refused_in_one_line(
    pinprobe: Pinprobe, arguments: tuple[str, ...], because: str
) -> None:
    assert because in pinprobe.refused("budget", *arguments)


def test_no_torch_is_loaded_for_it(pinprobe: Pinprobe) -> None:
    loaded = loaded_by(pinprobe, f"import sys\n{RUN}", "budget", "expert-fp8-native").split()
    assert "torch" not in loaded
    assert loaded_by(pinprobe, RUN, "budget", "--help") == ""


def test_the_guide_shows_commands_that_run_a_section_that_is_read_and_figures_that_come_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    guide = (Path(__file__).parent.parent.parent / "docs" / "budget.md").read_text(encoding="utf-8")
    printed = ""
    for line in re.findall(r"^\$ pinprobe (budget .*?)(?: +#.*)?$", guide, re.MULTILINE):
        status = main.main(shlex.split(line), standalone_mode=False)
        assert status == ("36_864" in line)
        printed += capsys.readouterr().out
    for figure in re.findall(r"^\| [24] slots.* \| (\S+) GiB \| (\S+) GiB \| (\S+) \|", guide, re.MULTILINE):
        assert all(part in printed for part in figure)
    section = guide.partition("```yaml\n")[2].partition("```")[0]
    tiered = find_config("expert-tiered-2x200k").read_text(encoding="utf-8")
    more = "numbers:\n  card: 40 GiB\n  guess: 1 GiB\n  weights: 6 GiB\n"
    text = tiered.partition("\nbudget:")[0].replace("numbers:", f"{more}#", 1)
    path = tmp_path / "guide.yaml"
    path.write_text(f"{text}\n{section}", encoding="utf-8")
    assert BudgetModel(load_config(path)).budget.share("kv").got_bytes > 2 * GIB
