"""Whatever stands in a file, a config comes out, or lines that each say one thing that is wrong; and soon."""

from __future__ import annotations

import contextlib
import json
import string
import time
from collections.abc import Callable, Mapping
from fractions import Fraction

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from pinprobe.ledger.config.check_receipt import check_receipt
from pinprobe.ledger.config.checks import run_checks
from pinprobe.ledger.config.config import Config
from pinprobe.ledger.config.registry import load_config
from pinprobe.ledger.config.shipped import find_config, shipped_names
from pinprobe.ledger.tenants.kinds import load_kind
from pinprobe.probes.errors import BadConfig, BadRequest
from pinprobe.probes.units import LARGEST_SIZE_BYTES

FUZZ = settings(derandomize=True, deadline=None, max_examples=120, suppress_health_check=list(HealthCheck))
LONG_FUZZ = settings(derandomize=False, deadline=None, max_examples=10_000, suppress_health_check=list(HealthCheck))

Try = Callable[..., bool]


@pytest.fixture(scope="module")
def try_config(tmp_path_factory: pytest.TempPathFactory) -> Try:
    """Read a config of these bytes, look at whatever comes out, and return whether it was a config."""
    path = tmp_path_factory.mktemp("fuzz") / "c.yaml"

    def try_config(content: bytes, overrides: Mapping[str, str] | None = None) -> bool:
        path.write_bytes(content)
        began = time.monotonic()
        problems: tuple[str, ...] = ()
        try:
            look_at(load_config(path, overrides))
        except BadConfig as refused:
            problems = (*refused.problems, *str(refused).split("\n"))
        except BadRequest as refused:
            problems = (str(refused),)
        assert all(problem.isprintable() and len(problem) < 800 for problem in problems), problems
        assert all(problem.startswith((f"{path}:", "--set ")) for problem in problems), problems
        assert not any(word in problem for problem in problems for word in ("Input should", "pydantic", "Traceback"))
        assert time.monotonic() - began < 10
        return not problems

    return try_config


def look_at(config: Config) -> None:
    """Whatever a config holds can be used: its tenants priced, its checks worked out and written."""
    assert config.ranks >= 1
    for tenant in config.tenants:
        kind = load_kind(tenant.kind)
        # A pool may ask for nothing at boot: its regions are mapped later, or its bound is below one of them.
        assert (tenant.kind != "retention_pool") <= kind.asked_bytes(tenant) <= LARGEST_SIZE_BYTES
        with contextlib.suppress(BadRequest):  # such a bound, or a ring of fewer slots than a turn hands out
            assert kind.asked_bytes(kind.scaled(tenant, Fraction(1, 16))) <= kind.asked_bytes(tenant)
    results = run_checks(config)
    assert len(results) == len(config.checks)
    assert all(result.sentence.isprintable() for result in results)
    json.dumps(check_receipt(config, results, ()), allow_nan=False)
    json.dumps(config.document)


# -- any bytes

_TEXTS = st.one_of(
    st.binary(max_size=200),
    st.text(max_size=200).map(lambda text: text.encode("utf-8", "surrogatepass")),
    st.text(alphabet="{}[]:,&*!|>%@`'\"#?- \n\tab1~<=", max_size=200).map(str.encode),
)


# -- real configs, damaged

_REAL = [find_config(name).read_bytes() for name in shipped_names()]


def _damaged(content: bytes, cuts: list[tuple[int, int, bytes]]) -> bytes:
    for at, length, put in cuts:
        at %= len(content) + 1
        content = content[:at] + put + content[at + length :]
    return content


_DAMAGED = st.builds(
    _damaged,
    st.sampled_from(_REAL),
    st.lists(
        st.tuples(
            st.integers(0, 10_000),
            st.integers(0, 40),
            st.one_of(st.binary(max_size=8), st.text(alphabet=string.printable, max_size=8).map(str.encode)),
        ),
        min_size=1,
        max_size=6,
    ),
)

# -- documents that are nearly right

_WORDS = [
    "engine", "numbers", "tenants", "checks", "removed", "name", "ranks", "allocator", "kind", "buffer", "external",
    "per", "rank", "host", "count", "bytes", "callable", "detail", "since", "instead", "a", "b", "slots", "pool_bytes",
    "a.b:c", "cache.ring", "auto", "pageable", "<<", "MiB", "yes", "1x", "savepoint_ring", "retention_pool", "layout",
    "layers", "attributes", "align", "shape", "dtype", "int8", "regions", "max_num_seqs",
]  # fmt: skip
_VALUES = [
    "1", "64", "0", "-1", "010", "1_000", "148 MiB", "64g", "1e9", "12:30", "yes", "~", "''", "[1]", "{}", "!!int 1",
    "&x 1", "*x", "1 / b", "a + b * 2 MiB", "b", "slots >= a", "a > 1 and b > 2", "1 / 0 > 1", "((1)", "|\n  1\n",
    "\"2 *\\n 3\"", "99999 TiB * 99999 TiB", "44.47 GiB", "0.3333",
]  # fmt: skip

_nodes: st.SearchStrategy[str] = st.recursive(
    st.sampled_from(_WORDS + _VALUES),
    lambda values: st.one_of(
        st.lists(st.tuples(st.sampled_from(_WORDS), values), max_size=5).map(
            lambda entries: "{" + ", ".join(f"{key}: {value}" for key, value in entries) + "}"
        ),
        st.lists(values, max_size=4).map(lambda values: f"[{', '.join(values)}]"),
    ),
    max_leaves=12,
)


def _flow(entries: Mapping[str, str]) -> str:
    return "{" + ", ".join(f"{key}: {value}" for key, value in entries.items()) + "}"


def _mostly(*right: str) -> st.SearchStrategy[str]:
    # Seldom anything: what is wrong in every place is refused in the first.
    return st.integers(0, 19).flatmap(lambda number: st.sampled_from(right) if number else _nodes)


# Each stands on those before it, unless something else is put in its place.
_NUMBERS = st.fixed_dictionaries(
    {
        "a": _mostly("1", "64", "2.5", "154_927_104", "148 MiB", "44.47 GiB"),
        "b": _mostly("a", "a + 1", "2 * (a + 3)", "-a", "1 / a", "a // 7 % 3"),
        "slots": _mostly("8", "64", "16 * 4"),
        "pool_bytes": _mostly("slots * 148 MiB", "slots * (b + 4096)", "1 GiB / 3"),
    }
)
# What stands in every slab is seldom wrong: else no layout of several would be right.
_SHAPES = st.one_of(st.sampled_from(["[1]", "[slots, 128]", "[10_240, 4]", "[2 * slots, 8, 8]"]), _mostly("[3]"))
_TYPES = st.sampled_from(["float32", "bfloat16", "int8"])
_SLABS = st.builds(lambda shape, dtype: {"shape": shape, "dtype": dtype}, _SHAPES, _TYPES)
_LISTS = st.lists(st.tuples(st.sampled_from("abcde"), _SLABS), min_size=1, unique_by=lambda slab: slab[0]).map(
    lambda slabs: f"[{', '.join(_flow({'name': name, **slab}) for name, slab in slabs)}]"
)
_GEOMETRIES = st.builds(
    lambda head, attributes: _flow({**head, "attributes": _flow(attributes)}),
    st.fixed_dictionaries({"layers": _mostly("1", "slots", "48")}, optional={"align": _mostly("64", "4096", "slots")}),
    st.dictionaries(st.sampled_from(["conv", "state"]), _SLABS.map(_flow), min_size=1),
)
_LAYOUTS = st.one_of(_LISTS, _GEOMETRIES)
_BUFFERS = st.builds(
    lambda head, rest: {**head, **rest},
    st.sampled_from(
        [{"kind": "buffer", "bytes": "1 MiB"}, {"kind": "external", "callable": "a.b:c", "bytes": "pool_bytes"}]
    ),
    st.dictionaries(st.sampled_from(["count", "bytes"]), _mostly("slots", "2", "slots // 3"), max_size=2),
)
_RINGS = st.fixed_dictionaries(
    {"kind": st.just("savepoint_ring"), "max_num_seqs": _mostly("8", "slots // 2"), "layout": _LAYOUTS},
    optional={"slots": _mostly("auto", "slots", "64"), "hand_outs": _mostly("2", "slots")},
)
_POOLS = st.fixed_dictionaries(
    {"kind": st.just("retention_pool"), "regions": _mostly("8", "slots * 8"), "layout": _LAYOUTS},
    optional={
        "bytes": _mostly("1 GiB", "pool_bytes", "1"),
        "allocator": _mostly("pageable"),
        "mapped_at_boot": _mostly("false", "true"),
    },
)
_TENANTS = st.dictionaries(
    _mostly("t", "cache.ring", "weights"), st.one_of(_BUFFERS, _RINGS, _POOLS).map(_flow), max_size=3
)
_CHECKS = st.dictionaries(
    st.sampled_from(["a", "b", "c"]),
    _mostly("a > b", "slots >= 8 and pool_bytes > 1 MiB", "not a == b", "1 < a / b <= 3", "1 / (slots - 8) > 0"),
    max_size=3,
)
_NEARLY = st.builds(
    lambda engine, numbers, tenants, checks, more: "\n".join(
        [f"engine: {engine}", f"numbers: {numbers}", f"tenants: {tenants}", f"checks: {checks}", *more]
    ).encode(),
    _mostly("{name: e}", "{name: e, ranks: 2}", "{name: e, ranks: slots, allocator: pageable}"),
    _NUMBERS.map(_flow),
    _TENANTS.map(_flow),
    _CHECKS.map(_flow),
    st.lists(st.tuples(st.sampled_from(_WORDS), _nodes).map(": ".join), max_size=1),
)
_OVERRIDES = st.dictionaries(_mostly("a", "slots"), _mostly("1", "b", "3 * 4", "64"), max_size=1)


@given(content=_TEXTS)
@example(content=b"")
@example(content=b"\xff\xfe")
@example(content=b"%YAML 99999999999999999999.1\n--- {}")
@example(content=b"a: &a\n  b: *a\n")
@example(content=b"? ? ? a")
@FUZZ
def test_any_bytes_are_a_config_or_are_refused_line_by_line(try_config: Try, content: bytes) -> None:
    try_config(content)


@given(content=_DAMAGED)
@FUZZ
def test_a_damaged_config_is_read_or_refused_line_by_line(try_config: Try, content: bytes) -> None:
    try_config(content)


def test_a_config_that_is_nearly_right_is_read_or_refused_line_by_line(try_config: Try) -> None:
    were_read = []

    @given(content=_NEARLY, overrides=_OVERRIDES)
    @FUZZ
    def try_one(content: bytes, overrides: dict[str, str]) -> None:
        were_read.append(try_config(content, overrides))

    try_one()
    # A fuzz whose every document is refused would look at nothing behind the refusal.
    assert were_read.count(True) > len(were_read) // 20


@pytest.mark.slow
@given(content=st.one_of(_TEXTS, _DAMAGED, _NEARLY), overrides=_OVERRIDES)
@LONG_FUZZ
def test_ten_thousand_configs_are_read_or_refused_line_by_line(
    try_config: Try, content: bytes, overrides: dict[str, str]
) -> None:
    try_config(content, overrides)
