"""How soon nodes are read, counted by their age and by what is known of them; and what waiting for it is worth.

Counted is, for each bin of age, how many nodes lived through it unread and how many were read in it. Their ratio is the
*hazard*: the chance to be read in this bin for a node that was not read before. Nodes of one kind share the hazards'
course over age. What is known of a node beside its kind, its traits, scales them all by a factor: the reads of nodes
with this trait, for each read that was to be expected of them by their kind's hazards. Factors are multiplied as if the
traits knew nothing of each other. That is not true and costs little, where counts for each combination of traits would
cost a precision that few nodes have been seen for.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

#: Ages in seconds at which bins begin, each sqrt(2) times later than the one before: the last one in 12 days.
BIN_STARTS_SECONDS = tuple(2 ** (half / 2) - 1 for half in range(41))
BIN_COUNT = len(BIN_STARTS_SECONDS) - 1
#: A worth is a whole number: reads in so many seconds. Fine enough for the least hazard of an age of days.
SECONDS_OF_WORTH = 2**40

_BIN_WIDTHS_SECONDS = tuple(end - start for start, end in itertools.pairwise(BIN_STARTS_SECONDS))
# So many reads are taken to have been seen as they were expected, before a factor says otherwise.
_PRIOR_READS = 4
# Of nodes that nothing is known of, one in so many is taken to be read in a bin.
_PRIOR_BINS = 20
# Factors are rounded to steps of half an octave, so that nodes share what is worked out from them.
_STEPS = 2
_MOST_STEPS = 20


def age_bin(age_seconds: float) -> int:
    """Return the bin of an age.

    >>> age_bin(0), age_bin(0.5), age_bin(1), age_bin(60), BIN_STARTS_SECONDS[2], BIN_STARTS_SECONDS[11] < 60
    (0, 1, 2, 11, 1.0, True)
    """
    return min(BIN_COUNT - 1, int(2 * math.log2(age_seconds + 1)))


def index(hazards: Sequence[float], from_bin: int) -> float:
    """Return the reads in a second that waiting for a node is worth, at its best: Gittins's index of its age.

    That is the largest value, over all horizons, of the chance of a read before the horizon, by the time until the read
    or the horizon. A horizon that is infinite would have everything wait for reads that come late if at all.

    >>> even = [1 / 2] * BIN_COUNT
    >>> round(index(even, 0), 3), round(index(even, 10), 3)
    (1.609, 0.05)
    """
    unread, waited, best = 1.0, 0.0, 0.0
    for number in range(from_bin, BIN_COUNT):
        before, unread = unread, unread * (1 - hazards[number])
        waited += _BIN_WIDTHS_SECONDS[number] * (before + unread) / 2
        best = max(best, (1 - unread) / waited)
        if best * waited >= 1:  # no chance is above 1, so that no later horizon is better
            break
    return best


def _factor(read: float, expected: float) -> float:
    return (read + _PRIOR_READS) / (expected + _PRIOR_READS)


@dataclass(eq=False, slots=True)
class Trait:
    """Something that is known of some nodes of a kind: their reads, and the reads that the kind's hazards expected."""

    read: float = 0.0
    expected: float = 0.0


class Kind:
    """Nodes that share a course of hazards. The hazards are those of the last `renew`.

    `guess` is how often they are taken to be read, for each time that any node is, before there were reads to tell.
    """

    def __init__(self, guess: float = 1.0) -> None:
        self._guess = guess
        self.read = [0.0] * BIN_COUNT
        self.lived_through = [0.0] * BIN_COUNT  # read in the bin or not
        self.hazards = [0.0] * BIN_COUNT
        self._worths: dict[tuple[int, int], int] = {}

    def renew(self, usual_hazard: float) -> None:
        """Work the hazards out from the counts: of the kind, and of each bin, as far as there are some."""
        guessed = self._guess * usual_hazard
        mean = guessed * _factor(sum(self.read), sum(self.lived_through) * guessed)
        self.hazards = [
            min(0.999, mean * _factor(read, lived * mean))
            for read, lived in zip(self.read, self.lived_through, strict=True)
        ]
        self._worths = {}

    def worth(self, steps: int, from_bin: int) -> int:
        """Return the index of an age under hazards that are scaled by a factor of so many steps."""
        known = self._worths.get((steps, from_bin))
        if known is None:
            factor = 2 ** (steps / _STEPS)
            scaled = [1 - (1 - hazard) ** factor for hazard in self.hazards]
            for number in range(BIN_COUNT):
                self._worths[steps, number] = round(index(scaled, number) * SECONDS_OF_WORTH)
            known = self._worths[steps, from_bin]
        return known


@dataclass(frozen=True, slots=True)
class Group:
    """Nodes of one kind with the same traits."""

    kind: Kind
    traits: tuple[Trait, ...]

    def count(self, age_bin: int, *, was_read: bool) -> None:
        """Count that a node was read in a bin of age, or that it lived through it unread."""
        self.kind.lived_through[age_bin] += 1
        self.kind.read[age_bin] += was_read
        expected = self.kind.hazards[age_bin]
        for trait in self.traits:
            trait.expected += expected
            trait.read += was_read

    def worth(self, age_bin: int) -> int:
        """Return what waiting for a node of this age is worth, by what was counted so far."""
        factor = 1.0
        for trait in self.traits:
            factor *= (trait.read + _PRIOR_READS) / (trait.expected + _PRIOR_READS)
        steps = round(_STEPS * math.log2(factor))
        return self.kind.worth(max(-_MOST_STEPS, min(_MOST_STEPS, steps)), age_bin)


@dataclass(eq=False)
class ReadRates:
    """All kinds and traits, made when they are first seen."""

    _kinds: dict[Hashable, Kind] = field(default_factory=dict)
    _traits: dict[tuple[Hashable, int, Hashable], Trait] = field(default_factory=dict)

    def group(self, kind: Hashable, traits: Sequence[Hashable], guess: float = 1.0) -> Group:
        """Return the group of what is known of a node; traits are told apart by where they stand.

        `guess` is for a kind that is met for the first time.
        """
        if kind not in self._kinds:
            self._kinds[kind] = Kind(guess)
            self._kinds[kind].renew(self._usual_hazard())
        counted = [self._traits.setdefault((kind, place, trait), Trait()) for place, trait in enumerate(traits)]
        return Group(self._kinds[kind], tuple(counted))

    def renew(self) -> None:
        """Have what was counted since the last time speak."""
        usual = self._usual_hazard()
        for kind in self._kinds.values():
            kind.renew(usual)

    def halve(self) -> None:
        """Have all that was counted count half from here on."""
        for kind in self._kinds.values():
            kind.read = [count / 2 for count in kind.read]
            kind.lived_through = [count / 2 for count in kind.lived_through]
        for trait in self._traits.values():
            trait.read /= 2
            trait.expected /= 2

    def _usual_hazard(self) -> float:
        read = sum(sum(kind.read) for kind in self._kinds.values())
        lived_through = sum(sum(kind.lived_through) for kind in self._kinds.values())
        return (read + 1) / (lived_through + _PRIOR_BINS)
