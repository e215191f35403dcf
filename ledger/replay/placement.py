"""Where the savepoints of a prompt are placed, and which nodes of a prefix tree these are.

* `prompt-end`: one, where the prompt ends. The next turn of its conversation continues from there.
* `every-chunk`: each multiple of the prefill chunk, and where the prompt ends. Prompts that branch off early find the
  last boundary before the branch; a prompt of a hundred chunks is a hundred writes.
* `ladder`: the rungs chunk x 2^k alone: 2,048, 4,096, 8,192 ... A prompt is few writes, and the deeper it is the wider
  the steps: the last one leaves up to half of it uncovered, 129,024 tokens of one that ends a chunk before 262,144.
* `ladder:K`: one step of such a ladder, all the way: each multiple of chunk x 2^K. Each K less halves what is left
  uncovered and doubles the writes; `ladder:0` is `every-chunk` without the prompt's end.

Neither ladder places one at the prompt's end, unless that is a rung. Rungs and chunks are counted from the prompt's
first token, not from where its prefill began: only so do two prompts place theirs at the same tokens.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from itertools import takewhile
from typing import TypeAlias

from pinprobe.ledger.replay.request import Request
from pinprobe.probes.errors import BadRequest, printable

PLACEMENTS = ("prompt-end", "every-chunk", "ladder", "ladder:K")

#: The widest step of `ladder:K` is so many doublings of the chunk.
MOST_DOUBLINGS = 20

#: A prompt of more places than these is none that an engine serves, and would take all memory.
MOST_PLACES = 10_000

#: The prefill chunk of one known engine; a rung, a chunk and the shortest savepoint worth keeping follow from it.
CHUNK_TOKENS = 2_048

Key: TypeAlias = Hashable

_STEP = re.compile(r"ladder:([0-9]{1,2})", re.ASCII)


def check_placement(placement: str) -> None:
    """Raise `BadRequest` where no placement is called that."""
    step = _STEP.fullmatch(placement)
    if placement not in PLACEMENTS[:3] and not (step and int(step[1]) <= MOST_DOUBLINGS):
        raise BadRequest(
            f"{printable(placement)[:40]!r} is no placement of savepoints: write prompt-end, every-chunk, ladder, or"
            f" ladder:K with K from 0 to {MOST_DOUBLINGS}"
        )


def placements(
    covered_from_tokens: int, prompt_tokens: int, placement: str, chunk_tokens: int = CHUNK_TOKENS
) -> list[int]:
    """Return the tokens, rising, at which a prefill places savepoints that begins after `covered_from_tokens`.

    None is placed at what was spared already: there is nothing to take a copy of. Raises `BadRequest` where the
    placement is unknown, the chunk is none, more is covered than the prompt has, or it has more than 10,000 places.

    >>> placements(2_100, 9_000, "every-chunk"), placements(0, 9_000, "ladder"), placements(0, 9_000, "ladder:1")
    ([4096, 6144, 8192, 9000], [2048, 4096, 8192], [4096, 8192])
    """
    check_placement(placement)
    _check_chunk(chunk_tokens)
    _check_count(prompt_tokens, placement, chunk_tokens)
    if not 0 <= covered_from_tokens <= prompt_tokens:
        raise BadRequest(f"{covered_from_tokens} tokens can't be covered of a prompt of {prompt_tokens}")
    return list(reversed([*_falling(covered_from_tokens, prompt_tokens, placement, chunk_tokens)]))


@dataclass(frozen=True, slots=True)
class PrefixNode:
    """A place for a savepoint on the line of a prompt. `parent` is the place before it on that line, if there is one.

    The savepoint that a trace names is the node of that number. One between two of these is known by the number of the
    savepoint that it leads to first, and by the tokens that it covers.
    """

    key: Key
    parent: Key | None
    tokens: int


class PrefixNodes:
    """Turns the requests of a trace, in their order, into the nodes that each could read and those that it offers.

    A trace proves that a prompt shares the tokens of its parent's savepoint, and nothing beyond. So below these its
    nodes are those of the parent's line, the very same ones, and beyond them they are its own. A prompt's tokens after
    its savepoint lie in no whole block: no node is placed there. Not for several threads at once.
    """

    def __init__(self, placement: str = "prompt-end", chunk_tokens: int = CHUNK_TOKENS) -> None:
        check_placement(placement)
        _check_chunk(chunk_tokens)
        self.placement = placement
        self.chunk_tokens = chunk_tokens
        #: So many savepoints were placed. Each is one write of a row, where none was there and it is kept.
        self.placed_count = 0
        self._savepoints: dict[int, tuple[int | None, int]] = {}  # each one's parent and tokens

    def __len__(self) -> int:
        """Return how many savepoints of the trace are known."""
        return len(self._savepoints)

    def readable(self, request: Request) -> Iterator[PrefixNode]:
        """Yield the nodes that cover a prefix of a request's prompt, as far as earlier requests prove it.

        The longest comes first. Any of them may never have been offered: it is for the caller to know which are
        resident. Raises `BadRequest` where the request's parent is the savepoint of no earlier request.
        """
        if request.parent is None:
            return iter(())
        self._known(request.parent)
        return self._line(request.parent)

    def place(self, request: Request, spared_tokens: int) -> list[PrefixNode]:
        """Return the nodes that a request offers once `spared_tokens` of it were read, the shortest first.

        The request is known from here on. One that misses what its parent had offers those places again, by the same
        keys. Raises `BadRequest` where the request's parent is the savepoint of no earlier request, or where more was
        spared than its savepoint covers.
        """
        wanted = set(placements(spared_tokens, request.savepoint_tokens, self.placement, self.chunk_tokens))
        if request.savepoint not in self._savepoints:
            if request.parent is not None:
                self._known(request.parent)
            self._savepoints[request.savepoint] = request.parent, request.savepoint_tokens
        line = takewhile(lambda node: node.tokens > spared_tokens, self._line(request.savepoint))
        placed: dict[int, PrefixNode] = {}
        for node in line:
            if node.tokens in wanted:
                # Of two savepoints that cover equally many tokens the line's later one is this prompt's.
                placed.setdefault(node.tokens, node)
        assert len(placed) == len(wanted), (request, spared_tokens)
        self.placed_count += len(placed)
        return sorted(placed.values(), key=lambda node: node.tokens)

    def _line(self, savepoint: int) -> Iterator[PrefixNode]:
        """Yield the nodes up to a savepoint, the longest first."""
        after: tuple[Key, int] | None = None
        for key, tokens in self._places(savepoint):
            if after is not None:
                yield PrefixNode(after[0], key, after[1])
            after = key, tokens
        if after is not None:
            yield PrefixNode(after[0], None, after[1])

    def _places(self, savepoint: int | None) -> Iterator[tuple[Key, int]]:
        while savepoint is not None:
            parent, end_tokens = self._savepoints[savepoint]
            begun_tokens = self._savepoints[parent][1] if parent is not None else 0
            for tokens in _falling(begun_tokens, end_tokens, self.placement, self.chunk_tokens):
                yield (savepoint if tokens == end_tokens else (savepoint, tokens)), tokens
            if begun_tokens == end_tokens > 0 and _has_ends(self.placement):
                yield savepoint, end_tokens  # it covers no more than its parent, and is still a savepoint of the trace
            savepoint = parent

    def _known(self, savepoint: int) -> None:
        if savepoint not in self._savepoints:
            raise BadRequest(
                f"the parent {savepoint} is the savepoint of no earlier request; give a trace from its beginning"
            )


def _check_chunk(chunk_tokens: int) -> None:
    if chunk_tokens < 1:
        raise BadRequest(f"a prefill chunk of {chunk_tokens} tokens is none; give 1 or more")


def _check_count(prompt_tokens: int, placement: str, chunk_tokens: int) -> None:
    if placement in ("prompt-end", "ladder"):
        return
    count = prompt_tokens // _step_tokens(placement, chunk_tokens)
    if count > MOST_PLACES:
        raise BadRequest(
            f"a prompt of {prompt_tokens:,} tokens has {count:,} places by {placement} of {chunk_tokens:,}, and at most"
            f" {MOST_PLACES:,} are replayed; give --placement prompt-end or ladder"
        )


def _step_tokens(placement: str, chunk_tokens: int) -> int:
    return chunk_tokens << (int(placement.partition(":")[2]) if placement != "every-chunk" else 0)


def _has_ends(placement: str) -> bool:
    return placement in ("prompt-end", "every-chunk")


def _falling(above_tokens: int, up_to_tokens: int, placement: str, chunk_tokens: int) -> Iterator[int]:
    """Yield the places beyond `above_tokens` up to `up_to_tokens`, the last of which a prompt ends at, falling."""
    if up_to_tokens <= above_tokens:
        return
    if _has_ends(placement):
        yield up_to_tokens
        up_to_tokens -= 1
    if placement == "ladder":
        tokens = chunk_tokens << max(0, (up_to_tokens // chunk_tokens).bit_length() - 1)
        while max(above_tokens, chunk_tokens - 1) < tokens <= up_to_tokens:
            yield tokens
            tokens //= 2
    elif placement != "prompt-end":
        step_tokens = _step_tokens(placement, chunk_tokens)
        first = up_to_tokens // step_tokens * step_tokens
        yield from range(first, above_tokens, -step_tokens)
