"""Token ids for the prompts of a trace, which has none: equal exactly as far as the trace proves that prompts are.

A trace says that a prompt shares the tokens of its parent's savepoint. So a prompt's ids are its parent's, and beyond
these a number of its own, over and over: two prompts differ from the first token on that the trace does not say they
share. No id of a real tokenizer is meant.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass

from pinprobe.ledger.replay.placement import PrefixNode
from pinprobe.ledger.replay.request import Request
from pinprobe.probes.errors import BadRequest

#: A longer prompt is not written out: its ids would take 128 MiB.
MOST_TOKENS = 2**24


@dataclass(frozen=True, slots=True)
class _Savepoint:
    number: int
    parent: int | None
    tokens: int


class PromptWords:
    """The ids of the prompts of one trace, told request by request. Not for several threads at once."""

    def __init__(self) -> None:
        self._savepoints: dict[int, _Savepoint] = {}
        self._prefixes: dict[tuple[int, int], int] = {}

    def know(self, request: Request) -> None:
        """Know the savepoint of a request; the one of its parent has to be known.

        Raises `BadRequest` where the prompt is longer than any that is written out.
        """
        if request.savepoint in self._savepoints:
            return
        if request.savepoint_tokens > MOST_TOKENS:
            raise BadRequest(
                f"a prompt of {request.savepoint_tokens:,} tokens is longer than a real replay writes out"
                f" ({MOST_TOKENS:,}); replay it without memory"
            )
        assert request.parent is None or request.parent in self._savepoints, request
        number = len(self._savepoints) + 1
        self._savepoints[request.savepoint] = _Savepoint(number, request.parent, request.savepoint_tokens)

    def words(self, savepoint: int) -> array[int]:
        """Return the ids that a known savepoint covers, in 64-bit words."""
        line = []
        at: int | None = savepoint
        while at is not None:
            line.append(self._savepoints[at])
            at = line[-1].parent
        words = array("q")
        for known in reversed(line):
            words += array("q", [known.number]) * (known.tokens - len(words))
        return words

    def number_of(self, node: PrefixNode) -> int:
        """Return a number for the prefix that a node covers: counted from 1, the same for the same tokens.

        Two savepoints of a trace that cover the very same tokens are two nodes and one prefix.
        """
        at = node.key[0] if isinstance(node.key, tuple) else node.key
        known = self._savepoints[at]  # type: ignore[index]  # a node's key names the savepoint that it leads to
        while known.parent is not None and self._savepoints[known.parent].tokens >= node.tokens:
            known = self._savepoints[known.parent]
        return self._prefixes.setdefault((known.number, node.tokens), len(self._prefixes) + 1)
