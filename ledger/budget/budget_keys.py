"""The keys of a config's `budget` section, each with what it is for, as the schema and the messages say it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pinprobe.ledger.config.keys import read_number_name
from pinprobe.probes.errors import BadRequest

BUDGET = {
    "of": "Whose memory is divided, as in the sentence: what does not fit the cards must fit the host.",
    "capacity": "How much there is of it.",
    "claims": "What is taken off it first, by name, in the order in which it stands here.",
    "floors": "What is taken next and never grows, by name, such as static weights. The rest is the elastic one.",
    "consumers": "What shares the elastic rest, by name: each gets its floor in this order, then they grow by turns.",
    "levers": "Which of the config's numbers can be moved, each with the step by which to try it.",
    "assumptions": "Which of the config's numbers nobody measured or published, each with a reason; shown wherever it "
    "matters, until it is set for a run.",
}
CONSUMER = {
    "floor": "What it has to have. 0 where it is not given.",
    "elsewhere": "What may be held in another place instead, so that the floor here falls by it.",
    "cap": "What it never gets more of; a floor above it counts as the cap.",
    "ceiling": "Where its growing stops; a floor above it holds.",
    "grows": "Its turn to grow when all floors are served, the lowest first. Without one it stays at its floor.",
    "fixed": "Parts of it, by name, that hold none of its units and are never lent, such as recurrent state.",
    "lends": "Who uses it while it is empty. What is lent stays its own, and is never free.",
    "units": "What it is counted in beside bytes, by name: how many bytes one takes.",
}
ELSEWHERE = {
    "at": "The other place, as in the sentence: what does not fit the cards must fit the host.",
    "bytes": "How much of it is held there; less than 0 counts as 0.",
}
LENDS = {
    "to": "The consumer that it is lent to.",
    "charges": "What is charged to it as long as it lends, by name, and comes back when it does not. These may name "
    "consumers: what each got.",
}
#: What stands for no consumer, since a result is called that.
UNCLAIMED = "unclaimed"

#: The results that every consumer has, as `kv.floor`, which no part of one can be called.
RESULTS_OF_EACH = ("floor", "lent", "away")

_CONSUMERS_DEPTH = 3


def known_keys(path: Sequence[str]) -> Mapping[str, str]:
    """Return the keys that are known beside the last of a path below `budget`, with what each is for.

    >>> sorted(known_keys(["consumers", "kv", "lends", "tp"]))
    ['charges', 'to']
    """
    if len(path) == 1:
        return BUDGET
    if len(path) == _CONSUMERS_DEPTH:
        return CONSUMER
    return {"elsewhere": ELSEWHERE, "lends": LENDS}[path[2]]


def read_part_name(name: object) -> str:
    """Read the name of a consumer or of a part, of which wishes and charges can speak. Raises `BadRequest`."""
    if name == UNCLAIMED:
        raise BadRequest("what is left over is called that; call it differently")
    return read_number_name(name)
