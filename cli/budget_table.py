"""A budget in the four forms: the waterfall, the bar, and what there is to say. Nothing here works anything out."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import replace

from pinprobe.cli.budget_bar import draw_budget
from pinprobe.cli.grid import WIDTH, Grid
from pinprobe.ledger.budget.budget import Step, StepKind
from pinprobe.ledger.budget.budget_change import BudgetChange
from pinprobe.ledger.budget.budget_receipt import budget_receipt
from pinprobe.ledger.budget.budget_report import BudgetReport
from pinprobe.ledger.budget.budget_words import (
    answer_sentence,
    assumption_sentence,
    lever_sentence,
    rule_of,
    share_sentences,
    shortfall_sentences,
)
from pinprobe.ledger.config.expression_text import Quantity
from pinprobe.ledger.config.quantity_text import write_count
from pinprobe.probes.units import Unit, unit_for

#: Behind the rule of a line that stands on an assumption.
_ASSUMED = " *"


def render_budget(report: BudgetReport, form: str, settings: Sequence[str]) -> str:
    """Write a budget in one of the four forms."""
    if form == "json":
        return json.dumps(budget_receipt(report, settings), indent=2)
    if form == "csv":
        return _rows(report).csv()
    if form == "markdown":
        grids = [_waterfall(report).markdown(), _shares(report).markdown()]
        grids += [] if report.marginal is None else [_marginal(report, report.marginal).markdown()]
        paragraphs = ("\n".join(f"* {line}" for line in lines) for _, lines in _words(report))
        return "\n\n".join([*grids, *paragraphs, _verdict(report)])
    parts = [_titled(_waterfall(report)), draw_budget(report.budget), _shares(report).text()]
    parts += [] if report.marginal is None else [_titled(_marginal(report, report.marginal))]
    parts += ["\n".join([title, *map(_wrapped, lines)]) for title, lines in _words(report)]
    return "\n\n".join([*parts, _wrapped(_verdict(report), "")])


def _words(report: BudgetReport) -> Iterator[tuple[str, list[str]]]:
    """What there is to say, under titles; nothing where there is nothing."""
    budget, numbers = report.budget, report.model.numbers
    found = {
        "what does not fit": shortfall_sentences(budget),
        "what would mend it": [answer_sentence(answer) for answer in report.remedies],
        "who stands where": [" ".join(share_sentences(share, budget)) for share in budget.shares],
        "what a lever moves": [*(lever_sentence(change) for change in report.levers), *report.stuck],
        "checks of the config that fail": [f"{check.name}: {check.sentence}" for check in report.failing_checks],
        "wishes": [answer_sentence(answer) for answer in report.answers],
        f"assumptions ({_ASSUMED.strip()})": [
            assumption_sentence(name, reason, numbers[name]) for name, reason in budget.spec.assumptions.items()
        ],
    }
    return ((title, lines) for title, lines in found.items() if lines)


def _verdict(report: BudgetReport) -> str:
    budget = report.budget
    name = report.config.engine
    if not budget.fits:
        short = list(dict.fromkeys([step.name for step in budget.short_steps]))
        short += [share.name for share in budget.overcharged if share.name not in short]
        return f"{name}: the budget of {budget.spec.of} does not fit: {', '.join(short)}."
    unmet = "".join(f" Nothing meets the wish {text}." for text in report.unmet)
    return f"{name}: the budget of {budget.spec.of} fits.{unmet}"


def _waterfall(report: BudgetReport) -> Grid:
    budget = report.budget
    unit = unit_for(budget.capacity_bytes)
    capacity = budget.spec.capacity
    rows = [("capacity", "", unit.of(budget.capacity_bytes), capacity.text + _mark(report, capacity.formula.names))]
    elastic_said = False
    for step in budget.steps:
        if not elastic_said and step.kind not in (StepKind.CLAIM, StepKind.FLOOR):
            elastic_said = True
            if len(rows) > 1:
                rows.append(("elastic rest", "", unit.of(budget.elastic_bytes), "what the consumers share"))
        names = [name for term in step.terms for name in term.formula.names]
        rule = rule_of(step, budget) + _mark(report, names)
        if step.short_bytes:
            rule = f"{unit.of(step.short_bytes)} SHORT of {unit.of(step.wanted_bytes)}: {rule}"
        rows.append((_line(step), unit.of(step.taken_bytes), unit.of(step.left_bytes), rule))
    rows.append(("unclaimed", unit.of(budget.unclaimed_bytes), "", "what no consumer may have"))
    ranks = report.config.ranks
    each = f", the same for each of {ranks} ranks" if ranks > 1 else ""
    return Grid(
        ("<line", "takes", "left", "<rule"), rows, f"{report.config.engine}: {budget.spec.of}{each}, in {unit.name}"
    )


def _line(step: Step) -> str:
    return step.name + {StepKind.CONSUMER_FLOOR: ", floor", StepKind.GROWTH: ", growth"}.get(step.kind, "")


def _mark(report: BudgetReport, names: Sequence[str]) -> str:
    return _ASSUMED if report.model.assumed(names) else ""


def _shares(report: BudgetReport) -> Grid:
    budget = report.budget
    unit = unit_for(budget.capacity_bytes)
    rows = []
    for share in budget.shares:
        part = f"{share.own_bytes / budget.elastic_bytes:.1%}" if budget.elastic_bytes else "-"
        counted = ", ".join(f"{write_count(count)} {name}" for name, count in share.units.items())
        rows.append((share.name, unit.of(share.got_bytes), unit.of(share.got_bytes - share.own_bytes),
                     unit.of(share.own_bytes), part, unit.of(share.lent_bytes), counted or "-"))  # fmt: skip
    part = f"{budget.unclaimed_bytes / budget.elastic_bytes:.1%}" if budget.elastic_bytes else "-"
    rows.append(("unclaimed", "", "", unit.of(budget.unclaimed_bytes), part, "", ""))
    return Grid(("<consumer", "got", "charged", "keeps", "part", "lent", "<counted in"), rows)


def _marginal(report: BudgetReport, change: BudgetChange) -> Grid:
    sizes = [max(abs(host.before_bytes), abs(host.after_bytes)) for host in change.host]
    sizes += [int(max(abs(result.before.value), abs(result.after.value)))
              for result in change.results if result.before.is_size]  # fmt: skip
    unit = unit_for(max(sizes, default=0))
    rows = []
    for host in change.host:
        what = f"{host.tenant}, {'pinned' if host.is_pinned else 'pageable'}"
        rows.append(("host", what, *(unit.of(size) for size in (host.before_bytes, host.after_bytes)),
                     f"{host.difference_bytes / unit.factor_bytes:+,.3f}"))  # fmt: skip
    if not change.host:
        rows.append(("host", "nothing that the config's tenants count", "", "", ""))
    for result in change.results:
        signed = ("+" if result.difference.value > 0 else "") + _figure(result.difference, unit)
        rows.append(("device", result.name, _figure(result.before, unit), _figure(result.after, unit), signed))
    fits = "" if change.budget_after.fits else "; it does not fit then"
    before, after = write_count(change.before.value), write_count(change.after.value)
    title = f"one more of {change.number}: {before} -> {after}{fits}, in {unit.name} or as counted"
    return Grid(("<where", "<what", "before", "after", "difference"), rows, title)


def _figure(quantity: Quantity, unit: Unit) -> str:
    if not quantity.is_size:
        return write_count(quantity.value)
    text = unit.of(int(quantity.value))
    # What is there and too little for the unit is written out: 0.000 would say that nothing moves.
    return text if text.strip("-0.") or not quantity.value else f"{int(quantity.value):,} B"


def _titled(grid: Grid) -> str:
    """Write a table whose title may hold a long name."""
    return f"{_wrapped(grid.title, '')}\n{replace(grid, title='').text()}"


def _wrapped(line: str, indent: str = "  ") -> str:
    return textwrap.fill(line, WIDTH, initial_indent=indent, subsequent_indent=indent + "  " if indent else "",
                         break_long_words=True, break_on_hyphens=False)  # fmt: skip


def _rows(report: BudgetReport) -> Grid:
    budget = report.budget
    rows = [("capacity", budget.spec.of, "", str(budget.capacity_bytes), budget.spec.capacity.text)]
    for step in budget.steps:
        rule = rule_of(step, budget)
        rows.append((step.kind.value, step.name, "taken", str(step.taken_bytes), rule))
        rows.append((step.kind.value, step.name, "short", str(step.short_bytes), rule))
    for name, quantity in budget.results().items():
        value = int(quantity.value) if quantity.value.denominator == 1 else float(quantity.value)
        rows.append(("result", name, "bytes" if quantity.is_size else "count", str(value), ""))
    for title, lines in _words(report):
        rows += [("words", title, "", "", line) for line in lines]
    if report.marginal is not None:
        rows += [("marginal", host.tenant, "host", str(host.difference_bytes), "") for host in report.marginal.host]
        for result in report.marginal.results:
            rows.append(("marginal", result.name, "device", str(float(result.difference.value)), ""))
    return Grid(("<section", "<name", "<what", "value", "<remark"), rows)
