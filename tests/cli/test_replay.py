"""`pinprobe replay` as users run it: the tables, the documents, and what is refused."""

from __future__ import annotations

import csv
import importlib.util
import io
import logging
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import click
import pytest

from pinprobe.cli.main import main
from pinprobe.ledger.tenants.policies.policies import ENTRY_POINT_GROUP, policy_names
from pinprobe.probes.errors import BadRequest
from tests.ledger.replay.scripted_server import Play, ScriptedServer
from tests.ledger.tenants.foreign_package import install

if TYPE_CHECKING:
    from tests.cli.conftest import Pinprobe

ROW_BYTES = 4_194_304
ROW_GIB = ROW_BYTES / 2**30

RING = """
engine: {{name: {name}, ranks: 1, allocator: {allocator}}}
numbers: {{slots: {slots}}}
tenants:
  cache.ring:
    kind: savepoint_ring
    slots: slots
    max_num_seqs: 1
    layout: &savepoint {{layers: 1, attributes: {{state: {{shape: [1024, 1024], dtype: float32}}}}}}
"""
POOL = """
  cache.pool:
    kind: retention_pool
    regions: {regions}
    policy: lru
    layout: *savepoint
"""
HEADER = "t_s,savepoint_id,parent_id,savepoint_tokens,prompt_tokens,output_tokens,conversation"
SMALL = ("--sessions", "4", "--turns", "3")


def config(folder: Path, name: str, slots: int, regions: int = 0, allocator: str = "mlock") -> str:
    text = RING.format(name=name, slots=slots, allocator=allocator)
    path = folder / f"{name}.yaml"
    path.write_text(text + (POOL.format(regions=regions) if regions else ""), encoding="utf-8")
    return str(path)


@pytest.fixture
def arms(tmp_path: Path) -> tuple[str, ...]:
    """A ring of 2 slots and one of 16, and a pool of 8 behind a ring of 2."""
    made = config(tmp_path, "small", 2), config(tmp_path, "large", 16), config(tmp_path, "split", 2, 8)
    return tuple(word for path in made for word in ("--arm", path))


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Two turns of one conversation, and a prompt that never comes again."""
    path = tmp_path / "mine.csv"
    rows = ["0.0,1,-1,4000,4000,10,a", "1.0,2,-1,9000,9000,10,b", "2.0,3,1,6000,6000,10,a"]
    path.write_text("\n".join([HEADER, *rows]) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def kept_logging() -> Iterator[None]:
    """For commands that run in this very process, which is faster: what they do to the logger is undone."""
    logger = logging.getLogger("pinprobe")
    handlers, propagate = logger.handlers[:], logger.propagate
    yield
    logger.handlers[:], logger.propagate = handlers, propagate


def table(text: str, first: str) -> dict[str, list[str]]:
    """The rows of the table whose header begins like that, by their first word."""
    lines = text.splitlines()
    start = next(number for number, line in enumerate(lines) if line.split()[: len(first.split())] == first.split())
    rows = {}
    for line in lines[start + 2 :]:
        if not line.startswith(" "):
            break
        name, *cells = line.split()
        rows[name] = cells
    return rows


# -- arms


def test_a_trace_is_replayed_through_each_arm(pinprobe: Pinprobe, arms: tuple[str, ...], trace: Path) -> None:
    done = pinprobe("replay", str(trace), *arms)
    assert done.returncode == 0, done.stderr
    assert "3 requests, of which 1 continue" in " ".join(done.stdout.split())
    rows = table(done.stdout, "arm cached")
    # 4,000 of the later prompt's 6,000 tokens were there, and 19,000 were asked for in all; one slot was free for both.
    assert {row[0] for row in rows.values()} == {"21.1"}
    assert {row[1] for row in rows.values()} == {"66.7"}
    assert [row[2] for row in rows.values()] == ["8.000", "64.000", "8.000"]  # MiB, asked
    reads = table(done.stdout, "arm mean")
    assert [row[1:4] for row in reads.values()] == [["1", "0", "0"], ["1", "0", "0"], ["0", "1", "0"]]
    assert all(len(line) <= 80 for line in done.stdout.splitlines())


def test_what_is_modelled_says_so_and_what_differs_is_told(pinprobe: Pinprobe, arms: tuple[str, ...]) -> None:
    text = pinprobe("replay", "--scenario", "linear", *SMALL, *arms, "--prefill", "0.00019").stdout
    assert "Modelled, not measured: only metadata was replayed" in text
    assert "Modelled, not measured: seconds of prefill; n tokens take 0.00019*n s (given)." in text
    assert "the first n tokens of a prompt take 0.00019*n s (given)." in text
    assert "Shares, hits, writes and pageable bytes are modelled and not measured." in text
    assert "*: predicted from measured blocks of its allocator, and so is the total." in text
    assert "What differs" in text
    assert "2 slots" in text
    assert "8 regions" in text
    assert "What the pools counted" in text
    assert "No arm is named best: one run of each arm shows no spread" in text


def test_the_document_has_every_figure(pinprobe: Pinprobe, arms: tuple[str, ...]) -> None:
    document = pinprobe.json("replay", "--scenario", "linear", *SMALL, *arms, "--bands", "0:5500")
    assert (document["schema"], document["version"]) == ("pinprobe.replay", 1)
    assert document["source"]["request_count"] == 12
    assert [arm["arm"] for arm in document["arms"]] == ["small", "large", "split"]
    small, large, split = document["arms"]
    assert small["later_hit_rate"] < large["later_hit_rate"] == split["later_hit_rate"] > 0.8
    assert split["pinned"] == {"bytes": 2 * ROW_BYTES, "known": "predicted"}
    assert split["total_bytes"] == split["pinned"]["bytes"] + split["pageable_bytes"]
    counts = split["counts"]
    assert counts["requests"] == sum(count for name, count in counts.items() if name != "requests")
    assert [band["name"] for band in split["bands"]] == ["0:5500", "beyond"]
    assert (document["sweep"], document["endpoint"]) == (None, None)


def test_csv_has_a_row_a_run_and_markdown_the_same_tables(pinprobe: Pinprobe, arms: tuple[str, ...]) -> None:
    drive = ("replay", "--scenario", "branching", *SMALL, "--replicates", "3", *arms)
    written = pinprobe(*drive, "--csv").stdout
    columns = next(csv.reader(io.StringIO(written)))
    assert len(columns) == len(set(columns))
    assert {"requests", "offered"} < set(columns)  # those of the trace, and a pool's savepoints
    rows = list(csv.DictReader(io.StringIO(written)))
    assert [(row["arm"], row["seed"]) for row in rows[:4]] == [
        ("small", "0"),
        ("small", "1"),
        ("small", "2"),
        ("large", "0"),
    ]
    assert {int(row["pinned_asked_bytes"]) for row in rows} == {2 * ROW_BYTES, 16 * ROW_BYTES}
    markdown = pinprobe(*drive, "--markdown").stdout
    assert "| arm | cached % | later % | pinned | booked | pageable | total |" in markdown
    assert "**Over 3 runs**" in markdown


def test_replicates_show_their_spread_and_name_the_best_only_beyond_it(pinprobe: Pinprobe, tmp_path: Path) -> None:
    alike = [word for name in ("one", "two") for word in ("--arm", config(tmp_path, name, 4))]
    low, far = (["--arm", config(tmp_path, name, slots)] for name, slots in (("low", 1), ("far", 64)))
    drive = ("replay", "--scenario", "branching", *SMALL, "--replicates", "4")
    text = pinprobe(*drive, *alike).stdout
    assert "Over 4 runs" in text
    assert "No arm is named best: the spreads of one and two overlap." in text
    told = " ".join(pinprobe(*drive, *low, *far).stdout.split())
    assert "far is best in every run: its later turns were spared" in told


@pytest.mark.parametrize("drive", ["trace", "linear"])
def test_what_is_the_same_for_every_seed_is_replayed_once_and_that_is_said(
    pinprobe: Pinprobe, arms: tuple[str, ...], trace: Path, drive: str
) -> None:
    words = [str(trace)] if drive == "trace" else ["--scenario", "linear", *SMALL]
    document = pinprobe.json("replay", *words, "--replicates", "5", *arms)
    assert len(document["arms"]) == 3
    assert "the same for every seed" in document["notes"][0]


def test_two_arms_of_one_name_are_told_apart(pinprobe: Pinprobe, tmp_path: Path) -> None:
    one = config(tmp_path, "one", 2)
    document = pinprobe.json("replay", "--scenario", "linear", *SMALL, "--arm", one, "--arm", one, "--set", "slots=3")
    assert [(arm["arm"], arm["ring_slots"]) for arm in document["arms"]] == [("one", 3), ("one #2", 3)]


def test_what_a_savepoint_is_worth_grows_while_its_bytes_do_not(pinprobe: Pinprobe, arms: tuple[str, ...]) -> None:
    drive = ("replay", "--scenario", "linear", *SMALL, *arms, "--prefill", "0.001")
    worth = pinprobe.json(*drive, "--read-back", "4MiB")["worth"]
    assert {row["row_bytes"] for row in worth["lengths"]} == {ROW_BYTES}
    assert [row["spared_seconds"] for row in worth["lengths"]] == [row["tokens"] * 0.001 for row in worth["lengths"]]
    assert worth["pays_from_tokens"] == 1_001  # a second to read back
    assert "pays from 1,001 tokens on" in pinprobe(*drive, "--read-back", "4MiB").stdout


def test_an_allocator_that_can_t_be_had_costs_its_price_and_no_more(pinprobe: Pinprobe, tmp_path: Path) -> None:
    path = config(tmp_path, "odd", 2, allocator="torch")
    if importlib.util.find_spec("torch") and Path("/dev/nvidiactl").exists():
        pytest.skip("the allocator torch can be had here")
    done = pinprobe("replay", "--scenario", "linear", *SMALL, "--arm", path)
    assert done.returncode == 0, done.stderr
    assert table(done.stdout, "arm cached")["odd"][3] == "?"
    assert "its allocator could not be tried here" in done.stdout
    assert "what torch takes for a ring is not known here" in " ".join(done.stdout.split())


def test_real_bytes_are_measured_beside_what_is_counted(pinprobe: Pinprobe, tmp_path: Path) -> None:
    if importlib.util.find_spec("torch") is None:
        pytest.skip("a real replay needs torch")
    drive = ("replay", "--scenario", "linear", *SMALL, "--arm", config(tmp_path, "split", 4, 8))
    counted = pinprobe.json(*drive)["arms"][0]
    real = pinprobe.json(*drive, "--real", "--scale", "1/64")["arms"][0]
    assert (real["hits"], real["counts"]["promoted"]) == (counted["hits"], counted["counts"]["promoted"])
    assert real["incidents"] == []
    assert real["measured"]["scale"] == "1/64"
    assert real["measured"]["pinned_bytes"] >= 4 * ROW_BYTES // 64
    assert counted["measured"] is None


def test_the_arms_that_come_along_show_the_known_drive(torch_host: Pinprobe) -> None:
    done = torch_host("replay", "--scenario", "linear", "--placement", "every-chunk")
    assert done.returncode == 0, done.stderr
    rows = table(done.stdout, "arm cached")
    # Each ring takes the block that the allocator rounds it up to.
    assert rows["savepoint-ring-32"] == ["0.0", "0.0", "4.617", "8.000*", "0.000", "8.000"]
    assert rows["savepoint-ring-64"] == ["72.9", "94.5", "9.234", "16.000*", "0.000", "16.000"]
    assert rows["savepoint-split"][2:4] == ["2.309", "4.000*"]
    assert float(rows["savepoint-split"][1]) >= 93.3
    assert rows["savepoint-split-"] == ["72.9", "94.5", "2.309", "4.000*", "3.174", "7.174"]


# -- policies


def test_a_sweep_shows_each_policy_beside_keeping_everything(pinprobe: Pinprobe, tmp_path: Path) -> None:
    picture = tmp_path / "rates.svg"
    done = pinprobe("replay", "--scenario", "branching", "--sweep", "2,4,8", "--svg", str(picture))
    assert done.returncode == 0, done.stderr
    assert all(name in done.stdout for name in policy_names())
    assert "everything" in done.stdout
    assert "Savepoints written" in done.stdout
    assert "All of it is modelled and nothing measured" in done.stdout
    assert ElementTree.parse(picture).getroot().tag.endswith("svg")
    document = pinprobe.json(
        "replay", "--scenario", "branching", "--sweep", "2,4,8", "--policy", "lru", "--policy", "gdsf"
    )
    points = document["sweep"]["points"]
    assert [(point["policy"], point["slots"]) for point in points] == [
        (p, s) for p in ("lru", "gdsf") for s in (2, 4, 8)
    ]
    assert max(point["token_hit_rate"] for point in points) <= document["sweep"]["everything"]["token_hit_rate"]
    assert document["row_bytes"] == 154_927_104


BROKEN_POLICY = """
from pinprobe.ledger.tenants.policies.lru import Lru

class Broken(Lru):
    def offer(self, savepoint, now_seconds, held=()):
        raise KeyError("oops")
"""


def test_a_policy_of_others_that_fails_is_named_and_leaves_the_rest_of_a_sweep(
    pinprobe: Pinprobe, tmp_path: Path
) -> None:
    install(tmp_path, BROKEN_POLICY, {ENTRY_POINT_GROUP: {"broken": ":Broken"}})
    theirs = pinprobe.finding_first(tmp_path)
    sweep = ("replay", "--scenario", "linear", *SMALL, "--sweep", "3", "--policy", "broken")
    done = theirs(*sweep, "--policy", "lru")
    assert "broken at 3: the retention policy broken (foreign_package_" in done.stdout
    assert "offer failed: KeyError: 'oops'" in " ".join(done.stdout.split())
    assert done.returncode == 0
    alone = theirs(*sweep)
    assert (alone.returncode, "no policy could be replayed at any number of slots" in alone.stderr) == (3, True)


def test_a_sweep_s_bytes_are_slots_of_the_first_arm(pinprobe: Pinprobe, tmp_path: Path) -> None:
    arm = config(tmp_path, "one", 2)
    done = pinprobe("replay", "--scenario", "linear", "--sweep", "3", "--policy", "lru", "--arm", arm, "--csv")
    points, bound = csv.DictReader(io.StringIO(done.stdout))
    assert (points["slots"], points["bytes"]) == ("3", str(3 * ROW_BYTES))
    assert (bound["policy"], bound["bytes"]) == ("everything kept", "")


def test_arms_are_drawn_as_points(pinprobe: Pinprobe, arms: tuple[str, ...], tmp_path: Path) -> None:
    picture = tmp_path / "arms.svg"
    done = pinprobe("replay", "--scenario", "linear", *SMALL, *arms, "--svg", str(picture))
    assert done.returncode == 0, done.stderr
    text = picture.read_text(encoding="utf-8")
    assert all(f">{name}</text>" in text for name in ("small", "large", "split"))


# -- endpoints


def driven(server: ScriptedServer, *more: str) -> Sequence[str]:
    shape = ("--sessions", "2", "--turns", "3", "--think-seconds", "0", "--prompt-tokens", "200:400")
    return ("replay", "--scenario", "linear", *shape, "--output-tokens", "8", "--url", f"mine={server.url}", *more)


def test_a_live_server_is_driven_with_the_scenario(pinprobe: Pinprobe) -> None:
    with ScriptedServer() as server:
        done = pinprobe(*driven(server, "--model", "a-model", "--nonce", "once"))
    assert done.returncode == 0, done.stderr
    assert len(server.chats) == 6
    assert {chat.body["model"] for chat in server.chats} == {"a-model"}
    assert all(chat.body["messages"][0]["content"].startswith("once-1 ") for chat in server.chats)
    row = table(done.stdout, "arm #")["mine"]
    later = [chat for chat in server.chats if len(chat.body["messages"]) > 2]
    cached = sum(chat.cached_tokens for chat in later) / sum(chat.prompt_tokens for chat in later)
    assert row[2] == f"{cached * 100:.1f}"
    assert row[-2:] == ["4", "0"]


def test_the_server_s_first_model_is_taken_and_the_rows_are_in_the_document(pinprobe: Pinprobe) -> None:
    with ScriptedServer() as server:
        document = pinprobe.json(*driven(server, "--replicates", "2"))
    assert {chat.body["model"] for chat in server.chats} == {"scripted-model"}
    assert [row["replicate"] for row in document["endpoint"]["rows"]] == [1, 2]
    assert (document["arms"], document["setting"]) == (None, None)


def test_a_server_that_answers_nothing_is_no_result(pinprobe: Pinprobe) -> None:
    with ScriptedServer(lambda number, body: Play(status=500)) as server:
        done = pinprobe(*driven(server))
    assert done.returncode == 3
    assert "no turn was answered" in done.stderr
    assert "HTTP 500" in done.stdout


def test_a_server_that_is_not_there_is_told_in_one_line(pinprobe: Pinprobe) -> None:
    line = pinprobe.refused("replay", "--scenario", "linear", "--url", "http://127.0.0.1:9", exit_code=3)
    assert "127.0.0.1:9" in line


# -- interruptions


#: The command, which has a SIGINT come from nowhere once two points of its sweep are done.
INTERRUPTED = """
import os, signal, sys
from pinprobe.ledger.replay import sweep_slots as module

whole = module.sweep_slots

def interrupted(requests, policies, slots, watch):
    def watching(policy, count, done):
        if done == 2:
            os.kill(os.getpid(), signal.SIGINT)
        watch(policy, count, done)
    return whole(requests, policies, slots, watching)

module.sweep_slots = interrupted
from pinprobe.cli.main import run
run()
"""


def test_an_interruption_prints_what_is_done_and_ends_with_3(pinprobe: Pinprobe, tmp_path: Path) -> None:
    (tmp_path / "interrupted_replay.py").write_text(INTERRUPTED, encoding="utf-8")
    words = ["replay", "--scenario", "one-shot-flood", "--sessions", "20", "--turns", "20"]
    slots = ",".join(map(str, range(1, 4_000)))
    done = subprocess.run(
        [sys.executable, "-m", "interrupted_replay", *words, "--sweep", slots, "--policy", "lru", "--csv"],
        env=pinprobe.finding_first(tmp_path).environment, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 3, done.stderr
    assert "ended early" in done.stderr
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    assert [row["policy"] for row in rows[:2]] == ["lru", "lru"]
    assert len(rows) <= 3  # and one for everything kept


# -- what is refused


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "either a TRACE, or --scenario"),
        (["TRACE", "--scenario", "linear"], "not both"),
        (["TRACE", "--turns", "3"], "--turns shapes a --scenario"),
        (["TRACE", "--seed", "3"], "--seed shapes a --scenario"),
        (["TRACE", "--policy", "lru"], "--policy belongs to --sweep"),
        (["TRACE", "--scale", "1/2"], "--scale is for --real"),
        (["TRACE", "--model", "m"], "--model is for a live endpoint"),
        (["TRACE", "--sweep", "4", "--bands", "0:8k"], "--bands is for arms"),
        (["TRACE", "--sweep", "4", "--placement", "ladder"], "--placement is for arms"),
        (["TRACE", "--url", "http://h"], "can't be sent to an endpoint"),
        (["--scenario", "linear", "--url", "http://h", "--sweep", "4"], "does not go with --url"),
        (["--scenario", "agentic", "--url", "http://h"], "give linear or short-turns"),
        (["--scenario", "linear", "--url", "a=http://h", "--url", "a=http://i"], "two servers have one name"),
        (["--scenario", "linear", "--url", "ftp://h"], "no address of a server"),
        (["--scenario", "lineaar"], "did you mean linear?"),
        (["--scenario", "linear", "--turns", "0"], "--turns"),
        (["--scenario", "linear", "--prompt-tokens", "many"], "'many' are no prompt tokens"),
        (["--scenario", "linear", "--prompt-tokens", "9:5"], "two rising numbers"),
        (["--scenario", "linear", "--think-seconds", "nan"], "nobody thinks for nan s"),
        (["TRACE", "--placement", "everywhere"], "no placement of savepoints"),
        (["TRACE", "--prefill", "fast"], "'fast' is no prefill time"),
        (["TRACE", "--read-back", "0"], "--read-back"),
        (["TRACE", "--read-back", "1 GiB"], "give that with --prefill"),
        (["TRACE", "--bands", "8k:0"], "holds no length"),
        (["TRACE", "--replicates", "0"], "--replicates"),
        (["TRACE", "--sweep", "0"], "counts begin at 1"),
        (["TRACE", "--sweep", "4", "--policy", "lrru"], "no retention policy is called 'lrru'"),
        (["TRACE", "--arm", "no-such-config"], "there is no config"),
        (["TRACE", "--arm", "expert-tiered-2x200k"], "there are 0 and 0"),
        (["TRACE", "--arm", "savepoint-split", "--set", "slots"], "sets nothing"),
        (["no-such-trace.csv"], "no-such-trace.csv"),
        (["TRACE", "--svg", "/no/such/folder/a.svg"], "no folder that can be written to"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_can_t_be_carried_out_is_told_in_one_line(
    kept_logging: None, trace: Path, words: list[str], told: str
) -> None:
    with pytest.raises((click.UsageError, BadRequest)) as refused:
        main.main(["replay", *(str(trace) if word == "TRACE" else word for word in words)], standalone_mode=False)
    message = refused.value.format_message() if isinstance(refused.value, click.UsageError) else str(refused.value)
    assert told in message
    assert "\n" not in message
    assert len(message) < 400


def test_a_refusal_ends_the_command_with_2(pinprobe: Pinprobe, trace: Path) -> None:
    assert "not both" in pinprobe.refused("replay", str(trace), "--scenario", "linear")


def test_every_bad_row_of_a_trace_is_told(pinprobe: Pinprobe, tmp_path: Path) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(
        f"{HEADER}\n0.0,1,-1,9,5,1,a\nsoon,2,-1,5,5,1,b\n1.0,3,-1,5,5,1,c\n2.0,4,7,5,5,1,d\n", encoding="utf-8"
    )
    done = pinprobe("replay", str(path))
    assert (done.returncode, done.stdout) == (2, "")
    lines = done.stderr.splitlines()
    assert [f"bad.csv:{number}: " in line for number, line in zip((2, 3), lines, strict=False)] == [True, True]
    assert all("bad.csv:" in line for line in lines)
