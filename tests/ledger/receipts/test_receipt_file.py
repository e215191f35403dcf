"""Whatever stands in a file, a receipt comes out, or one line that names the file, the key and what to do."""

from __future__ import annotations

import copy
import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from pinprobe.cli.diff_table import diff_markdown, diff_rows, diff_text
from pinprobe.ledger.booking import RowState
from pinprobe.ledger.receipts.diff_receipt import diff_receipt
from pinprobe.ledger.receipts.receipt_diff import diff_receipts
from pinprobe.ledger.receipts.receipt_file import LedgerReceipt, read_receipt, receipt_from
from pinprobe.ledger.receipts.whole_file import LARGEST_FILE_BYTES
from pinprobe.probes.errors import BadRequest
from pinprobe.probes.reading import Reading, Unreadable
from tests.ledger.made_receipts import MIB, Document, document, real_document, row

FUZZ = settings(derandomize=True, deadline=None, max_examples=120, suppress_health_check=list(HealthCheck))
LONG_FUZZ = settings(derandomize=False, deadline=None, max_examples=10_000, suppress_health_check=list(HealthCheck))

#: The keys that lead to a value of a document.
Path_ = tuple[str | int, ...]


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Document:
    return real_document(tmp_path_factory.mktemp("real"))


def saved(folder: Path, content: bytes | str | Document) -> Path:
    path = folder / "receipt.json"
    if isinstance(content, dict):
        content = json.dumps(content)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def refusal(path: Path) -> str:
    """The one line in which a file is refused."""
    with pytest.raises(BadRequest) as caught:
        read_receipt(path)
    line = str(caught.value)
    assert line.startswith(str(path)), line
    assert line.isprintable()
    assert len(line) < len(str(path)) + 400
    return line.removeprefix(str(path))


def without(document: Document, keys: Path_) -> Document:
    damaged = copy.deepcopy(document)
    del place_of(damaged, keys)[keys[-1]]
    return damaged


def with_value(document: Document, keys: Path_, value: Any) -> Document:
    damaged = copy.deepcopy(document)
    place_of(damaged, keys)[keys[-1]] = value
    return damaged


def place_of(document: Document, keys: Path_) -> Any:
    place: Any = document
    for key in keys[:-1]:
        place = place[key]
    return place


def every_path(value: Any, keys: Path_ = ()) -> Iterator[Path_]:
    """Every key of a document, parts of a list by their number."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, below in inner:
        yield (*keys, key)
        yield from every_path(below, (*keys, key))


def dotted(keys: Path_) -> str:
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in keys).removeprefix(".")


# -- what is read


def test_what_the_file_says_is_what_is_read(real: Document, tmp_path: Path) -> None:
    receipt = read_receipt(saved(tmp_path, real))
    assert receipt.source == str(tmp_path / "receipt.json")
    assert receipt.measured_at == real["measured_at"]
    assert [(r.owner, r.asked_bytes, r.booked_bytes) for r in receipt.rows[:3]] == [
        ("cache.ring", 24 * MIB, 24 * MIB), ("cache.ring", 24 * MIB, 24 * MIB), ("cache.pool", 6 * MIB, 6 * MIB),
    ]  # fmt: skip
    assert isinstance(receipt.process_resident, Reading)
    assert receipt.process_resident.bytes == real["process_resident"]["bytes"]
    assert isinstance(receipt.working_set_floor, Reading)
    assert receipt.working_set_floor.bytes == real["working_set_floor"]["bytes"]
    assert receipt.headroom_bound == real["headroom"]["bound"]
    assert receipt.engine == "mine"
    assert receipt.config is not None
    assert receipt.config["tenants", "cache.pool", "bytes"] == "2 * slot_bytes"
    assert receipt.config["numbers", "slots"] == 8
    assert receipt.facts["kernel"] == real["host"]["kernel"]


def test_what_could_not_be_read_then_is_unreadable_now(tmp_path: Path) -> None:
    made = document(row("a", 1, resident=Unreadable("no smaps here")), process=Unreadable("no statm here"))
    receipt = read_receipt(saved(tmp_path, made))
    assert receipt.rows[0].resident == Unreadable("no smaps here")
    assert receipt.process_resident == Unreadable("no statm here")


def test_keys_that_newer_versions_add_do_not_matter(real: Document, tmp_path: Path) -> None:
    more = with_value(with_value(real, ("later",), {"x": [1, None]}), ("rows", 0, "later"), 1.5)
    assert read_receipt(saved(tmp_path, more)).rows == read_receipt(saved(tmp_path, real)).rows


def test_a_ledger_without_a_config_has_none(tmp_path: Path) -> None:
    receipt = read_receipt(saved(tmp_path, document(row("a", 1))))
    assert receipt.config is None
    assert receipt.engine == ""


def test_a_byte_order_mark_is_passed_over(real: Document, tmp_path: Path) -> None:
    assert read_receipt(saved(tmp_path, "\ufeff" + json.dumps(real))).engine == "mine"


def test_a_pipe_of_the_shells_is_read_as_a_file(real: Document) -> None:
    reader, writer = os.pipe()
    content = json.dumps(real).encode()

    def write() -> None:
        with os.fdopen(writer, "wb") as pipe:
            pipe.write(content)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        assert read_receipt(Path(f"/dev/fd/{reader}")).engine == "mine"
    finally:
        thread.join()
        os.close(reader)


def test_what_would_command_a_terminal_is_taken_out_of_every_text(tmp_path: Path) -> None:
    made = document(row("pool\x1b[31m", 1), note="two\nlines", config={"engine": {"name": "a\rb", "\x07": "\x00"}})
    receipt = read_receipt(saved(tmp_path, made))
    assert receipt.rows[0].owner == "pool?[31m"
    assert receipt.note == "two?lines"
    assert receipt.config == {("engine", "name"): "a?b", ("engine", "?"): "?"}


# -- files that are none


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    assert "there is no such file" in refusal(tmp_path / "gone.json")


def test_a_folder_is_told(tmp_path: Path) -> None:
    assert "is a folder" in refusal(tmp_path)


def test_what_lies_below_a_file_is_told(tmp_path: Path) -> None:
    assert "can't be read: Not a directory" in refusal(saved(tmp_path, "") / "receipt.json")


def test_a_file_beyond_the_bound_is_told(tmp_path: Path) -> None:
    path = saved(tmp_path, "{}")
    os.truncate(path, LARGEST_FILE_BYTES + 1)
    assert "is larger than 64 MiB" in refusal(path)


def test_a_device_without_an_end_is_left_at_the_bound() -> None:
    assert "is larger than 64 MiB" in refusal(Path("/dev/zero"))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", ":1:1: this is not JSON"),
        (b'{\n "schema": pinprobe}', ":2:12: this is not JSON"),
        (b'{"schema"', "this is not JSON"),
        (b"\xff\xfe{}", "byte 0 is no UTF-8"),
        (b"[]", "the document is a list"),
        (b"null", "the document is null"),
        (b'"pinprobe.ledger"', "the document is the text"),
        (b"{}", "schema is missing"),
        (b'{"a": 1, "b": {"x": 1, "x": 1}}', "the key x stands twice"),
        (b"[" * 100_000, "nested deeper"),
        (b'{"a":' * 50 + b"1" + b"}" * 50, "is nested deeper than 40"),
        (b"[" + b"0," * 600_000 + b"0]", "more than 500,000 values"),
        (b'{"a": [0, NaN]}', "a[1] is no number"),
        (b'{"a": {"b": -Infinity}}', "a.b is no number"),
        (b'{"a": 1e999}', "a is no number, or one beyond all bounds"),
        (b'{"a": ' + b"9" * 6000 + b"}", "a is no number, or one beyond all bounds"),
    ],
    ids=[
        "empty", "a bare word", "cut off", "another encoding", "a list", "null", "a text", "no keys", "a key twice",
        "brackets", "deep", "many", "nan", "infinity", "1e999", "6000 digits",
    ],
)  # fmt: skip
def test_what_is_no_document_is_told_with_its_place(tmp_path: Path, content: bytes, words: str) -> None:
    assert words in refusal(saved(tmp_path, content))


def test_another_document_of_ours_is_told(real: Document, tmp_path: Path) -> None:
    line = refusal(saved(tmp_path, with_value(real, ("schema",), "pinprobe.sweep")))
    assert "'pinprobe.sweep'" in line
    assert "'pinprobe.ledger'" in line


@pytest.mark.parametrize(
    ("version", "words"),
    [
        (2, "version 2 is newer than what this pinprobe reads (1)"),
        (0, "version is 0"),
        (-1, "version is -1"),
        (True, "version is true, where a whole number"),
        ("1", "version is the text '1'"),
        (1.0, "version is the number 1.0"),
    ],
)
def test_a_version_that_is_not_read_is_told(real: Document, tmp_path: Path, version: Any, words: str) -> None:
    assert words in refusal(saved(tmp_path, with_value(real, ("version",), version)))


# -- keys


def test_each_key_that_is_needed_is_missed_by_its_name(real: Document, tmp_path: Path) -> None:
    needed = set()
    for keys in every_path(real):
        if isinstance(keys[-1], int) or keys[-1] == "unreadable":  # without its reason an amount lacks its bytes
            continue
        path = saved(tmp_path, without(real, keys))
        try:
            read_receipt(path)
        except BadRequest:
            assert f": {dotted(keys)} is missing; make the receipt anew: pinprobe ledger" in refusal(path)
            needed.add(keys[-1])
    assert needed >= {
        "schema", "version", "rows", "owner", "state", "asked_bytes", "booked_bytes", "resident", "pageable", "bytes",
        "sums", "pinned_bytes", "pageable_bytes", "process_resident", "working_set_floor", "headroom", "config",
        "overrides", "scale", "host", "kernel", "torch", "driver", "page_size_bytes", "counters", "note",
    }  # fmt: skip


@pytest.mark.parametrize("value", [None, "x", [], {}, 1.5, True, -(2**70), 10**29], ids=repr)
def test_a_value_of_the_wrong_kind_is_told_with_its_key(real: Document, tmp_path: Path, value: Any) -> None:
    refused = 0
    for keys in every_path(real):
        path = saved(tmp_path, with_value(real, keys, value))
        try:
            read_receipt(path)
        except BadRequest:
            # The key itself, or one that has to be inside of it, or a sum that it contradicts.
            line = refusal(path)
            assert f": {dotted(keys)}" in line or ": sums." in line, line
            refused += 1
    assert refused > 40


def test_a_number_that_no_address_space_holds_is_told_with_its_key(real: Document, tmp_path: Path) -> None:
    for keys in (("process_resident", "bytes"), ("overhead", "bytes"), ("rows", 0, "resident", "error_bytes")):
        whole = with_value(real, ("overhead",), {"bytes": 0, "source": "the host", "error_bytes": 0})
        line = refusal(saved(tmp_path, with_value(whole, keys, 2**62 + 1)))
        assert f": {dotted(keys)} is 4,611,686,018,427,387,905, more than any address space holds" in line


@pytest.mark.parametrize("name", ["asked_bytes", "booked_bytes", "pinned_bytes", "pageable_bytes"])
def test_a_sum_that_its_rows_contradict_is_told(real: Document, tmp_path: Path, name: str) -> None:
    right = real["sums"][name]
    line = refusal(saved(tmp_path, with_value(real, ("sums", name), right + 4096)))
    assert f": sums.{name} is {right + 4096:,}, and the rows come to {right:,}" in line


def test_a_state_that_is_none_is_told_with_those_that_are(real: Document, tmp_path: Path) -> None:
    line = refusal(saved(tmp_path, with_value(real, ("rows", 0, "state"), "lost")))
    assert "rows[0].state is 'lost'" in line
    for state in RowState:
        assert state.value in line


def test_a_floor_may_be_below_zero_and_a_row_may_not(real: Document, tmp_path: Path) -> None:
    below = read_receipt(saved(tmp_path, with_value(real, ("working_set_floor", "bytes"), -4096)))
    assert isinstance(below.working_set_floor, Reading)
    assert below.working_set_floor.bytes == -4096
    assert "rows[0].booked_bytes is -1" in refusal(saved(tmp_path, with_value(real, ("rows", 0, "booked_bytes"), -1)))


# -- fuzz

_ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([0, -1, 2**62 + 1, 10**30, 10**400, float("nan"), float("inf"), 1e-320, [[]] * 3, {"": {"": 0}}]),
    st.text(max_size=20),
    st.sampled_from(
        ["reserved", "pending", "retained", "unattributed", "pageable", "pinprobe.ledger", "\ud800", "x" * 999]
    ),
    st.dictionaries(
        st.sampled_from(["bytes", "source", "error_bytes", "unreadable", "\x1b"]), st.integers(), max_size=3
    ),
)


def _cut(content: bytes, cuts: list[tuple[int, int, bytes]]) -> bytes:
    for at, length, put in cuts:
        at %= len(content) + 1
        content = content[:at] + put + content[at + length :]
    return content


_CUTS = st.lists(
    st.tuples(
        st.integers(0, 100_000), st.integers(0, 60), st.one_of(st.binary(max_size=6), st.sampled_from([b"9", b"}"]))
    ),
    min_size=1,
    max_size=4,
)
_CHANGES = st.lists(
    st.tuples(st.integers(0, 100_000), st.sampled_from(["put", "take", "twice"]), _ODD), min_size=1, max_size=4
)


def _changed(document: Document, changes: list[tuple[int, str, Any]]) -> Document:
    damaged = copy.deepcopy(document)
    for number, how, value in changes:
        paths = list(every_path(damaged))
        if not paths:
            break
        keys = paths[number % len(paths)]
        place = place_of(damaged, keys)
        if how == "put":
            place[keys[-1]] = value
        elif how == "take":
            del place[keys[-1]]
        elif isinstance(place, list):
            place.append(copy.deepcopy(place[-1]))
        else:
            place[f"{keys[-1]}.x"] = copy.deepcopy(place[keys[-1]])
    return damaged


Try = Callable[[bytes], bool]


@pytest.fixture(scope="module")
def try_receipt(real: Document, tmp_path_factory: pytest.TempPathFactory) -> Try:
    """Read a receipt of these bytes, compare whatever comes out with a sound one, and return whether anything did."""
    path = tmp_path_factory.mktemp("fuzz") / "receipt.json"
    sound = receipt_from(real, "sound.json")

    def try_receipt(content: bytes) -> bool:
        path.write_bytes(content)
        try:
            receipt = read_receipt(path)
        except BadRequest:
            refusal(path)
            return False
        look_at(sound, receipt)
        look_at(receipt, sound)
        return True

    return try_receipt


def look_at(old: LedgerReceipt, new: LedgerReceipt) -> None:
    """Whatever a receipt holds can be compared and written in every form."""
    diff = diff_receipts(old, new)
    for text in (diff_text(diff, (), None), diff_markdown(diff, (), None), diff_rows(diff).csv()):
        assert all(line.isprintable() for line in text.split("\n"))
        text.encode()
    json.dumps(diff_receipt(diff, (), None, []), allow_nan=False).encode()
    if new.page_size_bytes < 2**30:
        words = [change.word for change in diff.config] if not isinstance(diff.config, Unreadable) else []
        too_wide = [line for line in diff_text(diff, (), None).split("\n") if len(line) > 80]
        assert all(any(line.strip(" \\") == word for word in words) for line in too_wide), too_wide


@given(
    content=st.one_of(
        st.binary(max_size=200), st.text(alphabet='{}[]:,"\\u0 1e.-nultrfas', max_size=200).map(str.encode)
    )
)
@example(content=b"\xef\xbb\xbf")
@example(content=b'{"schema": "pinprobe.ledger", "version": 1}')
@FUZZ
def test_any_bytes_are_refused_in_one_line(try_receipt: Try, content: bytes) -> None:
    assert not try_receipt(content)


@given(cuts=_CUTS)
@FUZZ
def test_a_real_receipt_whose_bytes_are_damaged_is_read_or_refused(
    try_receipt: Try, real: Document, cuts: list[tuple[int, int, bytes]]
) -> None:
    try_receipt(_cut(json.dumps(real).encode(), cuts))


def test_a_real_receipt_whose_values_are_damaged_is_read_or_refused(try_receipt: Try, real: Document) -> None:
    were_read = []

    @given(changes=_CHANGES)
    @FUZZ
    def try_one(changes: list[tuple[int, str, Any]]) -> None:
        were_read.append(try_receipt(json.dumps(_changed(real, changes)).encode("utf-8", "surrogatepass")))

    try_one()
    # A fuzz whose every document is refused would look at nothing behind the refusal.
    assert len(were_read) // 20 < were_read.count(True) < len(were_read)


@pytest.mark.slow
@given(cuts=_CUTS, changes=st.one_of(st.just([]), _CHANGES))
@LONG_FUZZ
def test_ten_thousand_damaged_receipts_are_read_or_refused(
    try_receipt: Try, real: Document, cuts: list[tuple[int, int, bytes]], changes: list[tuple[int, str, Any]]
) -> None:
    content = json.dumps(_changed(real, changes)).encode("utf-8", "surrogatepass")
    try_receipt(content if changes else _cut(content, cuts))
