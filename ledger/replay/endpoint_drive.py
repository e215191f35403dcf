"""Drives a live server with sessions in parallel, each resending its whole transcript with every turn.

What an arm's figures are worth hangs on three things that are seen to here. No drive reads another's cache: a word that
was never used before stands at the very beginning of each of its prompts. All drives say the same otherwise: the same
text for the same seed. And prompts are as long as was asked for: counted in words at first, which are common ones and
mostly a token each, and from the second turn on by what the server itself counted.
"""

from __future__ import annotations

import random
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from pinprobe.ledger.replay.do_no_harm import Incident, Turn
from pinprobe.ledger.replay.endpoint import Endpoint
from pinprobe.ledger.replay.endpoint_answer import Answer, EndpointFault
from pinprobe.ledger.replay.shape import Shape
from pinprobe.probes.errors import BadRequest
from pinprobe.probes.reading import Unreadable

MOST_SESSIONS = 1024
MOST_TOKENS = 10_000_000
MOST_REPLICATES = 100
_MOST_THINK_SECONDS = 24 * 3600.0

#: How long is waited, after an interruption, for requests that were cut to notice it.
_FAREWELL_SECONDS = 5.0
_PULSE_SECONDS = 0.2
#: What a word may come to in tokens, so that one odd answer does not blow a prompt up.
_TOKENS_A_WORD = (0.25, 16.0)

_ROLE = "You are a patient writer. Answer at length and in plain sentences."
_QUESTION = "Now tell in your own words, at length, what this could be about."
#: Short and common, so that most tokenizers make one token of each.
_WORD_TEXT = (
    "time year day way man world life hand part child eye place work week case point home water room mother area money"
    " story fact month lot right study book word business side kind head house service friend father power hour game"
    " line end law car city name team minute idea body back parent face level office door health person art war party"
    " result change morning reason research girl guy moment air teacher force order field road light voice food wind"
)
_WORDS = _WORD_TEXT.split()


@dataclass(frozen=True, slots=True)
class Driven:
    """The turns of a drive in the order of their ends, and what happened beside them.

    `is_stopped`: it was interrupted, and these are the turns that were finished by then.
    """

    turns: tuple[Turn, ...]
    incidents: tuple[Incident, ...]
    is_stopped: bool


def drive_endpoint(
    endpoint: Endpoint,
    model: str,
    shape: Shape,
    *,
    arm: str,
    replicates: int = 1,
    temperature: float | None = 0.0,
    nonce: Callable[[], str] = lambda: secrets.token_hex(8),
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], object] | None = None,
    on_turn: Callable[[Turn], object] = lambda turn: None,
) -> Driven:
    """Drive a server once for each replicate, one after the other, each from a cold cache of its own.

    All sessions begin at once and prompts grow evenly; where answers are longer than prompts are to grow, prompts grow
    with the answers. The shape's `service` and `block_tokens` are for replays without a server, and not looked at. A
    session whose request fails ends there. Ctrl-C ends the drive within seconds, and what was finished is returned;
    the endpoint asks nothing more after that. `nonce` gives the word that no prompt began with before. `sleep` waits
    the think time, and is cut short by an interruption where it is left out. `on_turn` is called from the sessions'
    threads, one at a time, as turns end. Raises `BadRequest` where the numbers can't be driven.
    """
    _check(shape, replicates)
    turns: list[Turn] = []
    incidents: list[Incident] = []
    for replicate in range(1, replicates + 1):
        drive = _Drive(endpoint, model, shape, arm, replicate, temperature, nonce(), sleep, on_turn)
        begun = clock()
        drive.run()
        turns += drive.turns
        incidents += drive.incidents
        if drive.is_stopped:
            count = sum(not turn.error for turn in drive.turns)
            wanted = shape.sessions * shape.turns
            what = f"interrupted after {clock() - begun:.0f} s, with {count} of {wanted} turns answered"
            incidents.append(Incident(arm, replicate, what))
            return Driven(tuple(turns), tuple(incidents), is_stopped=True)
    return Driven(tuple(turns), tuple(incidents), is_stopped=False)


def _check(shape: Shape, replicates: int) -> None:
    for what, value, most in (
        ("replicates", replicates, MOST_REPLICATES),
        ("sessions", shape.sessions, MOST_SESSIONS),
        ("prompt tokens", shape.prompt_tokens[1], MOST_TOKENS),
        ("output tokens", shape.output_tokens, MOST_TOKENS),
    ):
        if not 1 <= value <= most:
            raise BadRequest(f"an endpoint can't be driven with {value:,} {what}; give 1 to {most:,}")
    if shape.think_seconds > _MOST_THINK_SECONDS:
        raise BadRequest(f"an endpoint can't be driven with {shape.think_seconds:g} s of think time; a day is the most")
    shape.tokens_at(0)  # says where prompts can't grow over so many turns


class _Drive:
    """One replicate: its threads, and what they found."""

    def __init__(
        self,
        endpoint: Endpoint,
        model: str,
        shape: Shape,
        arm: str,
        replicate: int,
        temperature: float | None,
        nonce: str,
        sleep: Callable[[float], object] | None,
        on_turn: Callable[[Turn], object],
    ) -> None:
        self._endpoint = endpoint
        self._model = model
        self._shape = shape
        self._arm = arm
        self._replicate = replicate
        self._temperature = temperature
        self._nonce = nonce
        self._stop = threading.Event()
        self._sleep = sleep or self._stop.wait
        self._on_turn = on_turn
        self._lock = threading.Lock()
        self._faults: list[BaseException] = []
        self.turns: list[Turn] = []
        self.incidents: list[Incident] = []
        self.is_stopped = False

    def run(self) -> None:
        """Run all sessions to their ends, or to an interruption's."""
        # Daemons, so that a request that does not notice that it was cut can't keep the process.
        threads = [
            threading.Thread(target=self._guarded, args=(number,), name=f"session {number}", daemon=True)
            for number in range(1, self._shape.sessions + 1)
        ]
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                while thread.is_alive():
                    thread.join(_PULSE_SECONDS)  # a join without an end would hold a signal back
        except KeyboardInterrupt:
            self.is_stopped = True
        finally:
            self._stop.set()
            if any(thread.is_alive() for thread in threads):
                self._endpoint.stop()
                deadline = time.monotonic() + _FAREWELL_SECONDS
                for thread in threads:
                    if thread.ident is not None:
                        thread.join(max(0.0, deadline - time.monotonic()))
        if self._faults:
            raise self._faults[0]
        with self._lock:  # a straggler adds nothing to what is returned
            self.turns, self.incidents = list(self.turns), list(self.incidents)

    def _guarded(self, number: int) -> None:
        try:
            self._session(number)
        except BaseException as error:  # noqa: BLE001  # told by the thread that waits, not by a thread's own traceback
            self._faults.append(error)
            self._stop.set()

    def _session(self, number: int) -> None:
        shape = self._shape
        prompts = _Prompts(shape, self._nonce, number)
        for turn in range(1, shape.turns + 1):
            if turn > 1:
                self._sleep(shape.think_seconds)
            if self._stop.is_set():
                return
            messages = prompts.next()
            try:
                answer = self._endpoint.ask(self._model, messages, shape.output_tokens, self._temperature)
            except EndpointFault as fault:
                if not fault.is_stopped:
                    self._failed(number, turn, fault.what)
                return
            prompts.take(answer)
            self._add(self._answered(number, turn, answer))

    def _add(self, turn: Turn) -> None:
        with self._lock:
            self.turns.append(turn)
            self._on_turn(turn)

    def _failed(self, session: int, turn: int, error: str) -> None:
        unknown = Unreadable(error)
        wanted = self._shape.tokens_at(turn - 1)
        self._add(Turn(self._arm, self._replicate, session, turn, wanted, unknown, unknown, unknown, is_counted=False,
                       ttft_seconds=unknown, seconds=unknown, tokens_a_second=unknown, error=error))  # fmt: skip
        left = self._shape.turns - turn
        if left:
            lost = "1 turn of it was" if left == 1 else f"{left} turns of it were"
            what = f"session {session} ended with turn {turn}, which failed; {lost} not driven"
            with self._lock:
                self.incidents.append(Incident(self._arm, self._replicate, what))

    def _answered(self, session: int, turn: int, answer: Answer) -> Turn:
        return Turn(
            arm=self._arm,
            replicate=self._replicate,
            session=session,
            number=turn,
            wanted_prompt_tokens=self._shape.tokens_at(turn - 1),
            prompt_tokens=answer.prompt_tokens,
            cached_tokens=answer.cached_tokens,
            output_tokens=answer.output_tokens,
            is_counted=answer.is_counted,
            ttft_seconds=answer.ttft_seconds,
            seconds=answer.seconds,
            tokens_a_second=answer.tokens_a_second,
        )


class _Prompts:
    """The transcript of one session, and how long its next prompt has to become.

    What a word comes to in tokens is learnt from this session's own first answer and from no other's: otherwise the
    text of a drive would hang on which session was answered first.
    """

    def __init__(self, shape: Shape, nonce: str, session: int) -> None:
        self._shape = shape
        self._random = random.Random(f"{shape.seed} {session}")
        # The number of the session comes next, so that sessions of one drive share no block of a cache either.
        self._messages = [{"role": "system", "content": f"{nonce} {session}. {_ROLE}"}]
        self._turn = 0
        self._known_tokens = 0
        self._sent_words = self._unread_words = _word_count(self._messages[0]["content"])
        self._tokens_a_word = 1.0

    def next(self) -> list[dict[str, str]]:
        """Add what the user says and return the whole conversation to send."""
        self._turn += 1
        wanted = self._shape.tokens_at(self._turn - 1) - self._known_tokens
        words = round(wanted / self._tokens_a_word) - self._unread_words - _word_count(_QUESTION)
        text = " ".join([*self._random.choices(_WORDS, k=max(0, words)), _QUESTION])
        self._unread_words += _word_count(text)
        self._messages.append({"role": "user", "content": text})
        return [dict(message) for message in self._messages]

    def take(self, answer: Answer) -> None:
        """Put an answer into the transcript, its reasoning under the name that the server gave it."""
        message = {"role": "assistant", "content": answer.content}
        if answer.reasoning_key:
            message[answer.reasoning_key] = answer.reasoning
        self._messages.append(message)
        if isinstance(answer.prompt_tokens, Unreadable):
            self._known_tokens += round(self._unread_words * self._tokens_a_word) + answer.output_tokens
        else:
            if self._turn == 1:
                least, most = _TOKENS_A_WORD
                self._tokens_a_word = min(most, max(least, answer.prompt_tokens / self._unread_words))
            self._known_tokens = answer.prompt_tokens + answer.output_tokens
        self._unread_words = 0


def _word_count(text: str) -> int:
    return len(text.split())
