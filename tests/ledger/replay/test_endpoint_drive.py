"""Whole drives of a real server on this host: what goes over the wire, and whether the figures are the server's own."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import pytest

from pinprobe.ledger.replay.do_no_harm import Bounds, Turn, do_no_harm_rows
from pinprobe.ledger.replay.endpoint import KEY_VARIABLE, Endpoint, Patience
from pinprobe.ledger.replay.endpoint_drive import Driven, drive_endpoint
from pinprobe.ledger.replay.shape import Shape
from pinprobe.probes.errors import BadRequest
from pinprobe.probes.reading import Unreadable
from tests.ledger.replay.scripted_server import Play, ScriptedServer, Seen

pytest.importorskip("httpx", reason='driving an endpoint needs httpx: pip install "pinprobe[endpoint]"')

PATIENCE = Patience(connect_seconds=5, idle_seconds=20, total_seconds=30)
SMALL = Shape(sessions=3, turns=3, think_seconds=0.0, prompt_tokens=(100, 200), output_tokens=8)


@pytest.fixture(autouse=True)
def _no_key_and_no_thread_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    before = set(threading.enumerate())
    yield
    deadline = time.monotonic() + 2
    while set(threading.enumerate()) - before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not set(threading.enumerate()) - before


def drive(server: ScriptedServer, shape: Shape = SMALL, arm: str = "A", **options: Any) -> Driven:
    with Endpoint(server.url, PATIENCE) as endpoint:
        return drive_endpoint(endpoint, "m", shape, arm=arm, **options)


def lines_of(server: ScriptedServer) -> list[list[Seen]]:
    """The requests by session, in the order of their turns: those that begin with the same words."""
    lines: dict[str, list[Seen]] = {}
    for seen in server.chats:
        lines.setdefault(seen.body["messages"][0]["content"], []).append(seen)
    return [sorted(line, key=lambda seen: len(seen.body["messages"])) for line in lines.values()]


# -- what goes over the wire


def test_each_turn_resends_the_whole_transcript_with_the_reasoning_under_the_servers_own_name() -> None:
    for key in ("reasoning_content", "reasoning"):
        with ScriptedServer(lambda n, body, key=key: Play(reasoning_tokens=3, reasoning_key=key)) as server:  # type: ignore[misc]
            drive(server)
        lines = lines_of(server)
        assert [len(line) for line in lines] == [3, 3, 3]
        for line in lines:
            conversations = [seen.body["messages"] for seen in line]
            for earlier, later in pairwise(conversations):
                assert later[: len(earlier)] == earlier
                answer, question = later[len(earlier) :]
                assert (answer["role"], question["role"]) == ("assistant", "user")
                assert len(answer["content"].split()) == 8
                assert len(answer[key].split()) == 3
            assert [seen.body["max_tokens"] for seen in line] == [8, 8, 8]


def test_an_answer_without_reasoning_is_resent_without_it() -> None:
    with ScriptedServer() as server:
        drive(server)
    assistants = [m for line in lines_of(server) for m in line[-1].body["messages"] if m["role"] == "assistant"]
    assert {tuple(message) for message in assistants} == {("role", "content")}


def test_a_new_word_begins_every_prompt_of_a_drive_and_the_rest_is_the_same_text() -> None:
    firsts = []
    with ScriptedServer() as server:
        for _ in range(2):
            drive(server, replicates=2)
        for seen in server.chats:
            system, user, *later = seen.body["messages"]
            if not later:
                nonce, _, rest = system["content"].partition(" ")
                firsts.append((nonce, rest, user["content"]))
    assert len({nonce for nonce, _, _ in firsts}) == 4
    assert all(len(nonce) >= 8 for nonce, _, _ in firsts)
    texts = {(rest, content) for _, rest, content in firsts}
    assert len(texts) == 3  # one a session, whichever drive it was


def test_another_seed_is_another_text() -> None:
    contents = set()
    for seed in (0, 0, 1):
        with ScriptedServer() as server:
            drive(server, Shape(1, 1, 0.0, (100, 100), 8, seed=seed))
        contents.add(server.chats[0].body["messages"][1]["content"])
    assert len(contents) == 2


def test_prompts_have_the_length_that_was_asked_for() -> None:
    with ScriptedServer() as server:
        driven = drive(server)
    for line in lines_of(server):
        # A word is a token there, and the role of each message one more.
        assert [seen.prompt_tokens for seen in line] == pytest.approx([100, 150, 200], abs=5)
    assert sorted({turn.wanted_prompt_tokens for turn in driven.turns}) == [100, 150, 200]


def test_a_first_prompt_that_was_off_is_made_good_by_what_the_server_counted() -> None:
    shape = Shape(2, 4, 0.0, (1000, 7000), 8)
    with ScriptedServer(tokens_a_word=2, tokens_a_message=7) as server:
        drive(server, shape)
    for line in lines_of(server):
        sizes = [seen.prompt_tokens for seen in line]
        assert sizes[0] == pytest.approx(2000, rel=0.03)
        assert sizes[1:] == pytest.approx([3000, 5000, 7000], rel=0.01)


def test_without_usage_words_stay_tokens() -> None:
    with ScriptedServer(lambda number, body: Play(has_usage=False)) as server:
        driven = drive(server)
    for line in lines_of(server):
        assert [seen.prompt_tokens for seen in line] == pytest.approx([100, 150, 200], abs=12)
    assert all(isinstance(turn.prompt_tokens, Unreadable) and turn.is_counted for turn in driven.turns)
    assert {turn.output_tokens for turn in driven.turns} == {8}


def test_answers_longer_than_prompts_are_to_grow_are_resent_all_the_same() -> None:
    with ScriptedServer(lambda number, body: Play(tokens=300)) as server:
        drive(server, Shape(1, 3, 0.0, (100, 110), 300))
    sizes = [seen.prompt_tokens for seen in lines_of(server)[0]]
    assert sizes[0] == pytest.approx(100, abs=5)
    assert sizes[1] > 400
    assert sizes[2] > 700


def open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_no_connection_is_left_open_when_a_drive_has_ended() -> None:
    with ScriptedServer(lambda n, body: Play(cut_after=2) if n % 3 == 0 else Play()) as server:
        before = open_files()
        with Endpoint(server.url, PATIENCE) as endpoint:
            drive_endpoint(endpoint, "m", Shape(12, 2, 0.0, (50, 60), 8), arm="A")
            deadline = time.monotonic() + 5  # the server, which is this process too, lets go a moment later
            while open_files() > before and time.monotonic() < deadline:
                time.sleep(0.01)
            assert open_files() <= before
    assert {seen.headers["Connection"] for seen in server.chats} == {"close"}


# -- when


def test_the_think_time_lies_between_two_turns_of_a_session() -> None:
    slept: list[float] = []
    with ScriptedServer() as server:
        drive(server, Shape(3, 4, 12.5, (100, 200), 8), sleep=slept.append)
    assert slept == [12.5] * 9


def test_sessions_are_driven_in_parallel() -> None:
    barrier = threading.Barrier(6)

    def together(number: int, body: object) -> Play:
        barrier.wait(10)  # breaks, and fails all, where fewer than six are asked at a time
        return Play()

    with ScriptedServer(together) as server:
        driven = drive(server, Shape(6, 2, 0.0, (50, 90), 8))
    assert [turn.error for turn in driven.turns] == [""] * 12


def test_who_watches_is_told_of_each_turn_as_it_ends() -> None:
    told: list[Turn] = []
    with ScriptedServer() as server:
        driven = drive(server, replicates=2, on_turn=told.append)
    assert tuple(told) == driven.turns
    assert [turn.replicate for turn in told] == [1] * 9 + [2] * 9


def test_a_fault_of_who_watches_is_raised_where_the_drive_was_begun() -> None:
    def broken(turn: Turn) -> None:
        raise BrokenPipeError("nobody reads")

    with ScriptedServer() as server, pytest.raises(BrokenPipeError):
        drive(server, on_turn=broken)


# -- figures


def served(server: ScriptedServer) -> Callable[[bool], float]:
    """The share that the server itself counted as cached."""

    def share(is_later: bool) -> float:
        chats = [seen for seen in server.chats if len(seen.body["messages"]) > 2 or not is_later]
        return sum(seen.cached_tokens for seen in chats) / sum(seen.prompt_tokens for seen in chats)

    return share


def test_a_row_is_what_the_server_counted_and_more_places_cache_more() -> None:
    shares = {}
    for slots in (2, 32):
        with ScriptedServer(lambda n, body: Play(first_seconds=0.01, piece_seconds=0.001), slots=slots) as server:
            driven = drive(server, Shape(6, 3, 0.01, (200, 300), 8), arm=str(slots))
        (row,) = do_no_harm_rows(driven.turns, driven.incidents)
        chats = [seen for seen in server.chats if len(seen.body["messages"]) > 2]
        assert (row.turn_count, row.later_count, row.error_count, row.silent_count) == (18, 12, 0, 0)
        assert row.cached_share == Bounds(*[served(server)(False)] * 2)
        assert row.cached_share_later == Bounds(*[served(server)(True)] * 2)
        uncached = sum(seen.prompt_tokens - seen.cached_tokens for seen in chats) / 12
        assert row.uncached_tokens_a_turn == Bounds(uncached, uncached)
        assert row.incidents == ()
        shares[slots] = served(server)(True)
    assert shares[32] > 0.7
    assert shares[2] < shares[32]


def test_no_drive_reads_what_another_left_in_the_cache() -> None:
    with ScriptedServer() as server:
        driven = [*drive(server, replicates=2).turns, *drive(server, arm="B").turns]
    firsts = [turn for turn in driven if turn.number == 1]
    assert [turn.cached_tokens for turn in firsts] == [0] * 9
    assert all(isinstance(t.cached_tokens, int) and t.cached_tokens > 50 for t in driven if t.number > 1)


def test_with_the_same_word_before_them_they_would() -> None:
    with ScriptedServer() as server:
        driven = drive(server, replicates=2, nonce=lambda: "same")
    assert all(turn.cached_tokens for turn in driven.turns if turn.replicate == 2)


def test_a_slower_prefill_is_seen_in_the_time_to_the_first_token() -> None:
    with ScriptedServer(lambda n, body: Play(seconds_an_uncached_token=0.001)) as server:
        driven = drive(server, Shape(2, 2, 0.0, (200, 230), 8))
    for turn in driven.turns:
        assert isinstance(turn.cached_tokens, int)
        assert isinstance(turn.prompt_tokens, int)
        assert isinstance(turn.ttft_seconds, float)
        assert turn.ttft_seconds >= 0.001 * (turn.prompt_tokens - turn.cached_tokens)
    assert min(t.ttft_seconds for t in driven.turns if t.number == 1) > 0.19  # type: ignore[type-var, operator]


# -- what goes wrong


def test_a_session_that_fails_ends_there_and_the_others_go_on() -> None:
    failing = Play(status=500, body=b'{"error": {"message": "out of memory"}}')

    def second_turn_of_session_two(number: int, body: Any) -> Play:
        messages = body["messages"]
        return failing if len(messages) == 4 and messages[0]["content"].split()[1] == "2." else Play()

    with ScriptedServer(second_turn_of_session_two) as server:
        driven = drive(server)
    assert len(server.chats) == 8
    (failed,) = (turn for turn in driven.turns if turn.error)
    assert (failed.session, failed.number, failed.error) == (2, 2, "HTTP 500: out of memory")
    assert isinstance(failed.ttft_seconds, Unreadable)
    assert not driven.is_stopped
    (row,) = do_no_harm_rows(driven.turns, driven.incidents)
    assert (row.turn_count, row.later_count, row.error_count) == (7, 4, 1)
    assert row.incidents == (
        "session 2, turn 2: HTTP 500: out of memory",
        "session 2 ended with turn 2, which failed; 1 turn of it was not driven",
    )


def test_a_server_that_cuts_every_stream_makes_no_row_of_zeros() -> None:
    with ScriptedServer(lambda number, body: Play(cut_after=1)) as server:
        driven = drive(server)
    (row,) = do_no_harm_rows(driven.turns, driven.incidents)
    assert (row.turn_count, row.error_count) == (0, 3)
    for figure in (row.cached_share, row.ttft_median_seconds, row.tokens_a_second, row.uncached_tokens_a_turn):
        assert isinstance(figure, Unreadable)


@pytest.fixture
def _sigint_interrupts() -> Iterator[None]:
    # A background job of a script ignores it, and its children do too.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_sigint_interrupts")
@pytest.mark.parametrize("waits_for", ["an answer", "the think time"])
def test_an_interruption_ends_it_within_seconds_and_keeps_what_was_finished(waits_for: str) -> None:
    numbers = count(1)
    late = Play(first_seconds=60) if waits_for == "an answer" else Play()

    def interrupt_once_all_are_waiting(turn: Turn) -> None:
        if next(numbers) == 3:
            threading.Timer(0.2, os.kill, [os.getpid(), signal.SIGINT]).start()

    shape = Shape(3, 3, 0.0 if waits_for == "an answer" else 60.0, (100, 200), 8)
    with ScriptedServer(lambda number, body: Play() if len(body["messages"]) == 2 else late) as server:
        begun = time.monotonic()
        driven = drive(server, shape, replicates=3, on_turn=interrupt_once_all_are_waiting)
        assert time.monotonic() - begun < 5
    assert driven.is_stopped
    assert [(turn.number, turn.error) for turn in driven.turns] == [(1, "")] * 3
    (incident,) = driven.incidents
    assert incident.what.startswith("interrupted after ")
    assert incident.what.endswith(" s, with 3 of 9 turns answered")


@pytest.mark.parametrize(
    ("shape", "replicates", "word"),
    [
        (SMALL, 0, "0 replicates"),
        (SMALL, 101, "101 replicates"),
        (Shape(sessions=1025), 1, "1,025 sessions"),
        (Shape(output_tokens=0), 1, "0 output tokens"),
        (Shape(prompt_tokens=(1, 10**9)), 1, "prompt tokens"),
        (Shape(think_seconds=90_000), 1, "a day is the most"),
        (Shape(turns=9, prompt_tokens=(10, 12)), 1, "can't grow"),
    ],
)
def test_what_can_not_be_driven_is_refused_before_anything_is_sent(shape: Shape, replicates: int, word: str) -> None:
    with ScriptedServer() as server:
        with pytest.raises(BadRequest, match=word):
            drive(server, shape, replicates=replicates)
        assert server.seen == []
