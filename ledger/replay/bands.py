"""Bands of prompt lengths, and what a replay counts in each.

A savepoint costs the same in every band and spares more the longer the prompt; one figure over all of them says little.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from pinprobe.probes.errors import BadRequest, printable

#: What lies in none of the bands is counted here.
BEYOND = "beyond"

#: More than fit into a table; a bound.
MOST_BANDS = 64

# As lengths of contexts are spoken of: a context of 32k holds 32,768 tokens.
_FACTORS = {"": 1, "k": 2**10, "m": 2**20}
_EDGE = re.compile(r"([0-9]{1,12})([kKmM]?)", re.ASCII)


@dataclass(frozen=True, slots=True)
class Band:
    """Prompts of `from_tokens` or more, and of fewer than `below_tokens`. `name` is how it was written."""

    name: str
    from_tokens: int
    below_tokens: int

    def __contains__(self, prompt_tokens: object) -> bool:
        return isinstance(prompt_tokens, int) and self.from_tokens <= prompt_tokens < self.below_tokens


@dataclass(frozen=True, slots=True)
class BandCount:
    """What was counted in one band. `seconds` are those of prefill that were spared, where they are known."""

    name: str
    requests: int = 0
    prompt_tokens: int = 0
    spared_tokens: int = 0
    seconds: float = 0.0

    @property
    def token_hit_rate(self) -> float:
        """The share of the prompts' tokens that was spared."""
        return self.spared_tokens / self.prompt_tokens if self.prompt_tokens else 0.0


class BandCounter:
    """Sums requests by the band that their prompts lie in. Not for several threads at once."""

    def __init__(self, bands: Sequence[Band]) -> None:
        self._bands = tuple(bands)
        self._counts = {name: BandCount(name) for name in (*(band.name for band in self._bands), BEYOND)}

    def add(self, prompt_tokens: int, spared_tokens: int, seconds: float = 0.0) -> None:
        """Count one request. No more can be spared than its prompt has: that fails an assertion."""
        assert 0 <= spared_tokens <= prompt_tokens, (spared_tokens, prompt_tokens)
        name = next((band.name for band in self._bands if prompt_tokens in band), BEYOND)
        count = self._counts[name]
        self._counts[name] = BandCount(
            name,
            count.requests + 1,
            count.prompt_tokens + prompt_tokens,
            count.spared_tokens + spared_tokens,
            count.seconds + seconds,
        )

    def counts(self) -> tuple[BandCount, ...]:
        """Return a count for each band, in the order of the bands, and the one for the rest at the end."""
        return tuple(self._counts.values())


def parse_bands(text: str) -> tuple[Band, ...]:
    """Read bands in rising order: `0:8k,8k:32k,32k:128k`, where 8k are 8,192 tokens and 1m are 1,048,576.

    A band holds its first number and not its last. There may be gaps; what lies in none is counted as `beyond`. Raises
    `BadRequest`, naming the band, where one is none, or does not begin where the one before ended or later.

    >>> [(band.from_tokens, band.below_tokens) for band in parse_bands("0:8k,8k:32k")]
    [(0, 8192), (8192, 32768)]
    """
    parts = text.split(",")
    if len(parts) > MOST_BANDS:
        raise BadRequest(f"{len(parts)} bands are more than a table shows; give at most {MOST_BANDS}")
    bands: list[Band] = []
    for part in parts:
        name = part.strip()
        band = _band(name)
        if bands and band.from_tokens < bands[-1].below_tokens:
            raise BadRequest(
                f"the band {name!r} begins before {bands[-1].name!r} ends; write bands in rising order, none in another"
            )
        bands.append(band)
    return tuple(bands)


def _band(name: str) -> Band:
    edges = [_EDGE.fullmatch(edge.strip()) for edge in name.split(":")]
    tokens = [int(edge[1]) * _FACTORS[edge[2].lower()] for edge in edges if edge is not None]
    if len(edges) != 2 or len(tokens) != 2:
        raise BadRequest(
            f"{printable(name)[:40]!r} is no band of prompt lengths: write two numbers of tokens, such as 8k:32k"
        )
    if tokens[0] >= tokens[1]:
        raise BadRequest(f"the band {name!r} holds no length at all; its second number has to be the larger one")
    return Band(name, tokens[0], tokens[1])
