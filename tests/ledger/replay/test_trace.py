"""Traces in CSV: what is read of them, and that every line that can't be used is named, with the file, all at once."""

from __future__ import annotations

import csv
import gzip
import io
import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from pinprobe.ledger.replay.any_trace import read_any_trace
from pinprobe.ledger.replay.request import Request
from pinprobe.ledger.replay.trace import COLUMNS, read_trace
from pinprobe.ledger.replay.trace_lines import MOST_NAMED, BadTrace
from pinprobe.probes.errors import BadRequest
from tests.ledger.replay.real_traces import real_trace

HEADER = ",".join(COLUMNS)
#: Three turns of one talk, another that begins beside it, and the first prompt once more.
GOOD = [
    "0.000,0,-1,512,600,20,a",
    "1.5,1,0,1024,1100,20,a",
    "2,2,-1,256,256,0,b",
    "3,3,1,1536,1600,5,a",
    "4,0,0,512,610,5,a",
]

FUZZ = settings(derandomize=True, deadline=None, max_examples=150, suppress_health_check=list(HealthCheck))

Put = Callable[..., Path]


@pytest.fixture
def put(tmp_path: Path) -> Put:
    """Write a trace of these lines, the header first unless told otherwise."""

    def put(*lines: str, header: str = HEADER, name: str = "trace.csv") -> Path:
        path = tmp_path / name
        path.write_text("".join(f"{line}\n" for line in (header, *lines)), encoding="utf-8")
        return path

    return put


def problems_of(path: Path) -> tuple[str, ...]:
    with pytest.raises(BadTrace) as refused:
        read_trace(path)
    assert str(refused.value) == "\n".join(refused.value.problems)
    assert all(problem.isprintable() and len(problem) < 600 for problem in refused.value.problems)
    return refused.value.problems


# -- what is read


def test_each_line_becomes_a_request(put: Put) -> None:
    first, second, third, *_, again = read_trace(put(*GOOD))
    assert first == Request(0.0, 0, None, 512, 600, 20, "a")
    assert second == Request(1.5, 1, 0, 1024, 1100, 20, "a")
    assert third == Request(2.0, 2, None, 256, 256, 0, "b")
    assert again == Request(4.0, 0, 0, 512, 610, 5, "a")


def test_a_gzipped_trace_is_the_same_trace_whatever_its_name(put: Put, tmp_path: Path) -> None:
    plain = put(*GOOD)
    zipped = tmp_path / "no-such-suffix"
    zipped.write_bytes(gzip.compress(plain.read_bytes()))
    assert read_trace(zipped) == read_trace(plain)


def test_the_ways_in_which_files_are_written_elsewhere_change_nothing(put: Put, tmp_path: Path) -> None:
    plain = put(*GOOD)
    elsewhere = tmp_path / "windows.csv"
    quoted = [",".join(f'"{value}"' for value in line.split(",")) for line in (HEADER, *GOOD)]
    elsewhere.write_bytes(b"\xef\xbb\xbf" + "\r\n".join(quoted).encode())  # and no end of the last line
    assert read_trace(elsewhere) == read_trace(plain)


def test_a_conversation_may_be_called_anything(put: Put, tmp_path: Path) -> None:
    path = tmp_path / "named.csv"
    names = ["", "Gespräch, 1", 'a "b"', "two\nlines", "日本"]
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        writer.writerows([number, number, -1, 10, 10, 0, name] for number, name in enumerate(names))
    assert [request.conversation for request in read_trace(path)] == names


def test_a_savepoint_of_nothing_is_read_and_is_nobodys_fault(put: Put) -> None:
    assert read_trace(put("0,0,-1,0,100,5,a"))[0].savepoint_tokens == 0


@pytest.mark.parametrize(
    ("name", "count", "bound"), [("agent_sessions", 14_961, 0.9504), ("chat_hour", 12_031, 0.3497)]
)
def test_a_recorded_trace_is_read_whole(name: str, count: int, bound: float) -> None:
    path = real_trace(name)
    requests = read_any_trace(path)
    with gzip.open(path, "rt") as file:
        rows = list(csv.DictReader(file))
    assert len(requests) == len(rows) == count
    for request, row in zip(requests, rows, strict=True):
        parent = -1 if request.parent is None else request.parent
        numbers = request.savepoint, parent, request.savepoint_tokens, request.prompt_tokens, request.output_tokens
        assert numbers == tuple(int(row[column]) for column in COLUMNS[1:6])
        assert (request.at_seconds, request.conversation) == (float(row["t_s"]), row["conversation"])
    # What is spared at best, everything kept, is known of both from elsewhere.
    tokens = {request.savepoint: request.savepoint_tokens for request in requests}
    spared = sum(tokens[request.parent] for request in requests if request.parent is not None)
    assert spared / sum(request.prompt_tokens for request in requests) == pytest.approx(bound, abs=0.0001)


# -- what can't be used


@pytest.mark.parametrize(
    ("line", "because"),
    [
        ("5,4,-1,10,10,0", "6 values, where 7 are to be"),
        ("5,4,-1,10,10,0,a,b", "8 values, where 7 are to be"),
        ("", "0 values, where 7 are to be"),
        ("x,4,-1,10,10,0,a", "t_s is 'x', which is no number of seconds"),
        ("-1,4,-1,10,10,0,a", "t_s is '-1'"),
        ("nan,4,-1,10,10,0,a", "t_s is 'nan'"),
        ("inf,4,-1,10,10,0,a", "t_s is 'inf'"),
        ("1e9,4,-1,10,10,0,a", "t_s is '1e9'"),
        ("\u0665,4,-1,10,10,0,a", "t_s is"),  # an Arabic 5, which float() would take
        (" 5,4,-1,10,10,0,a", "t_s is ' 5'"),
        ("5,-4,-1,10,10,0,a", "savepoint_id is '-4'"),
        ("5,4.0,-1,10,10,0,a", "savepoint_id is '4.0'"),
        ("5," + "9" * 5000 + ",-1,10,10,0,a", "savepoint_id is '9999"),
        ("5,4,-2,10,10,0,a", "parent_id is '-2'"),
        ("5,4,,10,10,0,a", "parent_id is '', which is no whole number of 0 or more; -1 where there is none"),
        ("5,4,-1,ten,10,0,a", "savepoint_tokens is 'ten'"),
        ("5,4,-1,10,1_0,0,a", "prompt_tokens is '1_0'"),
        ("5,4,-1,10,10,-5,a", "output_tokens is '-5'"),
        ("5,4,-1,11,10,0,a", "covers 11 tokens of a prompt of 10"),
        ("3.999,4,-1,10,10,0,a", "the time runs backwards, from 4.0 s to 3.999 s"),
        ("5,4,99,10,10,0,a", "the parent 99 is the savepoint of no earlier request; -1 in a CSV is none at all"),
        ("5,4,4,10,10,0,a", "savepoint 4 is its own parent, and no earlier request has it"),
        ("5,4,3,1535,1600,0,a", "the parent 3 covers 1536 tokens, more than the 1535 here"),
        ("5,3,3,1024,1600,0,a", "savepoint 3 covered 1536 tokens before and 1024 here"),
        ("5,3,1,1536,1600,0,a", "savepoint 3 was seen before; its own longest prefix is then itself"),
        ("5,3,-1,1536,1600,0,a", "savepoint 3 was seen before; its own longest prefix is then itself"),
        ('5,4,-1,10,10,0,"a"b', "this is no CSV"),
    ],
)
def test_a_line_that_can_not_be_used_is_named_with_the_reason(put: Put, line: str, because: str) -> None:
    path = put(*GOOD, line)
    (problem,) = problems_of(path)
    assert problem.startswith(f"{path}:7: ")
    assert because in problem


def test_all_lines_that_can_not_be_used_are_named_each_with_its_own_number(put: Put) -> None:
    path = put("x,77,-1,1,1,0,a", *GOOD[:2], "1,5,-1,2,1,0,a", "0,6,-1,1,1,0,a", "9,7,-1,1,1,0", GOOD[3])
    problems = problems_of(path)
    assert [problem.removeprefix(f"{path}:").partition(":")[0] for problem in problems] == ["2", "5", "6", "7"]


def test_what_continues_a_line_that_can_not_be_read_is_not_a_fault_too(put: Put) -> None:
    path = put("0,0,-1,512,six,20,a", *GOOD[1:])
    assert len(problems_of(path)) == 1
    # Here not even the number of the savepoint can be read, so any parent may have been that one.
    path = put("0,0,-1,512", *GOOD[1:])
    assert len(problems_of(path)) == 1


def test_a_time_is_held_against_the_latest_before_it_and_not_against_one_that_was_wrong_itself(put: Put) -> None:
    problems = problems_of(put("5,0,-1,1,1,0,a", "3,1,-1,1,1,0,a", "4,2,-1,1,1,0,a", "5,3,-1,1,1,0,a"))
    assert [problem.rpartition("backwards, ")[2][:15] for problem in problems] == ["from 5.0 s to 3", "from 5.0 s to 4"]


def test_of_many_faults_the_first_are_named_and_the_rest_is_counted(put: Put) -> None:
    problems = problems_of(put(*["bad"] * 500))
    assert len(problems) == MOST_NAMED + 1
    assert problems[-1].endswith(f": {500 - MOST_NAMED} more lines can't be used either")


def test_a_line_that_is_not_utf8_is_named_among_the_others(put: Put) -> None:
    path = put(*GOOD)
    with path.open("ab") as file:
        file.write(b"x,9,-1,1,1,0,a\n5,4,-1,10,10,0,Gespr\xe4ch\n6,5,4,10,10,0,b\n")
    assert problems_of(path) == (
        f"{path}:7: t_s is 'x', which is no number of seconds since the trace began",
        f"{path}:8: the line is not UTF-8",
    )


def test_a_field_over_several_lines_does_not_shift_the_numbers_of_later_ones(put: Put) -> None:
    path = put('0,0,-1,1,1,0,"a\nb\nc"', "bad")
    assert problems_of(path)[0].startswith(f"{path}:5: 1 values")


@pytest.mark.parametrize(
    "header",
    [
        "",
        GOOD[0],
        HEADER.replace("t_s", "time"),
        HEADER + ",more",
        ",".join(reversed(COLUMNS)),
        HEADER.upper(),
        '"',
        '"a"b',
    ],
)
def test_another_header_is_refused_and_the_right_one_told(put: Put, header: str) -> None:
    path = put(*GOOD, header=header)
    assert problems_of(path)[0].startswith(f"{path}:1: the first line has to be {HEADER}")


def test_a_header_alone_is_no_trace(put: Put) -> None:
    with pytest.raises(BadRequest, match="has no request in it"):
        read_trace(put())


def test_a_file_name_that_can_not_be_printed_still_gives_one_line(put: Put) -> None:
    path = put("bad", name="tra\x1b[31mce\n.csv")
    assert "tra?[31mce?.csv:2: " in problems_of(path)[0]


def test_more_requests_than_are_ever_taken_in_are_refused(put: Put, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pinprobe.ledger.replay.trace.MOST_REQUESTS", 4)
    monkeypatch.setattr("pinprobe.ledger.replay.trace_lines.MOST_REQUESTS", 4)
    with pytest.raises(BadRequest, match="more than 4 requests; replay a part of it"):
        read_trace(put(*GOOD))
    assert len(read_trace(put(*GOOD[:4]))) == 4


# -- anything at all

_VALUES = st.sampled_from(
    ["0", "1", "2", "-1", "512", "9" * 15, "9" * 16, "1.5", "nan", "", '"', "\x00", "\udce4", "a b", "\u0663"]
)
_ROWS = st.lists(st.lists(_VALUES, min_size=5, max_size=8).map(",".join), max_size=6)


def _mended(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


@given(
    content=st.one_of(
        st.binary(max_size=300),
        _ROWS.map(lambda rows: _mended("\n".join((HEADER, *rows)))),
        st.tuples(st.sampled_from(range(200)), st.binary(max_size=4)).map(
            lambda at: (
                _mended("\n".join((HEADER, *GOOD)))[: at[0]] + at[1] + _mended("\n".join((HEADER, *GOOD)))[at[0] :]
            )
        ),
    ),
    is_zipped=st.booleans(),
    cut_bytes=st.just(0) | st.integers(0, 60),
)
@example(content=b"\x1f\x8b", is_zipped=False, cut_bytes=0)
@example(content=b"\x1f\x8b", is_zipped=True, cut_bytes=0)
@example(content=HEADER.encode() + b"\n" + b'"' * 300, is_zipped=False, cut_bytes=0)
@FUZZ
def test_any_file_is_a_trace_in_order_or_a_clean_error(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, is_zipped: bool, cut_bytes: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzzed.csv"
    written = gzip.compress(content) if is_zipped else content
    path.write_bytes(written[: len(written) - cut_bytes])
    for read in (read_trace, read_any_trace):
        try:
            requests = read(path)
        except BadRequest as refused:
            lines = str(refused).split("\n")
        else:
            lines = []
            assert_is_in_order(requests)
        assert all(line.isprintable() and line.startswith(str(path)) for line in lines)


def assert_is_in_order(requests: list[Request]) -> None:
    assert requests
    assert all(early.at_seconds <= late.at_seconds for early, late in itertools.pairwise(requests))
    known: dict[int, int] = {}
    for request in requests:
        if request.parent is not None:
            assert known[request.parent] <= request.savepoint_tokens
        assert known.setdefault(request.savepoint, request.savepoint_tokens) == request.savepoint_tokens
        assert request.savepoint_tokens <= request.prompt_tokens


_COUNTS = st.integers(0, 10**15 - 1)


@given(numbers=st.lists(st.tuples(_COUNTS, _COUNTS, st.text(max_size=8)), min_size=1, max_size=20))
@FUZZ
def test_what_a_csv_writer_wrote_is_read_back_to_the_same_numbers(
    tmp_path_factory: pytest.TempPathFactory, numbers: list[tuple[int, int, str]]
) -> None:
    # Carriage returns and lone surrogates are what text files do not keep.
    numbers = [(one, two, name.encode("utf-8", "ignore").decode().replace("\r", "")) for one, two, name in numbers]
    numbers = [(one, two, name.replace("\x00", "")) for one, two, name in numbers]
    path = tmp_path_factory.getbasetemp() / "written.csv"
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(COLUMNS)
    for number, (tokens, output, name) in enumerate(numbers):
        writer.writerow([number, number, -1, tokens, tokens, output, name])
    path.write_text(buffer.getvalue(), encoding="utf-8", newline="")
    read = [(request.prompt_tokens, request.output_tokens, request.conversation) for request in read_trace(path)]
    assert read == numbers
