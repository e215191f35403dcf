"""GTT: how much of the host's memory one AMD card can address. It is not charged to any memory cgroup."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pinprobe.probes.host_tree import HostTree
from pinprobe.probes.kernel_text import single_number
from pinprobe.probes.limits.limit import Absent, Limit, LimitKind, Value, text_or_absent
from pinprobe.probes.reading import Amount, Reading, Unreadable

_FOLDER = "/sys/class/drm"
_CARD = re.compile(r"card[0-9]{1,4}", re.ASCII)  # card0-DP-1 is a connector of it
_BINDS = "AMD's, for a card"


@dataclass(frozen=True, slots=True)
class CardGtt:
    """The GTT of one card, in bytes."""

    card: str
    total: Amount
    used: Amount


def read_gtt(tree: HostTree) -> tuple[CardGtt, ...]:
    """Return what each card that has one says of its GTT."""
    cards = []
    for card in filter(_CARD.fullmatch, tree.names(_FOLDER)):
        names = [f"{_FOLDER}/{card}/device/mem_info_gtt_{what}" for what in ("total", "used")]
        if isinstance(text_or_absent(tree, names[0], _FOLDER), Absent):
            continue  # another maker's
        total, used = (single_number(tree.text(name), name) for name in names)
        cards.append(CardGtt(card, total, used))
    return tuple(cards)


def gtt_limits(tree: HostTree) -> tuple[Limit, ...]:
    """Return what the GTT of each card leaves; its parts are the `total` and what is `used`."""
    found = tuple(_limit(gtt) for gtt in read_gtt(tree))
    if found:
        return found
    has_sys = tree.path("/sys/class").is_dir()
    value: Value = Absent("no card has one") if has_sys else Unreadable("/sys/class: there is no such folder here")
    return (Limit(LimitKind.GTT, "GTT", value, _FOLDER, _BINDS),)


def _limit(gtt: CardGtt) -> Limit:
    left = gtt.total - gtt.used
    parts = {name: part for name, part in (("total", gtt.total), ("used", gtt.used)) if isinstance(part, Reading)}
    source = f"{_FOLDER}/{gtt.card}/device/mem_info_gtt_total"
    value = Reading(max(0, left.bytes), source) if isinstance(left, Reading) else left
    return Limit(LimitKind.GTT, f"GTT {gtt.card}", value, source, _BINDS, parts)
