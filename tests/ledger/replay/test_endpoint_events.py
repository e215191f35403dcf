"""What a stream's bytes are read into, however they are cut, and whatever they are."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pinprobe.ledger.replay import endpoint_answer, server_events
from pinprobe.ledger.replay.endpoint_answer import Answer, AnswerReader, EndpointFault
from pinprobe.ledger.replay.server_events import ServerEvents
from pinprobe.probes.reading import Unreadable

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
#: Pieces that are almost right: every place of the form may hold anything.
DELTAS = st.fixed_dictionaries(
    {}, optional={key: st.text(max_size=5) | JSON for key in ("content", "reasoning", "reasoning_content", "role")}
)
CHOICES = st.fixed_dictionaries({}, optional={"delta": DELTAS | JSON, "finish_reason": st.just("stop") | JSON})
COUNTS = st.integers(-2, 2**70) | JSON
USAGES = st.fixed_dictionaries(
    {},
    optional={
        "prompt_tokens": COUNTS,
        "completion_tokens": COUNTS,
        "prompt_tokens_details": st.fixed_dictionaries({}, optional={"cached_tokens": COUNTS}) | JSON,
    },
)
CHUNKS = st.fixed_dictionaries(
    {}, optional={"choices": st.lists(CHOICES | JSON, max_size=2) | JSON, "usage": USAGES | JSON, "error": JSON}
)


def piece(**delta: str) -> bytes:
    return event({"choices": [{"index": 0, "delta": delta}]})


def event(chunk: Any) -> bytes:
    return f"data: {json.dumps(chunk)}\n\n".encode()


def read(*pieces: bytes) -> Answer:
    reader = AnswerReader()
    for number, data in enumerate(pieces):
        reader.read(data, float(number + 1))
    return reader.finish(100.0)


DONE = b"data: [DONE]\n\n"


def usage(**counts: Any) -> bytes:
    return event({"choices": [], "usage": counts})


# -- events


@given(st.lists(st.sampled_from([b"data: x", b"data:y", b"data", b": z", b"id: 1", b"", b"\xff\xc3", b"\xef\xbb\xbf"])),
       st.lists(st.sampled_from([b"\n", b"\r\n", b"\r"]), min_size=1), st.lists(st.integers(0, 60)))  # fmt: skip
def test_events_are_the_same_wherever_the_stream_is_cut(lines: list[bytes], ends: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(line + ends[number % len(ends)] for number, line in enumerate(lines))
    whole = ServerEvents()
    expected = [whole.feed(stream), whole.close()]
    places = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    cut = ServerEvents()
    found = [data for begin, end in pairwise(places) for data in cut.feed(stream[begin:end])]
    assert [found, cut.close()] == expected


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_an_event_of_several_lines_is_one_text(end: str) -> None:
    stream = f"event: x{end}data: one{end}data:  two{end}: no{end}{end}data:three{end}{end}".encode()
    events = ServerEvents()
    assert [*events.feed(stream), *events.close()] == ["one\n two", "three"]


def test_an_event_without_an_end_is_refused_before_it_takes_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_events, "LONGEST_EVENT_BYTES", 1000)
    for line in (b"x" * 400, b"data: " + b"x" * 394 + b"\n"):
        events = ServerEvents()
        events.feed(line + line)
        with pytest.raises(ValueError, match="no end within 1,000 B"):
            events.feed(line)


def test_a_long_line_in_single_bytes_is_not_searched_again_and_again() -> None:
    events = ServerEvents()
    found = [data for byte in b"data: " + b"x" * 300_000 + b"\n\n" for data in events.feed(bytes([byte]))]
    assert found == ["x" * 300_000]


# -- answers


def test_an_answer_is_put_together_with_its_reasoning_its_counts_and_its_times() -> None:
    answer = read(
        piece(role="assistant"), piece(reasoning="be"), piece(reasoning="cause"), piece(content="so"),
        usage(prompt_tokens=900, completion_tokens=31, prompt_tokens_details={"cached_tokens": 512}), DONE,
    )  # fmt: skip
    assert (answer.content, answer.reasoning, answer.reasoning_key) == ("so", "because", "reasoning")
    assert (answer.prompt_tokens, answer.cached_tokens, answer.output_tokens) == (900, 512, 31)
    assert not answer.is_counted
    assert (answer.ttft_seconds, answer.last_token_seconds, answer.seconds) == (2.0, 4.0, 100.0)
    assert answer.tokens_a_second == pytest.approx(30 / 2)


def test_reasoning_under_two_names_is_taken_once() -> None:
    answer = read(piece(reasoning="a", reasoning_content="a"), piece(reasoning="b", reasoning_content="b"), DONE)
    assert (answer.reasoning, answer.reasoning_key, answer.output_tokens) == ("ab", "reasoning_content", 2)


def test_without_usage_the_pieces_are_counted_and_nothing_else_is_known() -> None:
    answer = read(piece(content="a"), piece(content=""), piece(content="b"), DONE)
    assert (answer.output_tokens, answer.is_counted) == (2, True)
    assert isinstance(answer.prompt_tokens, Unreadable)
    assert isinstance(answer.cached_tokens, Unreadable)


@pytest.mark.parametrize(
    ("details", "word"),
    [
        (None, "no prompt_tokens_details"),
        ({}, "no cached_tokens"),
        ({"cached_tokens": None}, "no cached_tokens"),
        ({"cached_tokens": True}, "no count"),
        ({"cached_tokens": 1.5}, "no count"),
        ({"cached_tokens": -1}, "no count"),
        ({"cached_tokens": 10**400}, "no count"),
        ({"cached_tokens": 901}, "901 of 900"),
    ],
)
def test_cached_tokens_that_were_not_said_are_unknown_and_never_zero(details: Any, word: str) -> None:
    answer = read(piece(content="a"), usage(prompt_tokens=900, prompt_tokens_details=details), DONE)
    assert isinstance(answer.cached_tokens, Unreadable)
    assert word in answer.cached_tokens.reason


def test_cached_tokens_that_are_said_to_be_zero_are_zero() -> None:
    details = {"cached_tokens": 0}
    assert read(piece(content="a"), usage(prompt_tokens=9, prompt_tokens_details=details), DONE).cached_tokens == 0


def test_an_answer_in_one_piece_has_no_rate() -> None:
    answer = read(piece(content="a") + piece(content="b"), usage(completion_tokens=50), DONE)
    assert isinstance(answer.tokens_a_second, Unreadable)


@pytest.mark.parametrize(
    ("stream", "word"),
    [
        (b"", "came: 0"),
        (piece(content="a"), "came: 1"),
        (piece(content="a") + b"data: {", "came: 1"),
        (DONE, "no token"),
        (b"data: {'a': 1}\n\n", "no JSON: {'a': 1}"),
        (b"data: \x1b[31m\xff\n\n", "no JSON"),
        (b"data: " + b"[" * 100_000 + b"\n\n", "no JSON"),
        (b"data: " + b"9" * 10_000 + b"\n\n", "no JSON"),
        (b"data: [1]\n\n", "no JSON object"),
        (event({"choices": {}}), "choices is no list"),
        (event({"choices": [1]}), "no delta"),
        (event({"choices": [{"delta": [1]}]}), "no delta"),
        (piece(content=5), "content is no text"),  # type: ignore[arg-type]
        (event({"error": {"message": "out of\nmemory", "code": 500}}), "an error: out of memory"),
        (event({"error": "out of memory"}), "an error: out of memory"),
        (event({"error": {"code": [7]}}), '{"code": [7]}'),
    ],
)
def test_what_is_no_answer_is_told_in_one_line(stream: bytes, word: str) -> None:
    with pytest.raises(EndpointFault) as caught:
        read(stream)
    assert word in str(caught.value)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("ending", [b"data: [DONE]", b"data: [DONE]\n", b"data:[DONE]\r\n\r\n"])
def test_an_end_without_its_blank_line_is_an_end(ending: bytes) -> None:
    assert read(piece(content="a"), ending).content == "a"


def test_a_finish_reason_is_an_end_too() -> None:
    assert read(piece(content="a"), event({"choices": [{"finish_reason": "stop"}]})).finish_reason == "stop"


def test_an_answer_without_an_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint_answer, "MOST_ANSWER_BYTES", 10_000)
    with pytest.raises(EndpointFault, match="no end within 10,000 B"):
        read(*[piece(content="word")] * 1000)


@given(st.text(st.characters(), max_size=20) | st.text(st.sampled_from("a\ud83d\ude00\ufeff"), max_size=9))
@example("\ud83d")
@example("\ufeffa")
def test_a_text_can_be_sent_back_and_is_the_same_where_it_could_be(text: str) -> None:
    content = read(piece(content="."), *(piece(content=letter) for letter in text), DONE).content
    content.encode("utf-8")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return
    assert content == "." + text


def test_halves_of_a_character_in_two_pieces_are_one_character() -> None:
    assert read(piece(content="\ud83d"), piece(content="\ude00"), DONE).content == "\U0001f600"


def only_faults(pieces: list[bytes]) -> None:
    try:
        answer = read(*pieces)
    except EndpointFault as fault:
        if not str(fault).isprintable():
            raise
        return
    assert 0 <= answer.output_tokens <= 10**12
    assert isinstance(answer.tokens_a_second, float | Unreadable)
    for text in (answer.content, answer.reasoning):
        text.encode("utf-8")


@given(st.lists(st.binary(max_size=40) | st.just(DONE) | st.just(b"data: ") | st.just(b"\n\n"), max_size=12))
def test_any_bytes_are_an_answer_or_a_fault(pieces: list[bytes]) -> None:
    only_faults(pieces)


@given(st.lists(CHUNKS | JSON, max_size=5), st.booleans())
def test_any_json_is_an_answer_or_a_fault(chunks: list[Any], is_ended: bool) -> None:
    only_faults([piece(content="a"), *map(event, chunks), *([DONE] if is_ended else [])])
