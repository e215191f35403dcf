"""One streamed answer of an OpenAI-compatible server: what it said, what it counted, and when its tokens came."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pinprobe.ledger.replay.server_events import ServerEvents
from pinprobe.probes.errors import CouldNotMeasure, printable
from pinprobe.probes.reading import Unreadable

#: Bounds, so that nothing that a server sends costs memory or breaks a sum.
MOST_ANSWER_BYTES = 64 * 2**20
_LARGEST_COUNT = 10**12
_LONGEST_REMARK = 200

#: The names under which servers stream a model's reasoning.
_REASONING_KEYS = ("reasoning_content", "reasoning")
_END = "[DONE]"


class EndpointFault(CouldNotMeasure):
    """A request that was not answered as it should be.

    `what` says it without the server's address, `url` is that address. `is_stopped` is true where nothing was wrong but
    that the caller had all requests ended.
    """

    def __init__(self, what: str, url: str = "", is_stopped: bool = False) -> None:
        super().__init__(what, url, is_stopped)
        self.what = what
        self.url = url
        self.is_stopped = is_stopped

    def __str__(self) -> str:
        return f"{self.url}: {self.what}" if self.url else self.what


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back for one request. Times are seconds since it was sent.

    * `reasoning_key`: the name that the server gave the reasoning; empty where there was none.
    * `prompt_tokens`, `cached_tokens`: as the server counted them; unreadable where it did not say.
    * `output_tokens`, reasoning included; `is_counted` where the server did not say and pieces were counted instead, of
      which one may hold several tokens.
    * `ttft_seconds`: the first token, of reasoning or text; `last_token_seconds` the last, `seconds` the stream's end.
    """

    content: str
    reasoning: str
    reasoning_key: str
    prompt_tokens: int | Unreadable
    cached_tokens: int | Unreadable
    output_tokens: int
    is_counted: bool
    ttft_seconds: float
    last_token_seconds: float
    seconds: float
    finish_reason: str

    @property
    def tokens_a_second(self) -> float | Unreadable:
        """How fast it decoded: the tokens after the first, by the time from the first to the last."""
        decoding_seconds = self.last_token_seconds - self.ttft_seconds
        if self.output_tokens < 2 or decoding_seconds <= 0:
            return Unreadable("the answer came in one piece, which has no rate")
        return (self.output_tokens - 1) / decoding_seconds


class AnswerReader:
    """Puts an answer together from a stream's bytes, and raises `EndpointFault` where they are none."""

    def __init__(self) -> None:
        self._events = ServerEvents()
        self._read_bytes = 0
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._reasoning_key = ""
        self._piece_count = 0
        self._first_seconds = self._last_seconds = 0.0
        self._finish_reason = ""
        self._usage: Mapping[str, Any] = {}
        self.is_done = False

    def read(self, piece: bytes, at_seconds: float) -> None:
        """Take the next bytes, which came so many seconds after the request was sent."""
        self._read_bytes += len(piece)
        if self._read_bytes > MOST_ANSWER_BYTES:
            raise EndpointFault(f"the answer has no end within {MOST_ANSWER_BYTES:,} B")
        try:
            payloads = self._events.feed(piece)
        except ValueError as error:
            raise EndpointFault(str(error)) from None
        for payload in payloads:
            self._take(payload, at_seconds)

    def finish(self, seconds: float) -> Answer:
        """Return the answer, where the stream came to its end."""
        if not self.is_done and _END in (payload.strip() for payload in self._events.close()):
            self.is_done = True
        if not (self.is_done or self._finish_reason):
            raise EndpointFault(
                f"the stream was cut, with neither a finish_reason nor {_END} (pieces that came: {self._piece_count})"
            )
        if not self._piece_count:
            raise EndpointFault("the answer has no token, so there is no time to its first")
        counted = _count(self._usage, "completion_tokens")
        return Answer(
            content=_mended("".join(self._content)),
            reasoning=_mended("".join(self._reasoning)),
            reasoning_key=self._reasoning_key,
            prompt_tokens=_count(self._usage, "prompt_tokens"),
            cached_tokens=self._cached_tokens(),
            output_tokens=self._piece_count if isinstance(counted, Unreadable) else counted,
            is_counted=isinstance(counted, Unreadable),
            ttft_seconds=self._first_seconds,
            last_token_seconds=self._last_seconds,
            seconds=seconds,
            finish_reason=self._finish_reason,
        )

    def _take(self, payload: str, at_seconds: float) -> None:
        if self.is_done:
            return
        if payload.strip() == _END:
            self.is_done = True
            return
        try:
            chunk = json.loads(payload)
        except (ValueError, RecursionError):
            raise EndpointFault(f"a piece of the stream is no JSON: {printable(payload[:80])}") from None
        if not isinstance(chunk, dict):
            raise EndpointFault(f"a piece of the stream is no JSON object: {printable(payload[:80])}")
        if chunk.get("error"):
            raise EndpointFault(f"the server ended its answer with an error: {remark_of(chunk)}")
        if isinstance(chunk.get("usage"), dict):
            self._usage = chunk["usage"]
        choices = chunk.get("choices")
        if choices is not None and not isinstance(choices, list):
            raise EndpointFault(f"choices is no list in a piece of the stream: {printable(payload[:80])}")
        if choices:
            self._take_choice(choices[0], payload, at_seconds)

    def _take_choice(self, choice: Any, payload: str, at_seconds: float) -> None:
        delta = choice.get("delta") if isinstance(choice, dict) else None
        if not isinstance(choice, dict) or not isinstance(delta, dict | None):
            raise EndpointFault(f"a choice in the stream has no delta that is an object: {printable(payload[:80])}")
        if isinstance(choice.get("finish_reason"), str):
            self._finish_reason = printable(choice["finish_reason"][:40])
        delta = delta or {}
        for key in ("content", *_REASONING_KEYS):
            if not isinstance(delta.get(key), str | None):
                raise EndpointFault(f"{key} is no text in a piece of the stream: {printable(payload[:80])}")
        content = delta.get("content") or ""
        # Some servers send the same reasoning under both names.
        key = next((key for key in _REASONING_KEYS if delta.get(key)), "")
        if not content and not key:
            return
        self._content.append(content)
        if key:
            self._reasoning.append(delta[key])
            self._reasoning_key = self._reasoning_key or key
        if not self._piece_count:
            self._first_seconds = at_seconds
        self._piece_count += 1
        self._last_seconds = at_seconds

    def _cached_tokens(self) -> int | Unreadable:
        details = self._usage.get("prompt_tokens_details")
        if not isinstance(details, dict):
            return Unreadable("the server's usage has no prompt_tokens_details")
        cached, prompt = _count(details, "cached_tokens"), _count(self._usage, "prompt_tokens")
        if isinstance(cached, int) and isinstance(prompt, int) and cached > prompt:
            return Unreadable(f"the server says that {cached:,} of {prompt:,} prompt tokens were cached")
        return cached


def remark_of(body: Mapping[str, Any]) -> str:
    """Find what a server says in the body of an error, whose form differs between servers; one short line."""
    found: Any = body.get("error") or body
    if isinstance(found, Mapping):
        found = found.get("message") or found.get("detail") or found
    try:
        return one_line(found if isinstance(found, str) else json.dumps(found))
    except RecursionError:
        return "nested too deep to be told"


def one_line(text: str) -> str:
    """Put foreign text into one short line."""
    return printable(" ".join(text[: 4 * _LONGEST_REMARK].split())[:_LONGEST_REMARK])


def _count(usage: Mapping[str, Any], key: str) -> int | Unreadable:
    value = usage.get(key)
    if value is None:
        return Unreadable(f"the server's usage has no {key}")
    if type(value) is not int or not 0 <= value < _LARGEST_COUNT:
        return Unreadable(f"the server's usage gives no count of tokens as {key}")
    return value


def _mended(text: str) -> str:
    # Half a surrogate pair can stand in JSON, and can't be sent back; halves in two pieces become their character.
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
