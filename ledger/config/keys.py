"""The keys of a config that every config may have, each with what it is for; a tenant has those of its kind beside."""

from __future__ import annotations

import re

from pinprobe.ledger.config.expression_text import why_no_name
from pinprobe.ledger.config.scalars import LONGEST_TEXT
from pinprobe.ledger.tenants.tenant import AUTO
from pinprobe.probes.errors import BadRequest

TOP = {
    "engine": "What the config is about.",
    "numbers": "The config's own names. Each is a number, an IEC size, or arithmetic over the others and `ranks`.",
    "tenants": "What holds host memory, by dotted names such as cache.savepoint_ring.",
    "checks": "What has to hold, by name: comparisons over the numbers, joined by and, or, not.",
    "budget": "How memory that several consumers share is divided, as `pinprobe budget` works it out.",
    "removed": "Keys of older versions; a config that still gives one is refused with what replaces it.",
}
ENGINE = {
    "name": "What the engine is called in tables and receipts.",
    "ranks": "How many processes hold what is held `per: rank`.",
    "allocator": "What its memory is taken from, as `pinprobe allocators` lists it; tenants may name another.",
}
TENANT = {
    "kind": "What sort of tenant it is, which decides on its other keys.",
    "per": "Whether each rank holds one, or the host holds one for all.",
    "allocator": "What its memory is taken from, where it is not the engine's allocator.",
    "detail": "A remark that is shown beside it.",
    "transient": "What it takes for a while beside what stays, as where a copy is made before the old one goes.",
    "printed": "What the engine itself prints of it, per rank where it is held so; a plan compares its own figure.",
}
SLAB = {
    "name": "What the slab is called; each has a name of its own.",
    "shape": "The sizes of one sequence's tensor in one layer, each a count.",
    "dtype": "What the items of the tensor are, by torch's name of the type.",
}
LAYOUT = {
    "layers": "How many layers have the attributes.",
    "attributes": "The tensors of one layer, by name: each is one slab of the row.",
    "align": "Every slab begins at a multiple of so many bytes, a power of two; 256 where it is not given.",
}
REMOVED = {
    "since": "The version that no longer knows it.",
    "instead": "What to use in its stead.",
}

TENANT_NAME = r"^[a-z0-9_]+(\.[a-z0-9_]+)*$"
NUMBER_NAME = r"^[A-Za-z][A-Za-z0-9_]{0,99}$"


def read_number_name(name: object) -> str:
    """Read the name of a number or a check. Raises `BadRequest` where an expression could not speak of it."""
    if name == "ranks":
        raise BadRequest("the ranks are given beside the engine's name, as engine: {ranks: ...}")
    if name == AUTO:
        raise BadRequest("where a count may be `auto` that word means something else; call it differently")
    reason = why_no_name(str(name))
    if reason is not None:
        raise BadRequest(reason)
    return str(name)


def read_tenant_name(name: object) -> str:
    """Read a dotted name. Raises `BadRequest` where it is none."""
    if not re.match(TENANT_NAME, str(name)) or "\n" in str(name) or len(str(name)) > LONGEST_TEXT:
        raise BadRequest("a tenant is named by lower-case words, digits and _ with dots between, as cache.ring")
    return str(name)
