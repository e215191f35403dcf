"""Finds the longest stored prefix of a prompt, by a chain of hashes over blocks of tokens.

The hash of a block stands on that of the block before, so that equal hashes mean equal prefixes from the first token
on: 128 bits of BLAKE2, since a chance hit would serve another conversation's state. A prefix that ends within a block
is found by the chain up to that block and a hash of the rest.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

_DIGEST_BYTES = 16
_ROOT = bytes(_DIGEST_BYTES)

V = TypeVar("V", bound=Hashable)


@dataclass(frozen=True, slots=True)
class PrefixKey:
    """A prefix: the hash of all its tokens, how many they are, and the hash of the chain's last whole block."""

    digest: bytes
    tokens: int
    block_digest: bytes


class PrefixIndex(Generic[V]):
    """Values by the prefix of tokens that they stand for, one for each prefix. Not for several threads at once."""

    def __init__(self, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._values: dict[bytes, V] = {}
        # The lengths of the prefixes that end in the block after a chain's hash, each with how it is found.
        self._ends: dict[bytes, dict[int, set[bytes]]] = {}

    def __len__(self) -> int:
        return len(self._values)

    def key(self, tokens: Sequence[int]) -> PrefixKey:
        """Return the key of a whole sequence of tokens."""
        words = as_words(tokens)
        *_, (_, block_digest) = self._chain(words)
        return PrefixKey(self._end(words, len(words), block_digest), len(words), block_digest)

    def get(self, key: PrefixKey) -> V | None:
        """Return the value of just this prefix."""
        return self._values.get(key.digest)

    def put(self, key: PrefixKey, value: V) -> None:
        """Store a value, in the place of an earlier one."""
        self._values[key.digest] = value
        self._ends.setdefault(key.block_digest, {}).setdefault(key.tokens, set()).add(key.digest)

    def remove(self, key: PrefixKey) -> None:
        """Take a value out."""
        del self._values[key.digest]
        ends = self._ends[key.block_digest]
        ends[key.tokens].discard(key.digest)
        if not ends[key.tokens]:
            del ends[key.tokens]
        if not ends:
            del self._ends[key.block_digest]

    def longest(self, tokens: Sequence[int], below: int | None = None) -> V | None:
        """Return the value of the longest stored prefix of `tokens`, or of the longest shorter than `below`."""
        return next(self.prefixes(tokens, below), None)

    def prefixes(self, tokens: Sequence[int], below: int | None = None) -> Iterator[V]:
        """Yield the values of all stored prefixes of `tokens`, the longest first."""
        words = as_words(tokens)
        most = len(words) if below is None else min(len(words), below - 1)
        for _, block_digest in reversed(list(self._chain(words))):
            for length in sorted(self._ends.get(block_digest, ()), reverse=True):
                digest = self._end(words, length, block_digest) if length <= most else b""
                if digest in self._ends[block_digest][length]:
                    yield self._values[digest]

    def _chain(self, words: array[int]) -> Iterator[tuple[int, bytes]]:
        """Yield (tokens, hash) at each boundary of whole blocks, from the empty prefix on."""
        digest = _ROOT
        yield 0, digest
        for start in range(0, len(words) - self._block_tokens + 1, self._block_tokens):
            digest = _hash(digest, words[start : start + self._block_tokens])
            yield start + self._block_tokens, digest

    def _end(self, words: array[int], length: int, block_digest: bytes) -> bytes:
        rest = words[length - length % self._block_tokens : length]
        return _hash(block_digest, rest) if rest else block_digest


def as_words(tokens: Sequence[int]) -> array[int]:
    """Return tokens as 64-bit words, which is how they are hashed; what is that already is returned as it is."""
    return tokens if isinstance(tokens, array) and tokens.typecode == "q" else array("q", tokens)


def _hash(parent: bytes, words: array[int]) -> bytes:
    return hashlib.blake2b(parent + words.tobytes(), digest_size=_DIGEST_BYTES).digest()
