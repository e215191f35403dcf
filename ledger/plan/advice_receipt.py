"""Advice as one JSON document: schema `pinprobe.advise`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone

from pinprobe.ledger.plan.advice import Advice, Effect, Way
from pinprobe.ledger.receipts.receipt import Document, as_json
from pinprobe.probes.allowance import Allowance
from pinprobe.probes.host_facts import HostFacts

#: Raised by one when a key changes its meaning or goes; new keys do not raise it.
VERSION = 1


def advice_receipt(advice: Advice, allowance: Allowance, host: HostFacts, command: Sequence[str]) -> Document:
    """Put advice into a document."""
    recommended = advice.recommended
    return {
        "schema": "pinprobe.advise",
        "version": VERSION,
        "measured_at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": list(command),
        "host": as_json(host),
        "config": advice.config,
        "engine": advice.engine,
        "scale": advice.scale,
        "allowance": as_json(allowance),
        "as_it_is": _way(advice.as_it_is),
        "ways": [_way(way) for way in advice.ways],
        "recommended": None if recommended is None else recommended.name,
        "exit_code": advice.exit_code,
    }


def _way(way: Way) -> Document:
    return {
        "name": way.name,
        "kind": way.kind,
        "settings": dict(way.settings),
        "cost_bytes": way.cost_bytes,
        "saved_bytes": way.saved_bytes,
        "seconds": way.seconds,
        "known": way.known,
        "is_usable": way.is_usable,
        "warning": way.warning,
        "reason": way.reason,
        "caveat": way.caveat,
        "notes": list(way.notes),
        "effects": [_effect(effect) for effect in way.effects],
    }


def _effect(effect: Effect) -> Document:
    return {**as_json(effect), "saved_bytes": effect.saved_bytes}
