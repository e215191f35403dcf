"""Generated drives: requests as some kinds of load would make them, endless, and cut off after so many.

They stand for no service. A policy that learns is held against them so that it is not only right about the traces at
hand, and what is written here can be read where a trace can't: how lines go on, branch, pause and end. Drives of a
given number of sessions and turns are made in `shaped_scenario.py`.
"""

from __future__ import annotations

import difflib
import heapq
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from pinprobe.ledger.replay.request import Request
from pinprobe.ledger.replay.trace_lines import MOST_REQUESTS
from pinprobe.probes.errors import BadRequest, printable

#: Savepoints cover whole blocks of so many tokens, where nothing else is asked for.
BLOCK_TOKENS = 256

_LARGEST_BLOCK = 2**20

MINUTE = 60.0

#: A session asks at once and then yields how many seconds it waits before it goes on.
Session: TypeAlias = Iterator[float]


@dataclass
class Drive:
    """The sessions of a load, the time, and what was asked so far."""

    random: random.Random
    most_requests: int
    block_tokens: int = BLOCK_TOKENS
    now_seconds: float = 0.0
    requests: list[Request] = field(default_factory=list)
    _waiting: list[tuple[float, int, Session]] = field(default_factory=list)
    _turn: int = 0

    def start(self, session: Session, wait_seconds: float = 0.0) -> None:
        """Have a session begin."""
        self._turn += 1
        heapq.heappush(self._waiting, (self.now_seconds + wait_seconds, self._turn, session))

    def run(self) -> list[Request]:
        """Let all sessions go on, each at its time, until there are enough requests."""
        while len(self.requests) < self.most_requests:
            self.now_seconds, _, session = heapq.heappop(self._waiting)
            wait_seconds = next(session, None)
            if wait_seconds is not None:
                self.start(session, wait_seconds)
        del self.requests[self.most_requests :]
        return self.requests

    def ask(self, conversation: str, parent: Request | None, added_tokens: float) -> Request:
        """Send a prompt that continues the one of `parent`, and return the request."""
        begun = parent.savepoint_tokens if parent else 0
        covered = begun + self.block_tokens * max(1, round(added_tokens / self.block_tokens))
        return self._send(conversation, len(self.requests), parent.savepoint if parent else None, covered)

    def repeat(self, earlier: Request) -> Request:
        """Send a prompt once more."""
        return self._send(earlier.conversation, earlier.savepoint, earlier.savepoint, earlier.savepoint_tokens)

    def about(self, median: float, spread: float = 1.0) -> float:
        """Return a random amount around a median, as likely half of it as double: log-normal."""
        return median * math.exp(self.random.gauss(0.0, spread))

    def _send(self, conversation: str, savepoint: int, parent: int | None, covered: int) -> Request:
        prompt_tokens = covered + self.random.randrange(self.block_tokens)
        output_tokens = round(self.about(200))
        request = Request(
            self.now_seconds, savepoint, parent, covered, prompt_tokens, output_tokens, conversation
        )  # fmt: skip
        self.requests.append(request)
        return request


def _arrivals(drive: Drive, every_seconds: float, begin: Callable[[str], Session]) -> Session:
    """Start sessions, at random times, for ever."""
    number = 0
    while True:
        number += 1
        drive.start(begin(f"{begin.__name__.strip('_')} {number}"))
        yield drive.random.expovariate(1 / every_seconds)


# -- the drives: each starts its sessions


def linear(drive: Drive) -> None:
    """Conversations of some 15 turns, each continuing the one before; people take half a minute, or an hour."""

    def chat(name: str) -> Session:
        last = None
        while last is None or drive.random.random() < 14 / 15:
            last = drive.ask(name, last, drive.about(1_000))
            yield drive.about(30, spread=1.3)

    drive.start(_arrivals(drive, 20, chat))


def branching(drive: Drive) -> None:
    """As linear, after one system prompt; every seventh turn begins anew from an earlier one, some are sent twice."""
    system: list[Request] = []

    def chat(name: str) -> Session:
        if not system:
            system.append(drive.ask(name, None, 4_000))
        line = [system[0]]
        while len(line) == 1 or drive.random.random() < 14 / 15:
            if len(line) > 2 and drive.random.random() < 1 / 7:
                del line[-drive.random.randint(1, len(line) - 2) :]
            line.append(drive.ask(name, line[-1], drive.about(1_000)))
            yield drive.about(30, spread=1.3)
            if drive.random.random() < 1 / 20:
                drive.repeat(line[-1])
                yield drive.about(30)

    drive.start(_arrivals(drive, 20, chat))


def one_shot_flood(drive: Drive) -> None:
    """Prompts that never come again, nine of ten; between them conversations of some 6 turns."""

    def once(name: str) -> Session:
        drive.ask(name, None, drive.about(6_000))
        yield 0.0

    def chat(name: str) -> Session:
        last = None
        while last is None or drive.random.random() < 5 / 6:
            last = drive.ask(name, last, drive.about(2_000))
            yield drive.about(60)

    drive.start(_arrivals(drive, 1, once))
    drive.start(_arrivals(drive, 54, chat))


def agentic(drive: Drive) -> None:
    """Agents in a loop of tools, each turn after seconds; now and then a person is away. A full context is compacted.

    Now and then an agent has others at work beside it, each in a line of its own from the agent's first prompt.
    """

    def subagent(name: str, first: Request) -> Session:
        last = first
        for _ in range(drive.random.randint(3, 12)):
            last = drive.ask(name, last, drive.about(2_000))
            yield drive.about(8, spread=0.5)

    def agent(name: str) -> Session:
        pace = drive.about(15, spread=0.5)
        first = last = drive.ask(name, None, drive.about(20_000, spread=0.5))
        while drive.random.random() < 79 / 80:
            yield drive.about(20 * MINUTE) if drive.random.random() < 1 / 25 else drive.about(pace, spread=0.5)
            if last.savepoint_tokens > 160_000:
                first = last = drive.ask(name, None, drive.about(15_000, spread=0.3))
            elif drive.random.random() < 1 / 50:
                drive.start(subagent(name, first), wait_seconds=1.0)
            else:
                last = drive.ask(name, last, drive.about(1_500))

    drive.start(_arrivals(drive, 90, agent))


def long_context(drive: Drive) -> None:
    """Long documents, each asked about some 20 times from its end on, between ordinary conversations."""

    def document(name: str) -> Session:
        text = drive.ask(name, None, drive.about(100_000, spread=0.5))
        while drive.random.random() < 19 / 20:
            yield drive.about(2 * MINUTE)
            drive.ask(name, text, drive.about(500))

    def chat(name: str) -> Session:
        last = None
        while last is None or drive.random.random() < 9 / 10:
            last = drive.ask(name, last, drive.about(1_000))
            yield drive.about(30, spread=1.3)

    drive.start(_arrivals(drive, 120, document))
    drive.start(_arrivals(drive, 30, chat))


def short_turns(drive: Drive) -> None:
    """Talks of few words, which end or begin anew before they reach one prefill chunk of 2,048 tokens."""

    def chat(name: str) -> Session:
        last = None
        while last is None or (last.savepoint_tokens < 1_400 and drive.random.random() < 4 / 5):
            last = drive.ask(name, last, min(drive.about(250), 350))
            yield drive.about(20)

    drive.start(_arrivals(drive, 10, chat))


SCENARIOS: dict[str, Callable[[Drive], None]] = {
    "linear": linear,
    "branching": branching,
    "one-shot-flood": one_shot_flood,
    "agentic": agentic,
    "long-context": long_context,
    "short-turns": short_turns,
}


def check_scenario_name(name: str) -> None:
    """Raise `BadRequest` where no drive is called that, with the nearest name."""
    if name not in SCENARIOS:
        near = difflib.get_close_matches(name, SCENARIOS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(SCENARIOS)}"
        raise BadRequest(f"no scenario is called {printable(name)[:40]!r}; {hint}")


def make_scenario(name: str, requests: int, seed: int, block_tokens: int = BLOCK_TOKENS) -> list[Request]:
    """Make so many requests of a drive; the same ones for the same seed. With blocks of 1 a savepoint covers it all.

    Raises `BadRequest` where no drive is called that, with the nearest name, or where there are to be no requests, more
    than are ever taken in, or no tokens in a block.
    """
    check_scenario_name(name)
    if not 1 <= requests <= MOST_REQUESTS:
        raise BadRequest(f"a scenario of {requests} requests is none; ask for 1 to {MOST_REQUESTS:,}")
    if not 1 <= block_tokens <= _LARGEST_BLOCK:
        raise BadRequest(f"a block of {block_tokens} tokens is none; give 1 to {_LARGEST_BLOCK:,}")
    drive = Drive(random.Random(f"{name} {seed}"), requests, block_tokens)
    SCENARIOS[name](drive)
    return drive.run()
