"""Reads a trace in the form that Mooncake publishes: a JSON object a line, with the hashes of the prompt's blocks.

`timestamp` is in milliseconds, `input_length` and `output_length` count tokens, and `hash_ids` are the blocks of 512
tokens that the prompt consists of, equal for equal blocks after equal beginnings. A last block that is not full is
listed or not; a savepoint covers whole blocks only, so it does not count. Other keys are left alone. There are no
sessions in this form: all requests are of one conversation without a name.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from pinprobe.ledger.replay.request import Consistency, Request
from pinprobe.ledger.replay.trace_lines import MOST_REQUESTS, Faults, check_utf8, numbered_lines, requests_within_bounds
from pinprobe.probes.errors import BadRequest

BLOCK_TOKENS = 512

_LARGEST_COUNT = 10**15


def read_mooncake(path: Path) -> list[Request]:
    """Read a whole trace into the same requests as `read_trace` does.

    A savepoint is numbered by the first request that has it. Raises `BadTrace` with every line that can't be used, and
    `BadRequest` where there is no trace that could be read.
    """
    faults, consistency, prefixes = Faults(path), Consistency(), _Prefixes()
    requests: list[Request] = []
    count = 0
    for line, text in numbered_lines(path):
        if not text.strip():
            continue
        count += 1
        if count > MOST_REQUESTS:
            break
        try:
            request = _request(_object(text), count - 1, prefixes)
        except BadRequest as error:
            faults.add(line, str(error))
            continue
        fault = consistency.fault(request)
        if fault is None:
            requests.append(request)
        else:
            faults.add(line, fault)
    requests_within_bounds(count, path)
    faults.check()
    return requests


class _Prefixes:
    """The savepoints seen so far, by the blocks that they consist of."""

    def __init__(self) -> None:
        self._places: dict[tuple[int, int], int] = {}  # by place and the block that follows it; the root is place 0
        self._savepoints: dict[int, int] = {}

    def put(self, blocks: list[int], number: int) -> tuple[int, int | None]:
        """Return the savepoint of a prompt, which is `number` where it is new, and the longest one before it."""
        place, parent = 0, None
        for block in blocks:
            place = self._places.setdefault((place, block), len(self._places) + 1)
            parent = self._savepoints.get(place, parent)
        return (self._savepoints.setdefault(place, number) if blocks else number), parent


def _object(text: str) -> Mapping[str, Any]:
    check_utf8(text)
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"this is no JSON: {error}") from None
    if not isinstance(value, dict):
        raise BadRequest("this is no JSON object; a request is one, with timestamp, input_length and hash_ids")
    return value


def _request(row: Mapping[str, Any], number: int, prefixes: _Prefixes) -> Request:
    milliseconds = row.get("timestamp")
    if isinstance(milliseconds, bool) or not isinstance(milliseconds, int | float) or not 0 <= milliseconds < math.inf:
        raise BadRequest(f"timestamp is {str(milliseconds)[:40]!r}, which is no number of milliseconds")
    prompt_tokens = _count(row, "input_length")
    output_tokens = _count(row, "output_length")
    blocks = row.get("hash_ids")
    if not isinstance(blocks, list) or not all(type(block) is int for block in blocks):
        raise BadRequest("hash_ids is no list of whole numbers")
    whole = prompt_tokens // BLOCK_TOKENS
    if len(blocks) not in (whole, -(-prompt_tokens // BLOCK_TOKENS)):
        raise BadRequest(f"hash_ids has {len(blocks)} blocks of {BLOCK_TOKENS} for a prompt of {prompt_tokens} tokens")
    savepoint, parent = prefixes.put(blocks[:whole], number)
    return Request(
        at_seconds=milliseconds / 1000,
        savepoint=savepoint,
        parent=parent,
        savepoint_tokens=whole * BLOCK_TOKENS,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        conversation="",
    )


def _count(row: Mapping[str, Any], key: str) -> int:
    value = row.get(key)
    if type(value) is not int or not 0 <= value < _LARGEST_COUNT:
        raise BadRequest(f"{key} is {str(value)[:40]!r}, which is no whole number of 0 or more")
    return value


def _refuse_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")
