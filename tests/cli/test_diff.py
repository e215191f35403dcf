"""`pinprobe diff` over receipts that `pinprobe ledger` saved of memory that was really taken."""

from __future__ import annotations

import csv
import json
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pinprobe.probes.reading import Unreadable
from tests.cli.loaded_modules import RUN, loaded_by
from tests.ledger.made_receipts import GIB, MIB, Document, document, row, unattributed

if TYPE_CHECKING:
    from tests.cli.conftest import Pinprobe

_CONFIG = """\
engine: {name: mine, allocator: pageable}
numbers: {slots: 4, slot_bytes: 3 MiB, pool: slots * slot_bytes}
tenants:
  cache.ring: {kind: buffer, count: slots, bytes: slot_bytes, detail: a ring}
  cache.pool: {kind: buffer, bytes: pool}
"""
_SLOT = 154_927_104


def run_ledger(pinprobe: Pinprobe, folder: Path, name: str, *arguments: str, config: str = _CONFIG) -> str:
    """Save the receipt of a real run, and return its path."""
    (folder / "mine.yaml").write_text(config, encoding="utf-8")
    receipt = folder / f"{name}.json"
    done = pinprobe("ledger", str(folder / "mine.yaml"), "--receipt", str(receipt), *arguments)
    assert done.returncode == 0, done.stderr
    return str(receipt)


@pytest.fixture(scope="module")
def old(pinprobe: Pinprobe, tmp_path_factory: pytest.TempPathFactory) -> str:
    return run_ledger(pinprobe, tmp_path_factory.mktemp("old"), "old", "--note", "before the change")


@pytest.fixture(scope="module")
def new(pinprobe: Pinprobe, tmp_path_factory: pytest.TempPathFactory) -> str:
    arguments = ("--set", "slots=12", "--set", "pool=slot_bytes", "--note", "a longer ring")
    return run_ledger(pinprobe, tmp_path_factory.mktemp("new"), "new", *arguments)


def saved(folder: Path, name: str, content: Document) -> str:
    path = folder / f"{name}.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    return str(path)


def words(text: str) -> str:
    """The text in one line, however it was wrapped."""
    return " ".join(text.split())


# -- what it says


def test_each_owner_is_shown_with_what_it_asked_booked_and_holds_in_both(
    pinprobe: Pinprobe, old: str, new: str
) -> None:
    done = pinprobe("diff", old, new)
    assert (done.returncode, done.stderr) == (0, "")
    lines = [line.split() for line in done.stdout.splitlines()]
    at = lines.index(["cache.pool", "asked", "12.000", "3.000", "-9.000"])
    assert lines[at + 1 : at + 6] == [
        ["booked", "12.000", "3.000", "-9.000"],
        ["resident", "12.000", "3.000", "-9.000"],
        ["cache.ring", "asked", "12.000", "36.000", "+24.000"],
        ["booked", "12.000", "36.000", "+24.000"],
        ["resident", "12.000", "36.000", "+24.000"],
    ]
    assert ["total", "24.000", "39.000", "+15.000"] in lines
    assert ["predicted", "from", "resident", "24.000", "39.000", "+15.000"] in lines


def test_the_growth_of_the_process_is_the_rows_and_a_small_residue(pinprobe: Pinprobe, old: str, new: str) -> None:
    found = pinprobe.json("diff", old, new)
    receipts = [json.loads(Path(path).read_text(encoding="utf-8")) for path in (old, new)]
    before, after = (receipt["process_resident"]["bytes"] for receipt in receipts)
    assert found["process_resident"]["difference"]["bytes"] == after - before
    residue = found["growth"]["residue"]["difference"]["bytes"]
    assert residue == after - before - 15 * MIB
    assert abs(residue) < 4 * MIB
    assert residue == found["working_set_floor"]["difference"]["bytes"]


def test_the_notes_of_both_are_shown(pinprobe: Pinprobe, old: str, new: str) -> None:
    text = words(pinprobe("diff", old, new).stdout)
    assert "note of the old: before the change" in text
    assert "note of the new: a longer ring" in text


def test_owners_that_appeared_or_went_are_marked(pinprobe: Pinprobe, tmp_path: Path) -> None:
    paths = (saved(tmp_path, "a", document(row("gone", GIB))), saved(tmp_path, "b", document(row("here", 2 * GIB))))
    lines = [line.split() for line in pinprobe("diff", *paths).stdout.splitlines()]
    at = lines.index(["gone", "asked", "1.000", "-", "-1.000"])
    assert lines[at + 1] == ["went", "booked", "1.000", "-", "-1.000"]
    at = lines.index(["here", "asked", "-", "2.000", "+2.000"])
    assert lines[at + 1] == ["appeared", "booked", "-", "2.000", "+2.000"]


def test_the_same_file_twice_differs_in_nothing(pinprobe: Pinprobe, old: str) -> None:
    done = pinprobe("diff", old, old)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Nothing differs" in done.stdout
    assert "Config" not in done.stdout
    assert pinprobe.json("diff", old, old)["same"] is True


def test_figures_that_a_column_would_round_to_nothing_have_a_unit_of_their_own(
    pinprobe: Pinprobe, tmp_path: Path
) -> None:
    paths = (
        saved(tmp_path, "a", document(row("a", 8 * GIB))),
        saved(tmp_path, "b", document(row("a", 8 * GIB + 4096))),
    )
    lines = [line.split() for line in pinprobe("diff", *paths).stdout.splitlines()]
    assert ["a", "asked", "8.000", "8.000", "+4.000", "KiB"] in lines
    assert ["pageable", "0.000", "0.000", "same"] in lines


def test_the_growth_that_was_published_is_named_by_its_parts(pinprobe: Pinprobe, tmp_path: Path) -> None:
    before = document(row("pool", round(4.47 * GIB), allocator="pageable", pageable=True), floor=GIB)
    rings = [row("cache.savepoint_ring", 32 * _SLOT, 8 * GIB), row("cache.staging", 16 * _SLOT, 4 * GIB)]
    process = before["process_resident"]["bytes"] + 7_900_000_000
    after = document(*rings, unattributed(MIB), floor=process - 12 * GIB, process=process)
    done = pinprobe("diff", saved(tmp_path, "a", before), saved(tmp_path, "b", after))
    lines = [line.split() for line in done.stdout.splitlines()]
    assert ["predicted", "from", "asked", "4.470", "6.926", "+2.456"] in lines
    assert ["predicted", "from", "resident", "4.470", "12.000", "+7.530"] in lines
    assert ["measured", "5.470", "12.827", "+7.357"] in lines
    text = words(done.stdout)
    assert "Residue -0.173 GiB: VmRSS grew by that much less than what is resident of the rows." in text
    assert (
        "The engine itself (working-set floor) shrank by 0.173 GiB, +1.000 MiB of it while its ledger ran"
        " (unattributed)." in text
    )


def test_what_can_not_be_read_is_a_question_mark_with_its_reason_below(pinprobe: Pinprobe, tmp_path: Path) -> None:
    unread = document(row("ring", GIB, resident=Unreadable("no smaps here")), process=Unreadable("no statm here"))
    done = pinprobe("diff", saved(tmp_path, "a", document(row("ring", GIB))), saved(tmp_path, "b", unread))
    lines = [line.split() for line in done.stdout.splitlines()]
    assert ["resident", "1.000", "?", "?"] in lines
    assert ["measured", "1.250", "?", "?"] in lines
    text = words(done.stdout)
    assert "ring, resident: unreadable, because in the new receipt: no smaps here." in text
    assert "VmRSS: unreadable, because in the new receipt: no statm here." in text
    assert "Residue: unreadable, because" in text


def test_huge_pages_are_named_as_what_vmrss_does_not_have(pinprobe: Pinprobe, tmp_path: Path) -> None:
    known = row("weights", 2 * GIB, allocator="registered-hugetlb")
    own = row("arena", GIB, allocator="engine.memory:take")
    after = document(row("a", 1), known, own, floor=MIB, process=MIB + 1)
    text = words(pinprobe("diff", saved(tmp_path, "a", document(row("a", 1))), saved(tmp_path, "b", after)).stdout)
    assert "in no VmRSS and so in none of these lines: weights." in text
    assert "Of what rows of the new receipt call resident, 1.000 GiB are not in its VmRSS: huge pages" in text


def test_no_line_is_wider_than_a_terminal_but_words_to_paste(pinprobe: Pinprobe, tmp_path: Path, old: str) -> None:
    long = {"numbers": dict.fromkeys(("a" * 60, "b" * 60, "c"), 1), "engine": {"name": "an engine " * 30}}
    rows = [row(f"{'cache.' * 20}{number}", 3 * 2**40, 4 * 2**40 + number) for number in range(3)]
    wide = document(*rows, config=long, scale="1/3", note="a note of many words " * 20, process=Unreadable("why " * 99))
    for pair in ((saved(tmp_path, "a", wide), old), (old, saved(tmp_path, "b", wide))):
        lines = pinprobe("diff", *pair).stdout.splitlines()
        assert [line for line in lines if len(line) > 80 and "--set" not in line] == []
        # A name is folded and not cut: the figures of two owners can't be mixed up.
        first_cells = "".join(re.split(r" {2,}", line.strip())[0] for line in lines)
        assert [f"{'cache.' * 20}{number}" in first_cells for number in range(3)] == [True, True, True]


# -- the way back


def test_the_words_to_paste_bring_the_old_state_back(pinprobe: Pinprobe, old: str, new: str, tmp_path: Path) -> None:
    text = pinprobe("diff", old, new).stdout
    _, _, rest = text.partition("on the command line:\n")
    pasted = shlex.split(rest.partition("\n\n")[0].replace("\\\n", ""))
    assert pasted == ["--set", "pool=slots * slot_bytes", "--set", "slots=4"]
    again = run_ledger(pinprobe, tmp_path, "again", "--set", "slots=12", "--scale", "1/2")
    there = pinprobe.json("diff", old, again)["config"]
    assert [(key["key"], key["word"]) for key in there] == [
        ("numbers.slots", "--set slots=4"), ("overrides.slots", ""), ("scale", "--scale 1"),
    ]  # fmt: skip
    again = run_ledger(pinprobe, tmp_path, "again", *pasted, "-f")
    found = pinprobe.json("diff", old, again)
    assert {key["key"] for key in found["config"]} == {"overrides.pool", "overrides.slots"}
    for owner in found["owners"]:
        if owner["state"] == "reserved":
            assert [owner[what]["difference"]["bytes"] for what in ("asked", "booked", "resident")] == [0, 0, 0]


def test_many_words_are_lines_that_a_shell_reads_as_one(pinprobe: Pinprobe, tmp_path: Path) -> None:
    numbers = {f"number_{index}": f"{index} * 148 MiB" for index in range(9)}
    before = saved(tmp_path, "a", document(config={"numbers": numbers}))
    after = saved(tmp_path, "b", document(config={"numbers": dict.fromkeys(numbers, 1)}))
    text = pinprobe("diff", before, after).stdout
    shown = text.partition("on the command line:\n")[2].rstrip("\n")
    assert max(map(len, shown.split("\n"))) <= 80
    assert len(shown.split("\n")) > 3
    expected = [word for name, value in numbers.items() for word in ("--set", f"{name}={value}")]
    assert shlex.split(shown.replace("\\\n", "")) == expected


def test_what_the_command_line_can_not_set_is_told_for_the_config(pinprobe: Pinprobe, old: str, tmp_path: Path) -> None:
    config = _CONFIG.replace("bytes: pool}", "bytes: pool, allocator: mlock, detail: other}")
    after = run_ledger(pinprobe, tmp_path, "mlock", "--set", "slots=1", config=config)
    text = pinprobe("diff", old, after).stdout
    assert "  tenants.cache.pool.allocator: not there -> mlock\n" in text
    assert "in the config:\n  tenants.cache.pool.allocator: not in the old config; take it out\n" in text
    assert "  allocator of cache.pool: pageable -> mlock\n" in text


# -- failing on growth


def test_growth_beyond_what_is_allowed_ends_with_1_and_names_who_grew_by_how_much(
    pinprobe: Pinprobe, old: str, new: str
) -> None:
    done = pinprobe("diff", old, new, "--fail-on-increase", "5%")
    assert (done.returncode, done.stderr) == (1, "")
    text = words(done.stdout)
    assert "FAILS, more than 5%: booked for cache.ring grew by 200.00%: 12.000 MiB -> 36.000 MiB, +24.000 MiB" in text
    assert "FAILS, more than 5%: the total booked grew by 62.50%: 24.000 MiB -> 39.000 MiB, +15.000 MiB" in text
    assert "booked for cache.pool" not in text
    found = pinprobe.json("diff", old, new, "--fail-on-increase", "62.5%", exit_code=1)
    assert [(increase["name"], increase["is_total"], increase["share"]) for increase in found["increases"]] == [
        ("cache.ring", False, 2.0)
    ]
    assert (found["allowed_share"], found["exit_code"]) == (0.625, 1)


def test_growth_within_what_is_allowed_ends_with_0_and_says_so(pinprobe: Pinprobe, old: str, new: str) -> None:
    done = pinprobe("diff", old, new, "--fail-on-increase", "200 %")
    assert (done.returncode, done.stderr) == (0, "")
    assert "Nothing that is booked grew by more than 200%." in done.stdout
    assert pinprobe("diff", new, new, "--fail-on-increase", "0%").returncode == 0
    assert pinprobe.json("diff", old, new)["allowed_share"] is None


def test_a_new_owner_grew_from_nothing(pinprobe: Pinprobe, tmp_path: Path) -> None:
    before, after = document(row("a", GIB)), document(row("a", GIB), row("b", 4096))
    paths = (saved(tmp_path, "a", before), saved(tmp_path, "b", after))
    done = pinprobe("diff", *paths, "--fail-on-increase", "999999%", "--csv")
    assert done.returncode == 1
    assert done.stderr == "pinprobe: booked for b grew from nothing: 0 B -> 4.000 KiB, +4.000 KiB\n"
    found = pinprobe.json("diff", *paths, "--fail-on-increase", "5%", exit_code=1)
    assert found["increases"][0]["share"] == {"unreadable": "it grew from 0 B"}


def test_the_bound_can_be_given_in_the_environment(pinprobe: Pinprobe, old: str, new: str) -> None:
    assert pinprobe.given({"PINPROBE_DIFF_FAIL_ON_INCREASE": "5%"})("diff", old, new).returncode == 1


@pytest.mark.parametrize(
    "text", ["0.05", "5", "-5%", "nan", "5%%", "%", "", "five", "1e2%", "\u0665%", "9999999%", "5\x1b%"]
)
def test_a_bound_in_another_form_is_refused_with_the_right_one(
    pinprobe: Pinprobe, old: str, new: str, text: str
) -> None:
    line = pinprobe.refused("diff", old, new, f"--fail-on-increase={text}")
    assert "--fail-on-increase" in line
    assert "is no percentage: write a number of up to 6 digits and %, as 5%." in line


# -- the other forms


def test_json_says_what_is_compared_and_gives_every_amount_with_its_source(
    pinprobe: Pinprobe, old: str, new: str
) -> None:
    found = pinprobe.json("diff", old, new)
    assert (found["schema"], found["version"], found["same"], found["exit_code"]) == ("pinprobe.diff", 1, False, 0)
    assert found["command"] == ["pinprobe", "diff", old, new, "--json"]
    measured_at = json.loads(Path(old).read_text(encoding="utf-8"))["measured_at"]
    assert found["old"] == {
        "path": old, "measured_at": measured_at, "engine": "mine", "scale": "1", "note": "before the change",
    }  # fmt: skip
    pool, ring = (owner for owner in found["owners"] if owner["state"] == "reserved")
    assert (pool["owner"], ring["owner"], ring["presence"]) == ("cache.pool", "cache.ring", "both")
    assert [ring["booked"][side]["bytes"] for side in ("old", "new", "difference")] == [12 * MIB, 36 * MIB, 24 * MIB]
    assert found["sums"]["total"]["difference"]["bytes"] == 15 * MIB
    assert {key["key"]: (key["old"], key["new"]) for key in found["config"]} == {
        "numbers.pool": ("slots * slot_bytes", "slot_bytes"),
        "numbers.slots": (4, 12),
        "overrides.pool": (None, "slot_bytes"),
        "overrides.slots": (None, "12"),
    }


def test_csv_has_a_line_for_each_amount_key_fact_and_note(pinprobe: Pinprobe, old: str, new: str) -> None:
    lines = list(csv.reader(pinprobe("diff", old, new, "--csv").stdout.splitlines()))
    assert lines[0] == ["section", "name", "what", "old", "new", "difference", "remark"]
    assert {len(line) for line in lines} == {7}
    assert ["owner", "cache.ring", "booked", str(12 * MIB), str(36 * MIB), str(24 * MIB), ""] in lines
    assert ["sum", "total", "booked", str(24 * MIB), str(39 * MIB), str(15 * MIB), ""] in lines
    assert ["config", "numbers.slots", "", "4", "12", "", "--set slots=4"] in lines
    assert lines[-1] == ["note", "", "", "before the change", "a longer ring", "", ""]


def test_in_csv_an_unknown_is_an_empty_cell_with_its_reason(pinprobe: Pinprobe, tmp_path: Path) -> None:
    unread = saved(tmp_path, "b", document(row("ring", 8, resident=Unreadable("no smaps here"))))
    done = pinprobe("diff", saved(tmp_path, "a", document(row("ring", 4))), unread, "--csv")
    assert "owner,ring,resident,4,,,in the new receipt: no smaps here" in done.stdout.splitlines()


def test_markdown_has_the_same_tables(pinprobe: Pinprobe, old: str, new: str) -> None:
    text = pinprobe("diff", old, new, "--markdown").stdout
    assert "| cache.ring | asked | 12.000 | 36.000 | +24.000 |" in text
    assert "| numbers.slots | 4 | 12 |" in text
    assert "\n```\n--set 'pool=slots * slot_bytes' --set slots=4\n```\n" in text


def test_a_file_is_written_and_not_overwritten(pinprobe: Pinprobe, old: str, new: str, tmp_path: Path) -> None:
    place = tmp_path / "diff.txt"
    done = pinprobe("diff", old, new, "-o", str(place))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert "cache.ring" in place.read_text(encoding="utf-8")
    assert "-f overwrites" in pinprobe.refused("diff", old, new, "-o", str(place))


def test_quiet_leaves_the_remarks_beside_csv_out(pinprobe: Pinprobe, old: str, new: str) -> None:
    done = pinprobe("diff", old, new, "--csv", "-q", "--fail-on-increase", "5%")
    assert (done.returncode, done.stderr) == (1, "")


# -- what is no receipt


@pytest.mark.parametrize("place", ["old", "new"])
def test_a_file_that_is_no_receipt_is_refused_by_name(pinprobe: Pinprobe, old: str, tmp_path: Path, place: str) -> None:
    receipt = json.loads(Path(old).read_text(encoding="utf-8"))
    del receipt["rows"][0]["booked_bytes"]
    damaged = saved(tmp_path, "damaged", receipt)
    pair = (damaged, old) if place == "old" else (old, damaged)
    line = pinprobe.refused("diff", *pair)
    assert f"{damaged}: rows[0].booked_bytes is missing; make the receipt anew: pinprobe ledger" in line


def test_receipts_of_other_commands_and_files_that_are_none_are_refused(
    pinprobe: Pinprobe, old: str, tmp_path: Path
) -> None:
    probe = tmp_path / "probe.json"
    pinprobe("probe", "--bytes", "1MiB", "--allocator", "pageable", "--json", "-o", str(probe))
    assert "'pinprobe.probe'" in pinprobe.refused("diff", old, str(probe))
    assert "there is no such file" in pinprobe.refused("diff", str(tmp_path / "gone"), old)
    assert "is a folder" in pinprobe.refused("diff", old, str(tmp_path))
    assert "NEW" in pinprobe.refused("diff", old)


def test_comparing_loads_no_library_that_measures(pinprobe: Pinprobe, old: str, new: str) -> None:
    assert loaded_by(pinprobe, RUN, "diff", "--help") == ""
    assert loaded_by(pinprobe, RUN, "diff", old, new, "--json") == ""
    assert loaded_by(pinprobe, RUN, "diff", old, new) == "rich"
