"""A walk that somebody interrupted ends with what it has; whoever asked for more than that walk has to end, too."""

from __future__ import annotations


def raise_if_interrupted(ended: str) -> None:
    """Raise `KeyboardInterrupt` where a walk's end, as it is told, was an interrupt and no failure.

    A walk tells an interrupt in the signal's words, or as `interrupted` where it has none.
    """
    words = ended.rpartition(": ")[2]
    if words == "interrupted" or words.startswith("ended by SIG"):
        raise KeyboardInterrupt(words)
