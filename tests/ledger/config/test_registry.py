"""Configs are read from their texts alone, and every problem is told at once, with its place."""

from __future__ import annotations

import itertools
import os
import re
import sys
import time
from collections.abc import Callable, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from pinprobe.ledger.config.config import Config
from pinprobe.ledger.config.registry import DEEPEST, LARGEST_FILE_BYTES, MOST_NODES, load_config
from pinprobe.ledger.config.schema import MOST_ENTRIES
from pinprobe.probes.errors import BadConfig, BadRequest

MIB = 2**20
ENGINE = "engine: {name: e}\n"

Read = Callable[..., Config]
ProblemsOf = Callable[..., list[str]]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Read a config of this text."""

    def read(text: str | bytes, overrides: Mapping[str, str] | None = None) -> Config:
        path = tmp_path / "c.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return load_config(path, overrides)

    return read


@pytest.fixture
def problems_of(read: Read, tmp_path: Path) -> ProblemsOf:
    """Read a config that can't be used, and return its problems without the folder's name."""

    def problems_of(text: str | bytes, overrides: Mapping[str, str] | None = None) -> list[str]:
        with pytest.raises(BadConfig) as refused:
            read(text, overrides)
        problems = [line.removeprefix(f"{tmp_path}/") for line in refused.value.problems]
        assert str(refused.value).splitlines() == list(refused.value.problems)
        return problems

    return problems_of


# -- what is read

WHOLE = """\
engine: {name: whole, ranks: 2, allocator: torch-host}
numbers:
  floor: ranks * pool + rest
  pool: 3 * 148 MiB
  rest: 1.5 MiB
  slots: 64
  slot_bytes: 154_927_104
tenants:
  cache.ring:
    kind: buffer
    count: slots // 2
    bytes: slot_bytes
  weights:
    kind: external
    per: host
    allocator: pageable
    callable: engine.memory:take
    bytes: rest / 7
    detail: >
      over two
      lines
checks:
  enough: pool >= rest
removed:
  old_knob: {since: 2.0, instead: pool}
"""


def test_a_whole_config_is_read(read: Read, tmp_path: Path) -> None:
    config = read(WHOLE)
    assert (config.engine, config.ranks, config.allocator) == ("whole", 2, "torch-host")
    assert config.path == str(tmp_path / "c.yaml")
    assert config.numbers == {
        "floor": 2 * 444 * MIB + 3 * MIB // 2,
        "pool": 444 * MIB,
        "rest": 3 * MIB // 2,
        "slots": 64,
        "slot_bytes": 154_927_104,
    }
    assert config.sizes == {"floor", "pool", "rest", "slot_bytes"}
    assert config.formulas == {"floor": "ranks * pool + rest", "pool": "3 * 148 MiB"}
    ring, weights = config.tenants
    assert (ring.name, ring.kind, ring.per, ring.allocator, ring.detail) == (
        "cache.ring", "buffer", "rank", "torch-host", "",
    )  # fmt: skip
    assert ring.fields == {"count": 32, "bytes": 154_927_104}
    assert ring.formulas == {"count": "slots // 2", "bytes": "slot_bytes"}
    assert ring.place == f"{config.path}:9:3"
    assert (weights.per, weights.allocator, weights.detail) == ("host", "pageable", "over two lines")
    # 1.5 MiB / 7 is 224,694.86 B: a part of a byte counts whole.
    assert weights.fields == {"callable": "engine.memory:take", "count": 1, "bytes": 224_695}
    assert [config.copies(tenant) for tenant in config.tenants] == [2, 1]
    (check,) = config.checks
    assert (check.name, check.expression, check.place) == ("enough", "pool >= rest", f"{config.path}:23:11")


LAYOUTS = """\
engine: {name: split}
numbers: {layers: 48, heads: 6 * 8, half: 64, bound: 1 GiB}
tenants:
  cache.savepoint_ring:
    kind: savepoint_ring
    max_num_seqs: 8
    layout: &savepoint
      layers: layers
      attributes:
        conv_states: {shape: [10_240, 4], dtype: bfloat16}
        recurrent_states: {shape: [heads, 2 * half, 128], dtype: float32}
  cache.retention_pool:
    kind: retention_pool
    regions: 64
    layout: *savepoint
  cache.other_pool:
    kind: retention_pool
    regions: 8
    bytes: bound
    layout:
    - {name: layers.0.conv, shape: [10240, 4], dtype: bfloat16}
    - name: layers.0.recurrent
      shape:
      - 3
      dtype: 'float32'
"""


def test_a_geometry_and_a_list_of_slabs_are_layouts(read: Read) -> None:
    ring, pool, other = read(LAYOUTS).tenants
    layout = ring.layout("layout")
    assert (len(layout.slabs), layout.row_bytes, layout.align_bytes) == (96, 154_927_104, 256)
    assert [(slab.name, slab.shape, slab.dtype) for slab in layout.slabs[:3]] == [
        ("layers.0.conv_states", (10_240, 4), "bfloat16"),
        ("layers.0.recurrent_states", (48, 128, 128), "float32"),
        ("layers.1.conv_states", (10_240, 4), "bfloat16"),
    ]
    assert pool.layout("layout") == layout
    assert ring.fields == {"layout": layout, "slots": "auto", "max_num_seqs": 8, "hand_outs": 2}
    listed = other.layout("layout")
    assert [(slab.name, slab.shape, slab.dtype) for slab in listed.slabs] == [
        ("layers.0.conv", (10_240, 4), "bfloat16"),
        ("layers.0.recurrent", (3,), "float32"),
    ]
    assert (listed.row_bytes, listed.payload_bytes) == (81_920 + 256, 81_920 + 12)


def test_the_slabs_of_a_geometry_begin_where_it_says(read: Read) -> None:
    config = read(LAYOUTS.replace("layers: layers", "layers: layers\n      align: 64 * 64"))
    layout = config.tenants[0].layout("layout")
    assert layout.align_bytes == 4096
    assert {offset % 4096 for offset in layout.offsets} == {0}


def test_a_key_that_may_be_missing_is_no_field_where_it_is(read: Read) -> None:
    _, pool, other = read(LAYOUTS).tenants
    assert "bytes" not in pool.fields
    assert other.size("bytes") == 2**30


def test_a_kind_that_knows_one_allocator_does_not_inherit_the_engines(read: Read) -> None:
    text = LAYOUTS.replace("name: split", "name: split, allocator: mlock")
    assert [tenant.allocator for tenant in read(text).tenants] == ["mlock", "pageable", "pageable"]
    text = text.replace("regions: 64", "regions: 64\n    allocator: pageable")
    assert read(text).tenants[1].allocator == "pageable"


@pytest.mark.parametrize("word", ["auto", "'auto'"])
def test_a_count_may_be_left_to_its_kind(read: Read, word: str) -> None:
    text = LAYOUTS.replace("max_num_seqs: 8", f"max_num_seqs: 8\n    slots: {word}")
    assert read(text).tenants[0].fields["slots"] == "auto"
    text = LAYOUTS.replace("max_num_seqs: 8", "max_num_seqs: 8\n    slots: layers / 2")
    assert (read(text).tenants[0].fields["slots"], read(text).tenants[0].formulas) == (24, {"slots": "layers / 2"})


def test_a_number_that_is_set_anew_reaches_a_layout(read: Read) -> None:
    ring, pool, _ = read(LAYOUTS, {"layers": "24"}).tenants
    assert ring.layout("layout").row_bytes == pool.layout("layout").row_bytes == 154_927_104 // 2


def test_lists_are_in_the_document_as_they_were_written(read: Read) -> None:
    tenants = read(LAYOUTS).document["tenants"]
    assert tenants["cache.retention_pool"]["layout"]["attributes"]["recurrent_states"] == {
        "shape": ["heads", "2 * half", 128],
        "dtype": "float32",
    }
    assert tenants["cache.other_pool"]["layout"][1] == {"name": "layers.0.recurrent", "shape": [3], "dtype": "float32"}


def test_the_document_is_the_file_as_plain_values(read: Read) -> None:
    document = read(WHOLE, {"slots": "32", "ranks": "4"}).document
    assert document["engine"] == {"name": "whole", "ranks": 4, "allocator": "torch-host"}
    assert document["numbers"]["slots"] == 32  # what was set for this run
    assert document["numbers"]["pool"] == "3 * 148 MiB"
    assert document["removed"] == {"old_knob": {"since": "2.0", "instead": "pool"}}


def test_what_is_not_given_is_the_default(read: Read) -> None:
    config = read(ENGINE + "tenants: {t: {kind: buffer, bytes: 4096}}\n")
    assert (config.ranks, config.allocator) == (1, "auto")
    (tenant,) = config.tenants
    assert (tenant.per, tenant.allocator, tenant.detail, tenant.fields) == (
        "rank", "auto", "", {"count": 1, "bytes": 4096},
    )  # fmt: skip


def test_a_section_whose_lines_are_all_commented_out_is_none(read: Read) -> None:
    assert read(ENGINE + "checks:\n#  a: 1 > 2\nnumbers: ~\n").checks == ()


def test_an_anchor_saves_writing_a_value_twice(read: Read) -> None:
    config = read(ENGINE + "tenants:\n  a: &ring {kind: buffer, bytes: &size 4 KiB}\n  b: *ring\nnumbers: {n: *size}\n")
    assert [tenant.fields["bytes"] for tenant in config.tenants] == [4096, 4096]
    assert config.numbers["n"] == 4096


def test_a_byte_order_mark_is_no_part_of_the_first_key(read: Read) -> None:
    assert read(b"\xef\xbb\xbf" + ENGINE.encode()).engine == "e"


@pytest.mark.parametrize("text", ["2.10", "'2.10'", "010", "'no'", "1_0"])
def test_a_text_is_what_is_written(read: Read, text: str) -> None:
    assert read(f"engine: {{name: {text}}}").engine == text.strip("'")


@pytest.mark.parametrize(
    "line", ["pool: 148 MiB", 'pool: "148 MiB"', "pool: 148MiB", "pool: 155_189_248", "pool: >\n   148\n   MiB"]
)
def test_a_number_is_the_same_with_and_without_quotes(read: Read, line: str) -> None:
    assert read(f"{ENGINE}numbers:\n  {line}\n").numbers["pool"] == 148 * MIB


# -- what was set


def test_a_number_that_is_set_anew_reaches_all_that_stand_on_it(read: Read) -> None:
    config = read(WHOLE, {"pool": "rest * 2", "ranks": "3"})
    assert config.numbers["floor"] == 3 * 3 * MIB + 3 * MIB // 2
    assert config.formulas["pool"] == "rest * 2"
    assert config.ranks == 3


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        ({"slotz": "1"}, "--set slotz: the config has no number `slotz`; did you mean slots?"),
        ({"slots": "64g"}, "--set slots: '64g' is ambiguous (powers of 1000 or of 1024?): write 64GiB, or plain bytes"),
        ({"slots": "slotz"}, "--set slots: `numbers.slots`: no number is called `slotz`; did you mean slots?"),
        ({"slots": ""}, "--set slots: nothing is written here; write a number, an IEC size or arithmetic"),
        ({"rest": "rest"}, "--set rest: these numbers stand on each other: rest needs rest; give one of them a value"),
        ({"old_knob": "1"}, "--set old_knob: `old_knob` was removed in 2.0; use pool in its stead"),
        ({"ranks": "0"}, "--set ranks: `engine.ranks`: '0'; a count is whole, and 1 or more"),
        ({"ranks": "5000"}, "--set ranks: `engine.ranks`: '5000'; 4,096 is the most"),
        ({"a\nslots": "1"}, "--set a?slots: the config has no number `a?slots`; did you mean slots?"),
    ],
)  # fmt: skip
def test_what_can_not_be_set_is_told(problems_of: ProblemsOf, overrides: dict[str, str], problem: str) -> None:
    assert problems_of(WHOLE, overrides) == [problem]


# -- what is refused, with the whole line


def refused_configs() -> list[tuple[str, str]]:
    """Read the configs of refused_configs.txt, each with its problem."""
    cases = []
    for part in (Path(__file__).parent / "refused_configs.txt").read_text(encoding="utf-8").split("\n\n"):
        text, arrow, problem = part.rpartition("\n=> ")
        if arrow:
            cases.append((text + "\n", problem.rstrip("\n")))
    assert len(cases) > 60
    return cases


@pytest.mark.parametrize(("text", "problem"), refused_configs(), ids=lambda text: text[-40:])
def test_what_is_wrong_is_told_in_one_line_at_its_place(problems_of: ProblemsOf, text: str, problem: str) -> None:
    assert problems_of(text) == [f"c.yaml:{problem}"]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "1:1: there is nothing here; a config begins with engine: {name: ...}"),
        (b"# nothing\n", "1:1: there is nothing here; a config begins with engine: {name: ...}"),
        (b"engine: {name: e}\n# caf\xe9", "2:6: byte 0xe9 is no UTF-8; save the file as UTF-8"),
        (ENGINE.encode("utf-16"), "1:1: byte 0xff is no UTF-8; save the file as UTF-8"),
        (b"engine: {name: e}\n# \0", "2:3: the character U+0000 can't stand in YAML; take it out"),
        (b"engine: {name: e}\n# \x1b[31m", "2:3: the character U+001B can't stand in YAML; take it out"),
        (b"#" * (LARGEST_FILE_BYTES + 1), "1:1: the file is larger than 1 MiB; a config is some pages at most"),
    ],
    ids=["empty", "comment", "latin-1", "utf-16", "NUL", "escape", "huge"],
)
def test_a_file_that_is_no_text_is_told_with_the_place(problems_of: ProblemsOf, content: bytes, problem: str) -> None:
    assert problems_of(content) == [f"c.yaml:{problem}"]


def test_every_problem_is_told_at_once_and_none_that_only_follows_from_another(problems_of: ProblemsOf) -> None:
    text = """\
engine: {nmae: e}
numbers:
  a: 010
  b: a * 2          # follows from a
  c: [1]
  d: c + slotz
  e: e
tenants:
  t: {kind: buffer, byts: 1, count: b}
  u: {kind: bufer, bytes: d}
  v: {kind: buffer, bytes: 1 / 0, count: 1.5, per: x}
checks:
  f: a > 1
  g: a
"""
    assert [line.split(":", 3)[1:3] for line in problems_of(text)] == [
        ["1", "1"],  # no name
        ["1", "10"],  # nmae
        ["3", "6"],
        ["5", "6"],
        ["6", "6"],
        ["7", "6"],
        ["9", "3"],  # no bytes
        ["9", "21"],
        ["10", "13"],
        ["11", "28"],
        ["11", "42"],
        ["11", "52"],
        ["14", "6"],
    ]


def test_everything_that_is_wrong_in_a_layout_is_told_at_its_place(problems_of: ProblemsOf) -> None:
    text = """\
engine: {name: e}
tenants:
  t:
    kind: retention_pool
    regions: 1.5
    layout:
    - {name: '', shape: [1, 1 / 0, slots], dtype: int4}
    - {nmae: b, shape: [1]}
    - 7
    - {name: !!str x, shape: [1], dtype: int8}
  u:
    kind: savepoint_ring
    max_num_seqs: [1]
    layout:
      layrs: 1
      attributes: {a: {shape: {}, dtype: [1]}, b: []}
"""
    assert [line.split(": ", 1) for line in problems_of(text)] == [
        ["c.yaml:5:14", "`tenants.t.regions`: '1.5'; a count is whole, and 1 or more"],
        ["c.yaml:7:14", "`tenants.t.layout[0].name`: '' is 0 characters long; write 1 to 200"],
        ["c.yaml:7:51", "`tenants.t.layout[0].dtype`: no type is called `int4`; did you mean int64?"],
        ["c.yaml:8:7", "`tenants.t.layout[1]` lacks `dtype`: What the items of the tensor are, by torch's name of the"
         " type."],
        ["c.yaml:8:7", "`tenants.t.layout[1]` lacks `name`: What the slab is called; each has a name of its own."],
        ["c.yaml:8:8", "`tenants.t.layout[1].nmae` is not known; did you mean name?"],
        ["c.yaml:9:7", "`tenants.t.layout[2]`: a slab has the keys name, shape, dtype, as {name: conv, ...}"],
        ["c.yaml:10:14", "the tag !!str is not taken; write the value alone"],
        ["c.yaml:13:19", "a list can't stand here; only the layout of a tenant has lists"],
        ["c.yaml:15:7", "`tenants.u.layout.layrs` is not known; did you mean layers?"],
        ["c.yaml:15:7", "`tenants.u.layout` lacks `layers`: How many layers have the attributes."],
        ["c.yaml:16:31", "`tenants.u.layout.attributes.a.shape`: a shape is a list of sizes, as [48, 128, 128]"],
        ["c.yaml:16:42", "`tenants.u.layout.attributes.a.dtype`: it is a list, where a text is wanted"],
        ["c.yaml:16:51", "`tenants.u.layout.attributes.b` has the keys shape and dtype; write them indented below it,"
         " or in {}"],
    ]  # fmt: skip


def test_the_sizes_of_a_layout_are_all_looked_at_once_it_is_read(problems_of: ProblemsOf) -> None:
    slabs = "[{name: a, shape: [1, 1 / 0, slots], dtype: int8}, {name: b, shape: [0], dtype: int8}]"
    problems = problems_of(ENGINE + f"tenants: {{t: {{kind: retention_pool, regions: 1, layout: {slabs}}}}}")
    assert [problem.partition(": ")[2] for problem in problems] == [
        "`tenants.t.layout[0].shape[1]`: '1 / 0' divides by zero",
        "`tenants.t.layout[0].shape[2]`: no number is called `slots`; known are ranks",
        "`tenants.t.layout[1].shape[0]`: '0'; a count is whole, and 1 or more",
    ]


# -- bounds


def test_layouts_that_two_lines_make_endless_are_refused_before_they_cost_anything(problems_of: ProblemsOf) -> None:
    attributes = ", ".join(f"a{number}: {{shape: [1], dtype: int8}}" for number in range(900))
    first = f"t0: {{kind: retention_pool, regions: 1, layout: &big {{layers: 65_536, attributes: {{{attributes}}}}}}}"
    others = (f"t{number}: {{kind: retention_pool, regions: 1, layout: *big}}" for number in range(1, 4))
    began = time.monotonic()
    problems = problems_of(ENGINE + f"tenants: {{{first}, {', '.join(others)}}}")
    assert time.monotonic() - began < 10
    assert len(problems) == 4
    assert all("it has 58,982,400 slabs; 65,536 are the most" in problem for problem in problems)


def test_the_layouts_of_a_config_are_bounded_together(read: Read, problems_of: ProblemsOf) -> None:
    geometry = "{layers: 20_000, attributes: {a: {shape: [1], dtype: int8}}}"
    tenants = [f"t{number}: {{kind: retention_pool, regions: 1, layout: {geometry}}}" for number in range(4)]
    assert len(read(ENGINE + f"tenants: {{{', '.join(tenants[:3])}}}").tenants) == 3
    (problem,) = problems_of(ENGINE + f"tenants: {{{', '.join(tenants)}}}")
    assert "`tenants.t3.layout`: it has 20,000 slabs; 65,536 are the most that the layouts of a config" in problem


def test_an_alias_bomb_of_lists_is_refused_too(problems_of: ProblemsOf) -> None:
    lines = ["a: &a [1, 2]"]
    for before, name in itertools.pairwise("abcdefghi"):
        lines.append(f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]")
    assert any(f"more than {MOST_NODES:,} values" in problem for problem in problems_of(ENGINE + "\n".join(lines)))


def test_a_list_that_holds_itself_is_refused(problems_of: ProblemsOf) -> None:
    tenant = "{kind: retention_pool, regions: 1, layout: &slabs [*slabs]}"
    (problem,) = problems_of(ENGINE + f"tenants: {{t: {tenant}}}")
    assert "*slabs stands inside of what it stands for; write it out" in problem


def test_an_alias_bomb_is_refused_before_it_costs_anything(problems_of: ProblemsOf) -> None:
    names = "abcdefghi"
    lines = ["a: &a {x: 1, y: 2}"]
    for before, name in itertools.pairwise(names):
        entries = ", ".join(f"k{number}: *{before}" for number in range(10))
        lines.append(f"{name}: &{name} {{{entries}}}")
    (problem,) = problems_of(ENGINE + "\n".join(lines))
    assert f"more than {MOST_NODES:,} values" in problem


@pytest.mark.parametrize("opening", ["{a: ", "[", "- ", "? "], ids=["flow", "list", "block", "key"])
@pytest.mark.parametrize("depth", [DEEPEST + 1, 900, 100_000])
def test_a_deep_document_is_refused_at_its_bound(problems_of: ProblemsOf, opening: str, depth: int) -> None:
    problems = problems_of(opening * depth)
    assert any(f"nested more than {DEEPEST} deep" in problem or "not YAML" in problem for problem in problems)


def test_a_section_that_nobody_could_read_is_refused(problems_of: ProblemsOf) -> None:
    numbers = "".join(f"  n{number}: n{number + 1}\n" for number in range(MOST_ENTRIES + 1))
    (problem,) = problems_of(f"{ENGINE}numbers:\n{numbers}")
    assert f"`numbers` has {MOST_ENTRIES + 1:,} entries" in problem


def test_a_long_chain_of_numbers_is_worked_out(read: Read) -> None:
    # Deeper than Python's stack: nothing here recurses along it.
    numbers = "".join(f"  n{number}: n{number + 1} + 1\n" for number in range(MOST_ENTRIES - 1))
    assert read(f"{ENGINE}numbers:\n{numbers}  n{MOST_ENTRIES - 1}: 0\n").numbers["n0"] == MOST_ENTRIES - 1


def test_many_cycles_are_each_told(problems_of: ProblemsOf) -> None:
    numbers = "".join(f"  a{number}: b{number}\n  b{number}: a{number}\n" for number in range(MOST_ENTRIES // 2))
    problems = problems_of(f"{ENGINE}numbers:\n{numbers}")
    assert len(problems) == MOST_ENTRIES // 2


def test_an_endless_key_does_not_make_an_endless_line(problems_of: ProblemsOf) -> None:
    (problem,) = problems_of(f"{ENGINE}? {'k' * 100_000}\n: 1\n")
    assert len(problem) < 400


# -- files


def test_a_missing_file_a_folder_and_an_unreadable_one_are_told(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match=re.escape("none.yaml: there is no such file")):
        load_config(tmp_path / "none.yaml")
    with pytest.raises(BadRequest, match="is a folder"):
        load_config(tmp_path)
    with pytest.raises(BadRequest, match="can't be read: Not a directory"):
        load_config(Path(__file__) / "x.yaml")
    with pytest.raises(BadRequest, match="can't be read"):
        load_config(tmp_path / "a\0b")
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(BadRequest, match="can't be read"):
        load_config(tmp_path / "loop")


def test_a_device_without_an_end_is_read_no_further_than_the_bound() -> None:
    with pytest.raises(BadConfig, match="larger than 1 MiB"):
        load_config(Path("/dev/zero"))


def test_a_pipe_is_read_as_a_file_is() -> None:
    reading, writing = os.pipe()
    os.write(writing, ENGINE.encode())
    os.close(writing)
    try:
        assert load_config(Path(f"/dev/fd/{reading}")).engine == "e"
    finally:
        os.close(reading)


def test_a_path_that_is_no_text_is_told_in_one_line(tmp_path: Path) -> None:
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/a\n\xff.yaml"))
    path.write_text("x: 1", encoding="utf-8")
    with pytest.raises(BadConfig) as refused:
        load_config(path)
    assert all(line.isprintable() for line in refused.value.problems)


def test_without_libyaml_it_reads_the_same(
    read: Read, problems_of: ProblemsOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    import yaml

    fast = read(WHOLE), problems_of(ENGINE + "numbers: {a: [1], a: !!int 5, b: *c}\n")
    monkeypatch.delattr(yaml, "CSafeLoader")
    assert (read(WHOLE), problems_of(ENGINE + "numbers: {a: [1], a: !!int 5, b: *c}\n")) == fast


def test_nothing_that_a_config_names_is_imported(read: Read, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "engine_of_a_test.py").write_text("raise SystemExit('imported')\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    config = read(ENGINE + "tenants: {t: {kind: external, callable: 'engine_of_a_test:take', bytes: 1 MiB}}")
    assert config.tenants[0].fields["callable"] == "engine_of_a_test:take"
    assert "engine_of_a_test" not in sys.modules


# -- kinds of others


@pytest.fixture
def add_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Install a kind of tenant, as another package would."""

    def add(name: str, source: str) -> None:
        (tmp_path / f"{name}_kind.py").write_text(source, encoding="utf-8")
        folder = tmp_path / f"{name}-1.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n", encoding="utf-8")
        (folder / "entry_points.txt").write_text(f"[pinprobe.tenants]\n{name} = {name}_kind:Kind\n", encoding="utf-8")
        monkeypatch.syspath_prepend(tmp_path)

    return add


_KIND = """
from pinprobe.ledger.tenants.tenant import Field, FieldType

class Kind:
    kind = "NAME"
    meaning = "A kind of a test."
    fields = (
        Field("copy", FieldType.SIZE, "Named as a method of pydantic's."),
        Field("is_cold", FieldType.FLAG, "A flag.", default=False),
        Field("where", FieldType.TEXT, "A text.", default="here"),
    )
    only_allocator = None

    def asked_bytes(self, spec):
        return spec.size("copy")

    def scaled(self, spec, scale):
        return spec

    def prepare(self, spec):
        raise NotImplementedError

    def open(self, spec, ledger, rank):
        raise NotImplementedError
"""


def test_a_kind_of_others_is_read_by_its_own_fields(read: Read, problems_of: ProblemsOf, add_kind: Any) -> None:
    add_kind("foreign_a", _KIND.replace("NAME", "foreign_a"))
    config = read(ENGINE + "tenants: {t: {kind: foreign_a, copy: 2 KiB, is_cold: true}}")
    assert config.tenants[0].fields == {"copy": 2048, "is_cold": True, "where": "here"}
    for word in ("yes", "True", "1", "'true'"):
        (problem,) = problems_of(ENGINE + f"tenants: {{t: {{kind: foreign_a, copy: 1, is_cold: {word}}}}}")
        assert problem.endswith("is no flag; write true or false, without quotes")
    (problem,) = problems_of(ENGINE + "tenants: {t: {kind: foreign_a, cpy: 1}, u: {kind: foreign_b}}")[1:2]
    assert "did you mean copy?" in problem


@pytest.mark.parametrize(
    ("source", "because"),
    [
        ("raise ImportError('no such\\nlibrary')", "can't be loaded: ImportError: no such"),
        ("class Kind:\n    kind = 'x'", "has no meaning"),
        (_KIND.replace('"copy"', '"per"'), "describes its fields wrongly"),
        (_KIND.replace("FieldType.FLAG", "'flag of a kind'"), "describes its fields wrongly"),
        (_KIND.replace('return spec.size("copy")', "raise OSError('no price')"), "can't price it: OSError: no price"),
        (_KIND.replace('return spec.size("copy")', "return 'much'"), "can't price it: ValueError"),
    ],
    ids=["import", "parts", "common key", "field type", "price", "no number"],
)
def test_a_kind_of_others_that_is_broken_is_told(
    problems_of: ProblemsOf, add_kind: Any, source: str, because: str, request: pytest.FixtureRequest
) -> None:
    name = "broken_" + re.sub(r"\W", "_", request.node.callspec.id)
    add_kind(name, source.replace("NAME", name))
    (problem,) = problems_of(ENGINE + f"tenants: {{t: {{kind: {name}, copy: 1}}}}")
    assert because in problem
    assert problem.startswith("c.yaml:2:")


def test_a_fraction_of_a_number_stays_exact(read: Read) -> None:
    assert read(ENGINE + "numbers: {third: 1 / 3, one: third * 3}").numbers == {"third": Fraction(1, 3), "one": 1}


def test_a_config_of_nothing_but_unknown_names_is_told_soon(problems_of: ProblemsOf) -> None:
    unknown = "+".join(f"abcdefgh{number:07}" for number in range(60))
    numbers = "".join(f"  abcdefgh{number}: 1\n" for number in range(200))
    checks = "".join(f"  c{number}: 1 < {unknown}\n" for number in range(500))
    began = time.monotonic()
    problems = problems_of(f"{ENGINE}numbers:\n{numbers}checks:\n{checks}")
    assert time.monotonic() - began < 20
    assert len(problems) == 500 * 3
