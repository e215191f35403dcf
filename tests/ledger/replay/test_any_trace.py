"""Which form a trace is in is told by its first line."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from pinprobe.ledger.replay.any_trace import read_any_trace
from pinprobe.ledger.replay.mooncake import read_mooncake
from pinprobe.ledger.replay.trace import COLUMNS, read_trace
from pinprobe.ledger.replay.trace_lines import BadTrace
from pinprobe.probes.errors import BadRequest

CSV = ",".join(COLUMNS) + "\n0.5,0,-1,512,600,20,\n2,1,0,1024,1100,20,\n"
JSON = "".join(
    json.dumps(
        {"timestamp": at, "input_length": 512 * blocks + 76, "output_length": 20, "hash_ids": list(range(blocks))}
    )
    + "\n"
    for at, blocks in ((500, 1), (2000, 2))
)

Put = Callable[[str | bytes], Path]


@pytest.fixture
def put(tmp_path: Path) -> Put:
    def put(content: str | bytes) -> Path:
        path = tmp_path / "trace"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return put


@pytest.mark.parametrize("is_zipped", [False, True], ids=["plain", "zipped"])
def test_both_forms_are_told_apart_whatever_the_file_is_called(put: Put, is_zipped: bool) -> None:
    for content, read in ((CSV, read_trace), (JSON, read_mooncake)):
        path = put(gzip.compress(content.encode()) if is_zipped else content)
        requests = read_any_trace(path)
        assert requests == read(path)
        assert [request.at_seconds for request in requests] == [0.5, 2.0]
        assert [request.savepoint_tokens for request in requests] == [512, 1024]


def test_a_byte_order_mark_and_empty_lines_before_json_are_passed_over(put: Put) -> None:
    assert len(read_any_trace(put("\ufeff" + JSON))) == 2
    assert len(read_any_trace(put("\ufeff" + CSV))) == 2
    assert len(read_any_trace(put("\n\n" + JSON))) == 2


@pytest.mark.parametrize(
    "content",
    [
        "once upon a time\n",
        "[1, 2]\n",
        "0.5,0,-1,512,600,20,a\n",
        "a,b,c\n1,2,3\n",
        "<html>",
        b"\x00\x01\x02",
        b"\xff" * 50,
    ],
)
def test_what_is_neither_is_told_with_both_forms(put: Put, content: str | bytes) -> None:
    path = put(content)
    with pytest.raises(BadTrace) as refused:
        read_any_trace(path)
    (problem,) = refused.value.problems
    assert problem.startswith(f"{path}:1: this is no trace: ")
    assert ",".join(COLUMNS) in problem
    assert "hash_ids" in problem
    assert problem.isprintable()


def test_a_header_that_is_nearly_right_is_refused_as_a_header(put: Put) -> None:
    path = put(CSV.replace("savepoint_tokens", "tokens"))
    with pytest.raises(BadTrace, match="1: the first line has to be t_s,"):
        read_any_trace(path)


def test_a_fault_further_down_is_told_by_the_reader_of_the_form(put: Put) -> None:
    for content in (CSV, JSON):
        path = put(content + "what is this\n")
        with pytest.raises(BadTrace) as refused:
            read_any_trace(path)
        number = content.count("\n") + 1
        assert str(refused.value).startswith(f"{path}:{number}: ")


@pytest.mark.parametrize("content", ["", "\n\n  \n", gzip.compress(b"", mtime=0)])
def test_a_file_of_nothing_has_no_request_in_it(put: Put, content: str | bytes) -> None:
    with pytest.raises(BadRequest, match="has no request in it"):
        read_any_trace(put(content))


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="there is no such file"):
        read_any_trace(tmp_path / "trace.csv")
