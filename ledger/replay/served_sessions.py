"""`ServedSessions`: sessions that wait for their answers, and the server that they queue at, by a made-up clock."""

from __future__ import annotations

import heapq
import random
from collections.abc import Generator
from dataclasses import dataclass
from typing import TypeAlias

from pinprobe.ledger.replay.request import Request
from pinprobe.ledger.replay.shape import Shape
from pinprobe.ledger.replay.trace_lines import MOST_REQUESTS
from pinprobe.probes.errors import BadRequest


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a session sends: so many tokens, the first of which are the whole prompt of `continued`."""

    tokens: int
    continued: Request | None = None


#: A session yields a prompt and is sent its request, once that was answered and thought about.
Session: TypeAlias = Generator[Prompt, Request, None]


@dataclass(order=True, slots=True)
class _Waiting:
    """A prompt in the queue: the earlier one first, and of two at once the one that was put there first."""

    at_seconds: float
    number: int
    conversation: str
    prompt: Prompt
    session: Session


class ServedSessions:
    """Runs sessions to their end, and writes down their requests, each at the moment at which its prefill begins.

    That is when a server looks for a savepoint. A request waits for one of the batch's places, and then for the
    prefills before its own: first come, first served.
    """

    def __init__(self, shape: Shape, name: str) -> None:
        self.shape = shape
        #: The only source of chance, so that the same shape makes the same drive.
        self.random = random.Random(f"{name} {shape.seed}")
        #: When the last request's prefill began.
        self.now_seconds = 0.0
        self._requests: list[Request] = []
        self._queue: list[_Waiting] = []
        self._put_count = 0
        self._places_free_seconds = [0.0] * min(shape.service.batch, MOST_REQUESTS)
        self._prefill_free_seconds = 0.0

    def begin(self, conversation: str, session: Session, after_seconds: float = 0.0) -> None:
        """Have a session send its first prompt so many seconds from now.

        Raises `BadRequest` where these are more prompts than are ever taken in.
        """
        prompt = next(session, None)
        if prompt is not None:
            self._put(self.now_seconds + after_seconds, conversation, prompt, session)

    def run(self) -> list[Request]:
        """Serve until nobody waits any more, and return the requests in the order of their times."""
        while self._queue:
            waiting = heapq.heappop(self._queue)
            request, answered_seconds = self._serve(waiting)
            try:
                prompt = waiting.session.send(request)
            except StopIteration:
                continue
            self._put(answered_seconds + self.shape.think_seconds, waiting.conversation, prompt, waiting.session)
        return self._requests

    def _put(self, at_seconds: float, conversation: str, prompt: Prompt, session: Session) -> None:
        self._put_count += 1
        if self._put_count > MOST_REQUESTS:
            raise BadRequest(f"the drive is more than {MOST_REQUESTS:,} requests; give fewer sessions or turns")
        heapq.heappush(self._queue, _Waiting(at_seconds, self._put_count, conversation, prompt, session))

    def _serve(self, waiting: _Waiting) -> tuple[Request, float]:
        """Return the request, and the moment at which its answer ends."""
        service, prompt = self.shape.service, waiting.prompt
        place_seconds = heapq.heappop(self._places_free_seconds)
        self.now_seconds = max(waiting.at_seconds, place_seconds, self._prefill_free_seconds)
        request = self._request(prompt, waiting.conversation)
        spared_tokens = prompt.continued.savepoint_tokens if prompt.continued else 0
        self._prefill_free_seconds = self.now_seconds + service.prefill_time.seconds(spared_tokens, prompt.tokens)
        answered_seconds = self._prefill_free_seconds + self.shape.output_tokens / service.output_tokens_per_second
        heapq.heappush(self._places_free_seconds, answered_seconds)
        self._requests.append(request)
        return request, answered_seconds

    def _request(self, prompt: Prompt, conversation: str) -> Request:
        covered = prompt.tokens - prompt.tokens % self.shape.block_tokens
        continued = prompt.continued
        parent = None if continued is None or not continued.savepoint_tokens else continued
        assert parent is None or parent.prompt_tokens <= prompt.tokens, (prompt, parent)
        is_same = parent is not None and parent.savepoint_tokens == covered  # no whole block was added
        return Request(
            at_seconds=self.now_seconds,
            savepoint=parent.savepoint if parent is not None and is_same else len(self._requests),
            parent=parent.savepoint if parent is not None else None,
            savepoint_tokens=covered,
            prompt_tokens=prompt.tokens,
            output_tokens=self.shape.output_tokens,
            conversation=conversation,
        )
