"""`Request`: one prompt of a trace, as a retention policy sees it; and what makes a row of requests a trace."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Request:
    """A request reads the nearest resident savepoint that is a prefix of its prompt, and then offers its own.

    `savepoint` names the state at the end of the prompt, which covers `savepoint_tokens`, whole blocks only; where that
    is 0 nothing is offered. Equal prompts share one. `parent` is the longest savepoint of an earlier request that is a
    prefix of this prompt, resident or not; None where there was none, and `savepoint` itself where the prompt comes
    again. `conversation` says whose it is, where the trace knows.
    """

    at_seconds: float
    savepoint: int
    parent: int | None
    savepoint_tokens: int
    prompt_tokens: int
    output_tokens: int
    conversation: str


class Consistency:
    """Holds requests against those before them."""

    def __init__(self) -> None:
        self._tokens: dict[int, int | None] = {}  # None where it could not be read
        self._latest_seconds = 0.0
        self._is_whole = True

    def announce(self, savepoint: int | None) -> None:
        """Know a savepoint whose request could not be read, so that what continues it is not a fault too.

        None where not even its number could be read: from here on any parent may have been that one.
        """
        if savepoint is None:
            self._is_whole = False
        else:
            self._tokens.setdefault(savepoint, None)

    def fault(self, request: Request) -> str | None:
        """Say what of a request can't follow from those before, and know it from here on; None where all can."""
        is_first = request.savepoint not in self._tokens
        known = self._tokens.setdefault(request.savepoint, request.savepoint_tokens)
        earliest, self._latest_seconds = self._latest_seconds, max(self._latest_seconds, request.at_seconds)
        if request.at_seconds < earliest:
            return f"the time runs backwards, from {earliest} s to {request.at_seconds} s; requests stand in time order"
        if request.savepoint_tokens > request.prompt_tokens:
            return (
                f"the savepoint covers {request.savepoint_tokens} tokens of a prompt of {request.prompt_tokens};"
                " it can't be longer than its prompt"
            )
        if not is_first and known not in (request.savepoint_tokens, None):
            return (
                f"savepoint {request.savepoint} covered {known} tokens before and {request.savepoint_tokens} here;"
                " equal ids stand for equal prompts"
            )
        return self._fault_of_parent(request, is_first)

    def _fault_of_parent(self, request: Request, is_first: bool) -> str | None:
        if not is_first and request.parent != request.savepoint:
            return f"savepoint {request.savepoint} was seen before; its own longest prefix is then itself"
        if is_first and request.parent == request.savepoint and self._is_whole:
            return f"savepoint {request.savepoint} is its own parent, and no earlier request has it"
        if request.parent is None:
            return None
        if request.parent not in self._tokens:
            if not self._is_whole:
                return None
            return f"the parent {request.parent} is the savepoint of no earlier request; -1 in a CSV is none at all"
        parent_tokens = self._tokens[request.parent]
        if parent_tokens is not None and parent_tokens > request.savepoint_tokens:
            return (
                f"the parent {request.parent} covers {parent_tokens} tokens, more than the {request.savepoint_tokens}"
                " here; it can't be a prefix"
            )
        return None
