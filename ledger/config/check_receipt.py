"""The checks of a config, worked out, as one JSON document: schema `pinprobe.check`."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from pinprobe.ledger.config.checks import CheckResult
from pinprobe.ledger.config.config import Config

#: Raised by one when a key changes its meaning or goes; new keys do not raise it.
VERSION = 1


def check_receipt(config: Config, results: Sequence[CheckResult], settings: Sequence[str]) -> dict[str, Any]:
    """Put the checks of one config into a document. A value that is not whole is a float there."""
    return {
        "schema": "pinprobe.check",
        "version": VERSION,
        "config": config.path,
        "engine": config.engine,
        "settings": list(settings),
        "numbers": {name: _number(value) for name, value in config.numbers.items()},
        "holds": all(result.holds for result in results),
        "checks": [
            {
                "name": result.name,
                "expression": result.expression,
                "place": result.place,
                "holds": result.holds,
                "sides": [{"text": text, "value": _number(value)} for text, value in result.sides],
                "sentence": result.sentence,
            }
            for result in results
        ],
    }


def _number(value: Fraction) -> int | float:
    return int(value) if value.denominator == 1 else float(value)
