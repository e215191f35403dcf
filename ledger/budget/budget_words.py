"""What a budget, a lever and an answer say in a sentence, for people and in documents alike."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction

from pinprobe.ledger.budget.budget import Budget, Share, Standing, Step, StepKind
from pinprobe.ledger.budget.budget_change import BudgetChange
from pinprobe.ledger.budget.budget_spec import Term
from pinprobe.ledger.budget.budget_wish import Answer
from pinprobe.ledger.config.expression_text import Quantity
from pinprobe.ledger.config.quantity_text import write_alike, write_count, write_quantity
from pinprobe.probes.units import format_bytes

_AT_A_LIMIT = (Standing.AT_CAP, Standing.AT_CEILING)


def rule_of(step: Step, budget: Budget) -> str:
    """Say by which rule a step takes what it takes, in the config's own words."""
    texts = [term.text for term in step.terms]
    if step.kind in (StepKind.CLAIM, StepKind.FLOOR):
        return f"taken first: {texts[0]}" if step.kind is StepKind.CLAIM else f"never grows: {texts[0]}"
    share = budget.share(step.name)
    if step.kind is StepKind.CONSUMER_FLOOR:
        if share.spec.floor is None:
            return "it has no floor"
        words = f"{'have' if _are_many(share.name) else 'has'} to have {texts[0]}"
        if share.spec.elsewhere is not None:
            words += f", less what {share.spec.elsewhere.at} holds: {texts[1]}"
        is_capped = share.cap_bytes == step.wanted_bytes < share.whole_bytes - share.held_bytes
        return _fitting(share.name, f"{words}, and never above its cap" if is_capped else words)
    limits = [(share.spec.cap, "its cap"), (share.spec.ceiling, "its ceiling")]
    stops = [f"{what} {term.text}" for term, what in limits if term is not None]
    grows = "grow" if _are_many(share.name) else "grows"
    words = f"{grows} to {' and '.join(stops)}" if stops else f"{grows} as long as anything is left"
    return _fitting(share.name, words)


def share_sentences(share: Share, budget: Budget) -> list[str]:
    """Say where a consumer came to stand, what is charged to it, and what it lends."""
    parts = [f"{share.name} {'stand' if _are_many(share.name) else 'stands'} {_standing(share)}."]
    if share.charges:
        charged = " and ".join(f"{format_bytes(part.size_bytes)} for {part.name}" for part in share.charges)
        parts.append(f"While it lends, {charged} is charged to it and {format_bytes(share.own_bytes)} stay; what is "
                     "charged comes back when it does not lend.")  # fmt: skip
    if share.spec.lends is not None:
        parts.append(f"Of it up to {format_bytes(share.lent_bytes)} is lent to {share.spec.lends.to}: lent, not free.")
    if share.spec.elsewhere is not None:
        room = f"there is room for {format_bytes(share.held_bytes)} ({share.spec.elsewhere.held.text})"
        parts.append(
            f"Of {share.name} {format_bytes(share.away_bytes)} has to be in {share.spec.elsewhere.at}; {room}."
        )
    return parts


def shortfall_sentences(budget: Budget) -> list[str]:
    """Say of everything that does not fit what it needs, what there is, and what would mend it."""
    said = [_short(step, budget) for step in budget.short_steps]
    for share in budget.overcharged:
        said.append(f"{share.name}: more is charged to it while it lends than it has beside its fixed parts; it got "
                    f"{format_bytes(share.got_bytes)}")  # fmt: skip
    return said


def lever_sentence(change: BudgetChange) -> str:
    """Say what a lever moves, by how much, and if nothing moves, why not.

    As: `+1 GiB of host_pool: floor of experts -1 GiB; kv already at its cap, so experts keep it`.
    """
    before = change.budget_before
    floors = [share for share in before.shares if change.of(f"{share.name}.floor")]
    said = [f"floor of {share.name} {_signed(change.of(f'{share.name}.floor'))}" for share in floors]
    moved = [share for share in before.shares if change.of(share.name)]
    said += [f"{share.name} {_signed(change.of(share.name))}{_counted(share, change)}" for share in moved]
    if change.of("unclaimed"):
        said.append(f"unclaimed {_signed(change.of('unclaimed'))}")
    if not moved and not change.of("unclaimed"):
        said.append(_why_nothing_moves(change, floors))
    if before.fits != change.budget_after.fits:
        said.append("then it fits" if change.budget_after.fits else "then it no longer fits")
    if change.pinned_bytes:
        owners = ", ".join(f"{host.tenant}{f' x {host.copies}' if host.copies > 1 else ''}"
                           for host in change.host if host.is_pinned)  # fmt: skip
        said.append(f"the host pins {_signed(Fraction(change.pinned_bytes))} ({owners})")
    step = Quantity(change.after.value - change.before.value, change.after.is_size)
    return f"{_signed_quantity(step)} of {change.number}: {'; '.join(said)}"


def answer_sentence(answer: Answer) -> str:
    """Say what a lever can do for a wish, or why it can't, and what else speaks against that."""
    return _answer(answer) + (f"; but {answer.objection}" if answer.objection else "")


def assumption_sentence(name: str, reason: str, value: Quantity) -> str:
    """Say which number is an assumption, what it was taken for, and why."""
    return f"{name} = {write_quantity(value)} is an assumption: {reason}"


# -- parts of sentences


def _answer(answer: Answer) -> str:
    what = "the budget fits" if answer.wish is None else answer.wish.text
    if answer.least is not None:
        least, now = write_alike(answer.least, answer.now)
        told = f"{what}: {answer.lever} = {least} is the least that does it"
        if answer.holds_now:
            return f"{told}; {now} does it already"
        return f"{told}, where it is {now} now" + (f"; {_gap(answer)} then" if answer.gap is not None else "")
    if answer.with_closest is None:
        return (
            f"{what}: no value of {answer.lever} does it; the budget comes to nothing sound with any other than it has"
        )
    at = write_quantity(answer.closest)
    if not answer.with_closest.fits:
        reason = shortfall_sentences(answer.with_closest)[0]
        return (
            f"{what}: no value of {answer.lever} does it; with none does the budget fit, and nearest is {at}: {reason}"
        )
    reasons = _limits(answer, answer.with_closest)
    return f"{what}: no value of {answer.lever} does it; nearest is {at}, where {_gap(answer)}{reasons}"


def _standing(share: Share) -> str:
    limit = {Standing.AT_CAP: share.spec.cap, Standing.AT_CEILING: share.spec.ceiling}.get(share.standing)
    words = share.standing.value
    if limit is not None:
        words += f" ({limit.text})" if not limit.formula.is_literal else ""
    elif share.standing is Standing.BETWEEN:
        bound = share.cap_bytes if share.cap_bytes is not None else share.ceiling_bytes
        name = "cap" if share.cap_bytes is not None else "ceiling"
        words += f", {format_bytes(bound - share.got_bytes)} below its {name}" if bound is not None else ""
    return _fitting(share.name, words)


def _short(step: Step, budget: Budget) -> str:
    wanted, taken, short = (format_bytes(size) for size in (step.wanted_bytes, step.taken_bytes, step.short_bytes))
    if step.kind is not StepKind.CONSUMER_FLOOR:
        return f"{step.name}: {wanted} of {budget.spec.of} has to be had and {taken} is left; {short} is missing"
    share = budget.share(step.name)
    elsewhere = share.spec.elsewhere
    if elsewhere is None or step.taken_bytes == 0:
        return f"{step.name}: its floor is {wanted}, and {taken} is left for it; {short} is missing"
    return (
        f"{step.name}: {format_bytes(share.whole_bytes)} in all, of which {elsewhere.at} holds"
        f" {format_bytes(share.held_bytes)} ({elsewhere.held.text}); {wanted} has to fit {budget.spec.of}, where"
        f" {taken} is left for it. {short} fits neither: what does not fit {budget.spec.of} must fit {elsewhere.at}"
    )


def _why_nothing_moves(change: BudgetChange, floors: Sequence[Share]) -> str:
    budget = change.budget_before
    if not floors:
        after = {share.name: share.held_bytes for share in change.budget_after.shares}
        holding = [share for share in budget.shares if share.held_bytes != after[share.name]]
        at_nothing = [share.name for share in holding if share.floor_bytes == 0]
        return f"nothing moves{f', since the floor of {_and(at_nothing)} is 0 already' if at_nothing else ''}"
    freed = {share.name for share in floors}
    full = [share for share in budget.shares if share.standing in _AT_A_LIMIT and share.name not in freed]
    keeps = "keep" if len(freed) > 1 or _are_many(*freed) else "keeps"
    if not full:
        return f"{_and(freed)} {keeps} it"
    already = " and ".join(f"{share.name} already {share.standing.value}" for share in full)
    return f"{already}, so {_and(freed)} {keeps} it"


def _limits(answer: Answer, budget: Budget) -> str:
    assert answer.wish is not None
    named = {name.partition(".")[0] for name in answer.wish.names}
    found = []
    for share in budget.shares:
        limit = share.spec.cap if share.standing is Standing.AT_CAP else share.spec.ceiling
        if share.name in named and share.standing in _AT_A_LIMIT and limit is not None:
            found.append(f"{share.name} is {share.standing.value}, {_limit_text(limit, share.got_bytes)}")
    return f", since {' and '.join(found)}" if found else ""


def _limit_text(limit: Term, size_bytes: int) -> str:
    written = write_quantity(Quantity(Fraction(size_bytes), is_size=True))
    return written if limit.formula.is_literal else f"{limit.text} = {written}"


def _gap(answer: Answer) -> str:
    assert answer.gap is not None
    left, right = answer.gap.left, answer.gap.right
    name = answer.gap.left_text.replace("__", ".")
    if left.is_size:
        return f"{name} {'are' if _are_many(name) else 'is'} {write_alike(left, right)[0]}"
    return f"{name} {'are' if _are_many(name) else 'is'} {write_count(left.value)}"


def _counted(share: Share, change: BudgetChange) -> str:
    """Write by how much the first of a consumer's units moves, if it has any and that is one or more."""
    for unit in list(share.units)[:1]:
        moved = change.of(f"{share.name}.{unit}")
        if abs(moved) >= 1:
            return f" ({int(moved):+,} {unit})"
    return ""


def _signed(size_bytes: Fraction) -> str:
    return _signed_quantity(Quantity(size_bytes, is_size=True))


def _signed_quantity(quantity: Quantity) -> str:
    return f"{'+' if quantity.value >= 0 else ''}{write_quantity(quantity)}"


def _fitting(name: str, words: str) -> str:
    return words.replace(" its ", " their ") if _are_many(name) else words


def _are_many(*names: str) -> bool:
    return any(name.endswith("s") for name in names)


def _and(names: Iterable[str]) -> str:
    return " and ".join(names)
