"""The checks of a config, worked out, in the four forms. Nothing here works anything out."""

from __future__ import annotations

import json
from collections.abc import Sequence

from pinprobe.cli.grid import Grid
from pinprobe.ledger.config.check_receipt import check_receipt
from pinprobe.ledger.config.checks import CheckResult
from pinprobe.ledger.config.config import Config


def render_checks(config: Config, results: Sequence[CheckResult], form: str, settings: Sequence[str]) -> str:
    """Write the checks of a config in one of the four forms."""
    if form == "json":
        return json.dumps(check_receipt(config, results, settings), indent=2)
    if form == "csv":
        return _rows(results).csv()
    if form == "markdown":
        return "\n\n".join([*([_grid(results).markdown()] if results else []), _verdict(config, results)])
    return "\n".join([*map(_line, results), _verdict(config, results)])


def _line(result: CheckResult) -> str:
    if result.holds:
        return f"holds  {result.name}: {result.sentence}"
    return f"FAILS  {result.name}: {result.sentence} ({result.place})"


def _verdict(config: Config, results: Sequence[CheckResult]) -> str:
    failing = [result.name for result in results if not result.holds]
    if not results:
        return f"{config.engine}: the config has no checks; a section `checks:` would hold them."
    if not failing:
        return f"{config.engine}: {len(results)} of {len(results)} checks hold."
    verb = "fails" if len(failing) == 1 else "fail"
    return f"{config.engine}: {len(failing)} of {len(results)} checks {verb}: {', '.join(failing)}."


def _grid(results: Sequence[CheckResult]) -> Grid:
    rows = [(result.name, "holds" if result.holds else "FAILS", result.sentence) for result in results]
    return Grid(("<check", "<verdict", "<worked out"), rows)


def _rows(results: Sequence[CheckResult]) -> Grid:
    rows = [
        (result.name, "holds" if result.holds else "fails", result.expression, result.sentence, result.place)
        for result in results
    ]
    return Grid(("<check", "<verdict", "<expression", "<worked_out", "<place"), rows)
