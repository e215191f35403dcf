"""A budget, worked out, as one JSON document: schema `pinprobe.budget`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Any

from pinprobe.ledger.budget.budget import Budget, Part, Share
from pinprobe.ledger.budget.budget_change import BudgetChange
from pinprobe.ledger.budget.budget_report import BudgetReport
from pinprobe.ledger.budget.budget_wish import Answer
from pinprobe.ledger.budget.budget_words import (
    answer_sentence,
    assumption_sentence,
    lever_sentence,
    rule_of,
    share_sentences,
    shortfall_sentences,
)
from pinprobe.ledger.config.expression_text import Quantity

#: Raised by one when a key changes its meaning or goes; new keys do not raise it.
VERSION = 1

Document = dict[str, Any]


def budget_receipt(report: BudgetReport, settings: Sequence[str]) -> Document:
    """Put one report into a document. Sizes are bytes; a value that is not whole is a float there."""
    budget, model = report.budget, report.model
    return {
        "schema": "pinprobe.budget",
        "version": VERSION,
        "config": report.config.path,
        "engine": report.config.engine,
        "settings": list(settings),
        "ranks": report.config.ranks,
        "of": budget.spec.of,
        "fits": budget.fits,
        "capacity_bytes": budget.capacity_bytes,
        "elastic_bytes": budget.elastic_bytes,
        "unclaimed_bytes": budget.unclaimed_bytes,
        "steps": list(_steps(report)),
        "shares": [_share(share, budget) for share in budget.shares],
        "shortfalls": shortfall_sentences(budget),
        "remedies": [_answer(answer) for answer in report.remedies],
        "assumptions": [
            {
                "number": name,
                "value": _number(model.numbers[name].value),
                "reason": reason,
                "sentence": assumption_sentence(name, reason, model.numbers[name]),
            }
            for name, reason in budget.spec.assumptions.items()
        ],
        "levers": [_change(change) for change in report.levers],
        "stuck_levers": list(report.stuck),
        "failing_checks": [check.name for check in report.failing_checks],
        "wishes": [_answer(answer) for answer in report.answers],
        "marginal": None if report.marginal is None else _change(report.marginal),
        "exit_code": report.exit_code,
    }


def _steps(report: BudgetReport) -> Iterable[Document]:
    for step in report.budget.steps:
        yield {
            "kind": step.kind.value,
            "name": step.name,
            "wanted_bytes": step.wanted_bytes,
            "taken_bytes": step.taken_bytes,
            "short_bytes": step.short_bytes,
            "left_bytes": step.left_bytes,
            "rule": rule_of(step, report.budget),
            "assumed": list(report.model.assumed(name for term in step.terms for name in term.formula.names)),
        }


def _share(share: Share, budget: Budget) -> Document:
    return {
        "name": share.name,
        "standing": share.standing.value,
        "got_bytes": share.got_bytes,
        "own_bytes": share.own_bytes,
        "floor_bytes": share.floor_bytes,
        "whole_bytes": share.whole_bytes,
        "held_bytes": share.held_bytes,
        "away_bytes": share.away_bytes,
        "cap_bytes": share.cap_bytes,
        "ceiling_bytes": share.ceiling_bytes,
        "charges": _parts(share.charges),
        "fixed": _parts(share.fixed),
        "lent_bytes": share.lent_bytes,
        "lent_to": None if share.spec.lends is None else share.spec.lends.to,
        "units": [{"name": name, "count": _number(count)} for name, count in share.units.items()],
        "sentences": share_sentences(share, budget),
    }


def _parts(parts: Sequence[Part]) -> list[Document]:
    return [{"name": part.name, "size_bytes": part.size_bytes} for part in parts]


def _answer(answer: Answer) -> Document:
    return {
        "wish": None if answer.wish is None else answer.wish.text,
        "lever": answer.lever,
        "now": _number(answer.now.value),
        "holds_now": answer.holds_now,
        "least": None if answer.least is None else _number(answer.least.value),
        "objection": answer.objection or None,
        "sentence": answer_sentence(answer),
    }


def _change(change: BudgetChange) -> Document:
    return {
        "number": change.number,
        "before": _number(change.before.value),
        "after": _number(change.after.value),
        "fits": change.budget_after.fits,
        "tenants": [
            {
                "tenant": host.tenant,
                "copies": host.copies,
                "pinned": host.is_pinned,
                "before": host.before_bytes,
                "after": host.after_bytes,
                "difference": host.difference_bytes,
            }
            for host in change.host
        ],
        "results": [
            {
                "name": result.name,
                "is_size": result.before.is_size,
                "before": _exact(result.before),
                "after": _exact(result.after),
                "difference": _exact(result.difference),
            }
            for result in change.results
        ],
        "sentence": lever_sentence(change),
    }


def _exact(quantity: Quantity) -> int | float:
    return _number(quantity.value)


def _number(value: Fraction) -> int | float:
    return int(value) if value.denominator == 1 else float(value)
