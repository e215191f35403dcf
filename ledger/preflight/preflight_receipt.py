"""One preflight as a JSON document of schema `pinprobe.preflight`, a record for each check."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

from pinprobe.ledger.preflight.check import Check, exit_code_of
from pinprobe.ledger.preflight.raise_failing import Raise
from pinprobe.ledger.receipts.receipt import Document, as_json
from pinprobe.probes.errors import printable
from pinprobe.probes.host_facts import HostFacts
from pinprobe.probes.limits.limit import Absent, Value, Words

#: Raised by one when a key changes its meaning or goes; new keys do not raise it.
VERSION = 1


@dataclass(frozen=True)
class PreflightRun:
    """All that one preflight found. `engine` and `config` are empty without a config, `root` on this host itself.

    `is_raising` says whether it was asked to raise what is too low, and `raises` what became of that. `remarks` are
    sentences on how the tenants were priced.
    """

    engine: str
    config: str
    root: str
    settings: tuple[str, ...]
    checks: tuple[Check, ...]
    raises: tuple[Raise, ...] = ()
    is_raising: bool = False
    remarks: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """1 where a check fails, 3 where one that binds a tenant can't be read, else 0."""
        return exit_code_of(self.checks)


def preflight_receipt(run: PreflightRun, host: HostFacts, command: Sequence[str]) -> Document:
    """Put one preflight into a document."""
    return {
        "schema": "pinprobe.preflight",
        "version": VERSION,
        "measured_at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": list(command),
        "host": as_json(host),
        "exit_code": run.exit_code,
        "engine": run.engine or None,
        "config": run.config or None,
        "settings": list(run.settings),
        "root": run.root or None,
        "checks": [_check(check) for check in run.checks],
        "raises": [_raise(each) for each in run.raises],
        "remarks": list(run.remarks),
    }


def value_as_json(value: Value) -> Document:
    """Write a value so that its sort is plain: an amount, words, absent, or unreadable."""
    if isinstance(value, Words):
        return {"words": printable(value.text)}
    if isinstance(value, Absent):
        return {"absent": printable(value.reason)}
    written: Document = as_json(value)
    return written


def _check(check: Check) -> Document:
    return {
        "name": check.name,
        "state": check.state.value,
        "value": value_as_json(check.value),
        "need_bytes": check.need_bytes,
        "binds": check.binds,
        "tenants": list(check.tenants),
        "source": printable(check.source),
        "reason": printable(check.reason),
        "remedy": printable(check.remedy),
    }


def _raise(each: Raise) -> Document:
    raised = each.raised
    return {
        "name": each.name,
        "old_bytes": raised.old_bytes if raised else None,
        "new_bytes": raised.new_bytes if raised else None,
        "refusal": printable(each.refusal),
    }
