"""Alternatives to a config as it stands: other values of its numbers, and another allocator for the engine."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from pinprobe.ledger.config.config import Config
from pinprobe.ledger.config.registry import load_config
from pinprobe.ledger.tenants.kinds import load_kind
from pinprobe.ledger.tenants.tenant import TenantSpec
from pinprobe.probes.allocators.registry import check_name
from pinprobe.probes.errors import BadConfig, BadRequest, printable

#: What stands for the engine's allocator, beside the names of the config's numbers.
ALLOCATOR = "allocator"

# A comma ends an assignment only where another follows: 154,927,104 has commas of its own.
_BETWEEN = re.compile(r",(?=\s*[A-Za-z_][A-Za-z0-9_]*\s*=)")


@dataclass(frozen=True)
class Alternative:
    """Numbers by name, each with an expression, and the allocator to take in the place of the engine's, if any."""

    text: str
    overrides: Mapping[str, str]
    allocator: str | None = None


#: The config as it stands.
AS_IT_IS = Alternative("as it is", {})


def parse_alternative(text: str) -> Alternative:
    """Read assignments with commas between them. Raises `BadRequest` where one sets nothing, or twice.

    >>> parse_alternative("slots=32,allocator=registered")
    Alternative(text='slots=32, allocator=registered', overrides={'slots': '32'}, allocator='registered')
    """
    shown = printable(text)[:100]
    overrides: dict[str, str] = {}
    for assignment in _BETWEEN.split(text):
        name, equals, expression = (part.strip() for part in assignment.partition("="))
        if not (name and equals and expression):
            raise BadRequest(f"--what-if {shown!r} sets nothing; write --what-if slots=32,allocator=registered")
        if name in overrides:
            raise BadRequest(f"--what-if {shown!r} sets {printable(name)[:100]} twice; once is enough")
        overrides[name] = expression
    words = ", ".join(f"{name}={expression}" for name, expression in overrides.items())
    allocator = overrides.pop(ALLOCATOR, None)
    if allocator is not None:
        check_name(allocator)
    return Alternative(printable(words), overrides, allocator)


def open_alternative(path: Path, overrides: Mapping[str, str], alternative: Alternative) -> Config:
    """Read a config with `overrides` set and, on top of them, what the alternative sets.

    Raises `BadConfig`, as `load_config` does, with what is wrong told of the option that brought it.
    """
    try:
        config = load_config(path, {**overrides, **alternative.overrides})
    except BadConfig as error:
        own = {name for name in alternative.overrides if name not in overrides}
        raise BadConfig([_of_what_if(problem, own) for problem in error.problems]) from None
    return config if alternative.allocator is None else _from_allocator(config, alternative.allocator)


def _of_what_if(problem: str, names: set[str]) -> str:
    told = problem.removeprefix("--set ")
    return f"--what-if {told}" if told != problem and told.partition(":")[0] in names else problem


def _from_allocator(config: Config, allocator: str) -> Config:
    tenants = tuple(
        replace(tenant, allocator=allocator) if _follows_the_engine(config, tenant) else tenant
        for tenant in config.tenants
    )
    return replace(config, allocator=allocator, tenants=tenants)


def _follows_the_engine(config: Config, tenant: TenantSpec) -> bool:
    """Whether a tenant takes its memory from the engine's allocator: it names none, and its kind knows no other."""
    written = config.document["tenants"][tenant.name]
    return ALLOCATOR not in written and load_kind(tenant.kind).only_allocator is None


def with_printed_moved(changed: Config, config: Config) -> Config:
    """Return a changed config whose engine would print as much more than is asked as `config` says that it does.

    What an engine printed, it printed of the config as it stands. A tenant that asks for another size now would print
    another figure, unless the change gave one.
    """
    before = {tenant.name: tenant for tenant in config.tenants}
    return replace(changed, tenants=tuple(_moved(tenant, before[tenant.name]) for tenant in changed.tenants))


def _moved(tenant: TenantSpec, before: TenantSpec) -> TenantSpec:
    printed = tenant.printed_bytes
    if printed is None or printed != before.printed_bytes:
        return tenant
    kind = load_kind(tenant.kind)
    return replace(tenant, printed_bytes=max(1, printed + kind.asked_bytes(tenant) - kind.asked_bytes(before)))
