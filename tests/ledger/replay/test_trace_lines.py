"""The lines of a trace: whole files, plain and gzipped, and every way in which a file is none."""

from __future__ import annotations

import gzip
import os
import tracemalloc
from pathlib import Path

import pytest

from pinprobe.ledger.replay.trace_lines import (
    LONGEST_LINE_CHARACTERS,
    BadTrace,
    Faults,
    check_utf8,
    numbered_lines,
    requests_within_bounds,
)
from pinprobe.probes.errors import BadRequest


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "trace"


def refusal_of(path: Path) -> str:
    with pytest.raises(BadRequest) as refused:
        list(numbered_lines(path))
    message = str(refused.value)
    assert message.isprintable()
    assert str(path) in message
    return message


@pytest.mark.parametrize("is_zipped", [False, True])
def test_lines_come_with_their_numbers_and_their_ends(path: Path, is_zipped: bool) -> None:
    content = "\ufeffone\r\n\ntwö\nthree".encode()
    path.write_bytes(gzip.compress(content) if is_zipped else content)
    assert list(numbered_lines(path)) == [(1, "one\r\n"), (2, "\n"), (3, "twö\n"), (4, "three")]


def test_two_gzipped_files_one_after_the_other_are_one(path: Path) -> None:
    path.write_bytes(gzip.compress(b"one\n") + gzip.compress(b"two\n"))
    assert [text for _, text in numbered_lines(path)] == ["one\n", "two\n"]


def test_a_file_that_is_not_there_a_folder_and_one_that_is_no_file_are_told(path: Path, tmp_path: Path) -> None:
    assert "there is no such file" in refusal_of(path)
    assert "is a folder" in refusal_of(tmp_path)
    (tmp_path / "file").touch()
    assert "can't be read: Not a directory" in refusal_of(tmp_path / "file" / "trace")
    assert "can't be read: File name too long" in refusal_of(tmp_path / ("x" * 300))
    path.symlink_to(path)
    assert "can't be read: Too many levels of symbolic links" in refusal_of(path)


def test_a_name_with_a_null_byte_is_refused_and_not_a_traceback() -> None:
    with pytest.raises(BadRequest, match="can't be read"):
        list(numbered_lines(Path("no\x00name")))


def test_a_pipe_is_refused_at_once_since_it_can_be_read_but_once(path: Path) -> None:
    os.mkfifo(path)  # to open it would wait for somebody to write
    assert "is no ordinary file; write the trace into one first" in refusal_of(path)
    assert "is no ordinary file" in refusal_of(Path("/dev/null"))


@pytest.mark.parametrize("kept_bytes", [2, 5, 11, 200, -9, -4, -1])
def test_a_gzipped_file_that_was_cut_is_told_with_the_line_it_breaks_off_at(path: Path, kept_bytes: int) -> None:
    path.write_bytes(gzip.compress(b"".join(b"%d\n" % number for number in range(500)))[:kept_bytes])
    assert "is damaged after line" in refusal_of(path)


def test_a_gzipped_file_with_a_flipped_bit_never_passes(path: Path) -> None:
    whole = gzip.compress(b"".join(b"%d\n" % number for number in range(200)), mtime=0)
    for at in (10, 50, 150, len(whole) - 8, len(whole) - 2):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        assert "is damaged after line" in refusal_of(path)


def test_a_line_without_an_end_costs_no_memory(path: Path) -> None:
    path.write_bytes(gzip.compress(b"fine\n" + b"x" * (64 * LONGEST_LINE_CHARACTERS)))
    tracemalloc.start()
    assert f"{path}:2: the line has no end within 1 MiB" in refusal_of(path)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 8 * LONGEST_LINE_CHARACTERS
    path.write_bytes(b"x" * (LONGEST_LINE_CHARACTERS - 1) + b"\n")
    assert len(list(numbered_lines(path))) == 1


def test_endless_empty_lines_end_at_a_bound(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pinprobe.ledger.replay.trace_lines.MOST_LINES", 1000)
    path.write_bytes(gzip.compress(b"\n" * 1_000_000))
    assert "has more than 1,000 lines; replay a part of it" in refusal_of(path)


def test_what_is_not_utf8_is_left_for_the_reader_to_name(path: Path) -> None:
    path.write_bytes(b"fine\nGespr\xe4ch\n\xff\xfe\nGespr\xc3\xa4ch \xed\x9f\xbf\n")
    texts = [text for _, text in numbered_lines(path)]
    for text, is_fine in zip(texts, (True, False, False, True), strict=True):
        if is_fine:
            check_utf8(text)
        else:
            with pytest.raises(BadRequest, match="not UTF-8"):
                check_utf8(text)


def test_faults_are_told_in_lines_of_their_own_whatever_they_quote(path: Path) -> None:
    faults = Faults(path)
    faults.check()
    faults.add(3, "two\nlines\x1b[0m")
    with pytest.raises(BadTrace) as refused:
        faults.check()
    assert refused.value.problems == (f"{path}:3: two?lines?[0m",)
    assert refused.value.exit_code == 2


def test_a_trace_has_at_least_one_request_and_at_most_a_million(path: Path) -> None:
    requests_within_bounds(1, path)
    requests_within_bounds(1_000_000, path)
    for count, because in ((0, "no request"), (1_000_001, "more than 1,000,000")):
        with pytest.raises(BadRequest, match=because):
            requests_within_bounds(count, path)
