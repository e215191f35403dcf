"""The house stays as it was drawn: imports run one way, and each library has its room."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FLOORS = ("probes", "ledger", "cli")

#: Where a library may be imported; elsewhere it may not.
ROOMS = {
    "torch": ("probes/allocators/", "ledger/tenants/", "ledger/replay/"),
    "transformers": ("ledger/tenants/",),
    "click": ("cli/",),
    "rich": ("cli/",),
    "yaml": ("ledger/config/registry.py", "ledger/config/schema.py"),
    "pydantic": ("ledger/config/registry.py", "ledger/config/schema.py"),
    "psutil": ("probes/host_facts.py",),
    "platformdirs": ("probes/cache_folder.py",),
    "pytest": ("cli/pytest_plugin.py",),
    "xxhash": ("ledger/tenants/",),
    "httpx": ("ledger/replay/endpoint.py",),
    "libcachesim": ("ledger/",),
}
#: Libraries that cost too much to load before they are needed: imported inside a function only.
LATE = ("torch", "transformers", "rich", "psutil", "pydantic", "yaml", "xxhash", "httpx", "libcachesim")
NAMES_THAT_SAY_NOTHING = {"utils", "util", "common", "helpers", "manager", "base", "misc"}


def modules() -> list[Path]:
    found = [path for floor in FLOORS for path in sorted((ROOT / floor).rglob("*.py"))]
    assert len(found) > 30
    return found


def dotted(path: Path) -> str:
    return "pinprobe." + ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imports(path: Path, *, top_level_only: bool = False) -> Iterator[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in tree.body if top_level_only else ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            yield node.module or ""


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_run_downwards_and_libraries_keep_to_their_rooms(path: Path) -> None:
    place = str(path.relative_to(ROOT))
    floor = FLOORS.index(path.relative_to(ROOT).parts[0])
    for name in imports(path):
        head, *rest = name.split(".")
        if head == "pinprobe" and rest:
            assert FLOORS.index(rest[0]) <= floor, f"{place} imports {name}, a floor above it"
        if head in ROOMS:
            assert place.startswith(ROOMS[head]), f"{place} imports {head}"
    for name in imports(path, top_level_only=True):
        assert name.split(".")[0] not in LATE, f"{place} imports {name} when it is loaded"


def test_no_import_runs_in_a_circle() -> None:
    graph = {dotted(path): {name for name in imports(path) if name.startswith("pinprobe.")} for path in modules()}
    state: dict[str, str] = {}

    def visit(name: str, way: list[str]) -> None:
        assert state.get(name) != "open", " -> ".join([*way, name])
        if name in graph and name not in state:
            state[name] = "open"
            for other in sorted(graph[name]):
                visit(other, [*way, name])
            state[name] = "done"

    for name in graph:
        visit(name, [])


def test_what_prints_does_not_measure_and_what_measures_does_not_print() -> None:
    for path in (ROOT / "probes").rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        calls = {
            node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        }
        assert "print" not in calls, path
    measuring = ("measuring_child", "measure", "headroom", "counters", "mappings", "walk")
    for name in ("render", "grid", "figures", "staircase", "sweep_table", "trial_table"):
        assert not {imported.split(".")[-1] for imported in imports(ROOT / "cli" / f"{name}.py")} & set(measuring)


def test_no_file_is_named_for_nothing_or_grown_beyond_one_thing() -> None:
    for path in modules():
        assert path.stem not in NAMES_THAT_SAY_NOTHING, path
        assert len(path.read_text(encoding="utf-8").splitlines()) <= 400, f"{path} has become more than one thing"


def test_the_package_links_to_its_three_floors() -> None:
    for floor in (*FLOORS, "configs"):
        link = ROOT / "src" / "pinprobe" / floor
        assert link.is_symlink()
        assert link.readlink() == Path("../..") / floor
