"""Traces in the form that Mooncake publishes, against the blocks of their prompts."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from pinprobe.ledger.replay.mooncake import BLOCK_TOKENS, read_mooncake
from pinprobe.ledger.replay.request import Request
from pinprobe.ledger.replay.trace_lines import BadTrace
from pinprobe.probes.errors import BadRequest

FUZZ = settings(derandomize=True, deadline=None, max_examples=200, suppress_health_check=list(HealthCheck))

Put = Callable[..., Path]


def row(at: float, blocks: list[int], more_tokens: int = 0, **other: Any) -> dict[str, Any]:
    """A request whose prompt is these blocks and some tokens that fill no other."""
    tokens = BLOCK_TOKENS * len(blocks) + more_tokens
    return {"timestamp": at, "input_length": tokens, "output_length": 7, "hash_ids": blocks, **other}


@pytest.fixture
def put(tmp_path: Path) -> Put:
    def put(*rows: dict[str, Any] | str) -> Path:
        path = tmp_path / "trace.jsonl"
        lines = [line if isinstance(line, str) else json.dumps(line) for line in rows]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return path

    return put


def test_prompts_that_share_their_first_blocks_continue_the_longest_of_them(put: Put) -> None:
    requests = read_mooncake(
        put(
            row(0, [1, 2], 100),
            row(1500, [1, 2, 3]),
            row(2000, [1, 2, 3, 4, 5], 5),
            row(3000, [1, 2, 9]),
            row(4000, [7]),
            row(5000, [1, 2, 3], 33),
        )
    )
    assert [(request.savepoint, request.parent) for request in requests] == [
        (0, None),
        (1, 0),
        (2, 1),
        (3, 0),
        (4, None),
        (1, 1),
    ]
    assert requests[0] == Request(0.0, 0, None, 1024, 1124, 7, "")
    assert [request.at_seconds for request in requests] == [0.0, 1.5, 2.0, 3.0, 4.0, 5.0]
    assert [request.savepoint_tokens for request in requests] == [1024, 1536, 2560, 1536, 512, 1536]


def test_equal_blocks_after_another_beginning_are_another_prefix(put: Put) -> None:
    requests = read_mooncake(put(row(0, [1, 2]), row(0, [3, 2]), row(0, [2])))
    assert [request.parent for request in requests] == [None, None, None]
    assert len({request.savepoint for request in requests}) == 3


def test_a_last_block_that_is_not_full_may_be_listed_and_does_not_count(put: Put) -> None:
    listed = {"timestamp": 0, "input_length": 1100, "output_length": 1, "hash_ids": [1, 2, 3]}
    left_out = {**listed, "timestamp": 1, "hash_ids": [1, 2]}
    requests = read_mooncake(put(listed, left_out))
    assert [request.savepoint_tokens for request in requests] == [1024, 1024]
    assert [request.savepoint for request in requests] == [0, 0]


def test_a_prompt_below_one_block_offers_nothing_and_continues_nothing(put: Put) -> None:
    short = {"timestamp": 0, "input_length": 100, "output_length": 1, "hash_ids": [5]}
    requests = read_mooncake(put(short, short, {**short, "hash_ids": []}))
    assert [(request.savepoint_tokens, request.parent) for request in requests] == [(0, None)] * 3
    assert len({request.savepoint for request in requests}) == 3


def test_empty_lines_and_other_keys_are_left_alone(put: Put, tmp_path: Path) -> None:
    path = put("", row(0, [1], type="chat", session={"a": [1]}), "  ", row(1, [1]))
    assert len(read_mooncake(path)) == 2
    zipped = tmp_path / "zipped"
    zipped.write_bytes(gzip.compress(path.read_bytes()))
    assert read_mooncake(zipped) == read_mooncake(path)


def test_parents_are_the_longest_earlier_prefix_as_a_slow_search_finds_it(put: Put) -> None:
    chance = random.Random(1)
    prompts = [[chance.randrange(2) for _ in range(chance.randrange(9))] for _ in range(300)]
    requests = read_mooncake(put(*[row(at, blocks) for at, blocks in enumerate(prompts)]))
    number_of: dict[tuple[int, ...], int] = {}
    for number, (blocks, request) in enumerate(zip(prompts, requests, strict=True)):
        whole = tuple(blocks)
        prefixes = [whole[:length] for length in range(len(whole), 0, -1)]
        assert request.parent == next((number_of[prefix] for prefix in prefixes if prefix in number_of), None)
        if whole:
            assert request.savepoint == number_of.setdefault(whole, number)


@pytest.mark.parametrize(
    ("line", "because"),
    [
        ("{", "this is no JSON"),
        ("[1]", "this is no JSON object"),
        ("7", "this is no JSON object"),
        ("[" * 100_000, "this is no JSON"),
        ('{"timestamp": NaN}', "this is no JSON: NaN is not JSON"),
        ('{"timestamp": ' + "9" * 5000 + "}", "this is no JSON"),
        ("{}", "timestamp is 'None'"),
        (json.dumps({**row(1, [1]), "timestamp": True}), "timestamp is 'True'"),
        (json.dumps({**row(1, [1]), "timestamp": -1}), "timestamp is '-1'"),
        (json.dumps({**row(1, [1]), "timestamp": "1"}), "timestamp is '1'"),
        ('{"timestamp": 1e999}', "timestamp is 'inf'"),
        (json.dumps({**row(1, [1]), "input_length": 512.0}), "input_length is '512.0'"),
        (json.dumps({**row(1, [1]), "input_length": None}), "input_length is 'None'"),
        (json.dumps({**row(1, [1]), "output_length": -1}), "output_length is '-1'"),
        (json.dumps({**row(1, [1]), "output_length": 10**15}), "output_length is '1000000000000000'"),
        (json.dumps({**row(1, [1]), "hash_ids": "1"}), "hash_ids is no list of whole numbers"),
        (json.dumps({**row(1, [1]), "hash_ids": [True]}), "hash_ids is no list of whole numbers"),
        (json.dumps({**row(1, [1]), "hash_ids": [1, 2]}), "hash_ids has 2 blocks of 512 for a prompt of 512 tokens"),
        (json.dumps({**row(1, [1, 2]), "hash_ids": [1]}), "hash_ids has 1 blocks of 512 for a prompt of 1024 tokens"),
        (json.dumps(row(999.5, [1])), "the time runs backwards, from 1.0 s to 0.9995 s"),
    ],
)
def test_a_line_that_can_not_be_used_is_named_with_the_reason(put: Put, line: str, because: str) -> None:
    path = put(row(0, [1]), row(1000, [1, 2]), line)
    with pytest.raises(BadTrace) as refused:
        read_mooncake(path)
    (problem,) = refused.value.problems
    assert problem.startswith(f"{path}:3: ")
    assert because in problem
    assert problem.isprintable()
    assert len(problem) < 600


def test_all_lines_that_can_not_be_used_are_named_with_a_line_that_is_not_utf8_among_them(put: Put) -> None:
    path = put("{", row(0, [1]), "[]")
    with path.open("ab") as file:
        file.write(b'{"type": "Gespr\xe4ch"}\n')
    with pytest.raises(BadTrace) as refused:
        read_mooncake(path)
    numbers = [problem.removeprefix(f"{path}:").partition(":")[0] for problem in refused.value.problems]
    assert numbers == ["1", "3", "4"]
    assert "not UTF-8" in refused.value.problems[-1]


def test_a_file_of_nothing_and_one_of_too_much_are_refused(put: Put, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadRequest, match="has no request in it"):
        read_mooncake(put("", " "))
    monkeypatch.setattr("pinprobe.ledger.replay.mooncake.MOST_REQUESTS", 2)
    monkeypatch.setattr("pinprobe.ledger.replay.trace_lines.MOST_REQUESTS", 2)
    assert len(read_mooncake(put(row(0, [1]), row(0, [2])))) == 2
    with pytest.raises(BadRequest, match="more than 2 requests"):
        read_mooncake(put(row(0, [1]), row(0, [2]), row(0, [3])))


_ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=6,
)
_ROW = st.fixed_dictionaries(
    {},
    optional={
        "timestamp": st.integers(0, 9) | _ANY,
        "input_length": st.sampled_from([0, 511, 512, 1024]) | _ANY,
        "output_length": st.integers(0, 9) | _ANY,
        "hash_ids": st.lists(st.integers(0, 2), max_size=3) | _ANY,
    },
)


@given(
    content=st.binary(max_size=200)
    | st.lists(_ROW.map(json.dumps), max_size=5).map(lambda rows: "\n".join(rows).encode())
)
@example(content=b'{"timestamp": ' + b"1" * 400 + b"}")
@FUZZ
def test_any_file_is_a_trace_or_a_clean_error(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzzed.jsonl"
    path.write_bytes(content)
    lines: list[str] = []
    try:
        assert all(request.savepoint_tokens <= request.prompt_tokens for request in read_mooncake(path))
    except BadRequest as refused:
        lines = str(refused).split("\n")
    assert all(line.isprintable() and line.startswith(str(path)) for line in lines)
