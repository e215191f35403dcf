"""What a made trace has to be, checked request by request."""

from __future__ import annotations

from collections.abc import Sequence

from pinprobe.ledger.replay.request import Request


def assert_is_a_trace(requests: Sequence[Request], block_tokens: int) -> None:
    """Times rise, prompts continue what was there, equal numbers are equal savepoints, and blocks are whole."""
    known: dict[int, Request] = {}
    latest_seconds = 0.0
    for request in requests:
        assert request.at_seconds >= latest_seconds
        latest_seconds = request.at_seconds
        assert request.prompt_tokens >= 1
        assert request.output_tokens >= 0
        assert request.conversation
        assert request.savepoint_tokens == request.prompt_tokens - request.prompt_tokens % block_tokens
        if request.savepoint in known:
            assert request.parent == request.savepoint
        if request.parent is not None:
            parent = known[request.parent]
            assert 0 < parent.savepoint_tokens <= request.savepoint_tokens
            is_longer = parent.savepoint_tokens < request.savepoint_tokens
            assert is_longer or request.parent == request.savepoint
        first = known.setdefault(request.savepoint, request)
        assert first.savepoint_tokens == request.savepoint_tokens
