"""Tenants whose memory an engine's own code takes, and kinds of tenants that other packages bring."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.cli.ledger_process import MIB, book_files, holding, mappings, with_book
from tests.ledger.tenants.foreign_package import install
from tests.ledger.tenants.test_kinds import PAGES

if TYPE_CHECKING:
    from tests.cli.conftest import Pinprobe

_ASKED_BYTES = 8 * MIB
_EXTERNAL = "kind: external, count: 2, bytes: 4 MiB"

# What engines return: tensors, lists of them, and things that show nothing of themselves.
_ENGINE = """
import ctypes, mmap, os, pathlib, sys

HERE = pathlib.Path(__file__).parent
(HERE / "imported").touch()

def touched(size, kind=mmap.MAP_SHARED):
    (HERE / "called").touch()
    memory = mmap.mmap(-1, size, flags=kind | mmap.MAP_ANONYMOUS)
    for at in range(0, size, mmap.PAGESIZE):
        memory[at] = 1
    return memory

class Tensor:
    def __init__(self, memory):
        self.memory = memory
    def data_ptr(self):
        return ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
    def nbytes(self):
        return len(self.memory)

class Opaque:
    def __init__(self, memory):
        self._hidden = memory

class Pools:
    @staticmethod
    def tensor(size):
        return Tensor(touched(size))

def tensor(size):
    return Tensor(touched(size))

def several(size):
    return {"layers": [touched(size // 4) for _ in range(3)], "last": touched(size // 4)}

def slices_of_one(size):
    memory = memoryview(touched(2 * size))
    return [memory[at : at + size // 8] for at in range(0, 2 * size, size // 4)]

def opaque(size):
    return Opaque(touched(size, mmap.MAP_PRIVATE))

def more(size):
    return touched(2 * size)

def less(size):
    return touched(size // 2)

def nothing(size):
    return None

def says_no(size):
    touched(size)
    raise MemoryError("no room\\nfor it")

def leaves(size):
    sys.exit("bye")

def speaks(size):
    print("taking memory")
    return touched(size)

class Speaking:
    def __init__(self, memory):
        self.memory = memory
    def data_ptr(self):
        return ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
    def nbytes(self):
        return len(self.memory)
    def __del__(self):
        print("giving memory back")

def speaks_last(size):
    return Speaking(touched(size))

def speaks_beneath(size):
    os.write(1, b"as a library of C does\\n")
    return touched(size)

NUMBER = 5
"""


@dataclass(frozen=True)
class Engine:
    """A folder with an engine's module and a config, and the command as it is run in there."""

    folder: Path
    command: Pinprobe

    def config(self, function: str, *, module: str = "my_engine") -> str:
        """Write a config with one tenant of ordinary memory, and one that the engine takes."""
        path = self.folder / "c.yaml"
        path.write_text(
            "engine: {name: mine}\n"
            "tenants:\n"
            "  a.first: {kind: buffer, bytes: 4 MiB, allocator: pageable}\n"
            f"  b.arena: {{callable: '{module}:{function}', {_EXTERNAL}}}\n",
            encoding="utf-8",
        )
        return path.name

    def config_of_all(self, functions: Sequence[str]) -> str:
        """Write a config with a tenant for each function, and one more of memory that is pageable."""
        tenants = [f"a.{function.lower()}: {{callable: 'my_engine:{function}', {_EXTERNAL}}}" for function in functions]
        tenants.append(f"b.pageable: {{callable: 'my_engine:tensor', allocator: pageable, {_EXTERNAL}}}")
        path = self.folder / "all.yaml"
        path.write_text("\n  ".join(["engine: {name: mine}\ntenants:", *tenants]), encoding="utf-8")
        return path.name

    def was(self, done: str) -> bool:
        """Say whether the engine was `imported`, or `called`."""
        return (self.folder / done).exists()


@pytest.fixture
def engine(pinprobe: Pinprobe, tmp_path: Path) -> Engine:
    """The command as it is installed: the folder of a script is looked in, and the current one is not by itself."""
    command = with_book(pinprobe, tmp_path / "book")
    folder, programs = tmp_path / "engine", tmp_path / "bin"
    folder.mkdir()
    programs.mkdir()
    (folder / "my_engine.py").write_text(_ENGINE, encoding="utf-8")
    script = programs / "pinprobe"
    script.write_text("from pinprobe.__main__ import main\nmain()\n", encoding="utf-8")
    # The words are those of `python -m pinprobe ...`.
    line = f'cd {shlex.quote(str(folder))} && python=$1 && shift 3 && exec "$python" {shlex.quote(str(script))} "$@"'
    return Engine(folder, command.under("sh", "-c", line, "sh"))


# -- what is booked


_SHOWN = {
    "tensor": (_ASKED_BYTES, _ASKED_BYTES),
    "Pools.tensor": (_ASKED_BYTES, _ASKED_BYTES),
    "several": (_ASKED_BYTES, _ASKED_BYTES),
    "more": (2 * _ASKED_BYTES, 2 * _ASKED_BYTES),
    # Never below the ask, also where less was taken.
    "less": (_ASKED_BYTES, _ASKED_BYTES // 2),
    # Eight pieces of one mapping keep all of it, and that is counted once.
    "slices_of_one": (2 * _ASKED_BYTES, 2 * _ASKED_BYTES),
}


def test_whatever_an_engine_returns_is_booked_at_what_it_takes(engine: Engine) -> None:
    document = engine.command.json("ledger", engine.config_of_all([*_SHOWN, "opaque", "nothing"]), "-q")
    rows = {row["owner"]: row for row in document["rows"] if row["state"] == "reserved"}
    # What shows its memory, by its mapping.
    for function, (booked, resident) in _SHOWN.items():
        row = rows[f"a.{function.lower()}"]
        assert row["asked_bytes"] == _ASKED_BYTES
        assert (row["booked_bytes"], row["resident"]["bytes"]) == (booked, resident), function
        assert row["evidence"].startswith("mapping; ")
        assert (row["measured"], row["holds"], row["pageable"]) == (True, True, False)
        assert row["detail"] == f"2 x 4,194,304 B by my_engine:{function}"
    # What shows nothing, by the growth of the process.
    opaque, nothing = rows["a.opaque"], rows["a.nothing"]
    assert opaque["booked_bytes"] == pytest.approx(_ASKED_BYTES, abs=MIB)
    assert opaque["booked_bytes"] >= opaque["resident"]["bytes"]
    assert "it shows no address" in opaque["evidence"]
    # And where it did not grow, as asked; how much of that is resident is unknown.
    assert nothing["booked_bytes"] == _ASKED_BYTES
    assert "unreadable" in nothing["resident"]
    assert "unreadable" in nothing["holds"]
    assert rows["b.pageable"]["pageable"] is True
    assert document["sums"]["pageable_bytes"] == _ASKED_BYTES


def test_what_it_returned_is_kept_while_it_is_held_and_the_kernel_sees_it(engine: Engine) -> None:
    with holding(engine.command, engine.config("more"), "--csv") as process:
        sizes = [(found.size_bytes, found.resident_bytes) for found in mappings(process.pid)]
        assert (2 * _ASKED_BYTES, 2 * _ASKED_BYTES) in sizes
        (held,) = engine.command.json("host")["processes"]
        assert {row["owner"]: row["booked_bytes"] for row in held["rows"]} == {
            "a.first": 4 * MIB,
            "b.arena": 2 * _ASKED_BYTES,
        }


def test_its_count_is_scaled_and_it_is_called_once_a_rank(engine: Engine) -> None:
    done = engine.command.json("ledger", engine.config("tensor"), "--scale", "1/2", "--set", "ranks=2", "-q")
    rows = [row for row in done["rows"] if row["owner"] == "b.arena"]
    assert [(row["asked_bytes"], row["resident"]["bytes"]) for row in rows] == [(4 * MIB, 4 * MIB)] * 2
    assert [row["detail"].rpartition(", ")[2] for row in rows] == ["rank 0", "rank 1"]


# -- when it is run, and what it may do


def test_reading_a_config_runs_nothing_of_the_engine_and_booking_it_does(engine: Engine) -> None:
    config = engine.config("tensor")
    for arguments in (("check", config), ("schema",)):
        assert engine.command(*arguments).returncode == 0
        assert not engine.was("imported")
    assert engine.command("ledger", config).returncode == 0
    assert engine.was("called")


def test_what_does_not_fit_is_refused_before_the_engine_is_called(engine: Engine) -> None:
    line = engine.command.refused("ledger", engine.config("tensor"), "--limit", "10MiB", exit_code=1)
    assert "b.arena asks for 8.000 MiB" in line
    assert (engine.was("imported"), engine.was("called")) == (True, False)


def test_a_file_of_the_engines_does_not_stand_before_a_library_of_the_same_name(engine: Engine) -> None:
    # It runs in the engine's folder, where anything may lie.
    for name in ("fractions", "json", "click", "yaml"):
        (engine.folder / f"{name}.py").write_text("raise SystemExit('the wrong one')\n", encoding="utf-8")
    done = engine.command("ledger", engine.config("tensor"))
    assert (done.returncode, done.stderr) == (0, "")


def test_pythonpath_says_where_else_an_engine_is(engine: Engine, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (engine.folder / "my_engine.py").rename(tmp_path / "elsewhere" / "another_engine.py")
    line = engine.command.refused("ledger", engine.config("tensor", module="another_engine"))
    assert "PYTHONPATH names where to look" in line
    found = engine.command.finding_first(tmp_path / "elsewhere")
    assert found("ledger", engine.config("tensor", module="another_engine")).returncode == 0


@pytest.mark.parametrize("function", ["speaks", "speaks_last", "speaks_beneath"])
def test_whatever_an_engine_prints_stdout_is_data(engine: Engine, function: str) -> None:
    done = engine.command("ledger", engine.config(function), "--json")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 1, done.stdout[-200:]
    assert engine.command.parsed(done.stdout)["holds"] is True


# -- what fails


@pytest.mark.parametrize(
    ("function", "because"),
    [
        ("says_no", "my_engine:says_no did not take 8,388,608 B: MemoryError: no room"),
        ("leaves", "my_engine:leaves did not take 8,388,608 B: SystemExit: bye"),
    ],
)
def test_what_the_engine_raises_is_told_in_one_line_with_the_tenants_place(
    engine: Engine, function: str, because: str
) -> None:
    line = engine.command.refused("ledger", engine.config(function), exit_code=3)
    assert line == f"pinprobe: c.yaml:4:3: tenant b.arena: {because}"
    assert book_files(engine.command) == []


@pytest.mark.parametrize(
    ("source", "because"),
    [
        (None, "my_engine can't be imported: ModuleNotFoundError: No module named 'my_engine'"),
        ("raise RuntimeError('no\\nlicence')\n", "my_engine can't be imported: RuntimeError: no"),
        ("take = 5\n", "my_engine:take is no function; it is called with the number of bytes"),
    ],
    ids=["no module", "a module that raises", "a number"],
)
def test_what_is_not_there_is_told_before_anything_is_taken(engine: Engine, source: str | None, because: str) -> None:
    (engine.folder / "my_engine.py").unlink()
    if source is not None:
        (engine.folder / "my_engine.py").write_text(source, encoding="utf-8")
    line = engine.command.refused("ledger", engine.config("take"))
    assert line.startswith(f"pinprobe: c.yaml:4:3: tenant b.arena: {because}")


# -- kinds of other packages


@pytest.fixture
def pages(engine: Engine, tmp_path: Path) -> Engine:
    """The same with a package that brings a kind of its own, and a config of that."""
    return with_kind(engine, tmp_path / "site", PAGES)


def with_kind(engine: Engine, folder: Path, source: str) -> Engine:
    folder.mkdir()
    install(folder, source, {"pinprobe.tenants": {"pages": ":Pages"}})
    (engine.folder / "p.yaml").write_text(
        "engine: {name: mine}\ntenants:\n  a.pool: {kind: pages, pages: 2048}\n", encoding="utf-8"
    )
    return Engine(engine.folder, engine.command.finding_first(folder))


def test_a_kind_of_another_package_is_checked_scaled_booked_and_in_the_schema(pages: Engine) -> None:
    assert pages.command("check", "p.yaml").returncode == 0
    assert "Pages of memory that processes share." in pages.command("schema").stdout
    done = pages.command("ledger", "p.yaml", "--csv", "--scale", "1/2")
    assert done.returncode == 0, done.stderr
    assert "a.pool,reserved,4194304,4194304,4194304,1.000,false,mapping; statm agrees" in done.stdout.splitlines()
    assert "a.pool" in pages.command.refused("ledger", "p.yaml", "--limit", "1MiB", "-q", exit_code=1)


def test_whatever_a_kind_prints_stdout_is_data(engine: Engine, tmp_path: Path) -> None:
    speaking = PAGES.replace("        pass\n", "        print('preparing')\n")
    speaking = speaking.replace("        memory = ", "        print('opening')\n        memory = ")
    done = with_kind(engine, tmp_path / "site", speaking).command("ledger", "p.yaml", "--json")
    assert done.stdout.count("\n") == 1, done.stdout[:200]
    assert engine.command.parsed(done.stdout)["schema"] == "pinprobe.ledger"


def test_without_the_package_its_kind_is_unknown_at_its_place(pages: Engine, engine: Engine) -> None:
    line = engine.command.refused("ledger", "p.yaml")
    assert "p.yaml:3:18: no kind of tenant is called `pages`; known are buffer, external" in line
