"""`Shape`: how large a generated drive is, as an operator says it; and the server that its turns are served by."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pinprobe.ledger.replay.trace_lines import MOST_REQUESTS
from pinprobe.ledger.tenants.prefill_time import MOST_TOKENS, PrefillTime
from pinprobe.probes.errors import BadRequest, printable

_MOST_THINK_SECONDS = 1_000_000.0
_MOST_BATCH = 100_000

_RANGE = re.compile(r"\s*([0-9]{1,12})\s*(?::\s*([0-9]{1,12})\s*)?", re.ASCII)

# Of a 27B hybrid model on one RTX 4090: 6,300 tokens in 1.2 s, where 50 tokens a second then come of each answer.
_MEASURED = PrefillTime(0.00019)


@dataclass(frozen=True, slots=True)
class Service:
    """A server that takes requests up in the order in which they came, at most `batch` at a time.

    Prompts are prefilled one after the other, and then each answer comes at its own pace. Everything that a prompt
    shares with an earlier turn is taken to be spared: a server that kept less would be later, which no drive that was
    made beforehand can know. The times are about those of one engine that was measured.
    """

    batch: int = 8
    prefill_time: PrefillTime = _MEASURED
    output_tokens_per_second: float = 50.0

    def __post_init__(self) -> None:
        if not 1 <= self.batch <= _MOST_BATCH:
            raise BadRequest(f"a batch of {self.batch} requests is none; give 1 to {_MOST_BATCH:,}")
        if not 0.001 <= self.output_tokens_per_second <= 1e9:
            raise BadRequest(f"{self.output_tokens_per_second} tokens a second are no answer; give 0.001 or more")


@dataclass(frozen=True, slots=True)
class Shape:
    """The size of a drive.

    So many `sessions` at the same time have so many `turns` each. `prompt_tokens` are the shortest and the longest
    prompt: what lies between is the drive's. The next turn begins `think_seconds` after the last answer of
    `output_tokens` ended. A savepoint covers whole blocks of `block_tokens`: with 1, the whole prompt. Raises
    `BadRequest` where a number makes no drive.
    """

    sessions: int = 22
    turns: int = 4
    think_seconds: float = 12.0
    prompt_tokens: tuple[int, int] = (5_355, 6_343)
    output_tokens: int = 300
    seed: int = 0
    block_tokens: int = 1
    service: Service = Service()

    def __post_init__(self) -> None:
        for count, what in ((self.sessions, "sessions"), (self.turns, "turns")):
            if count < 1:
                raise BadRequest(f"a drive of {count} {what} is none; give 1 or more")
        if self.sessions * self.turns > MOST_REQUESTS:
            raise BadRequest(
                f"{self.sessions:,} sessions of {self.turns:,} turns are over {MOST_REQUESTS:,} requests; give fewer"
            )
        if not 0 <= self.think_seconds <= _MOST_THINK_SECONDS:
            raise BadRequest(f"nobody thinks for {self.think_seconds} s; give 0 to {_MOST_THINK_SECONDS:,.0f} seconds")
        if not 0 <= self.output_tokens <= MOST_TOKENS:
            raise BadRequest(f"an answer of {self.output_tokens} tokens is none; give 0 to 10^9")
        if not 1 <= self.block_tokens <= MOST_TOKENS:
            raise BadRequest(f"a block of {self.block_tokens} tokens is none; give 1 or more")
        first, last = self.prompt_tokens
        if not 1 <= first <= last <= MOST_TOKENS:
            raise BadRequest(
                f"prompts of {first} to {last} tokens are none; give two rising numbers, such as 5355:6343"
            )

    def tokens_at(self, turn: int, turns: int | None = None) -> int:
        """Return the prompt of a turn, counted from 0, where prompts grow evenly over `turns`, or over all there are.

        Each is longer than the one before, as one that repeats the whole talk has to be: raises `BadRequest` where the
        first and the last number leave no token a turn.
        """
        steps = (self.turns if turns is None else turns) - 1
        first, last = self.prompt_tokens
        if last - first < steps:
            raise BadRequest(
                f"prompts can't grow over {steps + 1} turns from {first} to {last} tokens: each repeats the one before"
                " and adds to it; give a longer last one"
            )
        return first + (last - first) * turn // max(1, steps)


def parse_prompt_tokens(text: str) -> tuple[int, int]:
    """Read the tokens of the shortest and the longest prompt, `5355:6343`; one number stands for both.

    Raises `BadRequest`, naming the text, where it is neither. Whether these make a drive is for `Shape` to say.

    >>> parse_prompt_tokens("5355:6343"), parse_prompt_tokens("4096")
    ((5355, 6343), (4096, 4096))
    """
    match = _RANGE.fullmatch(text)
    if match is None:
        raise BadRequest(f"{printable(text)[:40]!r} are no prompt tokens: write first:last, such as 5355:6343")
    first, last = match.groups()
    return int(first), int(last or first)
