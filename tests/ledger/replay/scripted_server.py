"""A real HTTP server on 127.0.0.1 that answers as it is told: an engine with a cache of few places, or a broken one.

Its tokens are words. What it calls cached is a prefix that a transcript in one of its places really has in common with
the prompt, in whole blocks; a place goes to the newcomer from whoever was longest unread.
"""

from __future__ import annotations

import contextlib
import json
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

BLOCK_WORDS = 16


@dataclass(frozen=True)
class Play:
    """How one request is answered.

    `raw` goes over the wire in place of everything, `body` in place of the stream's events. `drip_seconds` sends either
    a byte at a time. `cut_after` closes the connection in the middle, after so many pieces.
    """

    tokens: int = 8
    reasoning_tokens: int = 0
    reasoning_key: str = "reasoning_content"
    first_seconds: float = 0.0
    piece_seconds: float = 0.0
    seconds_an_uncached_token: float = 0.0
    status: int = 200
    content_type: str = "text/event-stream; charset=utf-8"
    location: str = ""
    encoding: str = ""
    raw: bytes | None = None
    body: bytes | None = None
    drip_seconds: float = 0.0
    cut_after: int | None = None
    has_usage: bool = True
    has_details: bool = True
    leaves_out_zero: bool = False
    has_finish: bool = True
    has_done: bool = True


@dataclass(frozen=True)
class Seen:
    """A request as it came, what the server counted for it, and when it sent the first piece, after receiving it."""

    path: str
    headers: dict[str, str]
    body: Any
    prompt_tokens: int = 0
    cached_tokens: int = 0
    first_piece_seconds: float = 0.0
    last_piece_seconds: float = 0.0


_PATIENCE_SECONDS = 20.0


@dataclass
class ScriptedServer:
    """Plays `script(number, body)` for each chat request; numbers count from 1 in the order of arrival."""

    script: Callable[[int, Any], Play] = lambda number, body: Play()
    slots: int = 64
    tokens_a_word: int = 1
    tokens_a_message: int = 0
    models: bytes = b'{"data": [{"id": "scripted-model"}, {"id": "an-adapter"}]}'
    tls: ssl.SSLContext | None = None
    seen: list[Seen] = field(default_factory=list)
    url: str = ""
    _places: list[list[str]] = field(default_factory=list)
    _count: int = 0

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._idle = threading.Condition()
        self._answering = 0
        self._closing = threading.Event()

    @property
    def chats(self) -> list[Seen]:
        """The chat requests that were answered, in the order of their answers' ends; those under way are waited for."""
        with self._idle:
            assert self._idle.wait_for(lambda: not self._answering, _PATIENCE_SECONDS), "an answer does not end"
        return [seen for seen in self.seen if seen.path == "/v1/chat/completions"]

    def __enter__(self) -> ScriptedServer:
        outer = self

        class Handler(_Handler):
            server_of = outer

        class Server(ThreadingHTTPServer):
            request_queue_size = 128
            daemon_threads = False  # joined at the end, so that no test leaves a thread

            def handle_error(self, request: object, client_address: object) -> None:
                pass  # a client that hangs up is what many of these tests are about

        self._server = Server(("127.0.0.1", 0), Handler)
        if self.tls is not None:
            self._server.socket = self.tls.wrap_socket(self._server.socket, server_side=True)
        self.url = f"http{'s' if self.tls else ''}://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def pause(self, seconds: float) -> None:
        """Wait, but not longer than the server lives."""
        if seconds > 0 and self._closing.wait(seconds):
            raise ConnectionAbortedError

    @contextlib.contextmanager
    def answering(self) -> Iterator[None]:
        """Count a request among those under way."""
        with self._idle:
            self._answering += 1
        try:
            yield
        finally:
            with self._idle:
                self._answering -= 1
                self._idle.notify_all()

    def next_number(self) -> int:
        with self._lock:
            self._count += 1
            return self._count

    def cached_words(self, words: list[str]) -> int:
        """Match a prompt with what is kept, and count what matches in whole blocks; the place counts as read."""
        with self._lock:
            best, place = 0, None
            for kept in self._places:
                common = next(
                    (at for at, pair in enumerate(zip(kept, words, strict=False)) if pair[0] != pair[1]), None
                )
                common = min(len(kept), len(words)) if common is None else common
                if common > best:
                    best, place = common, kept
            if place is not None:
                self._places.remove(place)
                self._places.append(place)
            return best // BLOCK_WORDS * BLOCK_WORDS

    def keep(self, words: list[str]) -> None:
        """Keep a transcript, in the place of one that it continues, or of the one that was longest unread."""
        with self._lock:
            self._places = [kept for kept in self._places if kept != words[: len(kept)]]
            self._places.append(words)
            del self._places[: -self.slots]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_of: ScriptedServer

    def log_message(self, format: str, *arguments: object) -> None:
        pass

    def do_GET(self) -> None:
        outer = self.server_of
        outer.seen.append(Seen(self.path, dict(self.headers.items()), None))
        self._whole(200, "application/json", outer.models)

    def do_POST(self) -> None:
        with self.server_of.answering():
            self._answer()

    def _answer(self) -> None:
        outer = self.server_of
        begun = time.monotonic()
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        play = outer.script(outer.next_number(), body)
        words = _rendered(body["messages"])
        cached = outer.cached_words(words)
        prompt_tokens = len(words) * outer.tokens_a_word + len(body["messages"]) * outer.tokens_a_message
        cached_tokens = cached * outer.tokens_a_word
        times: list[float] = []
        # What hangs up halfway was seen all the same.
        with contextlib.suppress(ConnectionError):
            outer.pause(play.first_seconds + play.seconds_an_uncached_token * (prompt_tokens - cached_tokens))
            if play.raw is not None:
                self._send(play.raw, play)
                self.close_connection = True
            elif play.status != 200:
                self._whole(play.status, play.content_type, play.body or b"", play.location)
            else:
                self._stream(play, words, prompt_tokens, cached_tokens, times)
        times = [at - begun for at in times] or [0.0]
        outer.seen.append(
            Seen(
                self.path, dict(self.headers.items()), body, prompt_tokens, cached_tokens, times[0], times[-1]
            )
        )  # fmt: skip

    def _stream(self, play: Play, words: list[str], prompt_tokens: int, cached_tokens: int, times: list[float]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", play.content_type)
        if play.encoding:
            self.send_header("Content-Encoding", play.encoding)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        if play.body is not None:
            self._piece(play.body, play)
        else:
            said: list[str] = []
            for number in range(play.reasoning_tokens + play.tokens):
                if number == play.cut_after:
                    self.close_connection = True
                    self.connection.close()
                    return
                if number:
                    self.server_of.pause(play.piece_seconds)
                is_reasoning = number < play.reasoning_tokens
                said.append(f"{'why' if is_reasoning else 'say'}{len(words)}.{number}")
                times.append(time.monotonic())
                self._event({"delta": {play.reasoning_key if is_reasoning else "content": f"{said[-1]} "}}, play)
            # Kept before the answer ends: the next request may come at once.
            self.server_of.keep([*words, "assistant:", *said])
            self._ending(play, prompt_tokens, cached_tokens)
        self.wfile.write(b"0\r\n\r\n")
        self.wfile.flush()

    def _ending(self, play: Play, prompt_tokens: int, cached_tokens: int) -> None:
        if play.has_finish:
            self._event({"delta": {}, "finish_reason": "length"}, play)
        if play.has_usage:
            output_tokens = play.tokens + play.reasoning_tokens
            usage: dict[str, Any] = {"prompt_tokens": prompt_tokens, "completion_tokens": output_tokens}
            if play.has_details and (cached_tokens or not play.leaves_out_zero):
                usage["prompt_tokens_details"] = {"cached_tokens": cached_tokens}
            self._piece(f"data: {json.dumps({'choices': [], 'usage': usage})}\n\n".encode(), play)
        if play.has_done:
            self._piece(b"data: [DONE]\n\n", play)

    def _event(self, choice: dict[str, Any], play: Play) -> None:
        self._piece(f"data: {json.dumps({'choices': [{'index': 0, **choice}]})}\n\n".encode(), play)

    def _piece(self, data: bytes, play: Play) -> None:
        pieces = [data[at : at + 1] for at in range(len(data))] if play.drip_seconds else [data]
        for piece in pieces:
            self.wfile.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
            self.wfile.flush()
            self.server_of.pause(play.drip_seconds)

    def _send(self, data: bytes, play: Play) -> None:
        for piece in [data[at : at + 1] for at in range(len(data))] if play.drip_seconds else [data]:
            self.wfile.write(piece)
            self.wfile.flush()
            self.server_of.pause(play.drip_seconds)

    def _whole(self, status: int, content_type: str, body: bytes, location: str = "") -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        if location:
            self.send_header("Location", location)
        self.end_headers()
        self.wfile.write(body)


def _rendered(messages: list[dict[str, str]]) -> list[str]:
    """Write a conversation as a chat template does, in words."""

    def parts() -> Iterator[str]:
        for message in messages:
            yield f"{message['role']}:"
            for key in ("reasoning_content", "reasoning", "content"):
                yield from message.get(key, "").split()

    return list(parts())
