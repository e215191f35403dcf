"""Generated drives of a given shape: so many sessions at once, so many turns each, served by a server of its own pace.

The drives are those of `scenario.py`, of the same names; there an endless load is cut off after so many requests, here
each session comes to its end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from pinprobe.ledger.replay.request import Request
from pinprobe.ledger.replay.scenario import check_scenario_name
from pinprobe.ledger.replay.served_sessions import Prompt, ServedSessions, Session
from pinprobe.ledger.replay.shape import Service, Shape

#: What each drive is where nothing else is asked for. A test holds that these are all there are.
SHAPES = {
    "linear": Shape(),
    "branching": Shape(turns=12, prompt_tokens=(6_000, 14_000)),
    "one-shot-flood": Shape(sessions=8, turns=12, think_seconds=30.0, prompt_tokens=(2_000, 12_000)),
    "agentic": Shape(sessions=8, turns=80, think_seconds=8.0, prompt_tokens=(20_000, 160_000), output_tokens=200),
    "long-context": Shape(sessions=32, turns=6, think_seconds=30.0, prompt_tokens=(2_048, 128_000)),
    "short-turns": Shape(think_seconds=6.0, prompt_tokens=(400, 1_900), output_tokens=150),
}

#: Of so many prompts of the flood one belongs to a conversation.
_FLOOD_OF = 10


def shape_for(
    name: str,
    *,
    sessions: int | None = None,
    turns: int | None = None,
    think_seconds: float | None = None,
    prompt_tokens: tuple[int, int] | None = None,
    output_tokens: int | None = None,
    seed: int | None = None,
    block_tokens: int | None = None,
    service: Service | None = None,
) -> Shape:
    """Return the shape of a drive: what is given, and the drive's own for what is None.

    Raises `BadRequest` where no drive is called that, with the nearest name, or where the numbers make no drive.
    """
    check_scenario_name(name)
    own = SHAPES[name]
    return Shape(
        own.sessions if sessions is None else sessions,
        own.turns if turns is None else turns,
        own.think_seconds if think_seconds is None else think_seconds,
        own.prompt_tokens if prompt_tokens is None else prompt_tokens,
        own.output_tokens if output_tokens is None else output_tokens,
        own.seed if seed is None else seed,
        own.block_tokens if block_tokens is None else block_tokens,
        own.service if service is None else service,
    )


def make_shaped_scenario(name: str, shape: Shape) -> list[Request]:
    """Make the requests of a drive, in time order; the same ones for the same shape.

    A request's time is when its prefill begins. Raises `BadRequest` where no drive is called that, where its prompts
    can't grow as asked, or where it comes to more requests than are ever taken in.
    """
    check_scenario_name(name)
    served = ServedSessions(shape, name)
    for conversation, session in _DRIVES[name](served):
        served.begin(conversation, session)
    return served.run()


_Sessions = Iterator[tuple[str, Session]]


def _linear(served: ServedSessions) -> _Sessions:
    """All sessions begin at once; each prompt repeats the talk so far, and they grow evenly."""
    for number in range(1, served.shape.sessions + 1):
        yield f"chat {number}", _talk(served.shape)


def _talk(shape: Shape) -> Session:
    last = None
    for turn in range(shape.turns):
        last = yield Prompt(shape.tokens_at(turn), last)


def _branching(served: ServedSessions) -> _Sessions:
    """One system prompt, half of the first turn, before all; every seventh turn begins anew from an earlier one."""
    shape = served.shape

    def system() -> Session:
        first = yield Prompt(max(1, shape.prompt_tokens[0] // 2))
        for number in range(1, shape.sessions + 1):
            served.begin(f"chat {number}", chat(first), shape.think_seconds)

    def chat(first: Request) -> Session:
        line = [first]
        for _ in range(shape.turns):
            if len(line) > 2 and served.random.random() < 1 / 7:
                del line[-served.random.randint(1, len(line) - 2) :]
            line.append((yield Prompt(shape.tokens_at(len(line) - 1), line[-1])))

    yield "system", system()


def _one_shot_flood(served: ServedSessions) -> _Sessions:
    """Beside each turn of a conversation nine prompts that never come again, sent while its user thinks.

    A server that can't take them all up meanwhile falls behind, and the next turns wait in its queue.
    """
    shape = served.shape

    def once() -> Session:
        yield Prompt(served.random.randint(*shape.prompt_tokens))

    def chat(number: int) -> Session:
        last = None
        for turn in range(shape.turns):
            last = yield Prompt(shape.tokens_at(turn), last)
            for other in range(1, _FLOOD_OF):
                after_seconds = served.random.uniform(0.0, shape.think_seconds)
                served.begin(f"once {number}.{turn}.{other}", once(), after_seconds)

    for number in range(1, shape.sessions + 1):
        yield f"chat {number}", chat(number)


def _agentic(served: ServedSessions) -> _Sessions:
    """Agents in a loop of tools. Halfway the context is full and is compacted: the next prompt begins a new line.

    Every twentieth turn has a subagent begin beside it, with a few turns of its own from the agent's first prompt on.
    """
    shape = served.shape
    turns = -(-shape.turns // 2)  # of each of the two lines

    def subagent(first: Request, started_at: int) -> Session:
        last = first
        for turn in range(started_at, min(turns, started_at + served.random.randint(3, 12))):
            last = yield Prompt(shape.tokens_at(turn, turns), last)

    def agent(name: str) -> Session:
        first = last = None
        for turn in range(shape.turns):
            if turn % turns == 0:
                first = last = yield Prompt(shape.tokens_at(0, turns))
                continue
            last = yield Prompt(shape.tokens_at(turn % turns, turns), last)
            if first is not None and served.random.random() < 1 / 20:
                served.begin(f"{name}, subagent at {turn}", subagent(first, 1), 1.0)

    for number in range(1, shape.sessions + 1):
        yield f"agent {number}", agent(f"agent {number}")


def _long_context(served: ServedSessions) -> _Sessions:
    """As many short talks as long ones: their first prompts double in even steps, and each turn adds a little.

    What a turn adds is the answer before it and a question of at least one token. No prompt is longer than the last
    number, unless the first leaves no room for so many turns.
    """
    shape = served.shape
    first, last = shape.prompt_tokens
    added = shape.output_tokens + 50
    longest = max(first, last - added * (shape.turns - 1))

    def talk(tokens: int) -> Session:
        request = None
        for turn in range(shape.turns):
            request = yield Prompt(tokens + added * turn, request)

    steps = max(1, shape.sessions - 1)
    lengths = [round(first * (longest / first) ** (step / steps)) for step in range(shape.sessions)]
    served.random.shuffle(lengths)
    for number, tokens in enumerate(lengths, 1):
        yield f"text {number}", talk(tokens)


_DRIVES: dict[str, Callable[[ServedSessions], _Sessions]] = {
    "linear": _linear,
    "branching": _branching,
    "one-shot-flood": _one_shot_flood,
    "agentic": _agentic,
    "long-context": _long_context,
    "short-turns": _linear,
}
