"""`pinprobe lossless` run for real: its tables and documents, its exit codes, and what it refuses."""

from __future__ import annotations

import re
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pinprobe.cli.lossless_table import lossless_text
from pinprobe.ledger.tenants.demand import DemandStats
from pinprobe.ledger.tenants.lossless import Leg, Lossless
from pinprobe.ledger.tenants.pool_stats import PoolStats
from tests.cli.loaded_modules import RUN, loaded_by

if TYPE_CHECKING:
    from tests.cli.conftest import Done, Pinprobe

#: The smallest there is: a row of 9,682,944 B, a ring of 37 MiB and two regions beside it.
SMALL = ("lossless", "--scale", "1/64", "--savepoints", "2", "--laps", "1", "--device", "cpu")
ROW_BYTES = 9_682_944


@pytest.fixture(scope="module")
def pinned(pinprobe: Pinprobe) -> Pinprobe:
    """The command, without a setting of the user's, where torch is there to be imported."""
    pytest.importorskip("torch", exc_type=ImportError)
    return pinprobe.given({"PINPROBE_LOSSLESS_ALLOCATOR": "pageable"})


@pytest.fixture(scope="module")
def run(pinned: Pinprobe, tmp_path_factory: pytest.TempPathFactory) -> tuple[Done, Path]:
    """One run with its table and its receipt."""
    receipt = tmp_path_factory.mktemp("run") / "lossless.json"
    return pinned(*SMALL, "--receipt", str(receipt)), receipt


def assert_fits_a_terminal(text: str) -> None:
    assert [line for line in text.splitlines() if len(line) > 80 or line != line.rstrip()] == []
    assert "\x1b" not in text


# -- it holds


def test_every_bit_comes_back_and_the_table_says_so(run: tuple[Done, Path]) -> None:
    done, _ = run
    assert (done.returncode, done.stderr) == (0, "")
    assert_fits_a_terminal(done.stdout)
    hashes = re.findall(r"^(before|in the pool|elsewhere|restored) +([0-9a-f]{64})$", done.stdout, re.MULTILINE)
    assert [name for name, _ in hashes] == ["before", "in the pool", "elsewhere", "restored"]
    assert len({digest for _, digest in hashes}) == 1
    text = " ".join(done.stdout.split())
    types = "24 bfloat16, 24 float16, 48 float32"
    assert f"Lossless: 2 savepoints of 9,682,944 B in 96 slabs ({types}), from cpu through pageable slots" in text
    assert "every bit came back" in text
    assert "pool: 2 offered; 2 regions held of a bound of 2" in text


def test_the_receipt_is_the_same_run_as_a_document(run: tuple[Done, Path], pinned: Pinprobe) -> None:
    done, receipt = run
    document = pinned.parsed(receipt.read_text(encoding="utf-8"))
    assert document["sha_before"] in done.stdout
    assert (document["schema"], document["version"], document["holds"]) == ("pinprobe.lossless", 1, True)
    assert (document["row_bytes"], document["slab_count"], document["savepoints"]) == (ROW_BYTES, 96, 2)
    assert document["sha_before"] == document["sha_in_pool"] == document["sha_elsewhere"] == document["sha_restored"]
    assert document["command"] == ["pinprobe", *SMALL, "--receipt", str(receipt)]
    assert document["host"]["kernel"]
    assert document["pool"]["promoted_bytes"] == 2 * ROW_BYTES
    again = pinned.refused(*SMALL, "--receipt", str(receipt))
    assert "-f overwrites it" in again


def test_json_is_one_strict_document_with_nothing_beside_it(pinned: Pinprobe, tmp_path: Path) -> None:
    path = tmp_path / "lossless.json"
    done = pinned(*SMALL, "--json", "-q", "-o", str(path))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    document = pinned.parsed(path.read_text(encoding="utf-8"))
    assert document["holds"] is True
    assert document["mismatched"] == []
    assert document["types"] == {"float16": 24, "bfloat16": 24, "float32": 48}
    for leg in document["legs"]:
        assert leg["bytes"] % ROW_BYTES == 0
        assert leg["gigabytes_a_second"] > 0


# -- it does not hold

#: Put first on the path: one bit of one copy out of the ring comes out wrong.
ONE_WRONG_BIT = """
import ctypes, types
from pinprobe.ledger.tenants import copy_out

def memmove(target, source, size_bytes):
    ctypes.memmove(target, source, size_bytes)
    ctypes.c_ubyte.from_address(target + size_bytes - 1).value ^= 1

copy_out.ctypes = types.SimpleNamespace(memmove=memmove)
"""


def test_one_wrong_bit_is_exit_code_1_and_its_slab_is_named(pinned: Pinprobe, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(ONE_WRONG_BIT, encoding="utf-8")
    done = pinned.finding_first(tmp_path)(*SMALL)
    assert done.returncode == 1, done.stderr
    assert_fits_a_terminal(done.stdout)
    text = " ".join(done.stdout.split())
    assert "NOT LOSSLESS: 2 savepoints of 9,682,944 B" in text
    assert "layers.47.recurrent_states" in text
    assert "every bit came back" not in text


# -- its words


def made(**change: Any) -> Lossless:
    """A result that holds, with some of its fields changed."""
    stats = PoolStats(
        requests=2, row_bytes=100, region_bytes=8192, bound_regions=2, held_regions=2, peak_regions=2, warm=0, cold=2,
        promoted=2, promoted_bytes=200, lost_the_race=0, no_region=0, refused=0, below_floor=0, trimmed=0, resident=2,
        reachable=2, dominated=0, evicted=0, being_read=0, slots=2, declined=0, already_here=0,
        demand=DemandStats(2, 2, None, 0),
    )  # fmt: skip
    digest = "0123456789abcdef" * 4
    result = Lossless(
        device="cpu", allocator="mlock", row_bytes=100, slab_count=2, savepoints=2, laps=3, types={"float32": 2},
        sha_before=digest, sha_in_pool=digest, sha_elsewhere=digest, sha_restored=digest, mismatched=(),
        legs=(Leg("device to slot", 200, 0.5), Leg("slot to region", 200, 0.0)), pool=stats,
    )  # fmt: skip
    return replace(result, **change)


def test_csv_and_markdown_are_the_table_of_hashes() -> None:
    digest = made().sha_before
    assert lossless_text(made(), "csv").splitlines() == [
        "savepoint 0,SHA-256 of its row",
        *(f"{name},{digest}" for name in ("before", "in the pool", "elsewhere", "restored")),
    ]
    rows = [line for line in lossless_text(made(), "markdown").splitlines() if digest in line]
    assert [line.split("|")[1].strip() for line in rows] == ["before", "in the pool", "elsewhere", "restored"]


def test_a_leg_that_took_no_time_is_no_error() -> None:
    text = lossless_text(made(), "text")
    assert_fits_a_terminal(text)
    assert re.search(r"slot to region +0\.000 +0\.000 +0\.00$", text, re.MULTILINE)


def test_of_many_wrong_slabs_the_first_are_named_and_the_rest_counted() -> None:
    names = tuple(f"layers.{number}.recurrent_states" for number in range(40))
    text = lossless_text(made(mismatched=names), "text")
    assert_fits_a_terminal(text)
    words = " ".join(text.split())
    assert "layers.0.recurrent_states, layers.1.recurrent_states" in words
    assert "layers.4.recurrent_states and 35 more." in words
    assert "layers.5" not in words
    assert "the hashes differ." in " ".join(lossless_text(made(sha_restored="0" * 64), "text").split())


def test_what_another_process_failed_with_fits_a_terminal_too() -> None:
    failed = "pinprobe.ledger.tenants.region_sharing.NotLent: refused: " + "no savepoint of that id " * 5 + "\x1b[31m"
    assert_fits_a_terminal(lossless_text(made(sha_elsewhere=failed), "text"))


# -- bad usage


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--scale", "0"), "not in the range 0<x<=1"),
        (("--scale", "2"), "not in the range 0<x<=1"),
        (("--scale", "-1/2"), "is no share"),
        (("--scale", "half"), "is no share: write 1/16 or 0.25"),
        (("--scale", "1/0"), "'1/0' is"),
        (("--scale", "nan"), "is no share"),
        (("--scale", "9" * 5000), "'9999999999"),
        (("--savepoints", "0"), "not in the range"),
        (("--savepoints", "two"), "two"),
        (("--laps", "0"), "not in the range"),
        (("--laps", "100000"), "not in the range"),
        (("--device", "tpu"), "tpu"),
        (("--allocator", "mlok", "--device", "cpu"), "did you mean mlock?"),
        (("--no-such-option",), "--no-such-option"),
        (("surplus",), "surplus"),
        (("-o", "/no/such/folder/x.json"), "/no/such/folder"),
        (("-o", "same.json", "--receipt", "same.json"), "named twice"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, tuple) else "",
)
def test_what_can_not_be_done_is_refused_in_one_line(
    pinprobe: Pinprobe, arguments: tuple[str, ...], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert words in pinprobe.refused("lossless", *arguments)
    assert list(tmp_path.iterdir()) == []


def test_a_device_that_is_not_there_is_named_with_what_needs_none(pinprobe: Pinprobe) -> None:
    torch = pytest.importorskip("torch", exc_type=ImportError)
    if torch.cuda.is_available():
        pytest.skip("there is a device here")
    line = pinprobe.refused("lossless", "--device", "cuda", exit_code=3)
    assert "torch has no CUDA device here; --device cpu needs none" in line


@pytest.mark.parametrize(
    "error", ["ImportError('libtorch is\\nmissing')", "OSError('libcudart.so.12')", "RuntimeError('half installed')"]
)
def test_without_a_torch_that_can_be_imported_that_is_said_with_what_brings_one(
    pinprobe: Pinprobe, tmp_path: Path, error: str
) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text(f"raise {error}\n", encoding="utf-8")
    line = pinprobe.finding_first(tmp_path).refused("lossless", "--allocator", "pageable", exit_code=3)
    assert "torch can't be imported" in line
    assert "pip install torch" in line


def test_its_help_loads_no_heavy_library(pinprobe: Pinprobe) -> None:
    assert loaded_by(pinprobe, RUN, "lossless", "--help") == ""


# -- interrupted


def test_a_signal_ends_it_with_one_line_and_no_result(pinned: Pinprobe, tmp_path: Path) -> None:
    receipt = tmp_path / "lossless.json"
    command = ("lossless", "--scale", "1/64", "--savepoints", "1000000", "--laps", "1", "--device", "cpu")
    with pinned.start(*command, "--receipt", str(receipt)) as process:
        wait_until_it_copies(process.pid)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (3, "")
    (line,) = filter(None, err.splitlines())
    assert line.startswith("pinprobe: ")
    assert "fault of pinprobe itself" not in line
    assert not receipt.exists()


def wait_until_it_copies(pid: int) -> None:
    """Wait until the kernel says that the pool's regions are mapped and the copy-out runs."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if Path(f"/proc/{pid}/maps").read_text(encoding="utf-8").count("/memfd:pinprobe-region") == 2:
            return
        time.sleep(0.01)
    raise AssertionError("it does not come to its second savepoint")
